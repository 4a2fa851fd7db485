"""What a press sees of one attention layer after the prefill, in float32 and computed once.

Shapes: B sequences, H KV heads, Q query heads (a multiple of H), S tokens, D channels a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

#: Tensors that signals can be computed on, by name.
SOURCES = ("keys", "keys_pre", "values", "keys+values", "hidden")


class Layer:
    """One attention layer of a prefill, as the hook of a press receives it.

    Parameters
    ----------
    module : torch.nn.Module
        The attention layer (Llama-like; Phi3, Qwen3 and Gemma3 as in kvpress).
    hidden_states : Tensor, (B, S, hidden)
        The input of the attention layer, after its norm.
    keys, values : Tensor, (B, H, S, D)
        As they lie in the cache: keys after RoPE.
    kwargs : dict
        The keyword arguments of the layer's forward pass (``position_embeddings``).

    Notes
    -----
    bf16 and fp16 tensors are turned into float32 once: norms overflow in fp16 and ties are
    frequent in bf16.
    """

    def __init__(
        self,
        module: nn.Module,
        hidden_states: Tensor,
        keys: Tensor,
        values: Tensor,
        kwargs: dict[str, Any],
    ) -> None:
        self.module: Any = module
        self.kwargs = kwargs
        self._hidden_states = hidden_states
        self._keys = keys
        self._values = values

    @property
    def index(self) -> int:
        """The number of this layer, from 0."""
        return int(self.module.layer_idx)

    @property
    def n_layers(self) -> int:
        """How many layers the model has."""
        return int(self.module.config.num_hidden_layers)

    @cached_property
    def keys(self) -> Tensor:
        """Keys after RoPE, (B, H, S, D)."""
        return self._keys.float()

    @cached_property
    def values(self) -> Tensor:
        """Values, (B, H, S, D)."""
        return self._values.float()

    @cached_property
    def hidden(self) -> Tensor:
        """Hidden states, (B, 1, S, hidden): one pseudo head, broadcast over the KV heads."""
        return self._hidden_states.float().unsqueeze(1)

    @cached_property
    def keys_pre(self) -> Tensor:
        """Keys before RoPE, (B, H, S, D)."""
        from kvpress.utils import get_prerope_key_states

        return get_prerope_key_states(self.module, self._hidden_states).float()

    @cached_property
    def queries_pre(self) -> Tensor:
        """Queries before RoPE, (B, Q, S, D)."""
        from kvpress.utils import get_prerope_query_states

        return get_prerope_query_states(self.module, self._hidden_states).float()

    @cached_property
    def queries(self) -> Tensor:
        """Queries after RoPE, (B, Q, S, D)."""
        return self._rotated(self.queries_pre)

    def last_queries(self, number: int) -> Tensor:
        """The last ``number`` queries after RoPE, projected alone: (B, Q, number, D)."""
        from kvpress.utils import get_prerope_query_states

        last = self._hidden_states[:, -number:]
        return self._rotated(get_prerope_query_states(self.module, last).float())

    def _rotated(self, queries: Tensor) -> Tensor:
        number = queries.shape[2]
        cos, sin = self.kwargs["position_embeddings"]
        cos, sin = (part[:, -number:].float().unsqueeze(1) for part in (cos, sin))
        return queries * cos + rotate_half(queries) * sin

    def causal_attention(self, block: int = 128) -> Iterator[tuple[int, Tensor]]:
        """The layer's attention weights, a block of queries at a time.

        Yields the first query of the block and weights (B, Q, block, keys up to its last query):
        what lies in the future is never computed, and a block stays in the processor's cache.
        """
        size = self.keys.shape[2]
        for start in range(0, size, block):
            stop = min(start + block, size)
            seen = self.keys[:, :, :stop]
            logits = grouped_logits(self.queries[:, :, start:stop], seen)
            future = torch.ones(stop - start, stop, dtype=torch.bool, device=logits.device)
            logits = logits.mul_(self.keys.shape[-1] ** -0.5)
            yield start, logits.masked_fill_(future.triu(start + 1), float("-inf")).softmax(dim=-1)

    def source(self, name: str) -> Tensor:
        """The tensor of that name in :data:`SOURCES`, (B, H or 1, S, ·)."""
        if name == "keys+values":
            unit = torch.nn.functional.normalize
            return torch.cat([unit(self.keys_pre, dim=-1), unit(self.values, dim=-1)], dim=-1)
        if name not in SOURCES:
            raise ValueError(f"unknown source {name!r}, one of {', '.join(SOURCES)}")
        tensor: Tensor = getattr(self, name)
        return tensor

    def over_heads(self, score: Tensor) -> Tensor:
        """Broadcast a score of shape (B, 1 or H, S) to (B, H, S)."""
        return score.expand(-1, self._keys.shape[1], -1)


def rotate_half(x: Tensor) -> Tensor:
    """(x₁, x₂) -> (−x₂, x₁) on the halves of the last dimension (RoPE)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def grouped_logits(queries: Tensor, keys: Tensor) -> Tensor:
    """QKᵀ where Q/H query heads share one KV head: (B, Q, S, D), (B, H, T, D) -> (B, Q, S, T)."""
    batch, n_queries, size, dim = queries.shape
    heads = keys.shape[1]
    grouped = queries.reshape(batch, heads, (n_queries // heads) * size, dim)
    return (grouped @ keys.transpose(-2, -1)).view(batch, n_queries, size, -1)


def mean_over_group(score: Tensor, heads: int) -> Tensor:
    """Average a score of the query heads over each group: (B, Q, S) -> (B, H, S)."""
    return score.view(score.shape[0], heads, -1, score.shape[-1]).mean(dim=2)
