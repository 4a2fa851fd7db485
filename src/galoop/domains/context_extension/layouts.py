"""Ready-made bands for position plans, and what can be done to them.

A plan is near bands followed by far ones: ``[*window(…), *grouped(…)]``. Near bands say where they
end by their starts; far ones take whatever keys are left. Lengths, sizes and distances are tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from galoop.methods.positions import Band, Shape

Floats = NDArray[np.float64]

# Near bands.


def window(length: int, width: int) -> list[Band]:
    """The ``width`` nearest keys (the query's own among them) at their true distances."""
    i = np.arange(length)
    return [Band(np.maximum(i - width + 1, 0), i, i)]


def chunks(length: int, size: int, local: int, phase: int = 0) -> list[Band]:
    """A query's own chunk of ``size`` tokens at true distances, and the chunk before it.

    Towards the chunk before, distances are true up to ``local`` and cut at ``size + local`` minus
    the key's place in its chunk. The first border lies ``phase`` tokens early. (Dual Chunk
    Attention's first two bands.)
    """
    i = np.arange(length)
    inside = (i + phase) % size
    own = np.maximum(i - inside, 0)
    before = Band(np.maximum(i - inside - size, 0), np.minimum(inside + size, size + local), inside)
    return [Band(own, inside, inside), before]


# Far bands: all the keys that are left.


def true(length: int) -> list[Band]:
    """True distances."""
    i = np.arange(length)
    return [Band(np.zeros_like(i), i, i)]


def level(length: int, at: float) -> list[Band]:
    """All keys at one distance."""
    i = np.arange(length)
    return [Band(np.zeros_like(i), np.full(length, at), np.zeros(length))]


def within(length: int, size: int, cap: int, phase: int = 0) -> list[Band]:
    """Keys by their place in chunks of ``size``: distance ``cap`` minus that place.

    Dual Chunk Attention's third band.
    """
    i = np.arange(length)
    return [Band(np.zeros_like(i), np.full(length, max(cap, size - 1)), (i + phase) % size)]


def grouped(length: int, near: int, group: int) -> list[Band]:
    """Groups of keys that share a position, continuing at distance ``near`` (Self-Extend's)."""
    i = np.arange(length)
    return [Band(np.zeros_like(i), i // group + near - near // group, i // group)]


def linear(length: int, near: int, group: float) -> list[Band]:
    """Distances that grow ``group`` times slower from ``near`` on."""
    i = np.arange(length)
    return [Band(np.zeros_like(i), i / group + near * (1 - 1 / group), i / group)]


def doubling(length: int, near: int, growth: float, most: int = 5) -> list[Band]:
    """Distances that grow slower and slower: ``growth`` times at each doubling from ``near`` on.

    At most ``most`` bands; the last one goes on to the first key.
    """
    i = np.arange(length)
    bands, begin, reached, slope = [], float(max(near, 1)), float(max(near, 1)), 1.0
    for number in range(most):
        slope /= growth
        last = number == most - 1 or 2 * begin >= length
        start = np.zeros_like(i) if last else np.maximum(i - int(2 * begin) + 1, 0)
        bands.append(Band(start, slope * i + max(reached - slope * begin, 0.0), slope * i))
        if last:
            break
        reached += slope * begin
        begin *= 2
    return bands


def dropped(length: int) -> list[Band]:
    """Nothing: the keys that are left are not attended to."""
    i = np.arange(length)
    return [Band(np.zeros_like(i), i, i, drop=True)]


# Numbers that fit.


def group_for(length: int, near: int, reach: int) -> float:
    """How much slower distances must grow from ``near`` on so that the farthest is ``reach``."""
    return max(1.0, (length - near) / max(1, reach - near))


# What can be done to bands.


def with_sinks(bands: Sequence[Band], count: int, at: int) -> list[Band]:
    """The first ``count`` keys in a band of their own, at distances up to ``at``.

    Nearer bands keep the keys that they have.
    """
    start = (
        np.asarray(bands[-2].start)
        if len(bands) > 1
        else np.arange(len(np.asarray(bands[0].key))) + 1
    )
    i = np.arange(len(start))
    last = replace(bands[-1], start=np.minimum(start, count))
    sinks = Band(np.zeros_like(i), np.full(len(i), float(max(at, count))), i)
    return [*bands[:-1], last, sinks]


def with_frequency(bands: Sequence[Band], factors: Floats) -> list[Band]:
    """The bands with factors on the model's frequencies."""
    return [replace(band, frequency=factors) for band in bands]


def base_change(shape: Shape, factor: float) -> Floats:
    """Factors of a larger RoPE base: 1 for the fastest pair, 1/factor for the slowest."""
    pairs = shape.head_dim // 2
    return factor ** (-np.arange(pairs) / max(1, pairs - 1))


def slow_pairs(shape: Shape, factor: float, turns: float = 1.0) -> Floats:
    """1/factor for pairs that turn fewer than ``turns`` times within the window, 1 for others."""
    slow = shape.window * shape.frequencies < turns * 2 * math.pi
    return np.where(slow, 1.0 / factor, 1.0)


# Scales of logits.


def log_scale(length: int, window: int, power: float = 1.0) -> Floats:
    """``(ln(i + 1) / ln(window))^power`` beyond the window, 1 within it."""
    return np.maximum(1.0, np.log(np.arange(length) + 1.0) / math.log(window)) ** power


def temper(length: int, window: int, factor: float) -> Floats:
    """``factor`` beyond the window, 1 within it."""
    return np.where(np.arange(length) < window, 1.0, factor)
