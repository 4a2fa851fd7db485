"""The model APIs of Claude Code and Codex on loopback, with a script in the model's place.

Both agents ask for one step after another: the server answers with the next shell command of the
script as a call of whatever tool runs commands, and with a last message when the script is over.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INPUT_TOKENS, OUTPUT_TOKENS = 100, 10
LAST = "I am done; the score is 1.0."


class FakeApi:
    """What the server saw, and what it answers.

    Attributes
    ----------
    commands : list of str
        Shell commands, in order.
    requests : list
        (path, headers, body) of every request with tools.
    """

    def __init__(self, commands: Sequence[str]) -> None:
        self.commands = list(commands)
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.url = ""

    def command(self, done: int) -> str | None:
        """The command after ``done`` results, or None when the script is over."""
        return self.commands[done] if done < len(self.commands) else None


def anthropic(api: FakeApi, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A streamed answer of ``/v1/messages``."""
    blocks = [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"]]
    done = sum(b.get("type") == "tool_result" for b in blocks)
    command = api.command(done) if body.get("tools") else None
    usage = {"input_tokens": INPUT_TOKENS, "output_tokens": 1}
    message = {"id": f"msg_{len(api.requests)}", "type": "message", "role": "assistant"}
    message |= {"model": body["model"], "content": [], "stop_reason": None, "usage": usage}
    yield {"type": "message_start", "message": message}
    if command is None:
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": LAST}
    else:
        block = {"type": "tool_use", "id": f"toolu_{done}", "name": "Bash", "input": {}}
        said = json.dumps({"command": command, "description": "a step"})
        delta = {"type": "input_json_delta", "partial_json": said}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    reason = {"stop_reason": "end_turn" if command is None else "tool_use"}
    yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": OUTPUT_TOKENS}}
    yield {"type": "message_stop"}


def openai(api: FakeApi, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A streamed answer of ``/v1/responses``."""
    done = sum(str(i.get("type", "")).endswith("_call_output") for i in body["input"])
    command = api.command(done)
    names = [tool.get("name") for tool in body.get("tools", ())]
    item: dict[str, Any]
    if command is None:
        content = [{"type": "output_text", "text": LAST}]
        item = {"type": "message", "role": "assistant", "id": "m", "content": content}
    else:
        name, arguments = "shell", {"command": ["/bin/sh", "-c", command]}
        if "exec_command" in names:
            name, arguments = "exec_command", {"cmd": command, "yield_time_ms": 30000}
        elif "shell_command" in names:
            name, arguments = "shell_command", {"command": command}
        item = {"type": "function_call", "id": f"fc_{done}", "call_id": f"call_{done}"}
        item |= {"name": name, "arguments": json.dumps(arguments)}
    response = {"id": f"resp_{done}", "object": "response", "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": response}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = {"input_tokens": INPUT_TOKENS, "input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens": OUTPUT_TOKENS, "output_tokens_details": {"reasoning_tokens": 0}}
    usage |= {"total_tokens": INPUT_TOKENS + OUTPUT_TOKENS}
    done_response = {**response, "status": "completed", "output": [item], "usage": usage}
    yield {"type": "response.completed", "response": done_response}


def _handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._json({"data": [], "models": []})

        def do_HEAD(self) -> None:
            self._json({})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
            path = self.path.partition("?")[0]
            if path.endswith("/count_tokens"):
                self._json({"input_tokens": INPUT_TOKENS})
                return
            if path.endswith("/messages"):
                events = anthropic(api, body)
            elif path.endswith("/responses"):
                events = openai(api, body)
            else:
                self._json({})
                return
            if body.get("tools"):
                api.requests.append((path, dict(self.headers), body))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for event in events:
                text = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
                self.wfile.write(text.encode())

        def _json(self, data: dict[str, Any]) -> None:
            text = json.dumps(data).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

    return Handler


@contextmanager
def serving(commands: Sequence[str]) -> Iterator[FakeApi]:
    """The server, for as long as the block runs."""
    api = FakeApi(commands)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(api))
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
