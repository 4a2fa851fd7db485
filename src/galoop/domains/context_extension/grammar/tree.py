"""The syntax tree of a plan program, and the space of values at each of its nodes.

A program is: near bands -> far bands -> sinks -> frequencies -> scale -> variants by layer or head.
Sizes are shares of the native window, so that a program means the same for every model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

Value = str | int | float

#: Slot -> its values, in an order in which neighbours are alike.
SPACE: Mapping[str, tuple[Value, ...]] = {
    "near": ("none", "window", "chunks"),
    "size": (0.0625, 0.125, 0.1875, 0.25, 0.3125, 0.375, 0.5, 0.625, 0.75),
    "local": (0.0, 0.0625, 0.125, 0.1875, 0.25),
    "far": ("true", "level", "within", "grouped", "linear", "doubling", "dropped"),
    "reach": (0.375, 0.5, 0.625, 0.75, 0.875, 1.0),
    "growth": (1.5, 2.0, 3.0, 4.0),
    "sinks": (0, 1, 4, 16, 64),
    "frequency": ("none", "base", "slow"),
    "strength": (0.5, 1.0, 2.0),
    "bands": ("all", "far"),
    "scale": ("none", "log", "constant"),
    "power": (0.25, 0.5, 1.0, 1.5, 2.0),
    "vary": ("none", "phase", "size", "far"),
    "by": ("layers", "heads", "depth"),
}


@dataclass(frozen=True)
class Program:
    """A plan program.

    Attributes
    ----------
    near, size, local
        Near bands: none, a sliding window, or chunks; their size, and (chunks) how far true
        distances reach into the chunk before.
    far, reach, growth
        Far bands; ``reach`` is the largest distance that they use (``level``, ``within``,
        ``grouped``, ``linear``), ``growth`` belongs to ``doubling``. ``dropped`` is for every
        other head, the rest has all far keys at one level.
    sinks : int
        First tokens in a band of their own.
    frequency, strength, bands
        Factors on the frequencies (a larger base, or the slow pairs alone), by the extension to
        the power ``strength``, in all bands or in the far ones.
    scale, power
        Factor on the logits beyond the window: logarithmic to a power, or ``1.2^power``.
    vary, by
        A second variant (chunks half a size later, half the size, or the far keys at one level)
        for every other layer, every other head, or the upper half of the layers.
    """

    near: str = "window"
    size: float = 0.25
    local: float = 0.125
    far: str = "grouped"
    reach: float = 0.75
    growth: float = 2.0
    sinks: int = 0
    frequency: str = "none"
    strength: float = 1.0
    bands: str = "far"
    scale: str = "none"
    power: float = 1.0
    vary: str = "none"
    by: str = "layers"


_PLAIN = Program()
_REACHING = ("level", "within", "grouped", "linear")


def normalise(program: Program) -> Program:
    """Set what has no effect to a fixed value, so that equal programs are equal trees."""
    chunked = program.near == "chunks"
    changes: dict[str, Any] = {}
    if program.near == "none" and program.far != "within":
        changes["size"] = _PLAIN.size
    if not chunked:
        changes["local"] = _PLAIN.local
    if program.far not in _REACHING and program.vary != "far" and program.far != "dropped":
        changes["reach"] = _PLAIN.reach
    if program.far != "doubling":
        changes["growth"] = _PLAIN.growth
    if program.far == "dropped" and program.near == "none":
        changes["near"] = "window"
    if program.frequency == "none":
        changes.update(strength=_PLAIN.strength, bands=_PLAIN.bands)
    if program.scale == "none":
        changes["power"] = _PLAIN.power
    vary = program.vary
    if program.far == "dropped":  # every token stays within reach of the other heads
        vary, changes["by"] = "far", "heads"
    if (vary == "phase" and not chunked) or (vary == "size" and program.near == "none"):
        vary = "none"
    if vary == "far" and program.far == "level":
        vary = "none"
    changes["vary"] = vary
    if vary == "none":
        changes["by"] = _PLAIN.by
    return replace(program, **changes)


#: Programs that are the methods with a name; where a search starts from one of them it can go on
#: from its tree.
NAMED: Mapping[str, Program] = {
    "dca": normalise(Program(near="chunks", size=0.625, local=0.125, far="within", reach=0.75)),
    "self-extend": normalise(Program(near="window", size=0.25, far="grouped", reach=1.0)),
    "interpolation": normalise(Program(near="none", far="linear", reach=1.0)),
    "ntk": normalise(Program(near="none", far="true", frequency="base", bands="all")),
    "unextended": normalise(Program(near="none", far="true")),
}


def to_json(program: Program) -> str:
    """Compact JSON; the inverse of :func:`from_json`."""
    return json.dumps(asdict(program), separators=(",", ":"), sort_keys=True)


def from_json(text: str) -> Program:
    """Rebuild a tree.

    Raises
    ------
    ValueError, TypeError
        When the text is not the JSON of a tree of this space.
    """
    data: dict[str, Any] = json.loads(text)
    if set(data) != {f.name for f in fields(Program)}:
        raise ValueError("not the slots of a plan program")
    for slot, value in data.items():
        if value not in SPACE[slot]:
            raise ValueError(f"{value!r} is not an option of {slot}")
    return normalise(Program(**data))


def summary(program: Program) -> str:
    """One line saying what the program does."""
    near = {
        "none": "",
        "window": f"true distances within {program.size:g} of a window; ",
        "chunks": f"chunks of {program.size:g} windows, local {program.local:g}; ",
    }[program.near]
    far = {
        "true": "true distances",
        "level": f"all far keys at {program.reach:g}",
        "within": f"far keys by their place in a chunk, up to {program.reach:g}",
        "grouped": f"far positions grouped, up to {program.reach:g}",
        "linear": f"far distances squeezed, up to {program.reach:g}",
        "doubling": f"far distances slower by {program.growth:g} at each doubling",
        "dropped": f"far keys dropped, or at {program.reach:g} for every other head",
    }[program.far]
    text = near + far
    if program.sinks:
        text += f"; {program.sinks} sinks"
    if program.frequency != "none":
        where = "" if program.bands == "all" else "far "
        text += f"; {where}frequencies by {program.frequency} {program.strength:g}"
    if program.scale != "none":
        text += f"; {program.scale} scale {program.power:g}"
    if program.vary != "none" and program.far != "dropped":
        text += f"; another {program.vary} by {program.by}"
    return text
