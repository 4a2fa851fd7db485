"""The candidate's end of the connection: requests in, replies out."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from galoop.isolation import wire
from galoop.isolation.contract import MAX_REPLY_BYTES

CPU_SLACK_SECONDS = 5


class Channel:
    """What a serve function talks to: ``for request, fds in channel: ... channel.reply({...})``.

    Parameters
    ----------
    sock : socket.socket
        The child's end of a stream socket pair.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._seq = 0
        self._open_fds: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Yield (request, descriptors) until the trusted side hangs up.

        The descriptors are closed when the next request is asked for; mappings made of them stay.
        """
        while True:
            wire.close_fds(self._open_fds)
            self._open_fds = ()
            try:
                frame = wire.recv_frame(
                    self._sock, cap=wire.MAX_CONTROL_BYTES, max_fds=wire.MAX_FDS
                )
            except EOFError:
                return
            self._open_fds = frame.fds
            self._seq = frame.seq
            envelope = wire.decode(frame.payload)
            _allow_cpu_seconds(envelope["seconds"])
            yield envelope["request"], list(frame.fds)

    def reply(self, obj: Mapping[str, Any]) -> None:
        """Answer the current request.

        Raises
        ------
        ValueError, TypeError
            If the object is not JSON (NaN included) or longer than the trusted side reads.
        """
        payload = wire.encode(obj)
        if len(payload) > MAX_REPLY_BYTES:
            raise ValueError(
                f"a reply of {len(payload)} bytes; at most {MAX_REPLY_BYTES} are accepted"
            )
        wire.send_frame(self._sock, wire.Kind.REPLY, self._seq, payload)


def _allow_cpu_seconds(seconds: float) -> None:
    """Move the soft CPU limit so that this request may use its share.

    Only a backstop for the case that the trusted side is stopped: the deadline that counts is
    kept there.
    """
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    budget = math.ceil(used + seconds * (os.cpu_count() or 1)) + CPU_SLACK_SECONDS
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or budget <= hard:
        resource.setrlimit(resource.RLIMIT_CPU, (budget, hard))
