"""Position interpolation, NTK-aware scaling and YaRN: one band, other frequencies.

Each exists twice: as a position plan (:class:`PositionMethod`), and as transformers' own setting
(:func:`rescaled`), which the plans are tested against.

Chen, Wong, Chen and Tian, "Extending Context Window of Large Language Models via Positional
Interpolation", arXiv 2306.15595. Peng, Quesnelle, Fan and Shippole, "YaRN: Efficient Context Window
Extension of Large Language Models", ICLR 2024, arXiv 2309.00071 (NTK-aware: section 3.1, YaRN:
sections 3.2 and 3.4).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from galoop.methods.positions import Band, Plan, PositionMethod, Shape

Kind = Literal["interpolation", "ntk", "yarn"]


def _one_band(length: int, frequency: Any = None, squeeze: float = 1.0) -> Band:
    i = np.arange(length)
    return Band(np.zeros_like(i), i / squeeze, i / squeeze, frequency)


@dataclass(frozen=True)
class Interpolation(PositionMethod):
    """All positions divided by ``factor`` (the extension by default)."""

    factor: float | None = None

    def plan(self, shape: Shape, length: int) -> Plan:
        """One band with fractional positions."""
        return Plan([_one_band(length, squeeze=self.factor or shape.extension)])


@dataclass(frozen=True)
class NTK(PositionMethod):
    """A larger RoPE base: the slowest pair is interpolated by ``factor``, the fastest not at all.

    ``θ' = θ · factor^(d / (d - 2))``, which multiplies the frequency of pair ``m`` of ``d/2`` by
    ``factor^(-2m / (d - 2))``.
    """

    factor: float | None = None

    def plan(self, shape: Shape, length: int) -> Plan:
        """One band with scaled frequencies."""
        pairs = np.arange(shape.head_dim // 2)
        factor = self.factor or shape.extension
        return Plan([_one_band(length, factor ** (-2.0 * pairs / (shape.head_dim - 2)))])


@dataclass(frozen=True)
class YaRN(PositionMethod):
    """Slow pairs interpolated, fast ones kept, a ramp between, and a temperature.

    A pair that turns more than ``fast`` times within the window keeps its frequency, one that
    turns fewer than ``slow`` times is divided by ``factor``; between them a linear ramp over the
    pair's number. Queries and keys are multiplied by ``0.1 ln(factor) + 1`` each.
    """

    factor: float | None = None
    fast: float = 32.0
    slow: float = 1.0

    def plan(self, shape: Shape, length: int) -> Plan:
        """One band with scaled frequencies, and a constant logit scale."""
        factor = self.factor or shape.extension
        pairs = shape.head_dim // 2
        theta = float(shape.frequencies[1]) ** -pairs

        def pair_of(turns: float) -> float:
            return pairs * math.log(shape.window / (turns * 2 * math.pi)) / math.log(theta)

        low = max(math.floor(pair_of(self.fast)), 0)
        high = min(math.ceil(pair_of(self.slow)), shape.head_dim - 1)
        width = max(high - low, 0.001)
        ramp = np.clip((np.arange(pairs) - low) / width, 0.0, 1.0)
        temperature = (0.1 * math.log(factor) + 1.0) ** 2 if factor > 1 else 1.0
        band = _one_band(length, (1.0 - ramp) + ramp / factor)
        return Plan([band], np.full(length, temperature))


@contextmanager
def rescaled(model: Any, kind: Kind, factor: float) -> Iterator[None]:
    """The model with transformers' own RoPE settings of that kind; as before afterwards.

    Parameters
    ----------
    model : PreTrainedModel
        With plain (``default``) RoPE.
    kind : {"interpolation", "ntk", "yarn"}
    factor : float
        How many native windows to reach.

    Raises
    ------
    UsageError
        When the model's RoPE is scaled already.
    """
    from galoop.errors import UsageError

    rotary, config = model.model.rotary_emb, copy.deepcopy(model.config)
    rope = dict(config.rope_parameters)
    if rope.get("rope_type", "default") != "default":
        raise UsageError(
            f"the positions of this model are scaled already ({rope['rope_type']})",
            "take a model with plain rotary embeddings",
        )
    window, theta = config.max_position_embeddings, rope["rope_theta"]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if kind == "interpolation":
        rope.update(rope_type="linear", factor=factor)
    elif kind == "yarn":
        rope.update(rope_type="yarn", factor=factor, original_max_position_embeddings=window)
    else:
        rope["rope_theta"] = theta * factor ** (head_dim / (head_dim - 2))
    config.rope_parameters = rope
    model.model.rotary_emb = type(rotary)(config, device=rotary.inv_freq.device)
    try:
        yield
    finally:
        model.model.rotary_emb = rotary
