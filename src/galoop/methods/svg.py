"""Sparse VideoGen (SVG): each head attends within frames or across them, found out while it runs.

Xi et al., "Sparse VideoGen: Accelerating Video Diffusion Transformers with Spatial-Temporal
Sparsity", ICML 2025 (arXiv:2502.01776); the constants of the reference implementation were read in
``svg-project/Sparse-VideoGen``. No code of it is used.

For a clip of F frames × P tokens and T text tokens (L = F·P + T), in each denoising step and layer
that is not left dense:

1. *Profile.* Some random query rows, the same for all heads, are computed dense and under both
   masks; the mask with the smaller mean squared error is the head's.
2. *Layout.* Temporal heads lay the video tokens out place by place, (F, P) → (P, F), so that the
   same place in all frames stands together; spatial heads keep frame by frame.
3. *Band.* In layout coordinates a query sees the keys within ``w·P`` tokens, the first
   ``sink_frames·P`` keys, and the text. For the density s that is asked for

       w·P = L·(1 − √(1 − s′)),   s′ = s − 2T/L,

   which gives a band of exactly that share of the pairs before rounding to whole kernel blocks and
   before the sink. What SVG's settings call sparsity is this density.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from galoop.errors import UsageError
from galoop.hashing import derive_seed
from galoop.methods.video_plan import BandMask, HeadGroup, Plan, VideoShape

if TYPE_CHECKING:
    import torch

SPATIAL, TEMPORAL = 0, 1


@dataclass(frozen=True)
class Call:
    """Where in a generation an attention call stands.

    Attributes
    ----------
    shape : VideoShape
    layer, layers : int
        This layer, and how many self-attention layers there are.
    step, steps : int
        This denoising step, and how many there are.
    """

    shape: VideoShape
    layer: int = 0
    layers: int = 1
    step: int = 0
    steps: int = 1


@dataclass(frozen=True)
class Schedule:
    """Which steps and layers stay dense: ``step < ⌊first_steps·steps⌋``, likewise the layers.

    Attributes
    ----------
    first_steps, first_layers : float
        Fractions in [0, 1].
    """

    first_steps: float = 0.0
    first_layers: float = 0.0

    def __post_init__(self) -> None:
        for name in ("first_steps", "first_layers"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"{name} is {getattr(self, name)}", "give a fraction from 0 to 1")

    def dense(self, call: Call) -> bool:
        """Whether this call is left dense."""
        # 0.3·10 is 2.999…96 in binary: a floor must not lose a step to that.
        steps = math.floor(self.first_steps * call.steps + 1e-9)
        layers = math.floor(self.first_layers * call.layers + 1e-9)
        return call.step < steps or call.layer < layers


WAN_SCHEDULE = Schedule(0.2, 0.03)
"""SVG's setting for Wan at 720p."""


@dataclass(frozen=True)
class SVG:
    """SVG's knobs, and the plan that they give.

    Attributes
    ----------
    density : float
        s, the share of pairs that the band is made for, in (0, 1].
    schedule : Schedule
        The first steps and layers, which stay dense.
    rows : int
        Sampled query rows of the profile.
    granularity : int
        The half-width is rounded to a multiple of this many tokens (128: a block of the reference's
        kernel; 1 for clips so small that 128 tokens are a frame).
    rounding : {"up", "down"}
        Up gives ``|q−k| ≤ ⌈wP⌉`` (its Wan masks), down ``|q−k| < ⌊wP⌋`` (its Hunyuan masks).
    sink_frames : int
        Times P: the first keys of the layout that every query sees. Wan has 1, Hunyuan none.
    exact : bool
        The density is that of all pairs, sink and text included: the widest band that keeps within
        it. In a clip of few frames the sink alone is a good part of the pairs, and the published
        formula then gives far more than it is asked for.
    seed : int
        Of the sampled rows. They follow from seed, step and layer alone, so that a clip comes out
        the same whatever else was generated before it, and torch's global generator is untouched.
    """

    density: float = 0.3
    schedule: Schedule = WAN_SCHEDULE
    rows: int = 64
    granularity: int = 128
    rounding: Literal["up", "down"] = "up"
    sink_frames: int = 1
    exact: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.density <= 1.0:
            raise UsageError(f"a density of {self.density}", "give a share of the pairs in (0, 1]")
        if self.rows < 1 or self.granularity < 1 or self.sink_frames < 0:
            raise UsageError(
                f"rows {self.rows}, granularity {self.granularity}, sink_frames {self.sink_frames}",
                "rows and granularity are at least 1, sink_frames at least 0",
            )

    def dense(self, call: Call) -> bool:
        """Whether this call is left dense."""
        return self.schedule.dense(call)

    def plan(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call,
             valid: torch.Tensor | None = None) -> Plan:  # fmt: skip
        """Choose each head's kind and lay the band.

        Parameters
        ----------
        query, key, value : Tensor
            [B, H, L, D], rotated.
        call : Call
        valid : Tensor of bool, optional
            [B, L], keys that are no padding.
        """
        mask = self.mask(call.shape)
        kinds = choose_kinds(query, key, value, mask, self.sampled(call), valid)
        return band_plan(kinds.flatten(), mask)

    def mask(self, shape: VideoShape) -> BandMask:
        """The band in layout coordinates."""
        sink = self.sink_frames * shape.per_frame
        if self.exact:
            return widest_band(self.density, shape, sink)
        width = band_half_width(self.density, shape, self.granularity, self.rounding)
        return BandMask(shape, width, sink)

    def sampled(self, call: Call) -> torch.Tensor:
        """The profile's rows: video tokens, all different, ascending, int [min(rows, V)]."""
        import torch

        seed = derive_seed(self.seed, "svg rows", call.step, call.layer)
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(call.shape.video, generator=generator)[: self.rows]
        return chosen.sort().values

    def profiled(self, call: Call, heads: int, texts: list[int]) -> int:
        """Pairs that the profile costs on top: its rows dense, once for each head."""
        rows = min(self.rows, call.shape.video)
        return sum(heads * rows * (call.shape.video + text) for text in texts)


