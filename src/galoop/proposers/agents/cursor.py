"""Cursor's command line: ``cursor-agent -p --output-format stream-json``.

Written from its documentation (cursor.com/docs/cli/reference/output-format) and never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from galoop.proposers.agents.adapter import Adapter, Job, Parser


class CursorParser(Parser):
    """Events ``system``, ``user``, ``assistant``, ``tool_call``, ``result``; no usage, no price."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        if event["type"] == "assistant":
            texts = [b["text"] for b in event["message"]["content"] if b.get("type") == "text"]
            if texts:
                self.reading.text = texts[-1]
        elif event["type"] == "result":
            self.reading.finished = True
            if event.get("is_error") or event.get("subtype") != "success":
                self.reading.error = f"{event.get('subtype')}: {event.get('result', '')}"
            else:
                # `result` is every message run together; the last one alone says more.
                self.reading.text = self.reading.text or str(event.get("result", ""))


class Cursor(Adapter):
    """Cursor's agent in print mode; the prompt is its last argument."""

    name = "cursor"
    program = "cursor-agent"
    keys = ("CURSOR_API_KEY",)
    leavings = frozenset({".cursor"})

    def argv(self, job: Job) -> list[str]:
        """``--force`` lets it run commands without asking."""
        command = [job.program, "-p", "--force", "--output-format", "stream-json"]
        if job.model:
            command += ["--model", job.model]
        return [*command, *job.arguments, job.prompt]

    def stdin(self, job: Job) -> bytes:
        """Nothing."""
        return b""

    def parser(self) -> Parser:
        """A fresh reader."""
        return CursorParser()
