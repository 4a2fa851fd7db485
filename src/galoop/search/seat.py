"""Our side of every search engine: who was asked, what was evaluated, and what is known."""

from __future__ import annotations

import random
from collections.abc import Sequence

from galoop.hashing import derive_seed
from galoop.proposers.protocol import Evaluated, Request
from galoop.search.protocol import Problem, StopSearch
from galoop.types import Candidate, State

#: Programs in a row that were all evaluated before, after which a proposer has nothing new to say.
_REPEATS = 50


class EngineSeat:
    """Proposals and evaluations of one search, in order, with everything that is known.

    An engine decides which candidate is changed and which is kept; this class asks the proposer
    and the evaluation for it, so that the record is ours whatever the engine believes.

    Parameters
    ----------
    problem : Problem
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._history: list[Evaluated] = []
        self._known: dict[str, Evaluated] = {}
        self._index = 0
        self._repeats = 0

    def start(self) -> list[Evaluated]:
        """The given candidates, then the fresh ones, all evaluated; at least one.

        Raises
        ------
        StopSearch
        """
        begun = [self.evaluate(candidate) for candidate in self.problem.start]
        for _ in range(max(self.problem.fresh, 0 if begun else 1)):
            begun.append(self.evaluate(self.propose(None)))
        return begun

    @property
    def history(self) -> tuple[Evaluated, ...]:
        """Everything evaluated so far, oldest first."""
        return tuple(self._history)

    def propose(
        self, parent: Evaluated | None, history: Sequence[Evaluated] | None = None
    ) -> Candidate:
        """The proposer's next candidate.

        Parameters
        ----------
        parent : Evaluated or None
        history : sequence of Evaluated, optional
            What the proposer is shown in place of everything evaluated so far.

        Raises
        ------
        StopSearch
            By the proposer, or because it has only known programs to offer.
        """
        shown = self.history if history is None else tuple(history)
        request = Request(self.problem.task, self._index, parent, shown)
        self._index += 1
        made = self.problem.proposer.propose(request).candidate
        if made is None:
            raise StopSearch("proposer: an answer held no candidate")  # a metered one asks again
        # A known program costs nothing, so that no cap would ever end a search over them.
        self._repeats = self._repeats + 1 if made.key in self._known else 0
        if self._repeats >= _REPEATS:
            raise StopSearch(f"proposer: nothing new in {_REPEATS} proposals")
        return made

    def evaluate(self, candidate: Candidate) -> Evaluated:
        """A candidate with its feedback; one that was evaluated before is not evaluated again."""
        if candidate.key not in self._known:
            found = Evaluated(candidate, self.problem.evaluate(candidate))
            self._known[candidate.key] = found
            self._history.append(found)
        return self._known[candidate.key]

    @property
    def asked(self) -> int:
        """Proposals asked for so far."""
        return self._index

    def draw_front(self) -> Evaluated | None:
        """One of the Pareto front of everything evaluated, drawn evenly; None if it is empty."""
        front = pareto_front(self._history, self.problem.objectives)
        rng = random.Random(derive_seed("front", self.problem.seed, self._index))
        return rng.choice(front) if front else None

    def known(self, key: str) -> Evaluated | None:
        """What was evaluated under a key."""
        return self._known.get(key)


def pareto_front(history: Sequence[Evaluated], axes: Sequence[str]) -> list[Evaluated]:
    """Scored candidates that no other one beats: none is as good on all axes and better on one.

    Of several with the same objectives only the first counts, so that none is drawn more often
    for having many equals.
    """
    scored: dict[tuple[float, ...], Evaluated] = {}
    for one in history:
        if one.feedback.state is State.SCORED:
            point = tuple(one.feedback.objectives.get(axis, 0.0) for axis in axes)
            scored.setdefault(point, one)

    def beaten(point: tuple[float, ...]) -> bool:
        return any(
            other != point and all(o >= p for o, p in zip(other, point, strict=True))
            for other in scored
        )

    return [one for point, one in scored.items() if not beaten(point)]


def best_first(found: list[Evaluated]) -> list[Evaluated]:
    """By score, the earlier one first among equals; a candidate that occurs twice counts once."""
    unique = {one.candidate.key: one for one in reversed(found)}
    order = [one for one in found if unique.pop(one.candidate.key, None) is not None]
    return sorted(order, key=lambda one: -one.feedback.score)
