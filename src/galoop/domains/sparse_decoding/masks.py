"""What a selector returned, as a mask over query heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from galoop.errors import GaloopError
from galoop.types import State

if TYPE_CHECKING:
    import torch

    from galoop.methods.selection import Step


class SelectorError(GaloopError):
    """A selector gave back something that breaks the contract."""

    state = State.INVALID


def as_mask(choice: Any, step: Step) -> torch.Tensor:
    """What a selector returned as bool, (1, H, R, L).

    Raises
    ------
    SelectorError
        It is neither a mask nor a list of entries; an entry is out of range or named twice.
    """
    import torch

    if not isinstance(choice, torch.Tensor):
        raise SelectorError(f"select returned {type(choice).__name__}, not a tensor")
    if choice.dim() == 3:
        choice = choice[None]
    heads, rows, length = step.queries.shape[1], step.rows, step.length
    groups = step.groups
    fits = choice.dim() == 4 and choice.shape[0] == 1 and choice.shape[2] == rows
    if not fits or choice.shape[1] not in (heads, heads // groups):
        raise SelectorError(
            f"select returned a tensor of shape {tuple(choice.shape)}: (1, {heads} or "
            f"{heads // groups}, {rows}, …) is wanted"
        )
    if choice.dtype is torch.bool:
        if choice.shape[3] != length:
            raise SelectorError(f"select returned a mask of {choice.shape[3]} entries: {length}")
        mask = choice
    elif not choice.is_floating_point() and not choice.is_complex():
        mask = _from_entries(choice.long(), length)
    else:
        raise SelectorError(f"select returned {choice.dtype}: a bool mask or whole numbers")
    return mask if mask.shape[1] == heads else mask.repeat_interleave(groups, dim=1)


def _from_entries(entries: torch.Tensor, length: int) -> torch.Tensor:
    """A mask of the entries that are named; -1 names none."""
    import torch

    named = entries >= 0
    if bool((entries < -1).any()) or bool((entries >= length).any()):
        raise SelectorError(
            f"select named an entry out of range: 0 to {length - 1}, or -1 for none"
        )
    padded = torch.zeros(*entries.shape[:3], length + 1, dtype=torch.bool)
    padded.scatter_(-1, torch.where(named, entries, length), True)
    mask = padded[..., :length]
    if not torch.equal(mask.sum(-1), named.sum(-1)):
        raise SelectorError("select named an entry twice for one row")
    return mask
