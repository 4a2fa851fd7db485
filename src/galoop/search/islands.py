"""Islands: diverse seeds first, then each evolves by itself, all under one budget.

Around any search engine (GEPA by default): the engine is run once for every island, each with its
own seed, its own history and its own start, and they take turns, one new evaluation each, so that
the budget is shared evenly whenever it ends. No program migrates: what an island refines stays its
own, and the best of each are several different candidates instead of one many times.

An island runs in a thread of its own and none of them ever runs beside another: proposals and
evaluations happen in the caller's thread, in an order that follows from the seed alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

from galoop.config import ExperimentConfig
from galoop.hashing import derive_seed
from galoop.proposers.protocol import Evaluated, Proposal, Request
from galoop.search.factory import make
from galoop.search.gepa import GepaSearch
from galoop.search.protocol import Problem, Search, StopSearch
from galoop.search.seat import EngineSeat, best_first
from galoop.types import Candidate, Feedback, State

#: Programs asked for from nothing for each island, of which one is chosen as its seed.
_FRESH_PER_ISLAND = 2
#: Requests of an engine that does not heed the stop, after which its thread is left alone.
_LAST_WORDS = 100


class IslandsSearch:
    """Diverse seeds, then an engine (GEPA) on each of several islands in turn, under one budget.

    Parameters
    ----------
    engine : callable, optional
        Makes the engine of one island.
    islands : int
        How many there are.

    Attributes
    ----------
    refined : tuple of Evaluated
        After a run: the best candidate of every island, the best first, each once.
    """

    name = "islands"

    def __init__(self, engine: Callable[[], Search] = GepaSearch, islands: int = 4) -> None:
        if islands < 1:
            raise ValueError(f"islands = {islands}: at least one is needed")
        self._engine = engine
        self._count = islands
        self.refined: tuple[Evaluated, ...] = ()

    @classmethod
    def configured(cls, config: ExperimentConfig) -> IslandsSearch:
        """As the table ``[islands]`` of an experiment says."""
        knobs = config.islands
        return cls(lambda: make(knobs.engine, config), knobs.count)

    def run(self, problem: Problem) -> str:
        """Run until the problem says stop.

        Raises
        ------
        GaloopError
            What an engine, the proposer or an evaluation raised; every island is ended.
        """
        least = _FRESH_PER_ISLAND * self._count - len(problem.start)
        seat = EngineSeat(replace(problem, fresh=max(problem.fresh, least)))
        islands: list[_Island] = []
        try:
            begun = seat.start()
            seeds = diverse(begun, self._count, given=len(problem.start))
            islands += [
                _Island(self._engine(), seat, seeds[i % len(seeds)], i) for i in range(self._count)
            ]
            return _take_turns(islands)
        except StopSearch as stop:
            return stop.reason
        finally:
            for island in islands:
                island.close()
            best = [best_first(island.history)[0] for island in islands]
            self.refined = tuple(best_first(best or list(seat.history))[: self._count])


def diverse(found: Sequence[Evaluated], count: int, given: int = 0) -> list[Evaluated]:
    """At most ``count`` seeds: the given ones, then the best, then each the farthest from all.

    Candidates that were not scored, or scored 0, are seeds only when there is nothing else.

    Parameters
    ----------
    found : sequence of Evaluated
        The given candidates, then the others.
    count : int
    given : int
        How many of ``found`` were given.

    Returns
    -------
    list of Evaluated
        At least one when ``found`` is not empty.
    """

    def good(some: Sequence[Evaluated]) -> list[Evaluated]:
        ranked = best_first(list(some))
        return [one for one in ranked if one.feedback.state is State.SCORED and one.feedback.score]

    left = good(found)
    seeds = good(found[:given])[:count] or left[:1] or best_first(list(found))[:1]
    while len(seeds) < count:
        taken = {one.candidate.key for one in seeds}
        left = [one for one in left if one.candidate.key not in taken]
        if not left:
            break
        seeds.append(max(left, key=lambda one: min(distance(one, s) for s in seeds)))
    return seeds


def distance(first: Evaluated, second: Evaluated) -> float:
    """Jaccard distance between the sets of words in two programs, in [0, 1]."""
    one, other = _words(first.candidate), _words(second.candidate)
    together = one | other
    return 1.0 - len(one & other) / len(together) if together else 0.0


def _words(candidate: Candidate) -> set[str]:
    return {word for text in candidate.files.values() for word in re.findall(r"\w+", text)}


def _take_turns(islands: Sequence[_Island]) -> str:
    """One new evaluation each, in order, until none goes on."""
    going = list(islands)
    while going:
        going = [island for island in going if island.step()]
    return "; ".join(dict.fromkeys(island.reason for island in islands))


class _Island:
    """One engine in its thread; what it asks is answered in the caller's thread."""

    replayable = True

    def __init__(self, engine: Search, seat: EngineSeat, seed: Evaluated, number: int) -> None:
        self.name = f"island {number}"
        self.history = [seed]
        self.reason = ""
        self._seat = seat
        self._asked: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        #: What the engine waits to be answered; None while it runs.
        self._pending: tuple[str, Any] | None = None
        self._over = False
        own = replace(
            seat.problem,
            proposer=self,
            evaluate=self.evaluate,
            seed=derive_seed(seat.problem.seed, self.name),
            start=(seed.candidate,),
            fresh=0,
            suites=None,  # to be called in the caller's thread only
        )
        self._thread = Thread(target=self._run, args=(engine, own), name=self.name, daemon=True)

    # -- in the island's thread -------------------------------------------------------------

    def _run(self, engine: Search, problem: Problem) -> None:
        try:
            self._asked.put(("over", engine.run(problem)))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._asked.put(("failed", error))

    def propose(self, request: Request) -> Proposal:
        """The island's proposer, for its engine."""
        return Proposal(self._ask("propose", request))

    def evaluate(self, candidate: Candidate) -> Feedback:
        """The island's evaluation, for its engine."""
        found: Evaluated = self._ask("evaluate", candidate)
        return found.feedback

    def _ask(self, what: str, about: Any) -> Any:
        self._asked.put((what, about))
        answer = self._answers.get()
        if isinstance(answer, StopSearch):
            raise answer
        return answer

    # -- in the caller's thread -------------------------------------------------------------

    def step(self) -> bool:
        """Let the engine run up to where it has had one new evaluation; False when it has ended.

        Raises
        ------
        StopSearch
            The search is over; the engine still has to be told (:meth:`close`).
        """
        if self._pending is None:
            self._thread.start()
            self._pending = self._asked.get()
        new = False
        while not new:
            what, about = self._pending
            if what == "failed":
                self._over = True
                raise about
            if what == "over":
                self._over, self.reason = True, about
                return False
            answer: Candidate | Evaluated
            if what == "propose":
                answer = self._seat.propose(about.parent, about.history)
            else:
                new = self._seat.known(about.key) is None
                answer = self._seat.evaluate(about)
                self.history.append(answer)
            self._go_on(answer)
        return True

    def _go_on(self, answer: Any) -> None:
        """Answer the engine, and wait for what it asks next: no two islands run at once."""
        self._pending = None
        self._answers.put(answer)
        self._pending = self._asked.get()

    def close(self) -> None:
        """End the engine: whatever it asks from now on, the answer is to stop."""
        if not self._thread.ident:
            return
        for _ in range(_LAST_WORDS):
            if self._over:
                break
            if self._pending is None:  # interrupted while the engine ran
                self._pending = self._asked.get()
            self._over = self._pending[0] in ("over", "failed")
            if not self._over:
                self._go_on(StopSearch("the search is over"))
        self._thread.join(timeout=1.0)
