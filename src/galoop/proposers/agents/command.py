"""Any program that edits a folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from galoop.proposers.agents.adapter import Adapter, Job, Parser, count, money


class CommandParser(Parser):
    """Lines ``{"type": "usage", "input_tokens": …, "output_tokens": …, "dollars": …}``, if any.

    The figures are totals of the session; all are optional. ``{"type": "error", "message": …}``
    reports an error. Every other line is text.
    """

    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        if event["type"] == "usage":
            reading = self.reading
            reading.input_tokens = max(reading.input_tokens, count(event, "input_tokens"))
            reading.output_tokens = max(reading.output_tokens, count(event, "output_tokens"))
            dollars = money(event.get("dollars"))
            if dollars is not None:
                reading.dollars = max(reading.dollars or 0.0, dollars)
        elif event["type"] == "error":
            self.reading.error = str(event["message"])

    def other(self, line: str) -> None:
        """The last line is the last message."""
        self.reading.text = line or self.reading.text


class Command(Adapter):
    """The command of the experiment file, started in the worktree, the prompt on its input."""

    name = "command"

    def argv(self, job: Job) -> list[str]:
        """The command as it stands."""
        return [job.program, *job.arguments]

    def environment(self, job: Job) -> dict[str, str]:
        """Where the task file is, and which model was asked for."""
        return {"GALOOP_TASK": job.task, "GALOOP_MODEL": job.model}

    def parser(self) -> Parser:
        """A fresh reader."""
        return CommandParser()
