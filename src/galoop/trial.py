"""What a generator's search leaves: trials, and how each slice changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from galoop.evaluation.noninferiority import ComponentVerdict
from galoop.evaluation.paired import Scores
from galoop.evaluation.statistics import Interval
from galoop.types import Candidate, Example


@dataclass(frozen=True)
class OpenSlice:
    """A slice as the generator may see it."""

    name: str
    primary: tuple[Example, ...]
    confirmation: tuple[Example, ...]


@dataclass(frozen=True)
class Change:
    """How a candidate does on one slice's confirmation set, against its parent."""

    slice: str
    old: Interval
    new: Interval
    gained: int
    lost: int
    p_value: float
    status: str
    reason: str


@dataclass(frozen=True)
class Trial:
    """One candidate taken beyond the primary set."""

    candidate: Candidate
    accepted: bool
    reason: str
    primary: float
    changes: tuple[Change, ...] = ()
    components: tuple[ComponentVerdict, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Improvement:
    """How a search for a repair went."""

    accepted: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    candidates: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    evaluations: int = 0
    best: float = 0.0
    parent: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)
    stopped_by: str = ""


def lost_slice(changes: Sequence[Change]) -> Change | None:
    """A slice on which the candidate is not shown to hold what its parent did.

    The improvement is tested over all slices together, so that a gain on earlier ones could hide a
    loss on the newest: there the candidate must at least equal its parent.
    """
    newest = changes[-1]
    if newest.new.estimate < newest.old.estimate:
        return newest
    return next((c for c in changes[:-1] if c.status != "pass"), None)


#: Measured on every answer, and no part of a budget: wall time, and what searches climb by.
_NOT_BUDGET = ("added_latency", "gold_agreement")


def measured_budget(scores: Scores) -> dict[str, float]:
    """The measured budget over the examples: the extremes, which bind. No times."""
    rows = [o.measured for row in scores.outcomes for o in row]
    out: dict[str, float] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        if key not in _NOT_BUDGET:
            reduce = min if "_least" in key else max
            out[key] = float(reduce(row[key] for row in rows if key in row))
    return out
