"""OpenAI's Codex: ``codex exec --json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from galoop.proposers.agents.adapter import Adapter, Job, Parser, count


class CodexParser(Parser):
    """Events ``thread.started``, ``turn.*``, ``item.*``, ``error``. There are no dollars."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        kind = event["type"]
        if kind in ("turn.completed", "turn.failed"):
            usage = event.get("usage") or {}
            # Cached input is part of the input here.
            self.reading.input_tokens += count(usage, "input_tokens")
            self.reading.output_tokens += count(usage, "output_tokens")
            self.reading.finished = True
        if kind == "turn.failed":
            self.reading.error = str(event["error"]["message"])
        elif kind == "error":
            self.reading.error = str(event["message"])
        elif kind == "turn.completed":
            self.reading.error = ""  # what was reported before was got over
        elif kind == "item.completed" and event["item"].get("type") == "agent_message":
            self.reading.text = str(event["item"]["text"])


class Codex(Adapter):
    """Codex without its user's configuration; the prompt comes on standard input."""

    name = "codex"
    program = "codex"
    bundled = ("codex_cli_bin", "bin/codex")
    keys = ("CODEX_API_KEY", "OPENAI_API_KEY")
    addresses = ("OPENAI_BASE_URL",)
    # Its own sandbox leaves empty folders where it hides what a command must not write.
    leavings = frozenset({".codex", ".agents", ".aws"})

    def argv(self, job: Job) -> list[str]:
        """Inside our sandbox Codex cannot make one of its own, and does not need it.

        Its own lets no command reach a socket, and so not our evaluation, unless it gives the
        network.
        """
        command = [job.program, "exec", "--json", "--ephemeral", "--ignore-user-config"]
        command += ["--skip-git-repo-check", "-C", job.worktree]
        if job.sandboxed:
            command += ["-s", "danger-full-access"]
        else:
            command += [
                "-s",
                "workspace-write",
                "-c",
                "sandbox_workspace_write.network_access=true",
            ]
        if job.model:
            command += ["-m", job.model]
        return [*command, *job.arguments, "-"]

    def parser(self) -> Parser:
        """A fresh reader."""
        return CodexParser()
