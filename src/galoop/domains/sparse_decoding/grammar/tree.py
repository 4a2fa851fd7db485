"""The syntax tree of a selector program, and the space of values at each of its nodes.

A program is: signals -> transform each -> combine -> group -> pool -> spread -> choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from galoop.proposers.grammar.signals.text import signed
from galoop.proposers.grammar.signals.tree import Signal, SignalProgram, Value, parse, settle

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
class Program(SignalProgram[Signal]):
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

    group: str = "head"
    spread: int = 0
    run: int = 1
    sink: float = 0.05
    recent: float = 0.25
    compete: bool = False
    floor: float = 0.25


def normalise(program: Program) -> Program:
    """Set what has no effect to a fixed value, so that equal programs are equal trees."""
    if len(program.signals) == 1 and not program.compete and program.group == "head":
        # One score, each row by itself: only its order counts.
        plain = tuple(replace(s, transform="none") for s in program.signals)
        program = replace(program, signals=plain)
    program = settle(program, ordered=("interleave",))
    return replace(
        program,
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


def from_json(text: str, base: str = "") -> Program:
    """Rebuild a normalised tree from what ``to_json`` gave.

    Raises
    ------
    ValueError, KeyError, TypeError
        When the text is not the JSON of a tree of this space.
    """
    return normalise(parse(text, base, SIGNALS, Signal, Program))


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
    return signed(words, signal)
