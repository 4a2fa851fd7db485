"""PQCache: approximate top-k by product-quantised keys.

Zhang et al., "PQCache: Product Quantization-based KVCache for Long Context LLM Inference",
arXiv:2407.12820. Each key of the context (after rotary embedding) is split into m subvectors, and
each subvector is replaced by the nearest of 2^b centroids, found by k-means over the context's keys
after the sinks. A query's score for a key is the sum over subvectors of its dot product with the
key's centroid,

    ŝ_j = Σ_s  q_s · C_s[code_s(j)],

looked up in a table of m·2^b products. Scores are summed over the query heads of a KV head, and one
top-k serves them all. Sinks, recent entries and the row itself are attended to in any case; an
entry that leaves the recent window gets the code of its nearest centroid.

Where this differs from the paper: k-means runs a fixed number of iterations (theirs follows a
timing model, so that results depend on the hardware); sizes are shares of the budget; on a context
of no more than 2^b tokens, where the paper stays dense, every key is its own centroid, so that the
scores are exact and the budget is kept all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.methods.kmeans import kmeans, nearest
from galoop.methods.selection import Step, budget, check_density, shares, spread_groups, top, window

if TYPE_CHECKING:
    import torch


def split(keys: torch.Tensor, subvectors: int) -> torch.Tensor:
    """Keys (B, J, n, D) as subvectors (B, J, m, n, D/m)."""
    b, j, n, d = keys.shape
    return keys.reshape(b, j, n, subvectors, d // subvectors).transpose(2, 3)


def build_codebook(
    keys: torch.Tensor, subvectors: int, bits: int, *, skip: int, iterations: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Centroids of the keys after the first ``skip``, and the codes of all keys.

    Parameters
    ----------
    keys : Tensor, shape (B, J, n, D)
    subvectors : int
        m; divides D.
    bits : int
        b, at most 8.
    skip, iterations, seed : int

    Returns
    -------
    centroids : Tensor, shape (B, J, m, 2^b, D/m)
        Fewer than 2^b where there are fewer keys.
    codes : Tensor, uint8, shape (B, J, m, n)
    """
    import torch

    parts = split(keys, subvectors)
    shape = parts.shape[:3]
    flat = parts.flatten(0, 2)
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
    size = min(2**bits, flat.shape[1])
    if flat.shape[1] <= 2**bits:
        skip = 0
    centroids, _ = kmeans(flat[:, skip:], size, iterations=iterations, seed=seed)
    codes = nearest(flat, centroids)
    return centroids.unflatten(0, shape), codes.to(torch.uint8).unflatten(0, shape)


def approximate_scores(step: Step, centroids: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """ŝ of every entry for every query head.

    Parameters
    ----------
    step : Step
    centroids : Tensor, shape (B, J, m, K, D/m)
    codes : Tensor, uint8, shape (B, J, m, n)
        Of the context; the codes of later entries are found here.

    Returns
    -------
    Tensor, shape (B, H, R, L)
    """
    import torch

    m = centroids.shape[2]
    new = split(step.keys.to(centroids.dtype), m)
    later = nearest(new.flatten(0, 2), centroids.flatten(0, 2)).unflatten(0, new.shape[:3])
    codes = torch.cat([codes.long(), later], dim=-1)  # (B, J, m, L)
    queries = step.grouped().to(centroids.dtype)
    b, j, g, r, d = queries.shape
    queries = queries.reshape(b, j, g * r, m, d // m).transpose(2, 3)
    table = queries @ centroids.transpose(-1, -2)  # (B, J, m, G·R, K)
    scores = table[:, :, 0].gather(-1, codes[:, :, 0, None].expand(-1, -1, g * r, -1))
    for s in range(1, m):
        scores = scores + table[:, :, s].gather(-1, codes[:, :, s, None].expand(-1, -1, g * r, -1))
    return scores.reshape(b, j * g, r, -1)


def pqcache(
    step: Step,
    scores: torch.Tensor,
    density: float,
    sink_share: float,
    recent_share: float,
    *,
    per_head: bool = False,
) -> torch.Tensor:
    """Sinks, recent entries, and of the others the highest scores of each group and row.

    Parameters
    ----------
    step : Step
    scores : Tensor, shape (B, H, R, L)
    density, sink_share, recent_share : float
    per_head : bool
        One top-k for each query head, in place of one for the sum over the group.

    Returns
    -------
    Tensor, bool, shape (B, H, R, L)
    """
    sink, recent, _ = shares(step.room(density), sink_share, recent_share)
    fixed = window(step, sink, recent)
    if not per_head:
        scores = scores.unflatten(1, (-1, step.groups)).sum(2)
    open_ = scores.masked_fill(fixed | ~step.seen, -math.inf)
    chosen = top(open_, step.room(density) - fixed.sum(-1)) | fixed
    return chosen if per_head else spread_groups(chosen, step.groups)


@dataclass
class PQCache:
    """Sinks, a recent window, and top-k over product-quantised keys.

    Parameters
    ----------
    density : float
        Share of the entries a row sees that it attends to, in (0, 1].
    subvectors, bits : int
        m and b.
    sink_share, recent_share : float
        Of the budget: 32 sinks of the 655 entries that 2 % of 32K are, and half for recent ones.
    iterations, seed : int
        Of k-means.
    per_head : bool
        One top-k for each query head rather than for the sum over its group.
    """

    density: float = 0.02
    subvectors: int = 2
    bits: int = 6
    sink_share: float = 0.05
    recent_share: float = 0.475
    iterations: int = 10
    seed: int = 0
    per_head: bool = False

    def __post_init__(self) -> None:
        check_density(self.density)
        if not 1 <= self.bits <= 8:
            raise ValueError(f"bits is {self.bits!r}: from 1 to 8, a code is one byte")

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Centroids (B, J, m, 2^b, D/m) and codes (B, J, m, n) of the context's keys."""
        sinks = max(1, int(self.sink_share * budget(self.density, keys.shape[2])))
        centroids, codes = build_codebook(
            keys,
            self.subvectors,
            self.bits,
            skip=sinks,
            iterations=self.iterations,
            seed=self.seed,
        )
        return {"centroids": centroids, "codes": codes}

    def select(self, index: Mapping[str, torch.Tensor], step: Step) -> torch.Tensor:
        """One choice for the query heads of each KV head; bool, (B, H, R, L)."""
        scores = approximate_scores(step, index["centroids"], index["codes"])
        return pqcache(
            step,
            scores,
            self.density,
            self.sink_share,
            self.recent_share,
            per_head=self.per_head,
        )
