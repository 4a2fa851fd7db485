"""What a position plan must keep, and what is measured of it; no model runs for either."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from galoop.domains.context_extension.wire import PlanError
from galoop.methods.positions import Band, Plan, Shape

__all__ = ["Measured", "PlanError", "check", "check_reach", "measure"]

#: Bounds of factors on logits and on frequencies.
SCALES = (0.01, 16.0)
FREQUENCIES = (0.0, 4.0)
#: A key may lie behind its query by no more than rounding.
_SLACK = 1e-6


@dataclass(frozen=True)
class Measured:
    """Facts about one plan.

    Attributes
    ----------
    attended : float
        Share of the causal pairs that are attended to.
    farthest : float
        Largest relative position in use, in tokens.
    """

    attended: float
    farthest: float


def check(plan: Plan, shape: Shape, length: int) -> tuple[Plan, Measured]:
    """A plan with arrays of the right types, and what was measured of it.

    Parameters
    ----------
    plan : Plan
        Arrays of the right sizes, of numbers that nobody has looked at.
    shape : Shape
    length : int

    Raises
    ------
    PlanError
        Numbers that are not finite; bands that are not a partition of the keys up to the query;
        a relative position below 0 or above the whole length; a query without any key; factors
        out of bounds.
    """
    i = np.arange(length)
    bands, before, attended, farthest = [], i + 1, np.zeros(length, dtype=np.int64), 0.0
    for number, band in enumerate(plan.bands):
        where = f"band {number}"
        start = _whole(np.asarray(band.start, dtype=np.float64), f"{where}: start")
        _forbid(start < 0, f"{where}: start is below 0", i)
        _forbid(
            start > before,
            f"{where}: start lies behind the end of the band (a key that comes later than its "
            "query, or that an earlier band has)",
            i,
        )
        query = _finite(np.asarray(band.query, dtype=np.float64), f"{where}: query")
        key = _finite(np.asarray(band.key, dtype=np.float64), f"{where}: key")
        frequency = _frequency(band, where)
        if not band.drop:
            low, high = _relative(query, key, start, before)
            _forbid(low < -_SLACK, f"{where}: a key's position is greater than its query's", i)
            limit = shape.extension * shape.window
            _forbid(
                high > limit,
                f"{where}: a relative position is above {limit:g}, the whole length",
                i,
            )
            attended += before - start
            farthest = max(farthest, float(high.max()))
        bands.append(Band(start, query, key, frequency, band.drop))
        before = start
    _forbid(attended == 0, "a query attends to no key at all", i)
    scale = None
    if plan.scale is not None:
        scale = _finite(np.asarray(plan.scale, dtype=np.float64), "scale")
        _forbid((scale < SCALES[0]) | (scale > SCALES[1]), f"scale is not within {SCALES}", i)
    share = float(attended.sum()) / (length * (length + 1) / 2)
    return Plan(bands, scale), Measured(share, farthest)


def check_reach(rows: Sequence[Sequence[Plan]], length: int) -> None:
    """See that every token stays within reach: in each layer some head attends to each pair.

    A plan that leaves out what is far would be a sliding window, not an extension, and could still
    answer whatever happens to stand near the question.

    Parameters
    ----------
    rows : list of list of Plan
        Checked plans of every layer and head.
    length : int

    Raises
    ------
    PlanError
        With the first pair that no head of a layer attends to.
    """
    i = np.arange(length)
    known: dict[frozenset[int], NDArray[np.int64]] = {}
    for layer, row in enumerate(rows):
        plans = {id(plan): plan for plan in row}
        key = frozenset(plans)
        if key not in known:
            known[key] = _first_missing(list(plans.values()), i)
        short = known[key] <= i
        if short.any():
            query = int(i[short][0])
            raise PlanError(
                f"layer {layer}: no head attends from query {query} to key "
                f"{int(known[key][query])}: every token has to stay within reach of some head"
            )


def _first_missing(plans: Sequence[Plan], i: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each query the first key that no plan attends to; past its own where there is none."""
    spans = []
    for plan in plans:
        end = i + 1
        for band in plan.bands:
            start = np.asarray(band.start)
            if not band.drop:
                spans.append((start, end))
            end = start
    reached = np.zeros_like(i)
    while True:
        before = reached
        for start, end in spans:
            reached = np.where((start <= reached) & (end > reached), end, reached)
        if (reached == before).all():
            return reached


def measure(found: Iterable[Measured]) -> dict[str, float]:
    """The facts of all layers and heads together, as an outcome keeps them."""
    facts: Sequence[Measured] = list(found)
    return {
        "attended_fraction": sum(f.attended for f in facts) / len(facts),
        "attended_least_per_head": min(f.attended for f in facts),
        "largest_distance": max(f.farthest for f in facts),
    }


def _finite(values: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    if not np.isfinite(values).all():
        raise PlanError(f"{what} holds numbers that are not finite")
    return values


def _whole(values: NDArray[np.float64], what: str) -> NDArray[np.int64]:
    _finite(values, what)
    if (np.abs(values) > 2**40).any() or (values != np.floor(values)).any():
        raise PlanError(f"{what} holds numbers that are no places of keys")
    return values.astype(np.int64)


def _frequency(band: Band, where: str) -> NDArray[np.float64] | None:
    if band.frequency is None:
        return None
    values = _finite(np.asarray(band.frequency, dtype=np.float64), f"{where}: frequency")
    if (values < FREQUENCIES[0]).any() or (values > FREQUENCIES[1]).any():
        raise PlanError(f"{where}: frequency factors are not within {FREQUENCIES}")
    return values


def _forbid(wrong: NDArray[np.bool_], message: str, i: NDArray[np.int64]) -> None:
    if wrong.any():
        raise PlanError(f"{message} (query {int(i[wrong][0])})")


def _relative(
    query: NDArray[np.float64],
    key: NDArray[np.float64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least and greatest relative position of each query in its band; 0 where it is empty.

    Minima and maxima over ranges by doubling (Bender and Farach-Colton, "The LCA problem
    revisited", 2000): O(n log n).
    """
    size = end - start
    low, high = np.zeros(len(query)), np.zeros(len(query))
    least, most = key.copy(), key.copy()
    width = 1
    while width <= len(key):
        here = (size >= width) & (size < 2 * width)
        if here.any():
            a, b = start[here], end[here] - width
            high[here] = query[here] - np.minimum(least[a], least[b])
            low[here] = query[here] - np.maximum(most[a], most[b])
        if 2 * width > len(key):
            break
        least = np.minimum(least[:-width], least[width:])
        most = np.maximum(most[:-width], most[width:])
        width *= 2
    return low, high
