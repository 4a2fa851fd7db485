"""GEPA's ``optimize_anything`` (gepa 0.1.4) as a search engine.

GEPA decides which candidate is mutated (a Pareto front over the objectives) and which child joins
the pool (strict improvement); the candidate itself is written by the proposer in our seat. GEPA's
pool starts from a single candidate; so that the others that began the search are not lost, every
other request takes its parent from the Pareto front of all that was evaluated. Kept off, because
they cannot be trusted here: its evaluation cache (it mixes train and validation by position), its
budget (soft, and blind to what evaluators spend) and its resume (it diverges from an uninterrupted
run). Resume is replay: the same seed and the outcomes recorded in our own store
lead to the same state without a second evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from galoop.search.protocol import Problem, StopSearch
from galoop.search.seat import EngineSeat, best_first
from galoop.types import Candidate, Feedback, State

_COMPONENT = "candidate"


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

        seat = _Calls(problem)
        try:
            start = best_first(seat.seat.start())[0].candidate
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


class _Calls:
    """GEPA's two calls, evaluate a candidate and propose a new one, passed on to our seat."""

    def __init__(self, problem: Problem) -> None:
        self.seat = EngineSeat(problem)
        self._problem = problem
        self.reason = ""
        self.error: Exception | None = None

    def evaluate(self, candidate: Mapping[str, str]) -> tuple[float, dict[str, Any]]:
        """GEPA's evaluator: never below zero, every objective always present."""
        found = self._of_text(candidate[_COMPONENT])
        known = self.seat.known(found.key)
        try:
            if known is None and self.reason:
                raise StopSearch(self.reason)
            feedback = (known or self.seat.evaluate(found)).feedback
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
        parent = self.seat.known(self._of_text(candidate[_COMPONENT]).key)
        if self.reason:
            return dict(candidate)
        try:
            drawn = self.seat.draw_front() if self.seat.asked % 2 == 0 else None
            return {_COMPONENT: _text(self.seat.propose(drawn or parent))}
        except StopSearch as stop:
            self.reason = stop.reason
        except Exception as error:  # noqa: BLE001 - GEPA would swallow it and go on forever
            self.error = error
            self.reason = "the proposer failed"
        return dict(candidate)

    def stopped(self, gepa_state: Any) -> bool:
        """GEPA's stopper."""
        return bool(self.reason)

    def _of_text(self, text: str) -> Candidate:
        data = json.loads(text)
        return Candidate(self._problem.task.kind, data["files"], data["note"])


def _text(candidate: Candidate) -> str:
    return json.dumps({"files": dict(candidate.files), "note": candidate.note}, sort_keys=True)
