"""Arithmetic in the place of a model: a probe is two numbers, and the truth is in closed form.

A probe (x, y) asks examples that the reference solves with probability 1 - x / 2 and of which the
artifact loses the share ``loss(x, y)``, a landscape with a broad hill and a narrow, higher one.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from galoop.hashing import derive_seed
from galoop.proposers.protocol import Proposal, Request, Seat, Task
from galoop.types import Candidate, Example, Outcome, State

PEAKS = ((0.2, 0.25, 0.25, 0.6), (0.1, 0.85, 0.07, 1.0))  # x, y, width, height


def loss(x: float, y: float) -> float:
    """Share of the reference's right answers that the artifact loses, in [0, 1]."""
    return max(
        height * math.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * width**2))
        for a, b, width, height in PEAKS
    )


def probe(x: float, y: float) -> Candidate:
    """The program of two numbers."""
    text = f'"""A probe at {x:.4f}, {y:.4f}."""\n\nPLACE = ({x!r}, {y!r})\n'
    return Candidate("probe", {"probe.py": text}, f"at {x:.4f}, {y:.4f}")


def place(source: str) -> tuple[float, float]:
    """The two numbers of a program."""
    found: tuple[float, float] = ast.literal_eval(source.split("PLACE = ", 1)[1])
    return found


@dataclass(frozen=True)
class System:
    """The reference, or the one artifact there is."""

    key: str
    name: str
    candidate: Candidate | None = None


@dataclass(frozen=True)
class Built:
    """The examples of a probe."""

    examples: tuple[Example, ...]
    rejected: str = ""
    state: State = State.SCORED


class Walker:
    """Programs anywhere, or near the parent."""

    name = "walker"
    replayable = True

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def propose(self, request: Request) -> Proposal:
        """See :class:`galoop.proposers.protocol.Proposer`."""
        rng = self._rng
        if request.parent is None:
            return Proposal(probe(rng.random(), rng.random()))
        x, y = place(request.parent.candidate.source)
        near = [min(1.0, max(0.0, v + rng.gauss(0.0, 0.08))) for v in (x, y)]
        return Proposal(probe(*near))


class StandIn:
    """What a discriminator needs of a domain's session."""

    model_seconds = 0.0

    def probe_task(self, frozen: Sequence[str]) -> Task:
        """See :class:`galoop.domains.protocol.DomainSession`; so for all below."""
        return Task("probe", "stand-in", "", "", "")

    def build_probe(self, source: str, seeds: Sequence[int]) -> Built:
        x, y = place(source)
        return Built(tuple(Example(f"{x!r} {y!r} {s}", "?", ("yes",), seed=s) for s in seeds))

    def reference(self) -> System:
        return System("reference", "reference")

    def start_artifact(self) -> Candidate:
        return Candidate("artifact", {"a.txt": "the artifact"})

    def artifact(self, candidate: Candidate, name: str, *, trusted: bool = False) -> System:
        return System("artifact", name, candidate)

    def run(
        self, systems: Sequence[System], examples: Sequence[Example], repeat: int
    ) -> Iterator[list[tuple[System, Example, Outcome]]]:
        for example in examples:
            yield [(s, example, self._answer(s, example)) for s in systems]

    def _answer(self, system: System, example: Example) -> Outcome:
        x, y, _ = (float(part) for part in example.context.split())
        rng = random.Random(derive_seed("stand-in", example.context))
        right = rng.random() < 1.0 - x / 2
        kept = rng.random() >= loss(x, y)
        right = right and (kept or system.key == "reference")
        return Outcome(State.SCORED, "yes" if right else "no", float(right))

    def proposer(self, name: str, seat: Seat) -> Walker:
        return Walker(seat.seed)

    def describe(self) -> Mapping[str, Any]:
        return {"model": "stand-in", "dtype": "none", "fingerprint": "0" * 64, "versions": {}}

    def close(self) -> None:
        """Nothing is open."""
