"""Quest: whole pages of the cache, chosen by an upper bound of their attention scores.

Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference",
arXiv:2406.10774. Of each page of keys the least and the greatest value in every dimension are kept.
For any key k of the page

    q·k  ≤  Σ_d max(q_d · low_d, q_d · high_d),

and the pages with the highest bounds are attended to as a whole.

Where this differs from the paper: the budget is a share of the entries, so that a page is smaller
than 16 entries where 16 would leave fewer than four pages; recent entries and the first one are
attended to in any case, which covers the page that is still being filled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.methods.selection import Step, budget, check_density, shares, top, window

if TYPE_CHECKING:
    import torch


def page_bounds(keys: torch.Tensor, page: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and greatest value of each page and dimension.

    Parameters
    ----------
    keys : Tensor, shape (B, J, n, D)
    page : int
        Entries of a page; the last one may have fewer.

    Returns
    -------
    low, high : Tensor, shape (B, J, ceil(n / page), D)
    """
    import torch

    short = -keys.shape[2] % page
    # Repeating the last entry changes neither the least nor the greatest value.
    full = torch.cat([keys, keys[:, :, -1:].expand(-1, -1, short, -1)], dim=2)
    pages = full.unflatten(2, (-1, page))
    return pages.amin(3), pages.amax(3)


def bounds(step: Step, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Upper bound of a query's score in each page: (B, J, P, D) twice -> (B, H, R, P).

    The greater of two products is the positive part of the query times the one bound plus its
    negative part times the other, so that two matrix products will do.
    """
    import torch

    dtype = torch.promote_types(low.dtype, torch.float32)
    queries = step.grouped().to(dtype)
    high_t = high.to(dtype)[:, :, None].transpose(-1, -2)
    low_t = low.to(dtype)[:, :, None].transpose(-1, -2)
    return (queries.clamp(min=0) @ high_t + queries.clamp(max=0) @ low_t).flatten(1, 2)


def quest(
    step: Step,
    page_scores: torch.Tensor,
    ends: torch.Tensor,
    starts: torch.Tensor,
    page: int,
    density: float,
    sink_share: float,
    recent_share: float,
) -> torch.Tensor:
    """Sinks, recent entries, and the pages with the highest scores that fit into the room.

    Parameters
    ----------
    step : Step
    page_scores : Tensor, shape (B, H, R, P)
    ends, starts : Tensor, int64, shape (P,)
        Entries ``starts[p] : ends[p]`` are page p.
    page : int
        Most entries of a page.
    density, sink_share, recent_share : float

    Returns
    -------
    Tensor, bool, shape (B, H, R, L)
        At most the room; up to a page less than it.
    """
    import torch

    sink, recent, _ = shares(step.room(density), sink_share, recent_share)
    fixed = window(step, sink, recent)
    rest = step.room(density) - fixed.sum(-1)
    # A page of which a row does not see all is none of its pages: its bounds know the future.
    open_ = page_scores.masked_fill(ends > step.visible[:, None], -math.inf)
    at = torch.arange(step.length, device=ends.device)
    own = (torch.searchsorted(ends, at, right=True)).clamp(max=len(ends) - 1)
    inside = (at >= starts[own]) & (at < ends[own])
    # A page that sinks or recent entries cover already must not take another one's place.
    new = torch.zeros(step.rows, len(ends), dtype=torch.long, device=ends.device)
    new = new.index_add(1, own, (~fixed & inside).long())
    open_ = open_.masked_fill(new == 0, -math.inf)
    pages = top(open_, rest // page)
    entries = pages.gather(-1, own.expand(*pages.shape[:-1], -1)) & inside
    everything = (step.room(density) >= step.visible)[:, None] & step.seen
    return (entries & step.seen) | fixed | everything


@dataclass
class Quest:
    """Sinks, a recent window, and the pages with the highest bounds.

    Parameters
    ----------
    density : float
        Share of the entries a row sees that each query head attends to, in (0, 1].
    page : int
        Entries of a page, at most; see :meth:`page_size`.
    sink_share, recent_share : float
        Of the budget.
    """

    density: float = 0.02
    page: int = 16
    sink_share: float = 0.1
    recent_share: float = 0.25

    def __post_init__(self) -> None:
        check_density(self.density)

    def page_size(self, context: int) -> int:
        """``page``, or less where the budget of that context would hold fewer than four."""
        return max(1, min(self.page, budget(self.density, context) // 4))

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """The bounds of the context's pages, ``low`` and ``high``: (B, J, P, D)."""
        low, high = page_bounds(keys, self.page_size(keys.shape[2]))
        return {"low": low, "high": high}

    def select(self, index: Mapping[str, torch.Tensor], step: Step) -> torch.Tensor:
        """The choice of each query head; bool, (B, H, R, L)."""
        import torch

        page = self.page_size(step.context)
        low, high = page_bounds(step.keys, page)  # pages begin anew after the context
        starts = [*range(0, step.context, page), *range(step.context, step.length, page)]
        # The last page counts as full: while it is being filled no row sees all of it, so that
        # reading a text at once and token by token choose the same pages.
        ends = [*starts[1:], starts[-1] + page]
        device = step.queries.device
        scores = bounds(
            step, torch.cat([index["low"], low], dim=2), torch.cat([index["high"], high], dim=2)
        )
        return quest(
            step,
            scores,
            torch.tensor(ends, device=device),
            torch.tensor(starts, device=device),
            page,
            self.density,
            self.sink_share,
            self.recent_share,
        )
