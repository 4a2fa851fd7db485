"""Scores to scores: normalise, pool over neighbours, combine, guard positions, set the grain.

All take and give float32 tensors (B, H, S) and act on the last dimension, head by head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_TINY = 1e-6


def zscore(x: Tensor) -> Tensor:
    """(x − mean)/std of each head; 0 where a head is constant."""
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / centred.pow(2).mean(dim=-1, keepdim=True).sqrt().clamp_min(_TINY)


def rank(x: Tensor) -> Tensor:
    """The rank of each token, from 0 (lowest) to 1 (highest); ties by position."""
    order = x.argsort(dim=-1, stable=True).argsort(dim=-1)
    return order.float() / max(1, x.shape[-1] - 1)


def softmax(x: Tensor) -> Tensor:
    """Softmax of the z-scores, times S (so that the mean is 1)."""
    return zscore(x).softmax(dim=-1) * x.shape[-1]


def log(x: Tensor) -> Tensor:
    """log of x scaled to [0.001, 1]: flattens heavy upper tails."""
    return scale(x).mul(0.999).add(0.001).log()


def scale(x: Tensor) -> Tensor:
    """(x − min)/(max − min) of each head."""
    low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
    return (x - low) / (high - low).clamp_min(_TINY)


def pool(x: Tensor, kind: str, width: int) -> Tensor:
    """Spread a token's score over its ``width`` neighbourhood (odd), cut off at the ends.

    Parameters
    ----------
    kind : {"mean", "max", "median", "gauss"}
        ``gauss`` has a standard deviation of width/4. Means count real neighbours only.
    """
    half = width // 2
    if half == 0:
        return x
    if kind == "max":
        return F.max_pool1d(x, 2 * half + 1, stride=1, padding=half)
    if kind == "median":
        windows = F.pad(x, (half, half), mode="replicate").unfold(-1, 2 * half + 1, 1)
        return windows.median(dim=-1).values
    offset = torch.arange(-half, half + 1, device=x.device, dtype=x.dtype)
    if kind == "mean":
        kernel = torch.ones_like(offset)
    elif kind == "gauss":
        kernel = torch.exp(-0.5 * (offset / (width / 4)).pow(2))
    else:
        raise ValueError(f"unknown pooling {kind!r}, one of mean, max, median, gauss")
    flat = x.reshape(-1, 1, x.shape[-1])
    mass = F.conv1d(torch.ones_like(flat[:1]), kernel.view(1, 1, -1), padding=half)
    return (F.conv1d(flat, kernel.view(1, 1, -1), padding=half) / mass).view(x.shape)


def product(scores: Sequence[Tensor]) -> Tensor:
    """Product of the scores, each scaled to [0.01, 1.01] first."""
    out = scale(scores[0]) + 0.01
    for x in scores[1:]:
        out = out * (scale(x) + 0.01)
    return out


def maximum(scores: Sequence[Tensor]) -> Tensor:
    """The largest of the scores, token by token (normalise them first)."""
    return torch.stack(list(scores)).amax(dim=0)


def reciprocal_rank(scores: Sequence[Tensor], constant: float = 60.0) -> Tensor:
    """Σ 1/(constant + r) with r the rank from the best, 1, 2, … (Cormack et al. 2009)."""
    size = scores[0].shape[-1]
    best_first = [(1.0 - rank(x)) * max(1, size - 1) + 1.0 for x in scores]
    return torch.stack([1.0 / (constant + r) for r in best_first]).sum(dim=0)


def interleave(scores: Sequence[Tensor]) -> Tensor:
    """Round-robin: the best of the first, the best of the second, …, the second best of each, ….

    A token's turn is the earliest at which any of the scores would take it; the value is minus
    the turn.
    """
    size, number = scores[0].shape[-1], len(scores)
    turns = [(1.0 - rank(x)) * max(1, size - 1) * number + i for i, x in enumerate(scores)]
    return -torch.stack(turns).amin(dim=0)


def two_stage(first: Tensor, second: Tensor, n_first: int) -> Tensor:
    """The best ``n_first`` tokens of ``first``, then the order of ``second`` (CriticalKV's way)."""
    n_first = max(0, min(n_first, first.shape[-1]))
    top = first.topk(n_first, dim=-1).indices
    return rank(second).scatter_add(-1, top, torch.full(top.shape, 2.0, device=first.device))


def guard(x: Tensor, first: int = 0, last: int = 0) -> Tensor:
    """Put the first and the last tokens above all others (in their own order among themselves)."""
    size = x.shape[-1]
    position = torch.arange(size, device=x.device)
    protected = (position < first) | (position >= size - last)
    span = x.amax(dim=-1, keepdim=True) - x.amin(dim=-1, keepdim=True) + 1.0
    return torch.where(protected, x + span, x)


def by_runs(x: Tensor, length: int) -> Tensor:
    """Rank whole runs of ``length`` tokens by their mean score (ChunkKV, arXiv:2502.00299).

    Within a run tokens keep their order, so that a budget which ends inside a run keeps its best.
    """
    size = x.shape[-1]
    run = torch.arange(size, device=x.device) // length
    number = int(run[-1]) + 1
    index = run.expand(x.shape)
    total = torch.zeros(*x.shape[:-1], number, device=x.device, dtype=x.dtype)
    mean = total.scatter_add(-1, index, x) / torch.bincount(run, minlength=number)
    return mean_order(mean).gather(-1, index) + rank(x) * 0.5


def mean_order(x: Tensor) -> Tensor:
    """Integer ranks 0, 1, … as floats (ties by position)."""
    return x.argsort(dim=-1, stable=True).argsort(dim=-1).float()


def by_chunks(x: Tensor, length: int) -> Tensor:
    """Give every chunk of ``length`` tokens its share: the value is the rank within the chunk."""
    parts = []
    for part in x.split(length, dim=-1):
        order = part.argsort(dim=-1, stable=True).argsort(dim=-1).float()
        parts.append((order + 1.0) / part.shape[-1])
    return torch.cat(parts, dim=-1)


def diverse(x: Tensor, features: Tensor, n: int, penalty: float = 0.5) -> Tensor:
    """Greedy order that avoids tokens like those already taken (maximal marginal relevance).

    Repeats n times: take argmax of (1 − penalty)·scale(x) − penalty·max cos to the taken ones.
    The value is minus the turn; tokens never taken follow in the order of x. Carbonell and
    Goldstein 1998.

    Parameters
    ----------
    features : Tensor, (B, H or 1, S, ·)
    n : int
        How many turns are worked out (the budget).
    """
    unit = F.normalize(features, dim=-1).expand(-1, x.shape[1], -1, -1)
    similarity = unit @ unit.transpose(-2, -1)  # (B, H, S, S)
    relevance = (1.0 - penalty) * scale(x)
    nearest = torch.zeros_like(x)
    taken = torch.zeros_like(x, dtype=torch.bool)
    out = rank(x) - 2.0 - n
    for turn in range(min(n, x.shape[-1])):
        value = (relevance - penalty * nearest).masked_fill(taken, float("-inf"))
        best = value.argmax(dim=-1, keepdim=True)
        taken.scatter_(-1, best, True)
        out.scatter_(-1, best, -float(turn))
        rows = best.unsqueeze(-1).expand(-1, -1, 1, x.shape[-1])
        nearest = torch.maximum(nearest, similarity.gather(2, rows).squeeze(2))
    return out
