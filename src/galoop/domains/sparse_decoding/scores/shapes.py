"""What is done to scores, (1, heads, R, L), before entries are chosen.

Each row is treated by itself and only the entries that it sees count; the others come out as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from galoop.methods.selection import Step


def zscore(scores: torch.Tensor, step: Step) -> torch.Tensor:
    """Mean 0 and deviation 1 over what a row sees."""
    seen = step.seen.float()
    count = step.visible[:, None]
    scores = scores.float() * seen
    mean = scores.sum(-1, keepdim=True) / count
    centred = (scores - mean) * seen
    spread_ = (centred.square().sum(-1, keepdim=True) / count).sqrt()
    return centred / spread_.clamp(min=1e-6)


def rank(scores: torch.Tensor, step: Step) -> torch.Tensor:
    """Place in the row's order, from 0 to 1 for the highest; of equals the earlier is higher."""
    hidden = scores.float().masked_fill(~step.seen, -math.inf)
    order = hidden.argsort(dim=-1, descending=True, stable=True)
    place = order.argsort(dim=-1).float()
    return (1.0 - place / step.visible[:, None]) * step.seen


def softmax(scores: torch.Tensor, step: Step) -> torch.Tensor:
    """As attention would weigh them: softmax of score/√D over what a row sees."""
    scaled = scores.float() / math.sqrt(step.queries.shape[-1])
    return scaled.masked_fill(~step.seen, -math.inf).softmax(-1)


def pool(scores: torch.Tensor, step: Step, kind: str, width: int) -> torch.Tensor:
    """The mean or the greatest score of an entry's neighbours that the row sees, itself included.

    Parameters
    ----------
    kind : {"mean", "max"}
    width : int
        Odd: entries of a neighbourhood.
    """
    import torch

    flat = scores.float().flatten(0, 2)[:, None]
    seen = step.seen.float().expand_as(scores).flatten(0, 2)[:, None]
    half = width // 2
    if kind == "max":
        hidden = flat.masked_fill(seen == 0, -1e30)
        out = torch.nn.functional.max_pool1d(hidden, width, stride=1, padding=half)
    else:
        total = torch.nn.functional.avg_pool1d(flat * seen, width, stride=1, padding=half)
        share = torch.nn.functional.avg_pool1d(seen, width, stride=1, padding=half)
        out = total / share.clamp(min=1e-6)
    return (out * seen).reshape(scores.shape)


def spread(scores: torch.Tensor, step: Step, width: int) -> torch.Tensor:
    """Put entries last that a neighbour within ``width`` exceeds, so that a choice is diverse."""
    hidden = scores.float().masked_fill(~step.seen, -1e30)
    peak = pool(scores, step, "max", width)
    low = hidden.masked_fill(~step.seen, math.inf).amin(-1, keepdim=True)
    high = hidden.amax(-1, keepdim=True)
    return scores - (hidden < peak) * (high - low + 1.0)


def grouped(scores: torch.Tensor, step: Step, how: str) -> torch.Tensor:
    """One score for the query heads of a KV head: (1, H, R, L) -> (1, J, R, L).

    Parameters
    ----------
    how : {"sum", "max", "votes"}
        ``votes`` sums ranks, cubed: how many heads want an entry counts more than how much.
    """
    if how == "votes":
        scores = rank(scores, step) ** 3
    by_group = scores.unflatten(1, (-1, step.groups))
    return by_group.amax(2) if how == "max" else by_group.sum(2)


def maximum(scores: Sequence[torch.Tensor]) -> torch.Tensor:
    """The greatest of several scores."""
    import torch

    return torch.stack(torch.broadcast_tensors(*scores)).amax(0)


def interleave(scores: Sequence[torch.Tensor], step: Step) -> torch.Tensor:
    """The best of the first, the best of the second, and so on, then the seconds of each."""
    return maximum([rank(s, step) - 1e-6 * i for i, s in enumerate(scores)])
