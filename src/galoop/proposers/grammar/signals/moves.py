"""Moves on the parts that every grammar of scored signals has."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from galoop.proposers.grammar.signals.tree import P, S, Signals, Value


class Chooser:
    """Draws options by slot: what was learned of a slot may tilt the draw.

    Parameters
    ----------
    rng : random.Random
    pick : callable (slot, options) -> option
    base : str
        Source of what the search started from, where it may have a part; "" for none.
    """

    def __init__(
        self, rng: random.Random, pick: Callable[[str, Sequence[str]], str], base: str = ""
    ) -> None:
        self.rng = rng
        self.base = base
        self._pick = pick

    def draw(self, slot: str, options: Sequence[Value]) -> Value:
        """One of ``options``; they are told apart by their ``repr``."""
        by_name = {repr(option): option for option in options}
        return by_name[self._pick(slot, list(by_name))]

    def text(self, slot: str, options: Sequence[str]) -> str:
        """One of several texts."""
        return str(self.draw(slot, options))

    def number(self, slot: str, options: Sequence[int | float]) -> float:
        """One of several numbers."""
        return float(self.draw(slot, options))

    def whole(self, slot: str, options: Sequence[int]) -> int:
        """One of several whole numbers."""
        return int(self.draw(slot, options))

    def other(self, slot: str, options: Sequence[Value], current: Value) -> Value:
        """One of ``options`` that is not the current one."""
        return self.draw(slot, [o for o in options if o != current])


@dataclass(frozen=True)
class SignalMoves:
    """The moves that are the same in every domain, over a domain's tables.

    Attributes
    ----------
    signals : mapping
        The signals with their options.
    transforms, combines, pools, widths, weights : tuple
        The values at the nodes.
    """

    signals: Signals
    transforms: tuple[str, ...]
    combines: tuple[str, ...]
    pools: tuple[str, ...]
    widths: tuple[int, ...]
    weights: tuple[float, ...]

    def options(self, name: str, choose: Chooser) -> tuple[tuple[str, Value], ...]:
        """Drawn options of a signal."""
        return tuple((k, choose.draw(f"{name}.{k}", v)) for k, v in self.signals[name].items())

    def change_option(self, program: P, choose: Chooser) -> P | None:
        """Another option of one signal."""
        open_ = [(s, key) for s in program.signals for key, _ in s.options]
        if not open_:
            return None
        signal, key = choose.rng.choice(open_)
        space = self.signals[signal.name][key]
        value = choose.other(f"{signal.name}.{key}", space, dict(signal.options)[key])
        return swap(program, signal, signal.with_option(key, value))

    def change_transform(self, program: P, choose: Chooser) -> P:
        """Another normalisation of one signal."""
        old = choose.rng.choice(program.signals)
        new = choose.other("transform", self.transforms, old.transform)
        return swap(program, old, replace(old, transform=str(new)))

    def change_weight(self, program: P, choose: Chooser) -> P | None:
        """Another weight of one signal in a sum."""
        if program.combine != "sum" or len(program.signals) < 2:
            return None
        old = choose.rng.choice(program.signals)
        weight = choose.other("weight", self.weights, old.weight)
        return swap(program, old, replace(old, weight=float(weight)))

    def change_combination(self, program: P, choose: Chooser) -> P | None:
        """Another way to combine the signals."""
        if len(program.signals) < 2:
            return None
        combine = choose.other("combine", self.combines, program.combine)
        return replace(program, combine=str(combine))

    def change_pool(self, program: P, choose: Chooser) -> P:
        """Another pooling of the combined score over neighbours."""
        pool, width = choose.text("pool", self.pools), choose.whole("width", self.widths)
        return replace(program, pool=pool, width=width)


def remove_signal(program: P, choose: Chooser) -> P | None:
    """One signal less."""
    if len(program.signals) < 2:
        return None
    at = choose.rng.randrange(len(program.signals))
    return replace(program, signals=program.signals[:at] + program.signals[at + 1 :])


def inserted(program: P, new: S, choose: Chooser) -> tuple[S, ...]:
    """The signals of a program with a new one at a drawn place."""
    at = choose.rng.randrange(len(program.signals) + 1)
    return (*program.signals[:at], new, *program.signals[at:])


def swap(program: P, old: S, new: S) -> P:
    """The program with one signal in the place of another."""
    at = program.signals.index(old)
    return replace(program, signals=(*program.signals[:at], new, *program.signals[at + 1 :]))
