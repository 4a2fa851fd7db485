"""The parts of a syntax tree that every grammar of scored signals has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Self, TypeVar

from galoop.hashing import canonical_json

Value = str | int | float | bool
#: Signals by name, with the values of each of their options.
Signals = Mapping[str, Mapping[str, tuple[Value, ...]]]


@dataclass(frozen=True)
class Signal:
    """One signal and what is done to it before it is combined."""

    name: str
    options: tuple[tuple[str, Value], ...] = ()
    sign: int = 1
    transform: str = "zscore"
    weight: float = 1.0

    def with_option(self, key: str, value: Value) -> Self:
        """The same signal with one option changed."""
        pairs = tuple((k, value if k == key else v) for k, v in self.options)
        return replace(self, options=pairs)


S = TypeVar("S", bound=Signal)


@dataclass(frozen=True)
class SignalProgram(Generic[S]):
    """What every program of scored signals has; a domain's own program adds to it.

    Attributes
    ----------
    signals : tuple of Signal
        At least one.
    combine : str
    pool, width
        Of the combined score over neighbours.
    base, fraction
        Source of what the search started from, "" where it has no part, and a share of the budget.
    """

    signals: tuple[S, ...]
    combine: str = "sum"
    pool: str = "none"
    width: int = 3
    base: str = ""
    fraction: float = 0.5


P = TypeVar("P", bound=SignalProgram[Any])


def settle(program: P, ordered: tuple[str, ...]) -> P:
    """Set what has no effect in the shared parts to a fixed value.

    Parameters
    ----------
    program : SignalProgram
    ordered : tuple of str
        The combinations in which the order of the signals matters.
    """
    signals = program.signals
    combine = "sum" if len(signals) == 1 else program.combine
    if len(signals) == 1 or combine != "sum":
        signals = tuple(replace(s, weight=1.0) for s in signals)
    if combine not in ordered:
        signals = tuple(sorted(signals, key=lambda s: canonical_json(asdict(s))))
    width = program.width if program.pool != "none" else 3
    return replace(program, signals=signals, combine=combine, width=width)


def to_json(program: SignalProgram[Any]) -> str:
    """Compact JSON of a tree without the wrapped source; the inverse of :func:`parse`."""
    data = asdict(program)
    data.pop("base")
    data["signals"] = [{**asdict(s), "options": dict(s.options)} for s in program.signals]
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def parse(
    text: str, base: str, space: Signals, signal: Callable[..., S], program: Callable[..., P]
) -> P:
    """Rebuild a tree, not normalised.

    Parameters
    ----------
    text : str
        What :func:`to_json` gave.
    base : str
        The wrapped source.
    space : mapping
        The signals that there are.
    signal, program : callable
        The classes of the nodes.

    Raises
    ------
    ValueError, KeyError, TypeError
        When the text is not the JSON of a tree of this space.
    """
    data: dict[str, Any] = json.loads(text)
    signals = []
    for item in data.pop("signals"):
        known = space[item["name"]]
        options = item.pop("options")
        if set(options) != set(known) or any(options[k] not in known[k] for k in known):
            raise ValueError(f"not an option of {item['name']}")
        signals.append(signal(options=tuple((k, options[k]) for k in known), **item))
    if not signals:
        raise ValueError("a program needs a signal")
    return program(signals=tuple(signals), base=base, **data)
