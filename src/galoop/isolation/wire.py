"""Frames over a Unix stream socket: a fixed header, JSON, and descriptors beside the header.

The reader trusts nothing: it checks the magic, caps the length before it allocates, and takes
descriptors only where it asked for them (the kernel discards what is not asked for).
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

MAGIC = b"GALP"
HEADER = struct.Struct("!4sBII")  # magic, kind, sequence number, payload length
MAX_FDS = 253  # SCM_MAX_FD of Linux
MAX_CONTROL_BYTES = 256 * 2**20  # requests come from the trusted side only


class Kind(IntEnum):
    """What a frame carries."""

    READY = 1
    REQUEST = 2
    REPLY = 3
    CRASH = 4


class WireError(Exception):
    """The peer sent something that is not a frame."""


@dataclass(frozen=True)
class Frame:
    """One frame as received; ``fds`` belong to the receiver."""

    kind: int
    seq: int
    payload: bytes
    fds: tuple[int, ...] = ()


def encode(obj: Mapping[str, Any]) -> bytes:
    """JSON as UTF-8.

    Raises
    ------
    ValueError, TypeError
        If the object holds something that JSON cannot (NaN and infinity included).
    """
    return json.dumps(obj, allow_nan=False, separators=(",", ":")).encode()


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def decode(payload: bytes) -> dict[str, Any]:
    """The JSON object in a payload.

    Raises
    ------
    WireError
        If the payload is not UTF-8 JSON, or not an object, or nested too deeply to parse.
    """
    try:
        obj = json.loads(payload.decode(), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not valid JSON: {error}") from error
    if not isinstance(obj, dict):
        raise WireError(f"a JSON object was expected, not {type(obj).__name__}")
    return obj


def _arm(sock: socket.socket, deadline: float | None) -> None:
    if deadline is None:
        sock.settimeout(None)
        return
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("deadline passed")
    sock.settimeout(remaining)


def send_frame(
    sock: socket.socket,
    kind: Kind,
    seq: int,
    payload: bytes,
    fds: Sequence[int] = (),
    deadline: float | None = None,
) -> None:
    """Send one frame; ``deadline`` is on :func:`time.monotonic`.

    Raises
    ------
    TimeoutError
        If the peer does not read in time.
    OSError
        If the peer is gone.
    """
    if len(fds) > MAX_FDS:
        raise ValueError(f"{len(fds)} descriptors in one message; at most {MAX_FDS} fit")
    header = HEADER.pack(MAGIC, kind, seq, len(payload))
    _arm(sock, deadline)
    sent = socket.send_fds(sock, [header], list(fds)) if fds else sock.send(header)
    if sent < len(header):
        sock.sendall(header[sent:])
    _arm(sock, deadline)
    sock.sendall(payload)


def _recv_exactly(sock: socket.socket, size: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        _arm(sock, deadline)
        piece = sock.recv(min(size - len(parts), 2**20))
        if not piece:
            raise EOFError("the peer closed the connection")
        parts += piece
    return bytes(parts)


def recv_frame(
    sock: socket.socket, *, cap: int, max_fds: int = 0, deadline: float | None = None
) -> Frame:
    """Receive one frame of at most ``cap`` payload bytes and ``max_fds`` descriptors.

    Raises
    ------
    EOFError
        If the peer is gone.
    TimeoutError
        If the deadline passes.
    WireError
        If the bytes are not a frame, or announce more than ``cap``.
    """
    fds: list[int] = []
    try:
        _arm(sock, deadline)
        if max_fds:
            head, fds, _flags, _address = socket.recv_fds(sock, HEADER.size, max_fds)
        else:
            head = sock.recv(HEADER.size)
        if not head:
            raise EOFError("the peer closed the connection")
        head += _recv_exactly(sock, HEADER.size - len(head), deadline)
        magic, kind, seq, length = HEADER.unpack(head)
        if magic != MAGIC:
            raise WireError(f"bytes that are not a message: {head[:8]!r}…")
        if length > cap:
            raise WireError(f"a message of {length} bytes; at most {cap} are accepted")
        payload = _recv_exactly(sock, length, deadline)
    except ConnectionError as error:
        close_fds(fds)
        raise EOFError(str(error)) from error
    except BaseException:
        close_fds(fds)
        raise
    return Frame(kind, seq, payload, tuple(fds))


def close_fds(fds: Sequence[int]) -> None:
    """Close descriptors, ignoring those that are closed already."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            continue
