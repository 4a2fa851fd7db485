"""A small search problem with a known answer, and proposers for it: no domain, no store."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from fake_programs import artifact
from galoop.proposers.protocol import Proposal, Request, Task
from galoop.search.protocol import StopSearch
from galoop.types import Candidate, Feedback, State

TASK = Task("artifact", "fake", "", "", "")
AXES = ("left", "right")


def value(candidate: Candidate) -> tuple[float, float]:
    """Two objectives of an artifact: its first two skills."""
    left, right, *_ = json.loads(candidate.files["params.json"])["skills"]
    return left, right


class Climber:
    """Moves one skill of the parent at random; keeps every request."""

    name = "climber"
    replayable = True

    def __init__(self, seed: int, fail_at: int | None = None, error: Exception | None = None):
        self.rng = random.Random(seed)
        self.requests: list[Request] = []
        self.fail_at, self.error = fail_at, error

    def propose(self, request: Request) -> Proposal:
        self.requests.append(request)
        if self.fail_at is not None and len(self.requests) >= self.fail_at:
            assert self.error is not None
            raise self.error
        skills = list(value(request.parent.candidate)) if request.parent else [0.1, 0.1]
        i = self.rng.randrange(2)
        skills[i] = round(min(1.0, max(0.0, skills[i] + self.rng.uniform(-0.2, 0.2))), 6)
        return Proposal(artifact(*skills, 0.0, salt=len(self.requests)))


class Same(Climber):
    """Proposes one program again and again, or (salted) new ones of the same score."""

    def __init__(self, level: float, salted: bool) -> None:
        super().__init__(0)
        self.level, self.salted = level, salted

    def propose(self, request: Request) -> Proposal:
        self.requests.append(request)
        salt = len(self.requests) if self.salted else 0
        return Proposal(artifact(self.level, self.level, 0.0, salt=salt))


class Judge:
    """Scores by :func:`value`; stops after ``cap`` candidates."""

    def __init__(self, cap: int, invalid: Callable[[int], bool] = lambda n: False) -> None:
        self.cap, self.invalid = cap, invalid
        self.seen: list[Candidate] = []
        self.stopped = 0

    def __call__(self, candidate: Candidate) -> Feedback:
        if len(self.seen) >= self.cap:
            self.stopped += 1
            raise StopSearch(f"candidates: {self.cap} tried")
        self.seen.append(candidate)
        if self.invalid(len(self.seen)):
            return Feedback(State.INVALID, 0.0, dict.fromkeys(AXES, 0.0), "over budget")
        left, right = value(candidate)
        details = {"number": len(self.seen)}
        return Feedback(
            State.SCORED, (left + right) / 2, {"left": left, "right": right}, "", (), details
        )


class Trader(Climber):
    """Gives some of one objective for more of the other: a front of several programs."""

    def propose(self, request: Request) -> Proposal:
        self.requests.append(request)
        assert request.parent is not None
        left, right = value(request.parent.candidate)
        step = 0.01 * (1 + len(self.requests) % 3)
        if len(self.requests) % 2:
            left, right = left + 3 * step, right - step
        else:
            left, right = left - step, right + 3 * step
        return Proposal(artifact(round(left, 6), round(right, 6), 0.0, salt=len(self.requests)))


class Front(Trader):
    """Fronts of several programs, so that an engine has parents to choose from."""

    def propose(self, request: Request) -> Proposal:
        made = Climber.propose(self, request)
        if request.parent is None:
            return made
        self.requests.pop()
        return super().propose(request)
