"""Agents that are Python packages: a script of ours runs them in the sandbox."""

from __future__ import annotations

import json
import sys
from typing import ClassVar

from galoop.proposers.agents.adapter import Adapter, Job, Parser
from galoop.proposers.agents.command import CommandParser


class ScriptAdapter(Adapter):
    """Starts a script of this folder, which lies among the agent's tools, with the session as JSON.

    Attributes
    ----------
    script : str
        Name of the script; it reports as a ``command`` does.
    """

    program = sys.executable
    script: ClassVar[str] = ""

    def argv(self, job: Job) -> list[str]:
        """The script, with what it needs to know as JSON on its input."""
        return [job.program, f"{job.tools}/{self.script}", *job.arguments]

    def stdin(self, job: Job) -> bytes:
        """The session as JSON."""
        data = {
            "prompt": job.prompt,
            "model": job.model,
            "worktree": job.worktree,
            "seconds": job.seconds,
            "max_dollars": job.max_dollars,
        }
        return json.dumps(data).encode("utf-8")

    def parser(self) -> Parser:
        """A fresh reader of what the script reports."""
        return CommandParser()
