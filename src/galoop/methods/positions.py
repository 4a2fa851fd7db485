"""Position plans: which positions a query and a key are given, by region of the attention matrix.

A model with rotary embeddings (RoPE) only sees differences of positions, and has only seen those
of its native window. Every method that stretches it says which positions to use where. Here that
is data: for query ``i`` the keys ``0 … i`` are cut into *bands* of consecutive keys, nearest band
first, and each band has its own positions for queries and keys and, where wanted, its own
frequencies. One joint softmax runs over all bands. Dual Chunk Attention is three bands,
Self-Extend two, interpolation and YaRN one.

Such a plan is causal whatever it says, has no state, costs O(bands · length) numbers, and can be
checked and measured without running a model. NumPy alone is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Band", "Plan", "PositionMethod", "Shape", "expand", "identity_plan"]


@dataclass(frozen=True, eq=False)
class Shape:
    """What a plan may depend on: the model's shape, never a text.

    Attributes
    ----------
    layers, heads, kv_heads, head_dim : int
        ``heads`` are query heads; ``heads // kv_heads`` of them share a key head.
    window : int
        The native window, in tokens.
    frequencies : array of float, (head_dim / 2,)
        Angle per position of each rotated pair, in radians, fastest first.
    extension : float
        How many native windows are to be reached.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    frequencies: NDArray[np.float64]
    extension: float = 1.0


@dataclass(frozen=True, eq=False)
class Band:
    """One band of keys, for every query.

    Attributes
    ----------
    start : array of int, (length,)
        The first key of the band for query ``i``. The band ends where the band before it starts;
        the first band ends with the query's own key. Equal starts make an empty band.
    query, key : array of float, (length,)
        The position of query ``i`` and of key ``j`` within this band. Fractions are positions too.
    frequency : array of float, (head_dim / 2,), optional
        Factors on the model's frequencies; none: 1.
    drop : bool
        The keys of the band are not attended to at all.
    """

    start: ArrayLike
    query: ArrayLike
    key: ArrayLike
    frequency: ArrayLike | None = None
    drop: bool = False


@dataclass(frozen=True, eq=False)
class Plan:
    """The bands of one head, nearest first; keys before the last band's start are not attended to.

    Attributes
    ----------
    bands : sequence of Band
    scale : array of float, (length,), optional
        Factor on the logits of query ``i`` (a temperature); none: 1.
    """

    bands: Sequence[Band]
    scale: ArrayLike | None = None


#: One plan for all, or one a layer, or for a layer one a query head.
Plans = Plan | Sequence["Plan | Sequence[Plan]"]


def identity_plan(length: int) -> Plan:
    """True positions everywhere: the model as it is."""
    i = np.arange(length)
    return Plan([Band(np.zeros_like(i), i, i)])


def expand(plans: Plans, layers: int, heads: int) -> list[list[Plan]]:
    """One plan for each layer and query head; shared ones stay the same object.

    Raises
    ------
    ValueError
        When the numbers of layers or heads do not fit, or something is not a plan.
    """
    if isinstance(plans, Plan):
        return [[plans] * heads for _ in range(layers)]
    if not isinstance(plans, (list, tuple)) or len(plans) != layers:
        raise ValueError(f"give one plan, or a list of one for each of the {layers} layers")
    rows = []
    for layer, entry in enumerate(plans):
        row = [entry] * heads if isinstance(entry, Plan) else entry
        if not isinstance(row, (list, tuple)) or len(row) != heads:
            raise ValueError(f"layer {layer}: give one plan, or a list of one for each head")
        if not all(isinstance(plan, Plan) for plan in row):
            raise ValueError(f"layer {layer}: not everything in the list is a Plan")
        rows.append(list(row))
    return rows


class PositionMethod(ABC):
    """A method that is a position plan; its knobs are the fields of a dataclass."""

    @abstractmethod
    def plan(self, shape: Shape, length: int) -> Plans:
        """The plan for at most ``length`` tokens, question and answer included."""

    def applied(self, model: Any, length: int) -> AbstractContextManager[None]:
        """The model under this method, for at most ``length`` tokens; as before afterwards.

        See :func:`galoop.methods.region_attention.positions_replaced`.
        """
        from galoop.methods.region_attention import positions_replaced, shape_of

        shape = shape_of(model)
        return positions_replaced(
            model, expand(self.plan(shape, length), shape.layers, shape.heads)
        )
