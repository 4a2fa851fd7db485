"""Oracle top-k: each query head attends to the keys it would have attended to most.

The upper bound of what a selector can capture: the scores are the exact attention logits, for
which every key has to be read. A method that approximates top-k is measured against it (for
example in Zhang et al., "PQCache: Product Quantization-based KVCache for Long Context LLM
Inference", arXiv:2407.12820, and Nawrot et al., "The Sparse Frontier", arXiv:2504.17768).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.methods.selection import Step, check_density, shares, top, window

if TYPE_CHECKING:
    import torch


def exact_scores(step: Step, keys: torch.Tensor) -> torch.Tensor:
    """Dot products of the step's queries with keys (B, J, L, D): float32 or wider, (B, H, R, L)."""
    import torch

    dtype = torch.promote_types(keys.dtype, torch.float32)
    scores = step.grouped().to(dtype) @ keys.to(dtype)[:, :, None].transpose(-1, -2)
    return scores.flatten(1, 2)


def oracle_topk(
    step: Step, scores: torch.Tensor, density: float, sink_share: float, recent_share: float
) -> torch.Tensor:
    """Sinks, recent entries, and of the others the highest scores of each head and row.

    Parameters
    ----------
    step : Step
    scores : Tensor, shape (B, H, R, L)
    density : float
    sink_share, recent_share : float
        Of each row's room ``k = max(1, floor(density * visible))``.

    Returns
    -------
    Tensor, bool, shape (B, H, R, L)
        k entries a row; everything where a row sees no more than k.
    """
    sink, recent, _ = shares(step.room(density), sink_share, recent_share)
    fixed = window(step, sink, recent)
    open_ = scores.masked_fill(fixed | ~step.seen, -math.inf)
    # Where sinks and recent entries overlap, the rest takes what they leave.
    rest = step.room(density) - fixed.sum(-1)
    return top(open_, rest) | fixed


@dataclass
class OracleTopK:
    """Sinks, a recent window, and exact top-k.

    Parameters
    ----------
    density : float
        Share of the entries a row sees that each query head attends to, in (0, 1].
    sink_share, recent_share : float
        Of the budget: 128 + 128 of the 655 entries that 2 % of 32K are, in the usual setting.
    """

    density: float = 0.02
    sink_share: float = 0.2
    recent_share: float = 0.2

    def __post_init__(self) -> None:
        check_density(self.density)

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """All keys of the context, (B, J, n, D): an oracle reads everything."""
        return {"keys": keys}

    def select(self, index: Mapping[str, torch.Tensor], step: Step) -> torch.Tensor:
        """The choice of each query head; bool, (B, H, R, L)."""
        import torch

        scores = exact_scores(step, torch.cat([index["keys"], step.keys], dim=2))
        return oracle_topk(step, scores, self.density, self.sink_share, self.recent_share)
