"""Scores by norms, positions and earlier choices; and how several scores share one index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from galoop.methods.selection import Step

    Index = Mapping[str, torch.Tensor]


class Score(Protocol):
    """What an entry is worth to a row; see the package."""

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]: ...

    def score(self, index: Index, step: Step) -> torch.Tensor: ...


def indices(keys: torch.Tensor, values: torch.Tensor, **scores: Score) -> dict[str, torch.Tensor]:
    """One index for several scores: the parts of score ``a`` are named ``a.…``."""
    return {
        f"{name}.{leaf}": tensor
        for name, score in scores.items()
        for leaf, tensor in score.index(keys, values).items()
    }


def part(index: Index, name: str) -> dict[str, torch.Tensor]:
    """The parts of one score, under their own names."""
    return {
        key.removeprefix(name + "."): tensor
        for key, tensor in index.items()
        if key.startswith(name + ".")
    }


def _everywhere(scores: torch.Tensor, step: Step) -> torch.Tensor:
    """Scores by KV head, (1, J, L), for every query head and row: (1, H, R, L)."""
    by_head = scores.repeat_interleave(step.groups, dim=1)
    return by_head[:, :, None].expand(-1, -1, step.rows, -1)


@dataclass(frozen=True)
class KeyNorm:
    """Length of the key."""

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """(1, J, n)."""
        return {"norm": keys.float().norm(dim=-1).to(keys.dtype)}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """The same for every row."""
        import torch

        new = step.keys.float().norm(dim=-1)
        return _everywhere(torch.cat([index["norm"].float(), new], dim=-1), step)


@dataclass(frozen=True)
class ValueNorm:
    """Length of the value."""

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """(1, J, n)."""
        return {"norm": values.float().norm(dim=-1).to(values.dtype)}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """The same for every row."""
        import torch

        new = step.values.float().norm(dim=-1)
        return _everywhere(torch.cat([index["norm"].float(), new], dim=-1), step)


@dataclass(frozen=True)
class Recency:
    """How late an entry stands: from 0 to 1 for the row itself."""

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """Position over the entries that the row sees."""
        import torch

        at = torch.arange(1, step.length + 1, device=step.queries.device)
        return (at / step.visible[:, None]).expand(1, step.queries.shape[1], -1, -1)


@dataclass(frozen=True)
class Previous:
    """Whether the row before this step attended to the entry; 0 where there was none."""

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """1 or 0."""
        import torch

        out = torch.zeros(1, step.queries.shape[1], step.rows, step.length)
        if step.previous is not None:
            out[..., : step.previous.shape[-1]] = step.previous[:, :, None].float()
        return out


@dataclass(frozen=True)
class Below:
    """Whether the row attended to the entry in the layer below; 0 in the lowest."""

    def index(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def score(self, index: Index, step: Step) -> torch.Tensor:
        """1 or 0."""
        import torch

        if step.below is None:
            return torch.zeros(1, step.queries.shape[1], step.rows, step.length)
        return step.below.float()
