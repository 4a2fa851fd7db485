"""Files that are either whole or absent: atomic text files and content-addressed objects."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from galoop.errors import StoreError

SCRATCH = ".tmp"
OBJECTS = "objects"
_HASH = re.compile(r"[0-9a-f]{64}")
_KEPT = "what was recorded before is kept"


@contextlib.contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """Turn an ``OSError`` into a :class:`StoreError` that says what is kept and what to do."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise StoreError(f"cannot {action}: {why}; {_KEPT}", remedy(error.errno)) from error


def remedy(number: int | None) -> str:
    """What to do about an error of the operating system."""
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free space on that disk and run the same command again"
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "make the run folder writable, or choose another one"
    return "correct the cause and run the same command again"


class Files:
    """The plain files of a run folder.

    A file is written under a scratch folder of the same disk, flushed to the disk, and renamed
    into place: a reader, or the next start after a kill, sees the old text or the new one.

    Parameters
    ----------
    root : Path
        The run folder.
    reserved : frozenset of str
        Names at its top that :meth:`write_text` may not touch.
    """

    def __init__(self, root: Path, reserved: frozenset[str]) -> None:
        self._root = root
        self._reserved = reserved | {SCRATCH, OBJECTS}
        self._numbers = itertools.count(1)  # its next() is atomic among threads

    def clear_scratch(self) -> None:
        """Remove what a killed process left half-written; only the folder's writer may."""
        scratch = self._root / SCRATCH
        if scratch.is_dir() and not scratch.is_symlink():
            with disk_errors(f"clear {scratch}"):
                for path in scratch.iterdir():
                    path.unlink()
                scratch.rmdir()

    def write(self, path: Path, data: bytes) -> None:
        """Write ``data`` to the absolute ``path``, wholly or not at all."""
        with disk_errors(f"write {path}"):
            if not path.is_symlink() and path.is_file() and path.read_bytes() == data:
                return
            scratch = self._root / SCRATCH
            scratch.mkdir(exist_ok=True)
            temporary = scratch / f"{next(self._numbers)}"
            try:
                with open(temporary, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                _make_folder(path.parent)
                temporary.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
            _sync_folder(path.parent)

    def write_text(self, relative: str, text: str) -> Path:
        """Write a UTF-8 text file below the run folder; line ends are kept as given."""
        path = self.resolve(relative)
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise StoreError(f"cannot write {path}: {error.reason}", "write valid text") from error
        self.write(path, data)
        return path

    def read_text(self, relative: str) -> str:
        """Read a file that :meth:`write_text` wrote."""
        path = self.resolve(relative)
        with disk_errors(f"read {path}"):
            return path.read_bytes().decode("utf-8")

    def resolve(self, relative: str) -> Path:
        """The absolute path of a name below the run folder.

        Names may come from candidates: what leads out of the folder, or into the store's own
        files, is refused.
        """
        pure = PurePosixPath(relative)
        parts = pure.parts
        if (
            not parts
            or pure.is_absolute()
            or ".." in parts
            or "\0" in relative
            or parts[0] in self._reserved
        ):
            raise StoreError(
                f"file name {relative!r} is not one inside the run folder {self._root}",
                "use a relative name without '..' that is not one of the store's own",
            )
        path = self._root.joinpath(*parts)
        if not path.parent.resolve().is_relative_to(self._root.resolve()):
            raise StoreError(
                f"{path} leads out of the run folder through a link", "remove the link"
            )
        return path

    def put_object(self, data: bytes) -> str:
        """Keep ``data`` under its SHA-256, which is returned; twice the same data is one file."""
        digest = hashlib.sha256(data).hexdigest()
        self.write(self._object_path(digest), data)
        return digest

    def get_object(self, digest: str) -> bytes:
        """The bytes of an object, checked against its name."""
        path = self._object_path(digest)
        with disk_errors(f"read object {path}"):
            data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreError(
                f"object {path} is damaged", "remove it and run the same command again"
            )
        return data

    def has_object(self, digest: str) -> bool:
        """Whether an object of that hash is kept."""
        return self._object_path(digest).is_file()

    def _object_path(self, digest: str) -> Path:
        if not _HASH.fullmatch(digest):
            raise StoreError(f"{digest!r} is not a SHA-256 in lower-case hex")
        return self._root / OBJECTS / digest[:2] / digest[2:]


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents so that they, too, survive a power cut."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
