"""The syntax tree of a press program, and the space of values at each of its nodes.

A program is: signals -> transform and pool each -> combine -> pool -> grain -> guard -> selection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from galoop.proposers.grammar.signals import tree
from galoop.proposers.grammar.signals.text import signed
from galoop.proposers.grammar.signals.tree import SignalProgram, Value, parse, settle

#: Signals with their options, in the words of :mod:`galoop.domains.kv_compression.signals`.
SIGNALS: Mapping[str, Mapping[str, tuple[Value, ...]]] = {
    "distinctiveness": {"source": ("keys", "keys_pre", "values", "hidden")},
    "novelty": {
        "source": ("keys", "keys_pre", "values", "keys+values", "hidden"),
        "reduce": ("max", "mean", "top4", "top16"),
        "versus": ("all", "earlier", "later"),
        "gap": (0, 4, 16),
    },
    "leverage": {"source": ("keys", "keys_pre", "values"), "ridge": (0.01, 0.1, 1.0)},
    "norm": {"source": ("keys", "values", "hidden")},
    "output_norm": {},
    "received_attention": {"reduce": ("sum", "mean", "max"), "gap": (0, 4, 16)},
    "window_attention": {"window": (4, 16, 32, 64)},
    "chunk_attention": {"chunk": (32, 64, 128, 256), "by_value": (True, False)},
    "expected_attention": {
        "future": (64, 512),
        "covariance": (True, False),
        "by_value": (True, False),
    },
    "repeat_attention": {"reduce": ("max", "mean"), "by_value": (True, False)},
    "surprise": {
        "width": (2, 8, 32, 0),
        "versus": ("before", "around"),
        "source": ("hidden", "keys_pre", "values"),
    },
    "lag": {"size": (32, 64, 128)},
    "recency": {},
    "base_score": {},  # the score of the press that the search started from, where it has one
}
BASE = "base_score"
#: Signals of which low values may matter just as well.
EITHER_SIGN = ("norm", "output_norm", "recency")

TRANSFORMS = ("none", "zscore", "rank", "softmax", "log")
POOLS = ("none", "mean", "max", "median", "gauss")
WIDTHS = (3, 5, 7, 9, 13, 17, 25)
WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0)
COMBINES = ("sum", "product", "maximum", "reciprocal_rank", "interleave", "two_stage")
FRACTIONS = (0.25, 0.5, 0.75)
GRAINS: Mapping[str, tuple[int | float, ...]] = {
    "tokens": (),
    "runs": (4, 8, 16, 32),
    "chunks": (16, 32, 64, 128),
    "diverse": (0.25, 0.5, 0.75),
}
DIVERSE_SOURCES = ("keys_pre", "values", "keys+values", "hidden")
GUARDS = (0, 1, 2, 4, 8, 16)
#: Who competes for the budget: each head alone; one choice for all heads of a layer; the heads of a
#: layer; all heads of all layers; one choice for all layers.
SCOPES = ("head", "shared", "heads", "layers", "consensus")
FLOORS = (0.05, 0.1, 0.2, 0.5)
SLOPES = (-0.6, -0.3, 0.3, 0.6)
MAX_SIGNALS = 4


@dataclass(frozen=True)
class Signal(tree.Signal):
    """One signal and what is done to it before it is combined; it has a pooling of its own."""

    pool: str = "none"
    width: int = 3


@dataclass(frozen=True)
class Program(SignalProgram[Signal]):
    """A press program.

    Attributes
    ----------
    signals : tuple of Signal
        One to :data:`MAX_SIGNALS`; for ``two_stage`` and ``interleave`` the order matters.
    combine, fraction
        ``fraction`` of the budget goes to the first stage of ``two_stage``.
    pool, width
        Of the combined score.
    grain, grain_size, grain_source
    first, last : int
        Guarded positions.
    scope, floor, slope
        ``floor``: the share of the even budget that each head keeps in any case (``heads``,
        ``layers``); ``slope``: how budgets fall with depth (``head``, ``shared``).
    base : str
        Source of the wrapped press, "" when ``base_score`` is not among the signals.
    """

    grain: str = "tokens"
    grain_size: float = 0.0
    grain_source: str = "keys_pre"
    first: int = 4
    last: int = 4
    scope: str = "head"
    floor: float = 0.2
    slope: float = 0.0


def normalise(program: Program) -> Program:
    """Set what has no effect to a fixed value, so that equal programs are equal trees."""
    signals = tuple(_normalise_signal(s) for s in program.signals)
    program = settle(replace(program, signals=signals), ordered=("interleave", "two_stage"))
    sized = program.grain != "tokens"
    uses_base = any(s.name == BASE for s in signals)
    return replace(
        program,
        fraction=program.fraction if program.combine == "two_stage" else 0.5,
        grain_size=program.grain_size if sized else 0.0,
        grain_source=program.grain_source if program.grain == "diverse" else "keys_pre",
        floor=program.floor if program.scope in ("heads", "layers") else 0.2,
        slope=program.slope if program.scope in ("head", "shared") else 0.0,
        base=program.base if uses_base else "",
    )


def _normalise_signal(signal: Signal) -> Signal:
    return signal if signal.pool != "none" else replace(signal, width=3)


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
    parts = [_signal_words(s) for s in program.signals]
    joiner = {"sum": " + ", "product": " × "}.get(program.combine, ", ")
    what = joiner.join(parts)
    if program.combine not in ("sum", "product"):
        what = f"{program.combine} of ({what})"
    if program.pool != "none":
        what += f"; {program.pool} over {program.width}"
    if program.grain != "tokens":
        what += f"; {program.grain} {program.grain_size:g}"
    scope = {
        "head": "each head",
        "shared": "one choice a layer",
        "heads": "heads compete",
        "layers": "all layers compete",
        "consensus": "one choice for all layers",
    }[program.scope]
    return f"{what}; {scope}"


def _signal_words(signal: Signal) -> str:
    options = [str(v) for k, v in signal.options if k in ("source", "reduce", "versus")]
    words = signal.name.replace("_", " ")
    if options:
        words += f" ({' '.join(options)})"
    return signed(words, signal)
