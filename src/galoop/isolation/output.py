"""The last few kilobytes of what a candidate prints, in memory shared with the trusted side.

The ring lives in an anonymous file of fixed size that both sides hold: printing costs no system
call and cannot block, and the tail is still there when the candidate was killed.

Layout: 8 bytes little-endian count of bytes ever written, then the ring.
"""

from __future__ import annotations

import io
import mmap
import os
import struct
import sys
from typing import Any

_COUNT = struct.Struct("<Q")


def ring_size(capacity: int) -> int:
    """Bytes of the file that holds a ring of ``capacity``."""
    return _COUNT.size + capacity


class _RingBytes(io.RawIOBase):
    """The binary face of the ring (``sys.stdout.buffer``)."""

    def __init__(self, shared: mmap.mmap, capacity: int) -> None:
        super().__init__()
        self._shared = shared
        self._capacity = capacity
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        length = len(view)
        kept = bytes(view[-self._capacity :]) if length > self._capacity else bytes(view)
        start = (self._written + length - len(kept)) % self._capacity
        first = kept[: self._capacity - start]
        base = _COUNT.size
        self._shared[base + start : base + start + len(first)] = first
        rest = kept[len(first) :]
        self._shared[base : base + len(rest)] = rest
        self._written += length
        self._shared[:base] = _COUNT.pack(self._written)
        return length


class _RingText(io.TextIOBase):
    """The text face: only the end of a long string is ever encoded."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, raw: _RingBytes, capacity: int) -> None:
        super().__init__()
        self.buffer = raw
        self._capacity = capacity

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.buffer.write(text[-self._capacity :].encode("utf-8", "replace"))
        return len(text)


def capture_output(fd: int, capacity: int) -> None:
    """Send this process's ``sys.stdout`` and ``sys.stderr`` into the ring in file ``fd``."""
    shared = mmap.mmap(fd, ring_size(capacity))
    os.close(fd)
    text = _RingText(_RingBytes(shared, capacity), capacity)
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = text  # type: ignore[misc,assignment]
    sys.stdin = open(os.devnull)  # noqa: SIM115 - lives as long as the process


def read_tail(fd: int, capacity: int) -> str:
    """The tail as printable text; what stands in the ring is the candidate's word, not ours."""
    data = os.pread(fd, ring_size(capacity), 0)
    if len(data) < ring_size(capacity):
        return ""
    (written,) = _COUNT.unpack(data[: _COUNT.size])
    ring = data[_COUNT.size :]
    split = written % capacity
    tail = ring[:written] if written <= capacity else ring[split:] + ring[:split]
    text = tail.decode("utf-8", "replace")
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
