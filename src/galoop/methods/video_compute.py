"""Compute a plan's attention, tile by tile: no mask larger than a tile is ever held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from galoop.methods.video_plan import BlockMask, Plan, VideoShape

if TYPE_CHECKING:
    import torch


def tiles(shape: VideoShape, size: int) -> list[tuple[int, int]]:
    """Row ranges of at most ``size`` rows; none holds both video and text rows."""
    found = [(a, min(a + size, shape.video)) for a in range(0, shape.video, size)]
    found += [(a, min(a + size, shape.length)) for a in range(shape.video, shape.length, size)]
    return found


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Plan, shape: VideoShape,
    valid: torch.Tensor | None = None, tile: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention over the pairs of a plan, without a mask larger than a tile.

    Parameters
    ----------
    query, key, value : Tensor
        [B, H, L, D], rotated already.
    plan : Plan
    shape : VideoShape
    valid : Tensor of bool, optional
        [B, L]: keys that are no padding. Every video key has to be valid.
    tile : int, optional
        Rows computed at a time: an eighth of a band's half-width and at least :data:`TILE`, unless
        given, so that a wide band's keys are not gathered over and over. Blocks have their own.

    Returns
    -------
    Tensor
        [B, H, L, D], equal to softmax(QKᵀ/√D + M)V with M = 0 on allowed pairs and −∞ elsewhere.
    """
    import torch

    batch, heads, length, width = query.shape
    flat = [x.reshape(batch * heads, length, width) for x in (query, key, value)]
    result = torch.empty_like(flat[0])
    for group in plan.groups:
        members = group.members.to(query.device)
        order = _whole_order(group.order, shape, query.device)
        q, k, v = (x[members] if order is None else x[members[:, None], order] for x in flat)
        keep = None if valid is None else valid[members // heads]
        found = torch.empty_like(q)
        size = group.mask.rows if tile is None or isinstance(group.mask, BlockMask) else tile
        for start, stop in tiles(shape, size):
            found[:, start:stop] = _attend_rows(q, k, v, group.mask, keep, (start, stop))
        if order is None:
            result[members] = found
        else:
            result[members[:, None], order] = found
    return result.reshape(batch, heads, length, width)


def _whole_order(order: Any, shape: VideoShape, device: Any) -> torch.Tensor | None:
    import torch

    if order is None:
        return None
    text = torch.arange(shape.video, shape.length, device=device)
    order = order.to(device)
    return torch.cat([order, text.expand(*order.shape[:-1], -1)], dim=-1)


def _attend_rows(q: Any, k: Any, v: Any, mask: Any, keep: Any, rows: tuple[int, int]) -> Any:
    """Rows ``rows`` of one group: gather the keys that they may touch, then masked attention."""
    import torch
    import torch.nn.functional as F

    start, stop = rows
    columns = mask.columns(start, stop, q.device)
    inside = columns.clamp(min=0)
    if columns.ndim == 1:
        first, size = int(columns[0]), len(columns)
        if int(columns[-1]) - first + 1 == size:  # one stretch: nothing to copy
            keys, values = k[:, first : first + size], v[:, first : first + size]
        else:
            keys, values = k[:, inside], v[:, inside]
        queries = torch.arange(start, stop, device=q.device)
        allowed = mask.allowed(0, queries[:, None], columns[None, :])[None]
        kept = None if keep is None else keep[:, None, inside]
    else:
        member = torch.arange(len(columns), device=q.device)[:, None]
        keys, values = k[member, inside], v[member, inside]
        allowed = (columns >= 0)[:, None, :]
        kept = None if keep is None else keep[member, inside][:, None, :]
    if kept is not None:
        allowed = allowed & kept
    mask = None if bool(allowed.all()) else allowed[None]
    # four dimensions: with three, PyTorch's CPU kernel is a slow one
    found = F.scaled_dot_product_attention(
        q[None, :, start:stop], keys[None], values[None], attn_mask=mask
    )
    return found[0]
