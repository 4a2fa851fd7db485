"""Sliding window with sinks: the first and the most recent entries, whatever the query.

Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv:2309.17453; positions
are not renumbered here, since the text stays within the model's window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from galoop.methods.selection import Step, check_density, shares, window

if TYPE_CHECKING:
    import torch


def sliding_window(step: Step, density: float, sink_share: float) -> torch.Tensor:
    """Of each row's room k the share of sinks, and recent entries for the rest; bool, (R, L)."""
    sink, recent, rest = shares(step.room(density), sink_share, 1.0 - sink_share)
    return window(step, sink, recent + rest)


@dataclass
class SlidingWindow:
    """Sinks and a recent window.

    Parameters
    ----------
    density : float
        Share of the entries a row sees that it attends to, in (0, 1].
    sink_share : float
        Of the budget.
    """

    density: float = 0.02
    sink_share: float = 0.1

    def __post_init__(self) -> None:
        check_density(self.density)

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Nothing: the choice depends on positions alone."""
        return {}

    def select(self, index: Mapping[str, torch.Tensor], step: Step) -> torch.Tensor:
        """The same choice for every head; bool, (B, H, R, L)."""
        chosen = sliding_window(step, self.density, self.sink_share)
        b, h = step.queries.shape[:2]
        return chosen.expand(b, h, -1, -1)
