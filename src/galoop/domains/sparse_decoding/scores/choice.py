"""From scores to a choice that never exceeds the budget."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from galoop.methods.selection import shares, spread_groups, top, window

if TYPE_CHECKING:
    import torch

    from galoop.methods.selection import Step


def choose(
    scores: torch.Tensor,
    step: Step,
    density: float,
    *,
    sink: float = 0.05,
    recent: float = 0.25,
    run: int = 1,
    compete: bool = False,
    floor: float = 0.25,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sinks, recent entries, and the entries with the highest scores that fit.

    Parameters
    ----------
    scores : Tensor, shape (1, H or J, R, L)
        By KV head: the choice serves all its query heads.
    step : Step
    density : float
    sink, recent : float
        Shares of each row's room.
    run : int
        Entries are chosen in aligned runs of so many, by the highest score in a run.
    compete : bool
        The heads of a layer share what is left of their room, the highest scores first.
    floor : float
        With ``compete``, the share of its own room that each head fills in any case.
    kept : Tensor, bool, shape (1, H, R, L), optional
        Entries chosen already; they count.

    Returns
    -------
    Tensor, bool, shape (1, H, R, L)
        No more than ``H * room`` entries a row.
    """
    room = step.room(density)
    first, last, _ = shares(room, sink, recent)
    heads = step.queries.shape[1]
    if kept is not None and scores.shape[1] != heads:
        scores = spread_groups(scores, step.groups)
    fixed = window(step, first, last).expand(1, scores.shape[1], -1, -1)
    if kept is not None:
        # What was kept goes before sinks and recent entries where both do not fit.
        fixed = kept | top(_open(fixed.float(), kept, step), _left(kept, room))
    scores = _by_run(scores.float().masked_fill(~step.seen, -math.inf), run)
    open_ = scores.masked_fill(fixed | ~step.seen, -math.inf)
    count = _left(fixed, room)
    chosen = _competing(open_, count, floor) if compete else top(open_, count)
    out = chosen | fixed
    return out if out.shape[1] == heads else spread_groups(out, step.groups)


def _open(wanted: torch.Tensor, kept: torch.Tensor, step: Step) -> torch.Tensor:
    return wanted.masked_fill((wanted == 0) | kept | ~step.seen, -math.inf)


def _left(fixed: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Room that is left for each head, (1, heads, R), such that all heads together keep theirs."""
    left = room - fixed.sum(-1)
    over = (-left).clamp(min=0).sum(1, keepdim=True)
    left = left.clamp(min=0)
    total = left.sum(1, keepdim=True).clamp(min=1)
    return (left * (1 - over / total).clamp(min=0)).floor().long()


def _by_run(scores: torch.Tensor, run: int) -> torch.Tensor:
    """Each entry's score becomes the highest of its run; entries of a run stay together."""
    import torch

    if run == 1:
        return scores
    length = scores.shape[-1]
    padded = torch.nn.functional.pad(scores, (0, -length % run), value=-math.inf)
    best = padded.unflatten(-1, (-1, run)).amax(-1)
    return best.repeat_interleave(run, dim=-1)[..., :length]


def _competing(scores: torch.Tensor, count: torch.Tensor, floor: float) -> torch.Tensor:
    """The best of each head up to its floor, then the best of all heads; (1, heads, R, L)."""
    own = top(scores, (count * floor).floor().long())
    rest = scores.masked_fill(own, -math.inf).transpose(1, 2)  # (1, R, heads, L)
    flat = rest.flatten(2, 3)
    left = (count.sum(1) - own.sum((1, 3))).clamp(min=0)
    more = top(flat, left).unflatten(2, rest.shape[2:]).transpose(1, 2)
    return own | more