PUBLISHED: Mapping[str, SVG] = MappingProxyType(
    {
        "wan-720p": SVG(0.3, WAN_SCHEDULE),
        "hunyuan-720p": SVG(0.25, Schedule(0.1, 0.03), rounding="down", sink_frames=0),
        "hunyuan-480p": SVG(0.2, Schedule(0.04, 0.0), rounding="down", sink_frames=0),
    }
)
"""The settings of the reference implementation's scripts."""


def band_half_width(
    density: float, shape: VideoShape, granularity: int = 1, rounding: str = "up"
) -> int:
    """The half-width in tokens of a band that holds ``density`` of the pairs.

    Raises
    ------
    UsageError
        The text alone takes more than the density.
    """
    if density >= 1.0:
        return shape.video  # everything: the formula would take the text's pairs off first
    length = shape.length
    left = density - 2 * shape.text / length
    if left <= 0:
        raise UsageError(
            f"a density of {density} is used up by {shape.text} text tokens of {length}",
            f"give more than {2 * shape.text / length:.3f}",
        )
    tokens = length * (1 - math.sqrt(1 - left))
    if rounding == "up":
        return math.ceil(tokens / granularity - 1e-9) * granularity
    return max(0, math.floor(tokens / granularity + 1e-9) * granularity - 1)


def widest_band(density: float, shape: VideoShape, sink: int = 0) -> BandMask:
    """The widest band that, with its sink and the text, has at most ``density`` of all pairs.

    Raises
    ------
    UsageError
        Sink, text and the diagonal alone are more.
    """
    most = density * shape.length**2

    def fits(width: int) -> bool:
        return BandMask(shape, width, sink).selected(shape.text)[0] <= most

    if not fits(0):
        least = BandMask(shape, 0, sink).selected(shape.text)[0] / shape.length**2
        raise UsageError(
            f"a density of {density} is less than sink and text take", f"give {least:.3f} or more"
        )
    low, high = 0, shape.video  # low fits
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return BandMask(shape, low, sink)


def temporal_order(shape: VideoShape) -> torch.Tensor:
    """The token at each place of the temporal layout: place ``p·F + f`` holds ``f·P + p``."""
    import torch

    return torch.arange(shape.video).view(shape.frames, shape.per_frame).T.reshape(-1)


def to_temporal(tokens: torch.Tensor, shape: VideoShape) -> torch.Tensor:
    """Where tokens stand in the temporal layout: ``f·P + p`` → ``p·F + f``; text stays."""
    frame, place = tokens // shape.per_frame, tokens % shape.per_frame
    return (place * shape.frames + frame).where(tokens < shape.video, tokens)


def band_plan(kinds: torch.Tensor, mask: BandMask) -> Plan:
    """The plan of heads that are spatial (0) or temporal (1): int [B·H]."""
    import torch

    order: torch.Tensor | None = None
    if bool((kinds == TEMPORAL).any()):
        # one group for both kinds: each tile is then one call for all heads
        layouts = torch.stack([torch.arange(mask.shape.video), temporal_order(mask.shape)])
        order = layouts.to(kinds.device)[kinds]
    return Plan((HeadGroup(torch.arange(len(kinds), device=kinds.device), mask, order),))


def choose_kinds(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: BandMask,
    rows: torch.Tensor, valid: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The kind of each head: 0 spatial, 1 temporal (spatial where both err alike).

    Parameters
    ----------
    query, key, value : Tensor
        [B, H, L, D].
    mask : BandMask
        In layout coordinates; its rows are computed, never the whole of it.
    rows : Tensor of int
        [R], video tokens.
    valid : Tensor of bool, optional
        [B, L].

    Returns
    -------
    Tensor of int
        [B, H].
    """
    import torch
    import torch.nn.functional as F

    rows = rows.to(query.device)
    keys = torch.arange(mask.shape.length, device=query.device)
    # float32: in half precision the errors that are compared drown in rounding
    sampled, key, value = query[:, :, rows].float(), key.float(), value.float()
    seen = None if valid is None else valid[:, None, None, :]
    dense = F.scaled_dot_product_attention(sampled, key, value, attn_mask=seen)
    errors = []
    for place in (lambda tokens: tokens, lambda tokens: to_temporal(tokens, mask.shape)):
        allowed = mask.allowed(0, place(rows)[:, None], place(keys)[None, :])
        allowed = allowed if seen is None else allowed & seen
        masked = F.scaled_dot_product_attention(sampled, key, value, attn_mask=allowed)
        errors.append((masked - dense).square().mean((-1, -2)))
    return (errors[TEMPORAL] < errors[SPATIAL]).long()
