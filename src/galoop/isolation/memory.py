"""Anonymous files that carry tensors between processes as descriptors.

Inputs are sealed: no process, not even the writer, can change them afterwards. Outputs may be
sealed in size, so that mapping one cannot raise SIGBUS when the other side shrinks it. Where the
system has no memfd (macOS), unlinked temporary files take their place, without seals.
"""

from __future__ import annotations

import mmap
import os
import tempfile

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has neither fcntl nor Unix sockets
    fcntl = None  # type: ignore[assignment]


def _anonymous_file(name: str) -> tuple[int, bool]:
    """A new empty anonymous file, and whether it can be sealed."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), True
    fd, path = tempfile.mkstemp(prefix="galoop-")
    os.unlink(path)  # noqa: PTH108 - mkstemp gives a plain string
    return fd, False


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def memfd_from_bytes(data: bytes | bytearray | memoryview, name: str = "input") -> int:
    """A descriptor of an anonymous file that holds ``data`` and can never be changed.

    Parameters
    ----------
    data : bytes-like
        A C-contiguous buffer.
    name : str
        Shown by the system in listings of open files.

    Returns
    -------
    int
        The descriptor; the caller closes it. The position is 0, but is shared with every process
        the descriptor is sent to: read with :func:`os.pread` or :func:`map_input`.
    """
    fd, sealable = _anonymous_file(name)
    try:
        _write_all(fd, memoryview(data).cast("B"))
        os.lseek(fd, 0, os.SEEK_SET)
        if sealable:
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def new_output_memfd(name: str = "output", size: int | None = None) -> int:
    """A descriptor of an empty anonymous file for a candidate to write into.

    Parameters
    ----------
    name : str
    size : int, optional
        Fix the size to that many zero bytes (sealed against growing and shrinking where the
        system can), so that the trusted side may map it. Without, the file grows up to
        ``Limits.output_bytes``.

    Notes
    -----
    The candidate keeps its descriptor: what it wrote may change while the trusted side looks.
    Copy first (:func:`read_output`), then check.
    """
    fd, sealable = _anonymous_file(name)
    if size is not None:
        os.ftruncate(fd, size)
        if sealable:
            seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def read_output(fd: int, limit: int) -> bytes:
    """A private copy of an output file, of at most ``limit`` bytes.

    Raises
    ------
    ValueError
        If the file is longer than ``limit``.
    """
    size = os.fstat(fd).st_size
    if size > limit:
        raise ValueError(f"an output of {size} bytes; at most {limit} are accepted")
    copy = bytearray(size)
    view, offset = memoryview(copy), 0
    while offset < size:
        count = os.preadv(fd, [view[offset:]], offset) if hasattr(os, "preadv") else 0
        if not hasattr(os, "preadv"):  # pragma: no cover - macOS before 11
            piece = os.pread(fd, size - offset, offset)
            count = len(piece)
            view[offset : offset + count] = piece
        if not count:  # shrunk while being read
            break
        offset += count
    view.release()
    return bytes(copy[:offset]) if offset < size else bytes(copy)


def map_input(fd: int) -> mmap.mmap:
    """Map a file privately: writes go to this process's own copy, never to the file.

    A private mapping also works on kernels before 6.7, which refuse shared ones of sealed files.
    """
    return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
