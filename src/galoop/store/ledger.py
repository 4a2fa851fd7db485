"""The ledger: every dollar, token, model-second and evaluation, by stage, kind and spender."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from galoop.errors import StoreError

Source = Literal["reported", "estimated", "unknown", "none"]
_SOURCES = ("reported", "estimated", "unknown", "none")
_COUNTS = ("input_tokens", "output_tokens", "evaluations")
_TIMES = ("model_seconds", "wall_seconds")


@dataclass(frozen=True)
class Spend:
    """One entry of the ledger.

    Attributes
    ----------
    stage : str
        The stage of the run, for example ``round1/discriminator``.
    who : str
        The proposer, system or agent that spent it.
    kind : str
        What for: ``proposal``, ``evaluation``, ``session`` (what an agent's session cost beyond
        its proposals), ...
    dollars : float or None
        None if it cost money and the price is not known.
    input_tokens, output_tokens : int
    model_seconds : float
        Time that a model computed, in seconds.
    evaluations : int
        (system, example, repeat) triples that were evaluated.
    wall_seconds : float
    source : {"reported", "estimated", "unknown", "none"}
        Where the dollars come from; ``none``: nothing was to be paid.
    """

    stage: str
    who: str
    kind: str
    dollars: float | None = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    model_seconds: float = 0.0
    evaluations: int = 0
    wall_seconds: float = 0.0
    source: Source = "none"

    def __post_init__(self) -> None:
        if self.source not in _SOURCES:
            raise StoreError(f"ledger: source {self.source!r} is none of {', '.join(_SOURCES)}")
        if self.dollars is None and self.source != "unknown":
            raise StoreError(
                f"ledger: {self.who} spent no stated sum with source {self.source!r}",
                "give the dollars, or the source 'unknown'",
            )
        figures = {name: getattr(self, name) for name in (*_COUNTS, *_TIMES)}
        figures["dollars"] = 0.0 if self.dollars is None else self.dollars
        for name, value in figures.items():
            if not (math.isfinite(value) and value >= 0):
                raise StoreError(f"ledger: {name} of {self.who} is {value}, not a finite amount")

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the inverse of ``Spend(**data)``."""
        return asdict(self)


@dataclass(frozen=True)
class Totals:
    """Sums over entries of the ledger.

    Attributes
    ----------
    entries : int
    dollars : float
        The sum of what is known.
    unpriced : int
        Entries whose price is not known: with any, ``dollars`` is a lower bound.
    input_tokens, output_tokens, evaluations : int
    model_seconds, wall_seconds : float
    sources : tuple of str
        The sources that occur, sorted.
    """

    entries: int = 0
    dollars: float = 0.0
    unpriced: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    model_seconds: float = 0.0
    evaluations: int = 0
    wall_seconds: float = 0.0
    sources: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "sources": list(self.sources)}


def total(spends: Iterable[Spend]) -> Totals:
    """Add up entries; ``math.fsum`` keeps the sums independent of their order."""
    rows = list(spends)
    return Totals(
        entries=len(rows),
        dollars=math.fsum(row.dollars for row in rows if row.dollars is not None),
        unpriced=sum(row.dollars is None for row in rows),
        input_tokens=sum(row.input_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        model_seconds=math.fsum(row.model_seconds for row in rows),
        evaluations=sum(row.evaluations for row in rows),
        wall_seconds=math.fsum(row.wall_seconds for row in rows),
        sources=tuple(sorted({row.source for row in rows})),
    )
