"""The trusted end of the evaluation command: a Unix socket that takes requests one by one."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_MAX_REQUEST = 16 * 1024
_MAX_NOTE = 200
#: Calls that wait for an answer at a time; each holds a descriptor of the trusted process.
_MAX_WAITING = 8
_READ_SECONDS = 10.0
_SEND_SECONDS = 10.0


class Call:
    """One request of an agent, to be answered once.

    Attributes
    ----------
    what : {"evaluate", "list"}
    note : str
        What the agent says it changed; for people only.
    suites : bool
        Whether it wants to know about the suites, too.
    """

    def __init__(
        self,
        connection: socket.socket,
        what: str = "",
        note: str = "",
        suites: bool = False,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._done = done
        self.what = what
        self.note = note
        self.suites = suites

    def answer(self, data: Mapping[str, Any]) -> None:
        """Send the answer; an agent that has gone away does not matter."""
        text = json.dumps(data, ensure_ascii=True, default=str).encode("ascii")
        with contextlib.suppress(OSError), self._connection as connection:
            connection.settimeout(_SEND_SECONDS)
            connection.sendall(text)
        self._done()


class EvaluationServer:
    """Listens on a socket in a folder of its own.

    Attributes
    ----------
    folder : Path
        Short, since the path of a socket may have about a hundred bytes only.
    path : Path
        The socket.
    calls : queue.Queue of Call
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="galoop-agent-"))
        self.path = self.folder / "evaluate"
        self.calls: queue.Queue[Call] = queue.Queue()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(self.path))
            self._listener.listen(_MAX_WAITING)
        except OSError:
            self.close()
            raise
        self._waiting = threading.Semaphore(_MAX_WAITING)
        threading.Thread(target=self._accept, name="agent-evaluations", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            if not self._waiting.acquire(blocking=False):
                _refuse(connection, "too many requests at once")
                continue
            threading.Thread(target=self._take, args=(connection,), daemon=True).start()

    def _take(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_READ_SECONDS)
            what, note, suites = _read_request(connection)
        except (OSError, ValueError) as error:
            _refuse(connection, f"not a request: {error}")
            self._waiting.release()
            return
        call = Call(connection, what, note, suites, self._waiting.release)
        if self._listener.fileno() < 0:
            call.answer(over("the session is over"))
        else:
            self.calls.put(call)

    def close(self) -> None:
        """Stop listening, answer what waits, remove the folder; idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        while True:
            try:
                self.calls.get_nowait().answer(over("the session is over"))
            except queue.Empty:
                break
        shutil.rmtree(self.folder, ignore_errors=True)


def over(reason: str) -> dict[str, Any]:
    """The answer when nothing is evaluated."""
    return {"state": "not evaluated", "reason": reason}


def _refuse(connection: socket.socket, reason: str) -> None:
    Call(connection).answer(over(reason))


def _read_request(connection: socket.socket) -> tuple[str, str, bool]:
    data = b""
    while not data.endswith(b"\n"):
        chunk = connection.recv(4096)
        if not chunk:
            break
        data += chunk
        if len(data) > _MAX_REQUEST:
            raise ValueError("too long")
    try:
        request = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(request, dict) or request.get("do") not in ("evaluate", "list"):
        raise ValueError("do what?")
    note = " ".join(str(request.get("note", "")).split())[:_MAX_NOTE]
    return str(request["do"]), note, request.get("suites") is True
