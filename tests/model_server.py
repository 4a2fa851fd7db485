"""A local OpenAI-compatible server with scripted replies, for tests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the server does with one request.

    Attributes
    ----------
    text : str
    usage : tuple of int or None
        Prompt and completion tokens; None: no usage is reported.
    cost : float or None
        Dollars as some providers report them.
    drop : str
        ``"before"`` or ``"within"`` the body: the connection is cut.
    raw : bytes or None
        A body in place of a proper one.
    """

    text: str = ""
    usage: tuple[int, int] | None = (100, 20)
    status: int = 200
    finish: str = "stop"
    delay: float = 0.0
    cost: float | None = None
    drop: str = ""
    raw: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Asked:
    """One request that came in."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float

    @property
    def prompt(self) -> str:
        return str(self.body["messages"][-1]["content"])


@dataclass
class ModelServer:
    """The server's address, and what it was asked."""

    address: str
    asked: list[Asked] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.asked)


Script = Sequence[Reply] | Callable[[int, Asked], Reply]


@contextmanager
def serving(script: Script) -> Iterator[ModelServer]:
    """Serve the replies in order (the last one for ever), or what a function says."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked = Asked(
                self.path, {k.lower(): v for k, v in self.headers.items()}, body, time.monotonic()
            )
            with lock:
                number = len(server.asked)
                server.asked.append(asked)
            if callable(script):
                reply = script(number, asked)
            else:
                reply = script[min(number, len(script) - 1)]
            time.sleep(reply.delay)
            with suppress(OSError):  # the client may have given up waiting
                self._answer(reply)

        def _answer(self, reply: Reply) -> None:
            if reply.drop == "before":
                self.close_connection = True
                self.connection.close()
                return
            data = reply.raw if reply.raw is not None else _body(reply)
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if reply.drop == "within":
                self.wfile.write(data[: len(data) // 2])
                self.wfile.flush()
                self.close_connection = True
                return
            self.wfile.write(data)

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    server = ModelServer(f"http://127.0.0.1:{httpd.server_address[1]}/v1")
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def _body(reply: Reply) -> bytes:
    if reply.status != 200:
        said = {"message": reply.text or "scripted failure", "type": "error", "code": None}
        return json.dumps({"error": said}).encode()
    data: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "served-model",
        "choices": [
            {
                "index": 0,
                "finish_reason": reply.finish,
                "message": {"role": "assistant", "content": reply.text},
            }
        ],
    }
    if reply.usage is not None:
        spent, made = reply.usage
        data["usage"] = {
            "prompt_tokens": spent,
            "completion_tokens": made,
            "total_tokens": spent + made,
        }
        if reply.cost is not None:
            data["usage"]["cost"] = reply.cost
    return json.dumps(data).encode()
