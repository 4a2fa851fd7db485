"""The trusted side's view of one candidate process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from galoop.errors import IsolationError
from galoop.isolation import wire
from galoop.isolation.contract import (
    EXIT_COULD_NOT_REPORT,
    MAX_REPLY_BYTES,
    OUTPUT_TAIL_BYTES,
    CandidateCrashed,
    CandidateProtocolError,
    CandidateTimeout,
    Limits,
)
from galoop.isolation.output import read_tail

EXIT_GRACE_SECONDS = 1.0  # between a candidate's end of file and its exit


class Child:
    """One candidate's process, made by :meth:`~galoop.isolation.ForkServer.fork`.

    For one thread at a time.

    Attributes
    ----------
    limits : Limits
    taken : tuple of str
        The steps that the process took to confine itself.
    """

    def __init__(
        self,
        sock: socket.socket,
        tail: int,
        limits: Limits,
        reap: Callable[[float], int | None],
        abandon: Callable[[], None],
    ) -> None:
        self.limits = limits
        self.taken: tuple[str, ...] = ()
        self._sock = sock
        self._tail = tail
        self._reap = reap
        self._seq = 0
        self._ended = ""
        self._last_output = ""
        self._finalizer = weakref.finalize(self, _drop, sock, tail, abandon)

    def await_ready(self, seconds: float) -> None:
        """Wait until the child has confined itself; nothing of the candidate runs before.

        Raises
        ------
        IsolationError
            If it could not, or not within ``seconds``.
        """
        try:
            deadline = time.monotonic() + seconds
            frame = wire.recv_frame(self._sock, cap=MAX_REPLY_BYTES, deadline=deadline)
            ready = wire.decode(frame.payload)
        except (EOFError, OSError, wire.WireError) as error:
            status = self._end("it never started", EXIT_GRACE_SECONDS)
            why = _describe_exit(status, self.limits)
            raise IsolationError(f"a candidate's process did not start: {why}") from error
        if "error" in ready:
            self._end("it never started", 0.0)
            raise IsolationError(f"a candidate's process could not be started: {ready['error']}")
        self.taken = tuple(ready["taken"])

    def call(
        self,
        request: Mapping[str, Any],
        fds: Sequence[int] = (),
        *,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Send one request and wait for its reply.

        Parameters
        ----------
        request : mapping
            JSON-compatible (no NaN).
        fds : sequence of int
            Descriptors to pass along, at most 253; they stay the caller's to close.
        seconds : float, optional
            Wall-clock limit on this call; ``limits.seconds`` by default.

        Returns
        -------
        dict
            The candidate's word: check it before use.

        Raises
        ------
        CandidateTimeout, CandidateCrashed, CandidateProtocolError
            The child is gone afterwards.
        IsolationError
            If the server died.
        """
        if self._ended:
            raise CandidateCrashed(f"the candidate's process has ended already: {self._ended}")
        limit = self.limits.seconds if seconds is None else seconds
        self._seq += 1
        payload = wire.encode({"request": dict(request), "seconds": limit})
        if len(payload) > wire.MAX_CONTROL_BYTES:
            raise ValueError(f"a request of {len(payload)} bytes; send large data as descriptors")
        try:
            return self._converse(payload, fds, time.monotonic() + limit)
        except TimeoutError:
            reason = f"no answer within {limit:g} s"
            self._end(reason, 0.0)
            raise CandidateTimeout(reason, self.output()) from None
        except (EOFError, ConnectionError):
            status = self._end("it ended", EXIT_GRACE_SECONDS)
            reason = _describe_exit(status, self.limits)
            raise CandidateCrashed(reason, self.output()) from None
        except wire.WireError as error:
            self._end(str(error), 0.0)
            raise CandidateProtocolError(f"the reply is {error}", self.output()) from None
        except CandidateCrashed as error:
            self._end(error.reason, EXIT_GRACE_SECONDS)
            raise CandidateCrashed(
                error.reason, "\n".join(filter(None, (self.output(), error.output)))
            ) from None
        except BaseException:
            self.close()
            raise

    def _converse(self, payload: bytes, fds: Sequence[int], deadline: float) -> dict[str, Any]:
        with contextlib.suppress(ConnectionError):  # its last words may still be there to read
            wire.send_frame(self._sock, wire.Kind.REQUEST, self._seq, payload, fds, deadline)
        frame = wire.recv_frame(self._sock, cap=MAX_REPLY_BYTES, deadline=deadline)
        obj = wire.decode(frame.payload)
        if frame.kind == wire.Kind.CRASH:
            reason, trace = str(obj.get("reason", ""))[:2000], str(obj.get("trace", ""))
            if reason == "MemoryError":
                reason += f" (the limit is {self.limits.memory_mb} MiB)"
            raise CandidateCrashed(reason, trace[-OUTPUT_TAIL_BYTES:])
        if frame.kind != wire.Kind.REPLY or frame.seq != self._seq:
            raise wire.WireError("not an answer to this request")
        return obj

    def output(self) -> str:
        """The last few kilobytes that the candidate printed so far."""
        return self._last_output if self._ended else read_tail(self._tail, OUTPUT_TAIL_BYTES)

    def _end(self, reason: str, grace: float) -> int | None:
        """Kill (after ``grace``), reap, keep the printed tail."""
        if self._ended:
            return None
        self._ended = reason or "closed"
        self._finalizer.detach()
        self._sock.close()
        try:
            return self._reap(grace)
        finally:
            self._last_output = read_tail(self._tail, OUTPUT_TAIL_BYTES)
            os.close(self._tail)

    def close(self) -> None:
        """End the process; idempotent, and silent when the server is gone already."""
        with contextlib.suppress(IsolationError):
            self._end("closed", 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _drop(sock: socket.socket, tail: int, abandon: Callable[[], None]) -> None:
    """Finaliser of a child that nobody closed: may run inside any other call, so it only notes."""
    sock.close()
    os.close(tail)
    abandon()


def _describe_exit(status: int | None, limits: Limits) -> str:
    """A candidate's end in words."""
    if status is None:
        return "it closed its connection without an answer"
    if status == EXIT_COULD_NOT_REPORT:
        return f"it ended without being able to say why (memory limit {limits.memory_mb} MiB?)"
    if status >= 0:
        return f"its process ended with exit code {status} before it answered"
    number = -status
    try:
        label = signal.Signals(number).name
    except ValueError:
        label = "unknown"
    hints = {
        "SIGKILL": "out of memory?",
        "SIGSEGV": f"a crash in native code, or the memory limit of {limits.memory_mb} MiB?",
        "SIGABRT": f"a crash in native code, or the memory limit of {limits.memory_mb} MiB?",
        "SIGXCPU": "its processor time ran out",
    }
    hint = hints.get(label, "")
    return f"killed by signal {number} ({label}{': ' + hint if hint else ''})"
