"""Two plain sparse video attentions to stand beside SVG: a fixed pattern, and top-k blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from galoop.errors import UsageError
from galoop.methods.svg import (
    SPATIAL,
    TEMPORAL,
    WAN_SCHEDULE,
    Call,
    Schedule,
    band_half_width,
    band_plan,
)
from galoop.methods.video_plan import BandMask, BlockMask, HeadGroup, Plan, VideoShape

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FixedPattern:
    """SVG's band without its profile: which heads are temporal is fixed beforehand.

    Attributes
    ----------
    kind : {"spatial", "temporal", "alternate"}
        All heads of one kind, or even heads spatial and odd ones temporal.
    density : float
        As in :class:`galoop.methods.svg.SVG`.
    schedule : Schedule
    granularity, sink_frames : int
        As in SVG.
    """

    kind: Literal["spatial", "temporal", "alternate"] = "alternate"
    density: float = 0.3
    schedule: Schedule = WAN_SCHEDULE
    granularity: int = 128
    sink_frames: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("spatial", "temporal", "alternate"):
            raise UsageError(f"no pattern {self.kind!r}", "spatial, temporal or alternate")
        if not 0.0 < self.density <= 1.0:
            raise UsageError(f"a density of {self.density}", "give a share of the pairs in (0, 1]")

    def dense(self, call: Call) -> bool:
        """Whether this call is left dense."""
        return self.schedule.dense(call)

    def plan(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call,
             valid: torch.Tensor | None = None) -> Plan:  # fmt: skip
        """The same for every input: see :meth:`galoop.methods.svg.SVG.plan`."""
        import torch

        batch, heads = query.shape[:2]
        width = band_half_width(self.density, call.shape, self.granularity)
        mask = BandMask(call.shape, width, self.sink_frames * call.shape.per_frame)
        kinds = torch.arange(heads) % 2
        if self.kind != "alternate":
            kinds = torch.full((heads,), SPATIAL if self.kind == "spatial" else TEMPORAL)
        return band_plan(kinds.repeat(batch), mask)

    def profiled(self, call: Call, heads: int, texts: list[int]) -> int:
        """Nothing is profiled."""
        return 0


@dataclass(frozen=True)
class TopKBlocks:
    """Each block of queries sees the key blocks whose mean key suits its mean query best.

    The block-sparse pattern of MInference (Jiang et al., NeurIPS 2024, arXiv:2407.02490) without
    its causal mask: blocks of consecutive video tokens are pooled by their mean, and each query
    block keeps k = max(1, round(s·n)) of n key blocks, per head. Text sees and is seen by all.

    Attributes
    ----------
    density : float
        s, the share of blocks to keep, in (0, 1].
    block : int
        Tokens of a block.
    schedule : Schedule
    """

    density: float = 0.3
    block: int = 64
    schedule: Schedule = WAN_SCHEDULE

    def __post_init__(self) -> None:
        if not 0.0 < self.density <= 1.0 or self.block < 1:
            raise UsageError(
                f"a density of {self.density} in blocks of {self.block}",
                "the density is a share in (0, 1], a block at least one token",
            )

    def dense(self, call: Call) -> bool:
        """Whether this call is left dense."""
        return self.schedule.dense(call)

    def plan(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call,
             valid: torch.Tensor | None = None) -> Plan:  # fmt: skip
        """Pool, score and keep: see :meth:`galoop.methods.svg.SVG.plan`."""
        import torch

        batch, heads = query.shape[:2]
        pooled = [block_means(x, call.shape, self.block) for x in (query, key)]
        scores = pooled[0] @ pooled[1].transpose(-1, -2)
        blocks = scores.shape[-1]
        kept = scores.topk(blocks_to_keep(self.density, blocks), dim=-1).indices
        mask = BlockMask(call.shape, self.block, kept.flatten(0, 1).sort(-1).values)
        return Plan((HeadGroup(torch.arange(batch * heads), mask),))

    def profiled(self, call: Call, heads: int, texts: list[int]) -> int:
        """The scores of the pooled blocks, once for each head."""
        blocks = -(-call.shape.video // self.block)
        return heads * len(texts) * blocks * blocks


def blocks_to_keep(density: float, blocks: int) -> int:
    """The whole number of blocks nearest to the density, at least one."""
    return min(blocks, max(1, round(density * blocks)))


def block_means(tokens: torch.Tensor, shape: VideoShape, block: int) -> torch.Tensor:
    """Means over blocks of video tokens: [B, H, L, D] → [B, H, ⌈V/block⌉, D], in float32."""
    import torch
    import torch.nn.functional as F

    video = tokens[:, :, : shape.video].float()
    blocks = -(-shape.video // block)
    padded = F.pad(video, (0, 0, 0, blocks * block - shape.video))
    sizes = torch.full((blocks, 1), float(block), device=tokens.device)
    sizes[-1] = shape.video - (blocks - 1) * block
    return padded.unflatten(2, (blocks, block)).sum(3) / sizes
