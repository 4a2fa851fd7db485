"""The syntax tree of a codec program: its knobs, and the values of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from galoop.hashing import canonical_json

Value = str | int | float | bool

_SIDE: Mapping[str, tuple[Value, ...]] = {
    "axis": ("channel", "token"),
    "group": (16, 32, 64, 128, 1024),
    "symmetric": (False, True),
    "shrink": (1.0, 0.95, 0.9, 0.8, 0.0),
    "levels": ("even", "normal"),
    "keep_norm": (False, True),
    "rotate": (False, True),
    "center": (False, True),
}
#: Every knob with its values; the order within one is neutral or ascending.
KNOBS: Mapping[str, tuple[Value, ...]] = {
    **{f"keys_{name}": values for name, values in _SIDE.items()},
    **{f"values_{name}": values for name, values in _SIDE.items()},
    "before_rope": (False, True),
    "first": (0, 1, 2, 4, 8),
    "last": (0, 1, 2, 4, 8),
    "outliers": (0, 1, 2, 4, 8),
    "outliers_by": ("key norm", "value norm", "key deviation", "value deviation", "span"),
    "depth": ("even", "early", "late", "ends", "middle", "measured"),
    "lean": (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0),
}


@dataclass(frozen=True)
class Program:
    """A codec program; see :mod:`galoop.domains.quantized_kv.blocks` for what its knobs mean."""

    keys_axis: str = "channel"
    keys_group: int = 64
    keys_symmetric: bool = False
    keys_shrink: float = 1.0
    keys_levels: str = "even"
    keys_keep_norm: bool = False
    keys_rotate: bool = False
    keys_center: bool = False
    values_axis: str = "token"
    values_group: int = 64
    values_symmetric: bool = False
    values_shrink: float = 1.0
    values_levels: str = "even"
    values_keep_norm: bool = False
    values_rotate: bool = False
    values_center: bool = False
    before_rope: bool = False
    first: int = 0
    last: int = 0
    outliers: int = 0
    outliers_by: str = "key norm"
    depth: str = "even"
    lean: float = 0.0

    def side(self, name: str) -> dict[str, Value]:
        """The arguments of the rounding of ``keys`` or ``values``."""
        return {key: getattr(self, f"{name}_{key}") for key in _SIDE}


def normalise(program: Program) -> Program:
    """The same program with knobs that do nothing at their defaults."""
    plain = Program()
    changes: dict[str, Value] = {}
    if not program.outliers:
        changes["outliers_by"] = plain.outliers_by
    for side in ("keys", "values"):
        # The mean over tokens is what the offset of a channel's group stands for anyway.
        if program.side(side)["axis"] == "channel" and not program.side(side)["symmetric"]:
            changes[f"{side}_center"] = False
    return replace(program, **changes)  # type: ignore[arg-type]


def to_json(program: Program) -> str:
    """A line that :func:`from_json` reads back."""
    return canonical_json(asdict(program))


def from_json(text: str) -> Program:
    """The program of a line.

    Raises
    ------
    ValueError
        It is none.
    """
    data = json.loads(text)
    names = {field.name for field in fields(Program)}
    if not isinstance(data, dict) or set(data) != names:
        raise ValueError("not a codec program")
    for name, value in data.items():
        if value not in KNOBS[name]:
            raise ValueError(f"{name} = {value!r} is not in the space")
    return normalise(Program(**data))


def summary(program: Program) -> str:
    """The program in a few words: what differs from the plainest one."""
    plain = asdict(Program())
    parts = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in asdict(program).items()
        if value != plain[name]
    ]
    return ", ".join(parts) or "keys by channel, values by token"
