"""Position plans between a confined process and the trusted one: JSON of shapes, one array file.

The trusted side believes nothing: it knows how long everything has to be, reads plain numbers, and
checks them (:mod:`.checks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from galoop.methods.positions import Band, Plan

#: Most plans that differ, over all layers and heads.
MAX_PLANS = 64
#: Most bands of one plan: each costs a rotation of all keys, and a product in the tiles it is in.
MAX_BANDS = 8


class PlanError(ValueError):
    """A plan breaks its contract; the text says how."""


def pack(rows: Sequence[Sequence[Plan]], pairs: int, length: int) -> tuple[dict[str, Any], bytes]:
    """Description and bytes of the plans of every layer and head.

    Raises
    ------
    PlanError
        For too many plans or bands, and arrays of another shape than they have to have.
    """
    plans: dict[int, Plan] = {}
    for row in rows:
        plans.update({id(plan): plan for plan in row})
    if len(plans) > MAX_PLANS:
        raise PlanError(
            f"{len(plans)} different plans, at most {MAX_PLANS} are allowed: give layers and heads "
            "the same Plan object where they have the same plan"
        )
    index = {key: n for n, key in enumerate(plans)}
    about, parts = [], []
    for plan in plans.values():
        described, arrays = _pack_plan(plan, pairs, length)
        about.append(described)
        parts += arrays
    used = [[index[id(plan)] for plan in row] for row in rows]
    data = b"".join(np.ascontiguousarray(part, dtype="<f8").tobytes() for part in parts)
    return {"plans": about, "use": used}, data


def _pack_plan(plan: Plan, pairs: int, length: int) -> tuple[dict[str, Any], list[Any]]:
    bands = list(plan.bands)
    if not 1 <= len(bands) <= MAX_BANDS:
        raise PlanError(f"a plan has {len(bands)} bands: give 1 to {MAX_BANDS}")
    arrays, described = [], []
    for number, band in enumerate(bands):
        if not isinstance(band, Band):
            raise PlanError(f"band {number} is a {type(band).__name__}, not a Band")
        for name in ("start", "query", "key"):
            arrays.append(_array(getattr(band, name), length, f"band {number}: {name}"))
        if band.frequency is not None:
            arrays.append(_array(band.frequency, pairs, f"band {number}: frequency"))
        described.append({"frequency": band.frequency is not None, "drop": bool(band.drop)})
    if plan.scale is not None:
        arrays.append(_array(plan.scale, length, "scale"))
    return {"bands": described, "scale": plan.scale is not None}, arrays


def _array(values: Any, size: int, what: str) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (size,):
        raise PlanError(f"{what} has shape {array.shape}, it has to be ({size},)")
    return array


def most_bytes(pairs: int, length: int) -> int:
    """What the largest allowed answer takes."""
    return 8 * MAX_PLANS * (MAX_BANDS * (3 * length + pairs) + length)


def unpack(
    about: Mapping[str, Any], data: bytes, layers: int, heads: int, pairs: int, length: int
) -> list[list[Plan]]:
    """One plan for each layer and head from what a candidate sent; numbers are not checked yet.

    Raises
    ------
    PlanError
        When the description and the bytes are not those of plans.
    """
    described, use = about.get("plans"), about.get("use")
    if not isinstance(described, list) or not 1 <= len(described) <= MAX_PLANS:
        raise PlanError("the reply describes no plans")
    reader = _Reader(data)
    plans = [_unpack_plan(item, reader, pairs, length) for item in described]
    if reader.left:
        raise PlanError(f"the reply holds {reader.left} numbers too many")
    good = isinstance(use, list) and len(use) == layers
    for row in use if good and isinstance(use, list) else ():
        good &= isinstance(row, list) and len(row) == heads
        good = good and all(type(n) is int and 0 <= n < len(plans) for n in row)
    if not good:
        raise PlanError("the reply does not name one plan for each layer and head")
    assert isinstance(use, list)
    return [[plans[n] for n in row] for row in use]


class _Reader:
    def __init__(self, data: bytes) -> None:
        if len(data) % 8:
            raise PlanError("the reply is not made of numbers")
        self._data = np.frombuffer(data, dtype="<f8")
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> NDArray[np.float64]:
        if self.left < count:
            raise PlanError("the reply holds fewer numbers than it describes")
        self._at += count
        return self._data[self._at - count : self._at]


def _unpack_plan(item: Any, reader: _Reader, pairs: int, length: int) -> Plan:
    if not isinstance(item, Mapping) or not isinstance(item.get("bands"), list):
        raise PlanError("the reply describes something that is not a plan")
    if not 1 <= len(item["bands"]) <= MAX_BANDS:
        raise PlanError(f"a plan has {len(item['bands'])} bands: give 1 to {MAX_BANDS}")
    bands = []
    for band in item["bands"]:
        if not isinstance(band, Mapping):
            raise PlanError("the reply describes something that is not a band")
        start, query, key = (reader.take(length) for _ in range(3))
        frequency = reader.take(pairs) if band.get("frequency") is True else None
        bands.append(Band(start, query, key, frequency, drop=band.get("drop") is True))
    return Plan(bands, reader.take(length) if item.get("scale") is True else None)
