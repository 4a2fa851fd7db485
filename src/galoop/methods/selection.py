"""What methods of sparse decoding share: the step they are given, budgets, choices, counts.

A method reads the keys of the context once and makes an *index* of them. Afterwards it is given, a
step at a time, the queries of some new rows and what came after the context, and says which entries
each row may attend to. It never sees the keys of the context again: what it needs of them is in its
index, whose bytes can be counted.

Shapes: B batch, H query heads, J KV heads, G = H / J query heads of a KV head, R rows of a step,
n tokens of the context, m tokens after it (the rows of the step are the last R of them),
L = n + m, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    Index = Mapping[str, torch.Tensor]


class Method(Protocol):
    """A rule that chooses which entries of the cache a row attends to."""

    @property
    def density(self) -> float:
        """Share of the entries a row sees that it may attend to, in (0, 1]."""
        ...

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> Index:
        """What the method keeps of a layer's context; keys and values are (B, J, n, D)."""
        ...

    def select(self, index: Index, step: Step) -> torch.Tensor:
        """The choice: bool, (B, H, R, L). True may only stand where the row sees the entry."""
        ...


@dataclass(frozen=True)
class Step:
    """Some consecutive rows of one layer, and what they may look at.

    Attributes
    ----------
    queries : Tensor, shape (B, H, R, D)
        After rotary embedding.
    keys, values : Tensor, shape (B, J, m, D)
        Of every token after the context, those of the rows included; keys after rotary embedding.
    context : int
        n, the tokens that the index was made of. Row r is token ``context + m - R + r`` and sees
        itself and all tokens before it.
    layer : int
        Number of the layer, from 0.
    previous : Tensor or None, bool, shape (B, H, L - R)
        What the row before the first one of this step chose; None at the first sparse step.
    below : Tensor or None, bool, shape (B, H, R, L)
        What the layer below chose for these rows; None in the lowest.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    context: int
    layer: int = 0
    previous: torch.Tensor | None = None
    below: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        """R."""
        return int(self.queries.shape[2])

    @property
    def length(self) -> int:
        """L."""
        return self.context + int(self.keys.shape[2])

    @property
    def groups(self) -> int:
        """G."""
        return int(self.queries.shape[1] // self.keys.shape[1])

    @cached_property
    def visible(self) -> torch.Tensor:
        """How many entries each row sees, itself included; int64, shape (R,)."""
        import torch

        return torch.arange(
            self.length - self.rows + 1, self.length + 1, device=self.queries.device
        )

    @cached_property
    def seen(self) -> torch.Tensor:
        """Which entries each row sees; bool, shape (R, L)."""
        import torch

        return torch.arange(self.length, device=self.queries.device) < self.visible[:, None]

    def room(self, density: float) -> torch.Tensor:
        """How many entries each row may attend to at a density; int64, shape (R,)."""
        import torch

        sizes = [budget(density, n) for n in self.visible.tolist()]
        return torch.tensor(sizes, device=self.queries.device)

    def grouped(self) -> torch.Tensor:
        """The queries by KV head: (B, J, G, R, D)."""
        b, _, r, d = self.queries.shape
        return self.queries.reshape(b, self.keys.shape[1], self.groups, r, d)


def budget(density: float, visible: int) -> int:
    """Entries that one row and head may attend to: ``max(1, floor(density * visible))``.

    The row's own token is one of them, so that there is always one.
    """
    # 0.29 * 100 is 28.999…: a budget of exactly 29 must not lose one to rounding.
    return max(1, min(visible, math.floor(density * visible + 1e-9)))


def check_density(density: float) -> None:
    """Refuse a density that is none.

    Raises
    ------
    ValueError
    """
    if not 0.0 < density <= 1.0:
        raise ValueError(f"density is {density!r}: a number above 0 and at most 1")


def window(step: Step, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """The first and the last entries that each row sees; bool, (R, L).

    Parameters
    ----------
    step : Step
    first, last : Tensor, shape (R,)
        How many of each; ``last`` counts the row itself.
    """
    import torch

    at = torch.arange(step.length, device=step.queries.device)
    recent = at >= (step.visible - last)[:, None]
    return ((at < first[:, None]) | recent) & step.seen


def top(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The highest entries of each row; bool, the shape of ``scores``.

    Parameters
    ----------
    scores : Tensor, shape (..., R, L)
        ``-inf`` marks what cannot be chosen.
    count : Tensor, int64, broadcastable to (..., R)
        How many to choose; fewer where fewer can be chosen.

    Notes
    -----
    Of equal scores the earlier entry goes first. Coarse scores are often equal, and without a rule
    the choice would depend on how many rows are scored together.
    """
    import torch

    most = max(0, min(int(count.max()), scores.shape[-1]))
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    if most == 0:
        return chosen
    values, order = scores.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(most, device=scores.device)
    take = (rank < count[..., None]) & (values[..., :most] > -math.inf)
    return chosen.scatter(-1, order[..., :most], take)


