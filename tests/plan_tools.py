"""What tests of position plans share: a small shape, an artifact's plans, distances by pair."""

from __future__ import annotations

import itertools

import numpy as np

from galoop.domains.context_extension.artifact_spec import RULES, parse_spec
from galoop.domains.text.artifact_code import call_entry
from galoop.methods.positions import Plan, Shape, expand
from galoop.types import Candidate

W = 32
SHAPE = Shape(2, 4, 2, 8, W, 1e4 ** (-np.arange(4) / 4), extension=4.0)
BUDGET = {"extension": 4.0}


def distances(plan: Plan, length: int) -> dict[tuple[int, int], tuple[float, ...]]:
    """Relative position and frequency factors of every attended pair, one pair at a time."""
    found = {}
    for i, j in itertools.product(range(length), range(length)):
        if j > i:
            continue
        for band in plan.bands:
            if np.asarray(band.start)[i] <= j:
                factors = (
                    (1.0,) * 4 if band.frequency is None else tuple(np.asarray(band.frequency))
                )
                if not band.drop:
                    gap = float(np.asarray(band.query)[i]) - float(np.asarray(band.key)[j])
                    found[i, j] = (gap, *factors)
                break
    return found


def built(candidate: Candidate, length: int, shape: Shape = SHAPE) -> list[list[Plan]]:
    spec = parse_spec(candidate.files)
    plans = call_entry(candidate.files, spec, RULES, shape=shape, length=length)
    return expand(plans, shape.layers, shape.heads)
