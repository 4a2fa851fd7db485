"""The user's cache folder: where it is, one writer at a time, folders that appear whole."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from galoop.errors import ModelError

#: Environment variable that names another cache folder.
VARIABLE = "GALOOP_CACHE"
Progress = Callable[[str], None]


def cache_root(cache_dir: Path | None = None) -> Path:
    """The cache folder: the argument, else ``$GALOOP_CACHE``, else the platform's own."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    if named := os.environ.get(VARIABLE):
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("galoop", appauthor=False)


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def locked(path: Path, progress: Progress | None = None) -> Iterator[None]:
    """Hold an exclusive lock on a file; wait for another holder, and say so.

    The kernel releases the lock when its holder dies, however it dies.

    Raises
    ------
    ModelError
        The cache folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ModelError(
            f"the cache folder {path.parent} cannot be written: {error.strerror}",
            f"set {VARIABLE} to a folder that can",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress is not None:
                progress(f"waiting for another process that is filling {path.stem}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def appearing_whole(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes ``target`` by a rename when the block ends well.

    Leftovers of writers that were killed are removed first, which is safe because the caller
    holds the lock of ``target``.

    Raises
    ------
    ModelError
        The disk is full or the folder cannot be written; what was there before is kept.
    """
    prefix = f".{target.name}.partial-"
    for leftover in target.parent.glob(prefix + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield folder
        _sync(folder)
        folder.chmod(0o755)
        if target.exists():  # left by another version of this package: not complete
            shutil.rmtree(target)
        folder.rename(target)
    except OSError as error:
        raise ModelError(
            f"{target} cannot be written: {error.strerror or error}",
            f"free some space, or set {VARIABLE} to another folder, and run the command again",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Bring a folder's files to the disk, so that the rename does not precede them there."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
