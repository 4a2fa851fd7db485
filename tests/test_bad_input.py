"""What people get wrong, through the real command: one clear line and the right exit code."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_domain import World
from galoop.cli.main import run
from galoop.errors import ExitCode
from galoop.store.run import RunStore
from loop_tools import plain_files, small

Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], fast_path: Path, monkeypatch: Any) -> Said:
    """Run a command that must fail with a code; its one line on stderr."""
    monkeypatch.chdir(fast_path)

    def refused(code: ExitCode, *arguments: str, lines: int = 1) -> str:
        capsys.readouterr()
        assert run([*arguments]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        found = captured.err.splitlines()
        assert len(found) == lines, captured.err
        assert all(line.startswith("error: ") for line in found)
        assert "Traceback" not in captured.err
        assert "unexpected" not in captured.err
        return captured.err.strip()

    return refused


def toml(folder: Path, extra: str = "", **changes: Any) -> str:
    """An experiment file on the fake domain, with lines put at its end."""
    path = folder / "experiment.toml"
    path.write_text(small(**changes).to_toml() + extra, encoding="utf-8")
    return str(path)


def only(folder: Path, text: str) -> str:
    path = folder / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


# -- the file ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[discriminator]\nmax_candidate = 3\n",
            ["max_candidate", "did you mean", "max_candidates"],
        ),
        ("[discriminater]\nlength = 128\n", ["discriminater", "discriminator"]),
        ('seed = "three"\n', ["seed", '"three"', "whole number"]),
        ("[criterion]\ntau = '0.3'\n", ["criterion.tau", "0.3"]),
        ("[gate]\nsuites = 'ruler'\n", ["gate.suites"]),
        ("[loop]\nrounds = 1.5\n", ["loop.rounds", "1.5"]),
        ("[criterion]\ntau = 1.0\n", ["criterion.tau", "1.0", "below 1"]),
        ("[artifact]\ncompression_ratio = -0.1\n", ["compression_ratio", "-0.1"]),
        ("[admission]\nalpha = 0.5\n", ["admission.alpha", "0.5"]),
        ("[evaluation]\nrepeats = 0\n", ["evaluation.repeats", "0"]),
        ("[criterion]\ntau = nan\n", ["criterion.tau"]),
        ("[model]\ndtype = 'int8'\n", ["model.dtype", "int8", "bfloat16"]),
        ("name = '../x'\n", ["name"]),
        ("seed = 1\nseed = 2\n", ["not valid TOML"]),
        ("seed = \n", ["not valid TOML", "line 1"]),
    ],
)
@pytest.mark.parametrize("command", ["loop", "discover"])
def test_a_wrong_file(
    said: Said, fast_path: Path, text: str, words: list[str], command: str
) -> None:
    line = said(ExitCode.USAGE, command, only(fast_path, text))
    assert "experiment.toml" in line
    for word in words:
        assert word in line
    assert [p.name for p in fast_path.iterdir()] == ["experiment.toml"], "nothing was made"


def test_a_file_that_is_no_text(said: Said, fast_path: Path) -> None:
    (fast_path / "e.toml").write_bytes(b"\xff\xfe\x00\x01")
    assert "e.toml: cannot be read" in said(ExitCode.USAGE, "loop", "e.toml")
    assert "no such file" in said(ExitCode.USAGE, "loop", "none.toml")
    assert "cannot be read" in said(ExitCode.USAGE, "loop", ".")


# -- names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        (
            "--domain",
            "kv-compresion",
            "unknown domain 'kv-compresion'; did you mean kv-compression?",
        ),
        ("--gate.suites", "rulr", "unknown suite 'rulr'; did you mean ruler?"),
        ("--discriminator.search", "gepaa", "unknown search 'gepaa'; did you mean gepa?"),
        ("--generator.search", "random", "unknown search 'random'"),
        ("--discriminator.proposer", "gramar", "unknown proposer 'gramar'; did you mean grammar?"),
        ("--generator.proposer", "oracle", "unknown proposer 'oracle'"),
        ("--discriminator.seed-probe", "mine.py", 'seed_probe = "mine.py": no such file'),
        ("--isolation.tier", "docker", "docker"),
        ("--model.device", "tpu", "model.device"),
    ],
)
def test_unknown_names(said: Said, flag: str, value: str, words: str) -> None:
    line = said(ExitCode.USAGE, "loop", flag, value)
    assert words in line
    assert flag.strip("-").replace("-", "_") in line.replace("-", "_")


@pytest.mark.parametrize("command", ["loop", "improve"])
def test_an_unknown_component_is_no_longer_ignored(
    said: Said, world: World, fast_path: Path, command: str
) -> None:
    path = toml(fast_path, gate__components=("easy", "medium"), run_dir="run")
    arguments = [command, path]
    if command == "improve":
        assert run(["discover", toml(fast_path, run_dir="d"), "--quiet"]) == 0
        path = toml(fast_path, gate__components=("easy", "medium"), run_dir="run")
        arguments += ["--slice", "d/benchmark/B1"]
    line = said(ExitCode.USAGE, *arguments, "--quiet")
    assert "gate.components: no component 'medium' in fake" in line
    assert not (fast_path / "run").exists(), "found before anything was evaluated"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"discriminator__length": 4096}, "a context of 4096 tokens does not fit the window"),
        ({"gate__length": 4096}, "gate.length = 4096 exceeds the window"),
        ({"gate__length": 40}, "easy cannot be built within 40 tokens"),
        ({"gate__examples": 10}, "gate.examples = 10"),
        ({"gate__delta": 0.0}, "gate.delta = 0 must lie strictly between 0 and 1"),
        ({"generator__examples": 24}, "generator.examples = 24 leaves 0"),
        ({"generator__slice_delta": 0.05}, "generator.slice_delta = 0.05"),
        ({"artifact__start": "compacter"}, "unknown artifact 'compacter'"),
    ],
)
def test_what_could_not_work_is_said_at_once(
    said: Said, world: World, fast_path: Path, changes: dict[str, Any], words: str
) -> None:
    line = said(ExitCode.USAGE, "loop", toml(fast_path, run_dir="run", **changes), "--quiet")
    assert words in line
    assert not world.calls, "before anything was evaluated"


# -- run folders ---------------------------------------------------------------------------


@pytest.fixture
def finished(world: World, fast_path: Path) -> Path:
    path = toml(fast_path, run_dir="run", loop__rounds=1)
    import os

    before = Path.cwd()
    os.chdir(fast_path)
    try:
        assert run(["loop", path, "--quiet"]) == 0
    finally:
        os.chdir(before)
    return fast_path / "run"


def test_a_run_folder_of_another_version(said: Said, finished: Path, fast_path: Path) -> None:
    before = plain_files(finished)
    connection = sqlite3.connect(finished / "run.sqlite")
    connection.execute("PRAGMA user_version=77")
    connection.commit()
    connection.close()
    line = said(ExitCode.INFRASTRUCTURE, "loop", str(fast_path / "experiment.toml"), "--quiet")
    assert "store version 77" in line
    assert "nothing was changed" in line
    assert plain_files(finished) == before


def test_a_run_folder_of_another_experiment(said: Said, finished: Path, fast_path: Path) -> None:
    path = toml(fast_path, run_dir="run", loop__rounds=1, criterion__tau=0.2)
    line = said(ExitCode.INFRASTRUCTURE, "loop", path, "--quiet")
    assert "criterion.tau: 0.25 there, 0.2 now" in line
    with RunStore.open(finished) as store:
        assert store.manifest["criterion.tau"] == 0.25


def test_a_folder_that_is_no_run(said: Said, world: World, fast_path: Path) -> None:
    (fast_path / "home").mkdir()
    (fast_path / "home" / "letter.txt").write_text("dear")
    line = said(ExitCode.INFRASTRUCTURE, "loop", toml(fast_path, run_dir="home"), "--quiet")
    assert "not empty and not a run folder" in line
    assert (fast_path / "home" / "letter.txt").read_text() == "dear"
    (fast_path / "file").write_text("text")
    line = said(ExitCode.INFRASTRUCTURE, "loop", toml(fast_path, run_dir="file"), "--quiet")
    assert "file" in line
    assert said(ExitCode.INFRASTRUCTURE, "show", "nowhere").endswith("no such run folder")


def test_a_slice_that_is_none_or_was_changed(said: Said, finished: Path, fast_path: Path) -> None:
    path = str(fast_path / "experiment.toml")
    (fast_path / "empty").mkdir()
    line = said(ExitCode.INFRASTRUCTURE, "improve", path, "--slice", "empty", "--run-dir", "i")
    assert "not a slice folder" in line
    examples = finished / "benchmark" / "B1" / "examples.jsonl"
    examples.write_text(examples.read_text().replace("yes", "no", 1))
    for arguments in (
        ["improve", path, "--slice", "run/benchmark/B1", "--run-dir", "i"],
        ["discover", path, "--frozen", "run/benchmark/B1", "--run-dir", "j"],
        ["replay", "run/benchmark/B1", "--artifact", "identity"],
    ):
        line = said(ExitCode.INFRASTRUCTURE, *arguments)
        assert "examples.jsonl: was changed after it was frozen" in line
    assert not (fast_path / "i").exists()


# -- the real domain on a random model of 96 positions -------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from model_samples import tiny_folder

    torch.set_num_threads(1)
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def kv(said: Said, tiny: Path) -> Callable[..., str]:
    """The line of `gal loop` on the tiny model with flags that must be refused."""

    def refused(code: ExitCode, *flags: str, command: str = "loop") -> str:
        given = ["--model.name", str(tiny), "--isolation.tier", "plain", "--run-dir", "run"]
        if "--discriminator.length" not in flags:
            given += ["--discriminator.length", "40"]
        return said(code, command, *given, "--quiet", *flags)

    return refused


def test_an_unknown_model(said: Said) -> None:
    line = said(ExitCode.USAGE, "loop", "--model.name", "smollm3", "--quiet")
    assert "smollm3" in line
    assert "smollm2-135m" in line
    line = said(ExitCode.USAGE, "loop", "--model.name", "./no/such/folder", "--quiet")
    assert "no/such/folder" in line


def test_a_folder_that_is_no_model(said: Said, fast_path: Path) -> None:
    (fast_path / "m").mkdir()
    (fast_path / "m" / "config.json").write_text("{")
    line = said(ExitCode.INFRASTRUCTURE, "loop", "--model.name", str(fast_path / "m"), "--quiet")
    assert str(fast_path / "m") in line


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("compacter", "did you mean 'compactor'?"),
        ("NoSuchPress()", "NoSuchPress"),
        ("KnormPress(", "KnormPress("),
        ("__import__('os').system('true')", "press"),
        ("KnormPress(kompression=1)", "kompression"),
    ],
)
def test_an_unknown_artifact_or_press(kv: Said, start: str, words: str) -> None:
    assert words in kv(ExitCode.USAGE, "--artifact.start", start)


def test_an_artifact_folder_that_breaks_its_contract(kv: Said, fast_path: Path) -> None:
    (fast_path / "mine").mkdir()
    line = kv(ExitCode.USAGE, "--artifact.start", str(fast_path / "mine"))
    assert "artifact.toml" in line


def test_a_context_longer_than_the_window(kv: Said, fast_path: Path) -> None:
    line = kv(ExitCode.USAGE, "--discriminator.length", "90", command="discover")
    assert "a context of 90 tokens does not fit" in line
    line = kv(ExitCode.USAGE, "--gate.length", "128")
    assert "gate.length = 128 exceeds the window" in line
    assert "96" in line


def test_a_gate_length_that_is_too_small_for_a_component(kv: Said) -> None:
    line = kv(ExitCode.USAGE, "--gate.length", "64", "--gate.components", "niah_multikey_3")
    assert "niah_multikey_3" in line
    assert "64" in line


def test_an_unknown_component_of_ruler(kv: Said, fast_path: Path) -> None:
    line = kv(ExitCode.USAGE, "--gate.components", "vt,niah_singel_1")
    assert "gate.components: no component 'niah_singel_1' in ruler" in line
    assert "did you mean niah_single_1?" in line
    assert not (fast_path / "run").exists()


def test_required_isolation_that_is_missing(kv: Said) -> None:
    line = kv(ExitCode.INFRASTRUCTURE, "--require-isolation")
    assert "isolation" in line


def test_a_replay_of_what_is_unknown(said: Said, world: World, finished: Path, tiny: Path) -> None:
    line = said(
        ExitCode.USAGE, "replay", str(finished / "benchmark" / "B1"), "--artifact", "compacter",
        "--domain", "kv-compression", "--model", str(tiny), "--quiet",
    )  # fmt: skip
    assert "did you mean 'compactor'?" in line
    line = said(
        ExitCode.USAGE, "replay", str(finished / "benchmark" / "B1"), "--artifact", "identity",
        "--domain", "kv-compression", "--model", "smollm3", "--quiet",
    )  # fmt: skip
    assert "smollm3" in line
    line = said(
        ExitCode.USAGE, "replay", str(finished / "benchmark" / "B1"), "--artifact", "weak",
        "--domain", "fakee", "--quiet",
    )  # fmt: skip
    assert "did you mean fake?" in line
    line = said(
        ExitCode.USAGE, "replay", str(finished / "benchmark" / "B1"), "--artifact", "weak",
        "--bits", "2", "--quiet",
    )  # fmt: skip
    assert "bits is not a budget of the domain fake" in line
    assert "it takes compression_ratio" in line
