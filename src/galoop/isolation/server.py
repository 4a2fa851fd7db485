"""The warm parent: runs inside the sandbox, loads once, forks per candidate.

Started as ``python -m galoop.isolation.server CONTROL LIFELINE`` with two inherited descriptors.
It is a plain loop over requests of the trusted side, single-threaded so that forking is safe, and
disposable: whoever finds it broken kills it and starts another.

Three things end it: the control socket's end of file, the lifeline's (the kernel then sends
SIGKILL, even while ``warm`` runs), and a kill from outside. Its children die with it.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from galoop.isolation import confine, landlock, wire
from galoop.isolation.channel import Channel
from galoop.isolation.contract import (
    EXIT_COULD_NOT_REPORT,
    EXIT_CRASHED,
    OUTPUT_TAIL_BYTES,
    Limits,
    Tier,
)
from galoop.isolation.output import capture_output
from galoop.isolation.view import DEVICES, HARDWARE, PROC_FILES

_REASON_CHARACTERS = 2000
_TRACE_CHARACTERS = 4000


def resolve(name: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` names."""
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    if not callable(function):
        raise TypeError(f"{name} is not callable")
    return function


def _arm_lifeline(fd: int) -> None:
    """Have the kernel kill this process when the trusted side's end of the pipe closes.

    A parent-death signal would do, but follows the parent's thread, not its process.
    """
    if sys.platform != "linux":
        return
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([fd], [], [], 0)[0]:  # closed before the line above
        os._exit(1)


class Server:
    """The loop: fork, reap and kill on command.

    Parameters
    ----------
    control : socket.socket
    statm : int
        Descriptor of this process's memory figures, or -1.
    """

    def __init__(self, control: socket.socket, statm: int) -> None:
        self._control = control
        self._statm = statm
        self._children: dict[int, int] = {}
        self._state: Any = None
        self._tier = Tier.PLAIN

    def boot(self) -> bool:
        """Confine, load what the boot message names, and say so; False if that failed."""
        boot = wire.decode(wire.recv_frame(self._control, cap=wire.MAX_CONTROL_BYTES).payload)
        try:
            self._tier = Tier(boot["tier"])
            taken = self._enter(boot)
            self._state = resolve(boot["warm"])(boot["init"])
            gc.collect()
            gc.freeze()  # collections in the children then copy no pages of the warm state
        except BaseException:  # noqa: BLE001 - reported to the trusted side, whatever it is
            self._answer({"error": traceback.format_exc(limit=-8)[-_TRACE_CHARACTERS:]})
            return False
        self._answer({"ready": True, "taken": taken, "threads": _other_threads()})
        return True

    def _enter(self, boot: dict[str, Any]) -> list[str]:
        if self._tier is not Tier.LANDLOCK:
            return [str(self._tier)]
        confine.forbid_new_privileges()
        version = landlock.restrict_to(
            [*boot["readable"], *HARDWARE, *PROC_FILES], boot["listable"], DEVICES
        )
        return [f"landlock {version}"]

    def _answer(self, obj: dict[str, Any]) -> None:
        wire.send_frame(self._control, wire.Kind.REPLY, 0, wire.encode(obj))

    def run(self) -> None:
        """Serve until the trusted side hangs up; then no child is left."""
        try:
            while True:
                frame = wire.recv_frame(self._control, cap=wire.MAX_CONTROL_BYTES, max_fds=2)
                request = wire.decode(frame.payload)
                if request["op"] == "fork":
                    self._answer(self._fork(request, frame.fds))
                else:
                    self._answer(self._reap(request["child"], request["grace"]))
        except EOFError:
            pass
        finally:
            for child in list(self._children):
                self._reap(child, 0.0)

    def _fork(self, request: dict[str, Any], fds: tuple[int, ...]) -> dict[str, Any]:
        mapped = confine.address_space_bytes(self._statm)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            wire.close_fds(fds)
            return {"error": f"fork: {error}"}
        if pid == 0:
            _run_child(request, fds, self._state, mapped, self._tier, parent)
        wire.close_fds(fds)
        self._children[request["child"]] = pid
        return {"pid": pid}

    def _reap(self, child: int, grace: float) -> dict[str, Any]:
        """Wait ``grace`` seconds for the child to end by itself, then kill it."""
        pid = self._children.pop(child, None)
        if pid is None:
            return {"status": None}
        deadline = time.monotonic() + grace
        pause = 0.0005
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return {"status": os.waitstatus_to_exitcode(status)}
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
        for kill in (os.killpg, os.kill):  # the group exists once the child has detached
            try:
                kill(pid, signal.SIGKILL)
            except OSError:
                continue
        _done, status = os.waitpid(pid, 0)
        return {"status": os.waitstatus_to_exitcode(status), "killed": True}


def _other_threads() -> list[str]:
    """Names of the Python threads beside this one. (Native pools bring their own fork handlers.)"""
    main = threading.main_thread()
    return [thread.name for thread in threading.enumerate() if thread is not main]


def _run_child(
    request: dict[str, Any],
    fds: tuple[int, ...],
    state: Any,
    mapped: int,
    tier: Tier,
    parent: int,
) -> NoReturn:
    """The forked candidate: confine, report, serve. Never returns into the server's loop."""
    code = EXIT_COULD_NOT_REPORT
    try:
        code = _serve(request, fds, state, mapped, tier, parent)
    finally:
        os._exit(code)


def _serve(
    request: dict[str, Any],
    fds: tuple[int, ...],
    state: Any,
    mapped: int,
    tier: Tier,
    parent: int,
) -> int:
    channel_fd, tail_fd = fds
    sock = socket.socket(fileno=channel_fd)
    try:
        confine.detach(parent)
        confine.silence_descriptors([channel_fd, tail_fd])
        capture_output(tail_fd, OUTPUT_TAIL_BYTES)
        serve = resolve(request["serve"])  # galoop's own code: a fault here is not the candidate's
        taken = confine.confine(Limits(**request["limits"]), mapped, tier)
    except BaseException:  # noqa: BLE001 - reported to the trusted side, whatever it is
        payload = wire.encode({"error": traceback.format_exc(limit=-8)[-_TRACE_CHARACTERS:]})
        wire.send_frame(sock, wire.Kind.READY, 0, payload)
        return EXIT_CRASHED
    wire.send_frame(sock, wire.Kind.READY, 0, wire.encode({"taken": taken}))
    try:
        serve(state, request["init"], Channel(sock))
    except BaseException as error:  # noqa: BLE001 - SystemExit and MemoryError are reasons too
        words = str(error)[:_REASON_CHARACTERS]
        reason = f"{type(error).__name__}: {words}" if words else type(error).__name__
        trace = traceback.format_exc(limit=-8)[-OUTPUT_TAIL_BYTES:]
        wire.send_frame(sock, wire.Kind.CRASH, 0, wire.encode({"reason": reason, "trace": trace}))
        return EXIT_CRASHED
    return 0


def main(arguments: list[str]) -> int:
    """Entry point."""
    control_fd, lifeline_fd = (int(argument) for argument in arguments)
    _arm_lifeline(lifeline_fd)
    confine.forbid_inspection()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the trusted side's to handle
    # Packages ask for a temporary folder when imported, and fail where none is writable. Naming one
    # answers them; writing to it still fails.
    tempfile.tempdir = "/tmp"
    server = Server(socket.socket(fileno=control_fd), confine.open_statm())
    if not server.boot():
        return EXIT_CRASHED
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
