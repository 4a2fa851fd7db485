"""An agent's own loop as a search: it decides what to write next and what to have evaluated.

The proposer in the seat is the agent (``proposer = "agent"``), or what one proposed in an earlier
run (``recorded``). Each call of its evaluation command is a proposal; the feedback goes back with
the next request. Caps, records and resume are those of every other search.
"""

from __future__ import annotations

from dataclasses import replace

from galoop.errors import UsageError
from galoop.proposers.protocol import Evaluated, Proposal, Request
from galoop.search.protocol import Problem, StopSearch
from galoop.types import Candidate, State


class AgentSearch:
    """One proposal after another, from the best candidate so far, until the agent ends."""

    name = "agent"

    def run(self, problem: Problem) -> str:
        """Run until the agent or the problem says stop.

        Raises
        ------
        UsageError
            If the seat holds no agent.
        """
        name = problem.proposer.name
        if not name.startswith("agent:") and name != "recorded":
            raise UsageError(
                f"search 'agent' needs an agent in the seat, not {name!r}",
                "set proposer = 'agent' beside search = 'agent'",
            )
        interrupted = True
        try:
            reason = _Loop(problem).run()
            interrupted = False
            return reason
        finally:
            finish = getattr(problem.proposer, "finish", None)
            if finish is not None:
                finish(interrupted)


class _Loop:
    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._history: list[Evaluated] = []
        self._index = 0

    def run(self) -> str:
        try:
            for candidate in self._problem.start:
                self._look(candidate)
            while True:
                self._step()
        except StopSearch as stop:
            return stop.reason

    def _step(self) -> None:
        best = max(self._history, key=lambda one: one.feedback.score, default=None)
        request = Request(self._problem.task, self._index, best, tuple(self._history))
        self._index += 1
        made = self._problem.proposer.propose(request)
        if made.candidate is None:
            raise StopSearch("proposer: an answer held no candidate")  # a metered one asks again
        self._look(made.candidate)
        self._look_at_suites(made, made.candidate)

    def _look(self, candidate: Candidate) -> None:
        if all(one.candidate.key != candidate.key for one in self._history):
            feedback = self._problem.evaluate(candidate)
            self._history.append(Evaluated(candidate, feedback))

    def _look_at_suites(self, made: Proposal, candidate: Candidate) -> None:
        """Where the agent asked for it: the feedback then tells what the suites lose."""
        if self._problem.suites is None or not made.about.get("suites"):
            return
        keys = [one.candidate.key for one in self._history]
        index = keys.index(candidate.key)
        feedback = self._history[index].feedback
        if feedback.state is State.SCORED:
            details = {**feedback.details, "suites": dict(self._problem.suites(candidate))}
            self._history[index] = Evaluated(candidate, replace(feedback, details=details))
