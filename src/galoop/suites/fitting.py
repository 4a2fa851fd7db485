"""The largest text that fits: by galloping and bisection over a number of units."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def largest(make: Callable[[int], T | None], fewest: int, most: int) -> T | None:
    """The draft of the most units that fits, or None where not even the fewest do.

    Parameters
    ----------
    make : callable
        From a number of units to a draft, or None when it is too long. Length has to grow with
        the units, almost: tokens do not always add up.
    fewest, most : int
    """
    low = fewest
    best = make(low)
    if best is None:
        return None
    step = max(1, low)
    while step:
        units = min(low + step, most)
        draft = make(units) if units > low else None
        if draft is None:
            break
        low, best, step = units, draft, step * 2
    high = min(low + step, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        draft = make(middle)
        if draft is None:
            high = middle
        else:
            low, best = middle, draft
    return best
