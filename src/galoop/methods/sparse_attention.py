"""Run a model with a method of sparse decoding, and leave it as it was found.

Inside the context manager the model's attention function is this module's. Rows before
``sparse_from`` attend densely; later ones attend to what the method chooses. The method's index of
a layer is made from the first ``context`` keys as soon as they are there, and again when a new text
begins. What a row attends to depends on the tokens up to it and on nothing else, so that a text
read at once, in pieces, or token by token gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from galoop.methods.attention_function import attention_function
from galoop.methods.selection import Density, Method, Step, attend

if TYPE_CHECKING:
    import torch

    from galoop.methods.selection import Index


@dataclass(eq=False)
class SparseAttention:
    """What is going on inside :func:`sparse_attention`.

    Attributes
    ----------
    method : Method
    context : int
        Tokens that the index is made of.
    sparse_from : int
        First token whose row is sparse.
    counts : Density
        Of the sparse rows so far, all layers together.
    """

    method: Method
    context: int
    sparse_from: int
    counts: Density = field(default_factory=Density)
    _indices: dict[int, Index] = field(default_factory=dict)

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Transformers' attention function: (B, H, R, D) and (B, J, L, D) -> (B, R, H, D)."""
        import torch

        rows, length = query.shape[2], key.shape[2]
        seen = torch.arange(length, device=query.device) < torch.arange(
            length - rows + 1, length + 1, device=query.device
        ).unsqueeze(-1)
        if attention_mask is None or not bool(((attention_mask == 0) == seen).all()):
            raise ValueError(
                "sparse attention reads unpadded texts with causal attention: the mask hides other "
                "entries than the future's"
            )
        dense = max(0, min(rows, self.sparse_from - (length - rows)))
        parts = []
        if dense:
            parts.append(attend(query[:, :, :dense], key, value, seen[None, None, :dense], scaling))
        if dense < rows:
            late, seen_late = query[:, :, dense:], seen[dense:]
            chosen = self._choose(module.layer_idx, late, key, value, length == rows)
            chosen = chosen & seen_late
            self.counts.add(chosen, key.shape[1], seen_late)
            parts.append(attend(late, key, value, chosen, scaling))
        elif length == rows:
            self._indices.pop(module.layer_idx, None)
        return torch.cat(parts, dim=1), None

    def _choose(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, begins: bool
    ) -> torch.Tensor:
        n = self.context
        if begins or layer not in self._indices:
            self._indices[layer] = self.method.index(key[:, :, :n], value[:, :, :n])
        step = Step(query, key[:, :, n:], value[:, :, n:], n, layer)
        return self.method.select(self._indices[layer], step)


@contextmanager
def sparse_attention(
    model: Any, method: Method, *, context: int, sparse_from: int | None = None
) -> Iterator[SparseAttention]:
    """Let ``model`` attend sparsely; afterwards it is as it was, also after an exception.

    Parameters
    ----------
    model : PreTrainedModel
        Of an architecture whose attention goes through transformers' attention interface.
    method : Method
    context : int
        Tokens of the context, at least one: they attend densely, and the index is made of them.
    sparse_from : int, optional
        First token whose row is sparse; ``context`` by default, which makes question and answer
        sparse. The length of context and question makes the decoded tokens sparse alone.

    Raises
    ------
    ValueError
        For a context of no token, and for sparse rows within the context.
    """
    from transformers.masking_utils import eager_mask

    start = context if sparse_from is None else sparse_from
    if context < 1 or start < context:
        raise ValueError(f"context is {context} and sparse_from {start}: 1 <= context <= start")
    state = SparseAttention(method, context, start)
    name = f"galoop_{type(method).__name__.lower()}_{id(state):x}"
    with attention_function(model, name, state, eager_mask):
        yield state
