"""Dual Chunk Attention: chunks within which positions start anew.

An, Huang, Zhang, Gong, Qiu, Zhou and Kong, "Training-Free Long-Context Scaling of Large Language
Models", ICML 2024, arXiv 2402.17463, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from galoop.methods.positions import Band, Plan, PositionMethod, Shape


@dataclass(frozen=True)
class DualChunk(PositionMethod):
    """Positions by the number of chunks between query and key.

    With chunks of ``s = chunk - local`` tokens, a key ``j`` always has position ``j mod s``, and a
    query ``i`` has

    - ``i mod s`` towards its own chunk (true distances),
    - ``min(i mod s + s, chunk)`` towards the chunk before it (true distances where they are at
      most ``local``),
    - ``min(2 s - 1, chunk)`` towards all earlier chunks.

    Attributes
    ----------
    chunk : int, optional
        Largest relative position in use; three quarters of the native window by default.
    local : int, optional
        Distance in tokens up to which distances across a chunk's border are true; an eighth of
        the native window by default.
    temper : bool
        Multiply the logits by ``(0.05 ln(length / window) + 1)²``, as the authors' code does
        and the paper does not.
    """

    chunk: int | None = None
    local: int | None = None
    temper: bool = False

    def plan(self, shape: Shape, length: int) -> Plan:
        """Three bands; see :meth:`PositionMethod.plan`."""
        chunk = self.chunk or 3 * shape.window // 4
        local = shape.window // 8 if self.local is None else self.local
        size = chunk - local
        if not 0 < size <= chunk:
            raise ValueError(f"chunk {chunk} and local {local} leave chunks of {size} tokens")
        i = np.arange(length)
        inside, own = i % size, i - i % size
        bands = [
            Band(own, inside, inside),
            Band(np.maximum(own - size, 0), np.minimum(inside + size, chunk), inside),
            Band(np.zeros_like(i), np.full(length, min(2 * size - 1, chunk)), inside),
        ]
        scale = None
        if self.temper and length > shape.window:
            factor = (0.05 * math.log(length / shape.window) + 1.0) ** 2
            scale = np.full(length, factor)
        return Plan(bands, scale)
