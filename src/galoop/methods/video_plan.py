"""What a sparse video attention computes, as data: which keys each query of each head may see.

An approximation of video attention says *what* is attended to (a :class:`Plan`);
:func:`galoop.methods.video_compute.attend` computes it, tile by tile, and :func:`selected_pairs`
counts it in closed form. The two are apart so that a density is counted from what was computed and
never taken from the algorithm's word.

Tokens of one clip are ``V = F·P`` video tokens, frame after frame (token ``f·P + p`` is place ``p``
of frame ``f``), followed by ``T`` text tokens (0 for Wan, whose text enters by cross-attention).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from galoop.errors import UsageError

if TYPE_CHECKING:
    import torch

TILE = 128
"""Fewest rows of a band's tile. Of a mask only one tile is held: its rows × the keys they touch."""


@dataclass(frozen=True)
class VideoShape:
    """The tokens of one clip.

    Attributes
    ----------
    frames : int
        F, latent frames.
    per_frame : int
        P, tokens of one frame.
    text : int
        T, text tokens that follow the video tokens in the same sequence.
    """

    frames: int
    per_frame: int
    text: int = 0

    def __post_init__(self) -> None:
        if self.frames < 1 or self.per_frame < 1 or self.text < 0:
            raise UsageError(
                f"a clip of {self.frames} frames × {self.per_frame} tokens with {self.text} text "
                "tokens cannot be",
                "frames and tokens per frame are at least 1, text tokens at least 0",
            )

    @property
    def video(self) -> int:
        """V = F·P."""
        return self.frames * self.per_frame

    @property
    def length(self) -> int:
        """L = F·P + T."""
        return self.video + self.text


