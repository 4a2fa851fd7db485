"""The syntax tree of a selector program, and the space of values at each of its nodes.

A program is: signals -> transform each -> combine -> group -> pool -> spread -> choice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from galoop.hashing import canonical_json

Value = str | int | float | bool

#: Of a head's dimensions; never all of them.
SHARES = (0.0625, 0.125, 0.25, 0.5)
#: Signals with their options: classes of :mod:`galoop.domains.sparse_decoding.scores`.
SIGNALS: Mapping[str, Mapping[str, tuple[Value, ...]]] = {
    "Subset": {"share": SHARES, "by": ("size", "spread")},
    "Projected": {"share": SHARES, "kind": ("principal", "random")},
    "Quantised": {"subvectors": (1, 2, 4, 8), "bits": (4, 5, 6, 7)},
    "Rounded": {"levels": (3, 7, 15, 255)},
    "PageBounds": {"page": (4, 8, 16)},
    "PageMeans": {"page": (2, 4, 8, 16)},
    "KeyNorm": {},
    "ValueNorm": {},
    "Recency": {},
    "Previous": {},
    "Below": {},
}
#: Signals that depend on the row's query; one of them is in every fresh program.
BY_QUERY = ("Subset", "Projected", "Quantised", "Rounded", "PageBounds", "PageMeans")
#: Signals of which low values may matter just as well.
EITHER_SIGN = ("KeyNorm", "ValueNorm", "Recency", "Previous", "Below")

TRANSFORMS = ("none", "zscore", "rank", "softmax")
WEIGHTS = (0.1, 0.25, 0.5, 1.0, 2.0)
COMBINES = ("sum", "maximum", "interleave")
GROUPS = ("head", "sum", "max", "votes")
POOLS = ("none", "mean", "max")
WIDTHS = (3, 5, 7, 9, 13)
SPREADS = (0, 3, 5, 9)
RUNS = (1, 2, 4, 8)
SINKS = (0.0, 0.05, 0.1, 0.2)
RECENTS = (0.0, 0.1, 0.25, 0.475)
FLOORS = (0.1, 0.25, 0.5)
FRACTIONS = (0.25, 0.5, 0.75)
MAX_SIGNALS = 3


@dataclass(frozen=True)
class Signal:
    """One signal and what is done to it before it is combined."""

    name: str
    options: tuple[tuple[str, Value], ...] = ()
    sign: int = 1
    transform: str = "zscore"
    weight: float = 1.0

    def with_option(self, key: str, value: Value) -> Signal:
        """The same signal with one option changed."""
        return replace(self, options=tuple((k, value if k == key else v) for k, v in self.options))


@dataclass(frozen=True)
class Program:
    """A selector program.

    Attributes
    ----------
    signals : tuple of Signal
        One to :data:`MAX_SIGNALS`; for ``interleave`` the order matters.
    combine : str
    group : str
        One choice for each query head, or for a KV head by the sum, maximum or votes of its
        query heads.
    pool, width
        Of the combined score over neighbours.
    spread : int
        Width within which only the highest entry counts at first; 0 for none.
    run : int
        Entries are chosen in runs of so many.
    sink, recent : float
        Shares of the budget.
    compete, floor
        Whether the heads of a layer compete, and the share that each has in any case.
    base, fraction
        Source of the selector that the search started from, "" for none, and the share of the
        budget that is its.
    """

    signals: tuple[Signal, ...]
    combine: str = "sum"
    group: str = "head"
    pool: str = "none"
    width: int = 3
    spread: int = 0
    run: int = 1
    sink: float = 0.05
    recent: float = 0.25
    compete: bool = False
    floor: float = 0.25
    base: str = ""
    fraction: float = 0.5


def normalise(program: Program) -> Program:
    """Set what has no effect to a fixed value, so that equal programs are equal trees."""
    signals = program.signals
    single = len(signals) == 1
    combine = "sum" if single else program.combine
    if single or combine != "sum":
        signals = tuple(replace(s, weight=1.0) for s in signals)
    if single and not program.compete and program.group == "head":
        # One score, each row by itself: only its order counts.
        signals = tuple(replace(s, transform="none") for s in signals)
    if combine != "interleave":
        signals = tuple(sorted(signals, key=lambda s: canonical_json(asdict(s))))
    return replace(
        program,
        signals=signals,
        combine=combine,
        width=program.width if program.pool != "none" else 3,
        floor=program.floor if program.compete else 0.25,
        fraction=program.fraction if program.base else 0.5,
    )


def index_fraction(program: Program, tokens: int = 256, dim: int = 64, size: int = 2) -> float:
    """About how many bytes the index takes, relative to the keys of a context.

    Parameters
    ----------
    tokens, dim, size : int
        Tokens, head dimensions, and bytes of a number. The base's own index counts as a half.
    """
    total = 0.5 if program.base else 0.0
    for signal in program.signals:
        o: dict[str, Any] = dict(signal.options)
        if signal.name == "Subset":
            total += o["share"]
        elif signal.name == "Projected":
            total += o["share"] + o["share"] * dim / tokens
        elif signal.name == "Quantised":
            total += min(2 ** o["bits"], tokens // 4) / tokens + o["subvectors"] / (dim * size)
        elif signal.name == "Rounded":
            total += 1 / size + 2 / tokens
        elif signal.name == "PageBounds":
            total += 2 / o["page"]
        elif signal.name == "PageMeans":
            total += 1 / o["page"]
        elif signal.name in ("KeyNorm", "ValueNorm"):
            total += 1 / dim
    return total


def to_json(program: Program) -> str:
    """Compact JSON of a tree without the wrapped source; the inverse of :func:`from_json`."""
    data = asdict(program)
    data.pop("base")
    data["signals"] = [{**asdict(s), "options": dict(s.options)} for s in program.signals]
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def from_json(text: str, base: str = "") -> Program:
    """Rebuild a tree.

    Raises
    ------
    ValueError, KeyError, TypeError
        When the text is not the JSON of a tree of this space.
    """
    data: dict[str, Any] = json.loads(text)
    signals = []
    for item in data.pop("signals"):
        space = SIGNALS[item["name"]]
        options = item.pop("options")
        if set(options) != set(space) or any(options[k] not in space[k] for k in space):
            raise ValueError(f"not an option of {item['name']}")
        signals.append(Signal(options=tuple((k, options[k]) for k in space), **item))
    if not signals:
        raise ValueError("a program needs a signal")
    return normalise(Program(signals=tuple(signals), base=base, **data))


def summary(program: Program) -> str:
    """One line saying what the program does."""
    joiner = " + " if program.combine == "sum" else ", "
    what = joiner.join(_signal_words(s) for s in program.signals)
    if program.combine != "sum":
        what = f"{program.combine} of ({what})"
    if program.group != "head":
        what += f"; {program.group} over a group"
    if program.pool != "none":
        what += f"; {program.pool} over {program.width}"
    if program.spread:
        what += f"; spread {program.spread}"
    if program.run > 1:
        what += f"; runs of {program.run}"
    if program.compete:
        what += "; heads compete"
    if program.base:
        what += f"; {program.fraction:g} of the budget as before"
    return what


def _signal_words(signal: Signal) -> str:
    words = signal.name.lower()
    if signal.options:
        words += " (" + " ".join(str(v) for _, v in signal.options) + ")"
    if signal.sign < 0:
        words = "−" + words
    return words if signal.weight == 1.0 else f"{signal.weight:g}·{words}"
