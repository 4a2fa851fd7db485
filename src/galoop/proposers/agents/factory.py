"""The proposer ``agent``: which agent, and in which of the two ways."""

from __future__ import annotations

from galoop.errors import UsageError
from galoop.proposers.agents.adapter import Adapter
from galoop.proposers.protocol import Proposer, Seat

#: The search in which an agent runs its own loop.
LOOP = "agent"


def adapter(name: str) -> Adapter:
    """A coding agent by name."""
    from galoop.proposers.agents.claude_code import ClaudeAgentSdk, ClaudeCode
    from galoop.proposers.agents.codex import Codex
    from galoop.proposers.agents.command import Command
    from galoop.proposers.agents.cursor import Cursor
    from galoop.proposers.agents.mini_swe_agent import MiniSweAgent

    known: tuple[type[Adapter], ...] = (
        ClaudeCode,
        ClaudeAgentSdk,
        Codex,
        Cursor,
        MiniSweAgent,
        Command,
    )
    for one in known:
        if one.name == name:
            return one()
    raise UsageError(f"unknown agent {name!r}", f"there are: {', '.join(a.name for a in known)}")


def agent(seat: Seat) -> Proposer:
    """A coding agent (Claude Code, Codex, Cursor, mini-swe-agent, any command) in a worktree."""
    from galoop.proposers.agents.proposer import AgentLoop, AgentProposer
    from galoop.proposers.agents.sandbox import find_program, may_sandbox

    knobs, isolation = seat.config.agent, seat.config.isolation
    chosen = adapter(knobs.adapter)
    # What cannot work is said before anything is spent.
    find_program(knobs.command, chosen)
    may_sandbox(isolation.tier, isolation.require)
    table = seat.config.discriminator if seat.kind == "probe" else seat.config.generator
    if table.search == LOOP:
        return AgentLoop(seat, chosen)
    return AgentProposer(seat, chosen)
