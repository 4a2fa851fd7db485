"""Pieces of the text of a program of scored signals."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from galoop.proposers.grammar.signals.tree import Signal, SignalProgram

#: The longest line, in characters.
WIDTH = 100


def docstring(kind: str, summary: str) -> str:
    """The docstring of a program: on one line where it fits.

    Parameters
    ----------
    kind : str
        What it is: ``"A press program"``.
    summary : str
        What it does, without a full stop.
    """
    text = f'"""{kind}: {summary}."""'
    if len(text) <= WIDTH:
        return text
    return f'"""{kind}.\n\n' + textwrap.fill(summary + ".", WIDTH) + '\n"""'


def letters(program: SignalProgram[Any]) -> list[str]:
    """A variable for each signal: ``a``, ``b``, …."""
    return [chr(ord("a") + i) for i in range(len(program.signals))]


def weighted_sum(names: Sequence[str], signals: Sequence[Signal]) -> str:
    """The expression that adds the signals' variables."""
    pairs = zip(names, signals, strict=True)
    return " + ".join(n if s.weight == 1.0 else f"{s.weight} * {n}" for n, s in pairs)


def literal(value: object) -> str:
    """An option's value as source."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def signed(words: str, signal: Signal) -> str:
    """The words for a signal with its sign and its weight."""
    if signal.sign < 0:
        words = "−" + words
    return words if signal.weight == 1.0 else f"{signal.weight:g}·{words}"
