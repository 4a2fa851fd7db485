"""The trusted side: starts warm parents in sandboxes and has them fork candidates."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import os
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from galoop.errors import IsolationError
from galoop.isolation import wire
from galoop.isolation.child import Child
from galoop.isolation.contract import MAX_REPLY_BYTES, OUTPUT_TAIL_BYTES, Limits, Tier
from galoop.isolation.memory import new_output_memfd
from galoop.isolation.output import ring_size
from galoop.isolation.process import SandboxProcess
from galoop.isolation.view import build

logger = logging.getLogger(__name__)

CONTROL_SECONDS = 30.0  # the server answers in milliseconds; this is for a machine that swaps

PLAIN_WARNING = (
    "candidate code runs WITHOUT A SANDBOX on this machine: it can read every file that you can. "
    "Install bubblewrap, or use a Linux kernel with Landlock (5.13 or later); `gal doctor` says "
    "more"
)


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
        self._process = SandboxProcess(self.tier, view)
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
        if ready["threads"]:
            logger.warning(
                "%s left threads running, forks of it may hang: %s", self.name, ready["threads"]
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
            child = Child(
                ours,
                tail,
                limits,
                reap=functools.partial(self._reap, number),
                abandon=functools.partial(self._orphans.append, number),
            )
        except BaseException:
            ours.close()
            os.close(tail)
            raise
        child.await_ready(CONTROL_SECONDS)
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
        words = self._process.last_words()
        self.close()
        message = f"the sandbox of {self.name} ({self.tier}) {what}"
        return IsolationError(f"{message}\n{words}" if words else message)

    def _reap(self, number: int, grace: float) -> int | None:
        """End a child and return its exit status, negative for a signal (subprocess style)."""
        answer = self._control({"op": "reap", "child": number, "grace": grace})
        return None if answer.get("killed") else answer["status"]