def shares(
    room: torch.Tensor, sink_share: float, recent_share: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Divide each row's room into sinks, recent entries and the rest; each (R,), their sum room.

    The row itself is the first recent one, the first token of the text the first sink, before
    either gets more: sizes that are fixed numbers elsewhere (128 + 128 of 32K tokens) would be
    more than the whole budget of a short context.
    """
    recent = (room.double() * recent_share).floor().long().clamp(min=1).minimum(room)
    sink = (room.double() * sink_share).floor().long().clamp(min=1).minimum(room - recent)
    return sink, recent, room - recent - sink


def spread_groups(choice: torch.Tensor, groups: int) -> torch.Tensor:
    """A choice by KV head, (B, J, R, L), as one by query head, (B, H, R, L)."""
    return choice.repeat_interleave(groups, dim=1)


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    allowed: torch.Tensor,
    scaling: float | None = None,
) -> torch.Tensor:
    """Exact attention over the allowed entries.

    Parameters
    ----------
    queries : Tensor, shape (B, H, R, D)
    keys, values : Tensor, shape (B, J, L, D)
    allowed : Tensor, bool, shape (B or 1, H or 1, R, L)
        At least one entry a row.
    scaling : float, optional
        1/√D by default.

    Returns
    -------
    Tensor, shape (B, R, H, D)
    """
    import torch

    groups = queries.shape[1] // keys.shape[1]
    out: torch.Tensor = torch.nn.functional.scaled_dot_product_attention(
        queries,
        keys.repeat_interleave(groups, dim=1),
        values.repeat_interleave(groups, dim=1),
        attn_mask=allowed,
        scale=scaling,
    )
    return out.transpose(1, 2)


@dataclass
class Density:
    """Counts of what sparse rows attended to, summed over what is added.

    Attributes
    ----------
    selected, visible : int
        Entries attended to, and entries seen, over (batch, query heads, rows).
    read, readable : int
        The same over (batch, KV heads, rows), where an entry counts as read when any query head of
        the group attends to it: what has to be fetched from the cache.
    """

    selected: int = 0
    visible: int = 0
    read: int = 0
    readable: int = 0

    def add(self, chosen: torch.Tensor, kv_heads: int, seen: torch.Tensor) -> None:
        """Count a choice, bool, (B, H, R, L), of rows that see ``seen``, bool, (R, L)."""
        b, h = chosen.shape[:2]
        union = chosen.reshape(b, kv_heads, h // kv_heads, *chosen.shape[2:]).any(2)
        total = int(seen.sum())
        self.selected += int(chosen.sum())
        self.visible += b * h * total
        self.read += int(union.sum())
        self.readable += b * kv_heads * total

    @property
    def density(self) -> float:
        """Selected over all; nan before anything was added."""
        return self.selected / self.visible if self.visible else math.nan

    @property
    def kv_read_density(self) -> float:
        """Read over all; nan before anything was added."""
        return self.read / self.readable if self.readable else math.nan
