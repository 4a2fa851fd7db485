"""Self-Extend: true positions nearby, grouped positions far away.

Jin, Han, Yang, Jiang, Liu, Chang, Chen and Hu, "LLM Maybe LongLM: Self-Extend LLM Context Window
Without Tuning", ICML 2024, arXiv 2401.01325, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from galoop.methods.positions import Band, Plan, PositionMethod, Shape


@dataclass(frozen=True)
class SelfExtend(PositionMethod):
    """True distances below ``neighbours`` tokens; farther keys share positions.

    A far pair has the positions ``i // group + neighbours - neighbours // group`` and
    ``j // group``. The capacity is ``(window - neighbours) · group + neighbours`` tokens.

    Attributes
    ----------
    group : int, optional
        Tokens that share a position; the least that reaches the length by default.
    neighbours : int, optional
        A quarter of the native window by default.
    log_scale : bool
        Multiply the logits of query ``i`` by ``max(1, ln(i + 1) / ln(window))``.
    """

    group: int | None = None
    neighbours: int | None = None
    log_scale: bool = False

    def plan(self, shape: Shape, length: int) -> Plan:
        """Two bands; see :meth:`PositionMethod.plan`."""
        near = self.neighbours or max(1, shape.window // 4)
        least = max(1, math.ceil((length - near) / max(1, shape.window - near)))
        group = self.group or least
        i = np.arange(length)
        bands = [
            Band(np.maximum(i - near + 1, 0), i, i),
            Band(np.zeros_like(i), i // group + near - near // group, i // group),
        ]
        scale = None
        if self.log_scale:
            scale = np.maximum(1.0, np.log(i + 1.0) / math.log(shape.window))
        return Plan(bands, scale)