class Mask(Protocol):
    """Which (query, key) pairs are computed, in the coordinates of the sequence as laid out."""

    def allowed(self, member: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Whether each pair is allowed.

        Parameters
        ----------
        member : int
            Which member of the head group (masks may differ between heads).
        queries, keys : Tensor of int
            Positions; they broadcast against one another.

        Returns
        -------
        Tensor of bool
        """
        ...

    def columns(self, start: int, stop: int, device: Any) -> torch.Tensor:
        """The keys that rows ``start:stop`` may touch: int [C], or [members, C] where they differ.

        In the second form each row sees every one of them, and −1 stands for no key.
        """
        ...

    def selected(self, text: int) -> list[int]:
        """Allowed pairs of each member (one entry: the same for all) with ``text`` text tokens."""
        ...


@dataclass(frozen=True)
class BandMask:
    """``|q−k| ≤ half_width`` or ``k < sink``, among video tokens; text sees and is seen by all.

    Attributes
    ----------
    shape : VideoShape
    half_width : int
        In tokens.
    sink : int
        The first tokens of the layout, seen by every query.
    """

    shape: VideoShape
    half_width: int
    sink: int = 0

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return max(TILE, self.half_width // 8)

    def allowed(self, member: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """See :class:`Mask`."""
        video = self.shape.video
        near = (queries - keys).abs() <= self.half_width
        return near | (keys < self.sink) | (keys >= video) | (queries >= video)

    def columns(self, start: int, stop: int, device: Any) -> torch.Tensor:
        """See :class:`Mask`."""
        import torch

        video, length = self.shape.video, self.shape.length
        if stop > video:
            return torch.arange(length, device=device)
        first, last = max(0, start - self.half_width), min(video, stop + self.half_width)
        parts = [
            torch.arange(min(self.sink, first), device=device),
            torch.arange(first, last, device=device),
            torch.arange(last, max(last, min(self.sink, video)), device=device),
            torch.arange(video, length, device=device),
        ]
        return torch.cat(parts)

    def selected(self, text: int) -> list[int]:
        """See :class:`Mask`. The band, the sink outside the band, and the text's rows and columns.

        A band of half-width w over V tokens has V(2w+1) − w(w+1) pairs for w < V.
        """
        video, width = self.shape.video, self.half_width
        sink = min(self.sink, video)
        if width >= video - 1:
            pairs = video * video
        else:
            pairs = video * (2 * width + 1) - width * (width + 1)
            pairs += sum(max(0, video - 1 - k - width) + max(0, k - width) for k in range(sink))
        return [pairs + 2 * video * text + text * text]


@dataclass(frozen=True)
class BlockMask:
    """Blocks of keys for each block of queries; text sees and is seen by all.

    Attributes
    ----------
    shape : VideoShape
    size : int
        Tokens of a block; the last one may be shorter.
    kept : Tensor of int
        [members, query blocks, k]: the key blocks, all different.
    """

    shape: VideoShape
    size: int
    kept: torch.Tensor

    @property
    def rows(self) -> int:
        """Rows of a tile: those that share their keys."""
        return self.size

    @property
    def blocks(self) -> int:
        """Blocks of the video tokens."""
        return -(-self.shape.video // self.size)

    def allowed(self, member: int, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """See :class:`Mask`."""
        import torch

        video = self.shape.video
        table = torch.zeros(self.blocks, self.blocks, dtype=torch.bool, device=self.kept.device)
        table.scatter_(1, self.kept[member], True)
        last = video - 1
        table = table.to(queries.device)
        found = table[queries.clamp(max=last) // self.size, keys.clamp(max=last) // self.size]
        return found | (keys >= video) | (queries >= video)

    def columns(self, start: int, stop: int, device: Any) -> torch.Tensor:
        """See :class:`Mask`. Rows ``start:stop`` lie in one block (a block is a tile)."""
        import torch

        video, length = self.shape.video, self.shape.length
        members = self.kept.shape[0]
        if stop > video:
            return torch.arange(length, device=device).expand(members, -1)
        blocks = self.kept[:, start // self.size].to(device)
        inside = torch.arange(self.size, device=device)
        keys = (blocks[..., None] * self.size + inside).flatten(1)
        keys = torch.where(keys < video, keys, -1)  # the last block may be short
        text = torch.arange(video, length, device=device).expand(members, -1)
        return torch.cat([keys, text], dim=1)

    def selected(self, text: int) -> list[int]:
        """See :class:`Mask`."""
        import torch

        video, blocks = self.shape.video, self.blocks
        sizes = torch.full((blocks,), self.size, dtype=torch.int64, device=self.kept.device)
        sizes[-1] = video - (blocks - 1) * self.size
        pairs = (sizes[self.kept].sum(-1) * sizes).sum(-1)
        return [int(n) + 2 * video * text + text * text for n in pairs.tolist()]


@dataclass(frozen=True)
class HeadGroup:
    """Heads that share a layout and a kind of mask.

    Attributes
    ----------
    members : Tensor of int
        [N], each ``batch·H + head``.
    mask : Mask
        In layout coordinates.
    order : Tensor of int or None
        [V], or [N, V] where heads differ: the video token that stands at each place of the layout;
        None leaves them as they are. Text tokens never move.
    """

    members: torch.Tensor
    mask: BandMask | BlockMask
    order: torch.Tensor | None = None


@dataclass(frozen=True)
class Plan:
    """What one attention call computes: every (batch, head) is in exactly one group."""

    groups: tuple[HeadGroup, ...]


def check_plan(plan: Plan, heads: int, shape: VideoShape) -> None:
    """Refuse a plan that does not say, for each head once, what is computed.

    Parameters
    ----------
    plan : Plan
    heads : int
        batch × heads.
    shape : VideoShape

    Raises
    ------
    UsageError
        Naming what is wrong.
    """
    import torch

    found = torch.cat([group.members for group in plan.groups]) if plan.groups else torch.empty(0)
    if sorted(found.tolist()) != list(range(heads)):
        raise UsageError(
            f"the plan does not cover each of {heads} heads once", "put each in one group"
        )
    for group in plan.groups:
        if group.mask.shape != shape:
            raise UsageError(f"a mask is made for {group.mask.shape}, the clip is {shape}")
        _check_order(group.order, len(group.members), shape.video)
        if isinstance(group.mask, BlockMask):
            _check_blocks(group.mask, len(group.members))


def _check_order(order: torch.Tensor | None, members: int, video: int) -> None:
    import torch

    if order is None:
        return
    tokens = torch.arange(video, device=order.device)
    right = tuple(order.shape) in ((video,), (members, video))
    if not right or not bool((order.sort(-1).values == tokens).all()):
        raise UsageError(f"a layout is no permutation of the {video} video tokens")


def _check_blocks(mask: BlockMask, members: int) -> None:
    kept = mask.kept
    if kept.ndim != 3 or tuple(kept.shape[:2]) != (members, mask.blocks):
        raise UsageError(
            f"kept blocks of shape {tuple(kept.shape)}: [{members}, {mask.blocks}, k] is needed"
        )
    if kept.shape[-1] < 1 or int(kept.min()) < 0 or int(kept.max()) >= mask.blocks:
        raise UsageError(f"kept blocks are 0 to {mask.blocks - 1}, at least one for each row")
    ordered = kept.sort(-1).values
    if bool((ordered[..., 1:] == ordered[..., :-1]).any()):
        raise UsageError("a block of keys is kept twice for the same queries")


def selected_pairs(plan: Plan, texts: Sequence[int], heads: int) -> int:
    """The (query, key) pairs that a plan computes, over all heads.

    Parameters
    ----------
    plan : Plan
    texts : sequence of int
        Text tokens of each batch element that are no padding.
    heads : int
        Heads of one batch element.
    """
    total = 0
    for group in plan.groups:
        for text in set(texts):
            counts = group.mask.selected(text)
            for index, member in enumerate(group.members.tolist()):
                if texts[member // heads] == text:
                    total += counts[index if len(counts) > 1 else 0]
    return total


def all_pairs(shape: VideoShape, texts: Sequence[int], heads: int) -> int:
    """The pairs that dense attention computes: (V + t)² for each head, padding left out."""
    return sum(heads * (shape.video + text) ** 2 for text in texts)
