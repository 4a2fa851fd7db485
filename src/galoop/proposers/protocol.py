"""The proposer's seat: one small protocol for grammars, language models, agents and people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from galoop.types import Candidate, Feedback, Kind


@dataclass(frozen=True)
class Task:
    """What stays the same over one search: what is to be written, and for what.

    Attributes
    ----------
    kind : {"probe", "artifact"}
    domain : str
    objective, background, contract : str
        Goals, facts and rules, in words. They give no hints of attack strategies.
    length : int
        Probes: the context length in tokens to build for.
    budget : mapping
        Artifacts: the fixed budget (for example ``{"compression_ratio": 0.75}``).
    frozen : tuple of str
        Sources of the probes that are already frozen slices (a new probe should differ).
    """

    kind: Kind
    domain: str
    objective: str
    background: str
    contract: str
    length: int = 0
    budget: Mapping[str, float] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluated:
    """A candidate together with what the harness said of it."""

    candidate: Candidate
    feedback: Feedback


@dataclass(frozen=True)
class Request:
    """One request for one new candidate.

    Attributes
    ----------
    task : Task
    index : int
        0, 1, 2, … within the search.
    parent : Evaluated or None
        What to change; None asks for a candidate from nothing (seedless).
    history : sequence of Evaluated
        Everything evaluated so far in this search, oldest first.
    """

    task: Task
    index: int
    parent: Evaluated | None
    history: Sequence[Evaluated]


@dataclass(frozen=True)
class Cost:
    """What one proposal cost. ``dollars`` is None when unknown."""

    dollars: float | None = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Proposal:
    """A new candidate and what it cost to write."""

    candidate: Candidate
    cost: Cost = field(default_factory=Cost)


@runtime_checkable
class Proposer(Protocol):
    """Writes the next candidate.

    A proposer is created for one search with a seed. ``propose`` must be a deterministic function
    of (seed, sequence of requests so far): a resumed search replays the same requests.
    """

    name: str

    def propose(self, request: Request) -> Proposal:
        """Return a new candidate for ``request``."""
        ...
