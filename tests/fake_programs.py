"""Programs of the fake domain: probes, artifacts, examples, and who solves which."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Sequence
from typing import Any

from galoop.hashing import derive_seed
from galoop.types import Candidate, Example

TOPICS = 3


def probe(topic: int = 0, hardness: float = 0.0, salt: int = 0, does: str = "") -> Candidate:
    """A probe program. ``does``: "", "invalid", "failed", "stale" (rejected on fresh seeds)."""
    spec = {"topic": topic, "hardness": hardness, "salt": salt, "does": does}
    text = f'"""Asks about topic {topic}, number {salt}."""\n\nSPEC = {spec!r}\n'
    return Candidate("probe", {"probe.py": text}, f"topic {topic}, salt {salt}")


def artifact(*skills: float, does: str = "", salt: int = 0) -> Candidate:
    """An artifact. ``does``: "", "invalid" (over budget), "failed", "late" (fails on some)."""
    spec = {"skills": list(skills), "does": does, "salt": salt}
    text = json.dumps(spec, indent=1, sort_keys=True) + "\n"
    note = "skills " + " ".join(f"{s:.2f}" for s in skills)
    return Candidate("artifact", {"params.json": text}, note)


def probe_spec(source: str) -> dict[str, Any]:
    return dict(ast.literal_eval(source.split("SPEC = ", 1)[1]))


def artifact_spec(candidate: Candidate) -> dict[str, Any]:
    return dict(json.loads(candidate.files["params.json"]))


def draw(topic: int, hardness: float, *parts: Any) -> Example:
    """One example with its own two uniform draws."""
    rng = random.Random(derive_seed("fake-example", topic, hardness, *parts))
    v, u = rng.random(), rng.random()
    return Example(
        context=f"{topic} {hardness!r} {v!r} {u!r}",
        question="is it solved?",
        answers=("yes",),
        evidence=(repr(u),),
        seed=parts[-1],
    )


def solves(skills: Sequence[float] | None, example: Example) -> bool:
    """Whether the reference (None) or an artifact solves an example."""
    topic, hardness, v, u = example.context.split()
    return float(v) < 1.0 - float(hardness) and (skills is None or float(u) < skills[int(topic)])
