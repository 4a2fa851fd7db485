"""The trusted side: starts warm parents in sandboxes, forks candidates from them, talks to them."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from galoop.errors import IsolationError
from galoop.isolation import bubblewrap, wire
from galoop.isolation.contract import (
    EXIT_COULD_NOT_REPORT,
    MAX_REPLY_BYTES,
    OUTPUT_TAIL_BYTES,
    CandidateCrashed,
    CandidateProtocolError,
    CandidateTimeout,
    Limits,
    Tier,
)
from galoop.isolation.memory import new_output_memfd
from galoop.isolation.output import read_tail, ring_size
from galoop.isolation.view import View, build

logger = logging.getLogger(__name__)

CONTROL_SECONDS = 30.0  # the server answers in milliseconds; this is for a machine that swaps
EXIT_GRACE_SECONDS = 1.0  # between a candidate's end of file and its exit
_CLOSE_SECONDS = 5.0

PLAIN_WARNING = (
    "candidate code runs WITHOUT A SANDBOX on this machine: it can read every file that you can. "
    "Install bubblewrap, or use a Linux kernel with Landlock (5.13 or later); `gal doctor` says "
    "more"
)

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/nonexistent",
    "USER": "galoop",  # getpass.getuser() has no password file to look in
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp",  # made when torch is imported; this one is there already
    "CUDA_VISIBLE_DEVICES": "",  # a forked child cannot use CUDA anyway
}


def _tail_of(stderr: IO[bytes]) -> str:
    size = os.fstat(stderr.fileno()).st_size
    return os.pread(stderr.fileno(), 2000, max(0, size - 2000)).decode("utf-8", "replace").strip()


class _Process:
    """The sandbox's outer process with the three descriptors that keep it alive.

    Separate from :class:`ForkServer` so that the finaliser of the latter can hold it.
    """

    def __init__(self, tier: Tier, view: View) -> None:
        self.control, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in kill()
        fds = [theirs.fileno(), lifeline]
        inner = [sys.executable, "-P", "-m", "galoop.isolation.server", *map(str, fds)]
        try:
            command = bubblewrap.command(view, inner) if tier is Tier.BUBBLEWRAP else inner
            self.popen = subprocess.Popen(
                command,
                env=_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(view.python_path)},
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.stderr,
                start_new_session=True,  # a terminal's interrupt must not reach the sandbox
                cwd="/",
            )
        except OSError as error:
            self.control.close()
            os.close(self._lifeline)
            raise IsolationError(f"the sandbox could not be started: {error}") from error
        finally:
            theirs.close()
            os.close(lifeline)

    def kill(self) -> None:
        """End everything in the sandbox; idempotent."""
        if self.control.fileno() < 0:
            return
        self.control.close()
        os.close(self._lifeline)  # the kernel now kills the server, whatever it is doing
        try:
            self.popen.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
        self.stderr.close()


class ForkServer:
    """A warm parent inside a sandbox that forks one child per candidate.

    Parameters
    ----------
    warm : str
        ``package.module:function``, called once in the sandboxed parent with ``init``. What it
        returns (a loaded model, say) is handed to every child. It must not leave threads running.
    init : mapping
        JSON-compatible.
    tier : Tier, optional
        The strongest that works on this machine by default (:func:`~galoop.isolation.detect`).
    readable : sequence of Path
        Files and folders that the sandbox may read, beyond the interpreter and its packages.
    name : str
        For messages.
    startup_seconds : float
        Limit on loading.
    python_path : sequence of Path
        Further import folders, readable as a whole.

    Raises
    ------
    IsolationError
        If the sandbox does not start, or ``warm`` raises.

    Notes
    -----
    Thread-safe. ``tier`` says what was used and ``taken`` which steps the sandbox took. After an
    :class:`~galoop.errors.IsolationError` the server is closed: start another.
    """

    def __init__(
        self,
        warm: str,
        init: Mapping[str, Any],
        *,
        tier: Tier | None = None,
        readable: Sequence[Path] = (),
        name: str = "",
        startup_seconds: float = 120.0,
        python_path: Sequence[Path] = (),
    ) -> None:
        if tier is None:
            from galoop.isolation.tiers import detect

            tier = detect()
        self.tier = Tier(tier)
        self.name = name or warm
        if self.tier is Tier.PLAIN:
            logger.warning(PLAIN_WARNING)
        view = build(readable, python_path)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._orphans: collections.deque[int] = collections.deque()
        self._process = _Process(self.tier, view)
        self._finalizer = weakref.finalize(self, self._process.kill)
        boot = {
            "warm": warm,
            "init": dict(init),
            "tier": str(self.tier),
            "readable": view.readable,
            "listable": view.listable,
        }
        ready = self._exchange(boot, (), startup_seconds)
        self.taken: tuple[str, ...] = tuple(ready["taken"])
        if ready["threads"] > 1:
            logger.warning(
                "%s left %d threads running; forks of it may hang", self.name, ready["threads"]
            )

    @property
    def alive(self) -> bool:
        """Whether the server can still be used."""
        return self._process.control.fileno() >= 0 and self._process.popen.poll() is None

    def fork(self, serve: str, init: Mapping[str, Any], limits: Limits) -> Child:
        """Start a candidate's process.

        Parameters
        ----------
        serve : str
            ``package.module:function``, called as ``function(state, init, channel)`` in the
            forked, confined child. It iterates over the channel and replies; seeding the global
            random generators is its job.
        init : mapping
            JSON-compatible.
        limits : Limits

        Raises
        ------
        IsolationError
            If the server is gone, or the child could not be confined, or ``serve`` is not there.
        """
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        tail = new_output_memfd("candidate-output", ring_size(OUTPUT_TAIL_BYTES))
        request = {
            "op": "fork",
            "child": number,
            "serve": serve,
            "init": dict(init),
            "limits": asdict(limits),
        }
        try:
            with theirs:
                self._control(request, (theirs.fileno(), tail))
            child = Child(self, number, ours, tail, limits)
        except BaseException:
            ours.close()
            os.close(tail)
            raise
        child._await_ready()
        return child

    def close(self) -> None:
        """End the server and all its children; idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _control(self, request: Mapping[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """One exchange with the server; reaps children that were dropped without close."""
        with self._lock:
            while self._orphans:
                orphan = {"op": "reap", "child": self._orphans.popleft(), "grace": 0.0}
                self._exchange(orphan, (), CONTROL_SECONDS)
            return self._exchange(request, fds, CONTROL_SECONDS)

    def _exchange(
        self, request: Mapping[str, Any], fds: Sequence[int], seconds: float
    ) -> dict[str, Any]:
        control = self._process.control
        if control.fileno() < 0:
            raise IsolationError(f"the sandbox of {self.name} is closed", "start another")
        deadline = time.monotonic() + seconds
        payload = wire.encode(request)
        try:
            wire.send_frame(control, wire.Kind.REQUEST, 0, payload, fds, deadline)
            frame = wire.recv_frame(control, cap=MAX_REPLY_BYTES, deadline=deadline)
            answer = wire.decode(frame.payload)
        except TimeoutError as error:
            raise self._broken(f"did not answer within {seconds:g} s") from error
        except (EOFError, OSError, wire.WireError) as error:
            raise self._broken("ended unexpectedly") from error
        except BaseException:  # an interrupt in the middle of an exchange: the rest is unreadable
            self.close()
            raise
        if "error" in answer:
            raise self._broken(f"failed: {answer['error']}")
        return answer

    def _broken(self, what: str) -> IsolationError:
        """Kill the server and describe its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.popen.wait(0.2)  # let it finish writing its last words
        words = _tail_of(self._process.stderr)
        self.close()
        message = f"the sandbox of {self.name} ({self.tier}) {what}"
        return IsolationError(f"{message}\n{words}" if words else message)

    def _reap(self, number: int, grace: float) -> int | None:
        """End a child and return its exit status, negative for a signal (subprocess style)."""
        answer = self._control({"op": "reap", "child": number, "grace": grace})
        return None if answer.get("killed") else answer["status"]


class Child:
    """One candidate's process. Made by :meth:`ForkServer.fork`."""

    def __init__(
        self, server: ForkServer, number: int, sock: socket.socket, tail: int, limits: Limits
    ) -> None:
        self.limits = limits
        self.taken: tuple[str, ...] = ()
        self._server = server
        self._number = number
        self._sock = sock
        self._seq = 0
        self._ended = ""
        self._tail = tail
        self._finalizer = weakref.finalize(self, _abandon, sock, tail, server._orphans, number)

    def _await_ready(self) -> None:
        """Wait until the child has confined itself; nothing of the candidate runs before."""
        deadline = time.monotonic() + CONTROL_SECONDS
        try:
            frame = wire.recv_frame(self._sock, cap=MAX_REPLY_BYTES, deadline=deadline)
            ready = wire.decode(frame.payload)
        except (EOFError, OSError, wire.WireError) as error:
            status = self._end("it never started", EXIT_GRACE_SECONDS)
            why = _describe_exit(status, self.limits)
            raise IsolationError(f"a child of {self._server.name} did not start: {why}") from error
        if "error" in ready:
            self._end("it never started", 0.0)
            raise IsolationError(
                f"a child of {self._server.name} could not be started: {ready['error']}"
            )
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
        try:
            return self._converse(payload, fds, time.monotonic() + limit)
        except TimeoutError:
            reason = f"no answer within {limit:g} s"
            self._end(reason, 0.0)
            raise CandidateTimeout(reason, self._output()) from None
        except (EOFError, ConnectionError):
            status = self._end("it ended", EXIT_GRACE_SECONDS)
            reason = _describe_exit(status, self.limits)
            raise CandidateCrashed(reason, self._output()) from None
        except wire.WireError as error:
            self._end(str(error), 0.0)
            raise CandidateProtocolError(f"the reply is {error}", self._output()) from None
        except CandidateCrashed as error:
            self._end(error.reason, EXIT_GRACE_SECONDS)
            raise CandidateCrashed(
                error.reason, "\n".join(filter(None, (self._output(), error.output)))
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
            raise CandidateCrashed(reason, trace[-OUTPUT_TAIL_BYTES:])
        if frame.kind != wire.Kind.REPLY or frame.seq != self._seq:
            raise wire.WireError("not an answer to this request")
        return obj

    def _output(self) -> str:
        return self._last_output

    def output(self) -> str:
        """The last few kilobytes that the candidate printed so far."""
        return self._last_output if self._ended else read_tail(self._tail, OUTPUT_TAIL_BYTES)

    def _end(self, reason: str, grace: float) -> int | None:
        """Kill (after ``grace``), reap, keep the printed tail."""
        if self._ended:
            return None
        self._ended = reason or "closed"
        self._last_output = ""
        self._finalizer.detach()
        self._sock.close()
        try:
            return self._server._reap(self._number, grace)
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


def _abandon(sock: socket.socket, tail: int, orphans: collections.deque[int], number: int) -> None:
    """Finaliser of a child that nobody closed: may run inside any other call, so it only notes."""
    sock.close()
    os.close(tail)
    orphans.append(number)


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


@contextlib.contextmanager
def forked(
    server: ForkServer, serve: str, init: Mapping[str, Any], limits: Limits
) -> Iterator[Child]:
    """``with forked(...) as child``: fork, and close whatever happens."""
    with server.fork(serve, init, limits) as child:
        yield child
