"""One protocol for search engines: GEPA, OpenEvolve, an agent's own loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from galoop.proposers.protocol import Evaluated, Proposer, Task
from galoop.types import Candidate, Feedback


class StopSearch(Exception):
    """Raised by ``evaluate`` or ``propose`` to end the search now; what was found is kept."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class Problem:
    """What an engine is given. It must not know more than this.

    Attributes
    ----------
    task : Task
    proposer : Proposer
    evaluate : callable
        Candidate -> Feedback. Evaluating a candidate again is free and gives the same answer; it
        raises :class:`StopSearch` when the search is over.
    objectives : sequence of str
        The Pareto axes; present in every feedback.
    seed : int
    start : sequence of Candidate
        Candidates to begin with; empty is a seedless search.
    fresh : int
        Candidates that are asked for from nothing before any is mutated, so that the search does
        not start from one idea alone.
    suites : callable or None
        Candidate -> loss by component of the regression suites, for a search that wants to know
        (an agent may ask); None where there are none.
    """

    task: Task
    proposer: Proposer
    evaluate: Callable[[Candidate], Feedback]
    objectives: Sequence[str]
    seed: int
    start: Sequence[Candidate] = ()
    fresh: int = 0
    suites: Callable[[Candidate], Mapping[str, float]] | None = None


class Search(Protocol):
    """A search engine. Its own caches, budgets and resume are not relied upon.

    It may also have an attribute ``refined``, a sequence of
    :class:`~galoop.proposers.protocol.Evaluated`: several different candidates, the best first,
    that it ends with (see :func:`refined`); and a class method ``configured``, which is given the
    experiment and returns a search with its settings (see :func:`galoop.search.factory.make`).
    """

    name: str

    def run(self, problem: Problem) -> str:
        """Search until ``evaluate`` raises :class:`StopSearch`; returns its reason."""
        ...


def refined(search: Search) -> tuple[Evaluated, ...]:
    """The different candidates that a search ended with; empty where an engine names none."""
    return tuple(getattr(search, "refined", ()))
