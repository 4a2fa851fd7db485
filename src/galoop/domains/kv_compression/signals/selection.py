"""Priorities to a compressed cache, with exactly the budget.

``n = max(1, int(S·(1 − compression_ratio)))`` tokens a head on average. Where all heads keep the
same number the cache shrinks; where heads or layers share a budget the dropped entries are masked
through ``module.masked_key_indices``, as kvpress's head-wise presses do (keys and values come back
whole, and masked entries count as dropped).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from galoop.domains.kv_compression.signals.transforms import zscore

Pair = tuple[Tensor, Tensor]


def n_kept(size: int, compression_ratio: float) -> int:
    """Tokens to keep of ``size``: ``max(1, int(size·(1 − compression_ratio)))``."""
    from kvpress.utils import compute_n_kept

    return min(size, compute_n_kept(size, compression_ratio))


def layer_budget(n: int, index: int, n_layers: int, slope: float, size: int) -> int:
    """Tokens a head of layer ``index`` when budgets fall (slope > 0) or rise with depth.

    A line from n·(1 + slope) at the first layer to n·(1 − slope) at the last; rounded so that the
    sum over layers never passes n·n_layers, at least 1 and at most ``size`` a layer. PyramidKV
    (Cai et al. 2024, arXiv:2406.02069).
    """
    if n_layers < 2 or slope == 0.0:
        return n
    ideal = [n * (1.0 + slope * (1.0 - 2.0 * i / (n_layers - 1))) for i in range(n_layers)]
    budgets = [min(size, max(1, int(value))) for value in ideal]
    while sum(budgets) > n * n_layers:  # the floor of 1 took too much
        budgets[budgets.index(max(budgets))] -= 1
    return budgets[index]


def keep_per_head(keys: Tensor, values: Tensor, priority: Tensor, n: int) -> Pair:
    """Every head keeps its own best ``n`` tokens (in their order in the text)."""
    index = priority.topk(n, dim=-1).indices.sort(dim=-1).values
    index = index.unsqueeze(-1).expand(-1, -1, -1, keys.shape[-1])
    return keys.gather(2, index).contiguous(), values.gather(2, index).contiguous()


def keep_shared(keys: Tensor, values: Tensor, priority: Tensor, n: int) -> Pair:
    """All heads of the layer keep the same ``n`` tokens: the best in the sum over heads."""
    together = priority.sum(dim=1, keepdim=True).expand(priority.shape)
    return keep_per_head(keys, values, together, n)


def mask_per_head(module: Any, keys: Tensor, values: Tensor, priority: Tensor, n: int) -> Pair:
    """As :func:`keep_per_head` by masking: for layers whose budgets differ."""
    keep = torch.zeros_like(priority, dtype=torch.bool)
    keep.scatter_(-1, priority.topk(n, dim=-1).indices, True)
    set_mask(module, keep)
    return keys, values


def mask_shared(module: Any, keys: Tensor, values: Tensor, priority: Tensor, n: int) -> Pair:
    """As :func:`keep_shared` by masking: for layers whose budgets differ."""
    together = priority.sum(dim=1, keepdim=True).expand(priority.shape)
    return mask_per_head(module, keys, values, together, n)


def mask_head_budgets(
    module: Any, keys: Tensor, values: Tensor, priority: Tensor, n: int, floor: float = 0.2
) -> Pair:
    """The heads of a layer compete for ``H·n`` entries; each keeps at least ``floor·n``.

    AdaKV (Feng et al. 2024, arXiv:2407.11550).
    """
    safe = max(1, int(n * floor))
    best = priority.topk(safe, dim=-1).indices
    span = priority.amax() - priority.amin() + 1.0
    raised = priority.scatter_add(-1, best, span.expand(best.shape))
    flat = raised.flatten(1)
    keep = torch.zeros_like(flat, dtype=torch.bool)
    keep.scatter_(-1, flat.topk(n * priority.shape[1], dim=-1).indices, True)
    set_mask(module, keep.view(priority.shape))
    return keys, values


def set_mask(module: Any, keep: Tensor) -> None:
    """Mask what is not kept: ``keep`` is (B, H, S) of booleans."""
    dropped = (~keep).nonzero(as_tuple=True)
    module.masked_key_indices = dropped if len(dropped[0]) else None


@dataclass
class AcrossLayers:
    """Selection over all layers, worked out when the last layer has been seen.

    A press keeps one of these and hands it every layer's priorities; what is dropped is masked
    on all layers at once.

    Parameters
    ----------
    shared : bool
        False: all heads of all layers compete for the whole budget, each keeping at least
        ``floor·n`` (as KVzip's global budget, arXiv:2505.23416, with AdaKV's safeguard).
        True: the same tokens are kept everywhere, by the mean of z-scores over layers and heads.
    floor : float
    """

    shared: bool = False
    floor: float = 0.1
    _seen: list[tuple[Any, Tensor]] = field(default_factory=list, init=False, repr=False)

    def add(self, module: Any, keys: Tensor, values: Tensor, priority: Tensor, n: int) -> Pair:
        """Take one layer; at the last layer, set the masks of all. Keys and values come back."""
        if self._seen and int(module.layer_idx) <= int(self._seen[-1][0].layer_idx):
            self._seen.clear()  # a new prefill
        self._seen.append((module, priority))
        if int(module.layer_idx) == int(module.config.num_hidden_layers) - 1:
            self._finish(n)
        return keys, values

    def _finish(self, n: int) -> None:
        seen, self._seen = self._seen, []
        stacked = torch.stack([priority for _, priority in seen])  # (L, B, H, S)
        keep = torch.zeros_like(stacked, dtype=torch.bool)
        if self.shared:
            together = zscore(stacked).mean(dim=(0, 2))  # (B, S)
            best = together.topk(n, dim=-1).indices
            keep.scatter_(-1, best[None, :, None, :].expand(*stacked.shape[:3], n), True)
        else:
            safe = max(1, int(n * self.floor))
            span = stacked.amax() - stacked.amin() + 1.0
            best = stacked.topk(safe, dim=-1).indices
            raised = stacked.scatter_add(-1, best, span.expand(best.shape))
            flat = raised.transpose(0, 1).flatten(1)  # (B, L·H·S)
            total = n * stacked.shape[0] * stacked.shape[2]
            chosen = torch.zeros_like(flat, dtype=torch.bool)
            chosen.scatter_(-1, flat.topk(total, dim=-1).indices, True)
            layers, batch, heads, size = stacked.shape
            keep = chosen.view(batch, layers, heads, size).transpose(0, 1)
        for (module, _), kept in zip(seen, keep, strict=True):
            set_mask(module, kept)
