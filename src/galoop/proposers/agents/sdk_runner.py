"""Runs Claude Code through claude-agent-sdk; copied beside the worktree and started there.

Reads the session as JSON from standard input and reports running totals as JSON lines.
"""

import asyncio
import json
import sys
from typing import Any

_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def report(kind: str, **figures: Any) -> None:
    """One line for the trusted side."""
    sys.stdout.write(json.dumps({"type": kind, **figures}) + "\n")
    sys.stdout.flush()


class Totals:
    """Tokens so far; the usage of a message comes with each of its parts and counts once."""

    def __init__(self) -> None:
        self._messages: dict[str, tuple[int, int]] = {}

    def add(self, key: str, usage: dict[str, Any]) -> None:
        """Take the usage of one message."""
        spent = sum(usage.get(name) or 0 for name in _INPUT)
        self._messages[key] = (spent, usage.get("output_tokens") or 0)

    def tell(self) -> None:
        """Report them."""
        spent, made = (sum(pair[i] for pair in self._messages.values()) for i in (0, 1))
        report("usage", input_tokens=spent, output_tokens=made)


async def run(session: dict[str, Any]) -> int:
    """One query; 0 when it ended well."""
    from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, query

    options = ClaudeAgentOptions(
        cwd=session["worktree"],
        allowed_tools=["Bash", "Read", "Edit", "Write", "Glob", "Grep"],
        permission_mode="acceptEdits",
        max_budget_usd=session["max_dollars"],
        model=session["model"] or None,
        setting_sources=[],
    )
    totals = Totals()
    code = 1
    async for message in query(prompt=session["prompt"], options=options):
        if isinstance(message, AssistantMessage) and message.usage:
            totals.add(message.message_id or "", message.usage)
            totals.tell()
        elif isinstance(message, ResultMessage):
            usage = message.usage or {}
            report(
                "usage",
                dollars=message.total_cost_usd,
                input_tokens=sum(usage.get(name) or 0 for name in _INPUT),
                output_tokens=usage.get("output_tokens") or 0,
            )
            if message.is_error or message.subtype != "success":
                report("error", message=f"{message.subtype}: {message.result}")
            else:
                sys.stdout.write(" ".join((message.result or "").split()) + "\n")
                code = 0
    return code


def main() -> int:
    """Run the agent; 0 when it ended well, 1 when it failed."""
    try:
        return asyncio.run(run(json.load(sys.stdin)))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported in one line
        report("error", message=f"{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
