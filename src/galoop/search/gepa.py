"""GEPA's ``optimize_anything`` (gepa 0.1.4) as a search engine.

GEPA decides which candidate is mutated (a Pareto front over the objectives) and which child joins
the pool (strict improvement); the candidate itself is written by the proposer in our seat. Kept
off, because they cannot be trusted here: its evaluation cache (it mixes train and validation by
position), its budget (soft, and blind to what evaluators spend) and its resume (it diverges from
an uninterrupted run). Resume is replay: the same seed and the outcomes recorded in our own store
lead to the same state without a second evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from galoop.proposers.protocol import Evaluated, Request
from galoop.search.protocol import Problem, StopSearch
from galoop.types import Candidate, Feedback, State

_COMPONENT = "candidate"
#: Programs in a row that were all evaluated before, after which a proposer has nothing new to say.
_REPEATS = 50


class GepaSearch:
    """Pareto search of GEPA with a proposer of galoop's in the seat of its reflection model."""

    name = "gepa"

    def run(self, problem: Problem) -> str:
        """Run until the problem says stop."""
        from gepa.optimize_anything import (
            EngineConfig,
            GEPAConfig,
            ReflectionConfig,
            TrackingConfig,
            optimize_anything,
        )

        seat = _Seat(problem)
        try:
            start = seat.start()
        except StopSearch as stop:
            return stop.reason
        # GEPA mutates its configuration: a fresh one for each search.
        config = GEPAConfig(
            engine=EngineConfig(
                seed=problem.seed % 2**32,
                parallel=False,
                cache_evaluation=False,
                track_best_outputs=False,
                use_cloudpickle=False,
                max_workers=1,
            ),
            reflection=ReflectionConfig(
                reflection_lm=None,
                custom_candidate_proposer=seat.propose,
                module_selector="all",
            ),
            tracking=TrackingConfig(logger=_Silence()),
            stop_callbacks=[seat.stopped],
        )
        optimize_anything(
            seed_candidate={_COMPONENT: _text(start)}, evaluator=seat.evaluate, config=config
        )
        if seat.error is not None:
            raise seat.error
        return seat.reason


class _Silence:
    """A logger for GEPA that says nothing: our own progress does."""

    def log(self, message: str) -> None:
        """Drop ``message``."""


class _Seat:
    """Our side of GEPA's two calls: evaluate a candidate, propose a new one."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._history: list[Evaluated] = []
        self._known: dict[str, Evaluated] = {}
        self._index = 0
        self._repeats = 0
        self.reason = ""
        self.error: Exception | None = None

    def start(self) -> Candidate:
        """The first candidate; further given ones are evaluated so that proposers see them."""
        given = list(self._problem.start)
        for candidate in given:
            self._look(candidate)
        for _ in range(max(self._problem.fresh, 0 if given else 1)):
            given.append(self._next(None))
            self._look(given[-1])
        return max(given, key=lambda c: self._known[c.key].feedback.score)

    def evaluate(self, candidate: Mapping[str, str]) -> tuple[float, dict[str, Any]]:
        """GEPA's evaluator: never below zero, every objective always present."""
        found = self._of_text(candidate[_COMPONENT])
        try:
            feedback = self._look(found)
        except StopSearch as stop:
            self.reason = self.reason or stop.reason
            feedback = Feedback(State.FAILED, 0.0, dict.fromkeys(self._problem.objectives, 0.0))
        return feedback.score, {"scores": dict(feedback.objectives), "state": str(feedback.state)}

    def propose(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """GEPA's proposer: our own record of the parent, not GEPA's, goes to the seat."""
        parent = self._known.get(self._of_text(candidate[_COMPONENT]).key)
        if self.reason:
            return dict(candidate)
        try:
            return {_COMPONENT: _text(self._next(parent))}
        except StopSearch as stop:
            self.reason = stop.reason
        except Exception as error:  # noqa: BLE001 - GEPA would swallow it and go on forever
            self.error = error
            self.reason = "the proposer failed"
        return dict(candidate)

    def stopped(self, gepa_state: Any) -> bool:
        """GEPA's stopper."""
        return bool(self.reason)

    def _next(self, parent: Evaluated | None) -> Candidate:
        request = Request(self._problem.task, self._index, parent, tuple(self._history))
        self._index += 1
        made = self._problem.proposer.propose(request).candidate
        if made is None:
            raise StopSearch("proposer: an answer held no candidate")  # a metered one asks again
        # A known program costs nothing, so that no cap would ever end a search over them.
        self._repeats = self._repeats + 1 if made.key in self._known else 0
        if self._repeats >= _REPEATS:
            raise StopSearch(f"proposer: nothing new in {_REPEATS} proposals")
        return made

    def _look(self, candidate: Candidate) -> Feedback:
        if candidate.key not in self._known:
            if self.reason:
                raise StopSearch(self.reason)
            feedback = self._problem.evaluate(candidate)
            self._known[candidate.key] = Evaluated(candidate, feedback)
            self._history.append(self._known[candidate.key])
        return self._known[candidate.key].feedback

    def _of_text(self, text: str) -> Candidate:
        data = json.loads(text)
        return Candidate(self._problem.task.kind, data["files"], data["note"])


def _text(candidate: Candidate) -> str:
    return json.dumps({"files": dict(candidate.files), "note": candidate.note}, sort_keys=True)
