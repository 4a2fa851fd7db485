"""Claude Code: ``claude -p --output-format stream-json``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from galoop.proposers.agents.adapter import Adapter, Job, Parser, count, money
from galoop.proposers.agents.script import ScriptAdapter

_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class ClaudeParser(Parser):
    """Events ``system``, ``assistant``, ``user``, ``result``.

    Each content block of a message comes as an event of its own with the message's usage, so that
    usage is counted once an id. The final ``result`` holds the totals and the price.
    """

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[str, tuple[int, int]] = {}

    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        if event["type"] == "assistant":
            self._assistant(event["message"])
        elif event["type"] == "result":
            self._result(event)

    def _assistant(self, message: Mapping[str, Any]) -> None:
        usage = message.get("usage") or {}
        key = str(message.get("id", len(self._messages)))
        old = self._messages.get(key, (0, 0))
        new = (count(usage, *_INPUT), count(usage, "output_tokens"))
        self._messages[key] = (max(old[0], new[0]), max(old[1], new[1]))
        self.reading.input_tokens = sum(i for i, _ in self._messages.values())
        self.reading.output_tokens = sum(o for _, o in self._messages.values())
        texts = [b["text"] for b in message.get("content", ()) if b.get("type") == "text"]
        if texts:
            self.reading.text = texts[-1]

    def _result(self, event: Mapping[str, Any]) -> None:
        self.reading.finished = True
        self.reading.dollars = money(event.get("total_cost_usd"))
        usage = event.get("usage") or {}
        totals = count(usage, *_INPUT), count(usage, "output_tokens")
        self.reading.input_tokens = max(self.reading.input_tokens, totals[0])
        self.reading.output_tokens = max(self.reading.output_tokens, totals[1])
        if event.get("is_error") or event.get("subtype") != "success":
            said = event.get("result") or "; ".join(map(str, event.get("errors") or ()))
            self.reading.error = f"{event.get('subtype')}: {said}"
        elif event.get("result"):
            self.reading.text = str(event["result"])


class ClaudeCode(Adapter):
    """Anthropic's Claude Code in print mode; the prompt comes on standard input."""

    name = "claude-code"
    program = "claude"
    bundled = ("claude_agent_sdk", "_bundled/claude")
    keys = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
    addresses = ("ANTHROPIC_BASE_URL",)
    leavings = frozenset({".claude", ".claude.json"})

    def argv(self, job: Job) -> list[str]:
        """Tools are named one by one: skipping permissions is refused to root, and not needed.

        The minimal mode knows keys only, no subscription; the home is empty in either case.
        """
        command = [job.program, "-p", "--output-format", "stream-json", "--verbose"]
        if os.environ.get("ANTHROPIC_API_KEY"):
            command += ["--bare"]
        command += ["--permission-mode", "acceptEdits"]
        command += ["--allowedTools", "Bash,Read,Edit,Write,Glob,Grep"]
        if job.model:
            command += ["--model", job.model]
        if job.max_dollars is not None:
            command += ["--max-budget-usd", f"{job.max_dollars:.4f}"]
        return [*command, *job.arguments]

    def parser(self) -> Parser:
        """A fresh reader."""
        return ClaudeParser()

    def environment(self, job: Job) -> dict[str, str]:
        """No telemetry and no updates; an evaluation may take longer than a shell call usually."""
        return _environment(job)


class ClaudeAgentSdk(ScriptAdapter):
    """The same program through Anthropic's claude-agent-sdk, which brings it along."""

    name = "claude-agent-sdk"
    keys = ClaudeCode.keys
    addresses = ClaudeCode.addresses
    leavings = ClaudeCode.leavings
    script = "sdk_runner.py"
    files = (script,)

    def environment(self, job: Job) -> dict[str, str]:
        """As for the program."""
        return _environment(job)


def _environment(job: Job) -> dict[str, str]:
    limit = str(int(job.seconds * 1000))
    return {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "BASH_DEFAULT_TIMEOUT_MS": limit,
        "BASH_MAX_TIMEOUT_MS": limit,
    }
