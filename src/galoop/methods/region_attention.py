"""Attention under a position plan: tiles, one joint softmax, unrotated keys in the cache.

The model's rotary embedding is replaced by the identity, so that the cache holds keys as they come
out of their projection, and the attention function rotates queries and keys band by band
(:mod:`.positions`). Logits exist for one tile of queries and keys at a time; sums run over the
tiles as in Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.

It assumes that the cache holds all tokens from the first on, in order: no padding on the left, and
nothing evicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from galoop.errors import UsageError
from galoop.methods.attention_function import attention_function
from galoop.methods.positions import Band, Plan, Shape

if TYPE_CHECKING:
    import torch

__all__ = ["Prepared", "positions_replaced", "region_attention", "shape_of"]

#: Queries and keys of one tile. Larger ones are faster per logit and waste more at the edges.
TILE = (256, 512)


def shape_of(model: Any, extension: float = 1.0) -> Shape:
    """The shape of a transformers model with plain rotary embeddings.

    Raises
    ------
    UsageError
        When the model has none, or they are scaled already.
    """
    rotary = getattr(getattr(model, "model", None), "rotary_emb", None)
    config = model.config
    heads = getattr(config, "num_attention_heads", 0)
    dim = getattr(config, "head_dim", None) or config.hidden_size // max(heads, 1)
    inverse = getattr(rotary, "inv_freq", None)
    if inverse is None or getattr(rotary, "rope_type", "") != "default" or 2 * len(inverse) != dim:
        raise UsageError(
            f"{type(model).__name__} has no plain rotary embeddings over whole heads",
            "context extension needs a model such as Llama, Qwen2 or SmolLM2",
        )
    return Shape(
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", heads),
        head_dim=dim,
        window=config.max_position_embeddings,
        frequencies=inverse.double().cpu().numpy(),
        extension=extension,
    )


@dataclass(frozen=True, eq=False)
class _Side:
    """Positions and frequencies of one side of a band, as tensors."""

    position: torch.Tensor  # (length,) float32
    frequency: torch.Tensor  # (head_dim / 2,) float32


class Prepared:
    """A plan as tensors on one device; keys that several bands rotate alike are rotated once.

    Parameters
    ----------
    plan : Plan
    frequencies : torch.Tensor, (head_dim / 2,)
        The model's own.
    """

    def __init__(self, plan: Plan, frequencies: torch.Tensor) -> None:
        import torch

        device = frequencies.device
        self.length = len(np.asarray(plan.bands[0].start))
        self.starts = torch.tensor(np.stack([np.asarray(b.start) for b in plan.bands])).to(device)
        self.dropped = [band.drop for band in plan.bands]
        self.keys: list[_Side] = []
        self.queries: list[_Side] = []
        self.key_of: list[int] = []
        known: dict[bytes, int] = {}
        for band in plan.bands:
            frequency = frequencies.float()
            if band.frequency is not None:
                factor = torch.as_tensor(np.asarray(band.frequency, dtype=np.float32))
                frequency = frequency * factor.to(device)
            self.queries.append(_Side(_floats(band.query, device), frequency))
            token = _bytes(band)
            if token not in known:
                known[token] = len(self.keys)
                self.keys.append(_Side(_floats(band.key, device), frequency))
            self.key_of.append(known[token])
        self.scale = None if plan.scale is None else _floats(plan.scale, device)


def _floats(values: Any, device: Any) -> torch.Tensor:
    import torch

    return torch.as_tensor(np.asarray(values, dtype=np.float32)).to(device)


def _bytes(band: Band) -> bytes:
    factor = b"" if band.frequency is None else np.asarray(band.frequency, np.float64).tobytes()
    return np.asarray(band.key, np.float64).tobytes() + b"|" + factor


def _rotate(x: torch.Tensor, side: _Side, rows: slice) -> torch.Tensor:
    """Rotate ``x`` (…, tokens, head_dim) as Llama does: pairs are the two halves of the head."""
    import torch

    angle = side.position[rows, None] * side.frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def region_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: Prepared,
    scaling: float,
    *,
    tile: tuple[int, int] = TILE,
) -> torch.Tensor:
    """Attention of the last ``n`` tokens to all ``m``, under one plan.

    Parameters
    ----------
    q : torch.Tensor, (batch, KV heads, group, n, head_dim)
        Unrotated; the queries are those of the last ``n`` of the ``m`` tokens.
    k, v : torch.Tensor, (batch, KV heads, m, head_dim)
        Unrotated keys, and values.
    plan : Prepared
    scaling : float
        Factor on all logits.
    tile : (int, int)
        Queries and keys of a tile.

    Returns
    -------
    torch.Tensor, (batch, KV heads, group, n, head_dim)
        In the dtype of ``q``; sums are taken in float32.
    """
    import torch

    n, m = q.shape[-2], k.shape[-2]
    if m > plan.length:
        raise UsageError(
            f"{m} tokens are more than the {plan.length} that the positions were laid out for",
            "ask for the plan of a greater length",
        )
    whole = slice(0, m)
    rotated = [_rotate(k, side, whole)[:, :, None].transpose(-1, -2) for side in plan.keys]
    values = v[:, :, None]
    out = torch.empty_like(q)
    for begin in range(0, n, tile[0]):
        rows = slice(m - n + begin, min(m - n + begin + tile[0], m))
        part = slice(begin, min(begin + tile[0], n))
        out[..., part, :] = _rows(q[..., part, :], rotated, values, plan, rows, scaling, tile[1])
    return out


def _rows(
    q: torch.Tensor,
    rotated: Sequence[torch.Tensor],
    values: torch.Tensor,
    plan: Prepared,
    rows: slice,
    scaling: float,
    width: int,
) -> torch.Tensor:
    """One tile of queries against all their keys."""
    import torch

    ends = torch.cat((torch.arange(rows.start, rows.stop, device=q.device)[None] + 1,
                      plan.starts[:-1, rows]))  # fmt: skip
    intervals = list(zip(plan.starts[:, rows], ends, strict=True))
    scale = None if plan.scale is None else plan.scale[rows, None]
    turned: dict[int, torch.Tensor] = {}
    highest = q.new_full((*q.shape[:-1], 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(highest)
    summed = torch.zeros_like(q, dtype=torch.float32)
    for begin in range(0, rows.stop, width):
        keys = slice(begin, min(begin + width, rows.stop))
        logits = None
        for band, whole in _present(intervals, keys):
            if plan.dropped[band]:
                continue
            if band not in turned:
                turned[band] = _rotate(q, plan.queries[band], rows) * scaling
            product = (turned[band] @ rotated[plan.key_of[band]][..., keys]).float()
            if whole:
                logits = product
                break
            j = torch.arange(keys.start, keys.stop, device=q.device)
            start, end = intervals[band]
            inside = (j >= start[:, None]) & (j < end[:, None])
            rest = -torch.inf if logits is None else logits
            logits = torch.where(inside, product, rest)
        if logits is None:
            continue
        if scale is not None:
            logits = logits * scale
        new = torch.maximum(highest, logits.amax(-1, keepdim=True))
        base = torch.where(new == -torch.inf, 0.0, new)  # rows that have seen no key yet
        shrink, weights = torch.exp(highest - base), torch.exp(logits - base)
        total = total * shrink + weights.sum(-1, keepdim=True)
        summed = summed * shrink + (weights.to(values.dtype) @ values[..., keys, :]).float()
        highest = new
    return (summed / total).to(q.dtype)


def _present(
    intervals: Sequence[tuple[torch.Tensor, torch.Tensor]], keys: slice
) -> Iterator[tuple[int, bool]]:
    """Bands that have a pair in the tile, each with whether they fill it."""
    for band, (start, end) in enumerate(intervals):
        some = (start < keys.stop) & (end > keys.start) & (start < end)
        if bool(some.any()):
            yield band, bool(((start <= keys.start) & (end >= keys.stop)).all())


def _unrotated(x: torch.Tensor, position_ids: torch.Tensor, dim: int) -> Any:
    """What the rotary embedding gives for no rotation: cosine 1, sine 0."""
    import torch

    one = torch.ones((*position_ids.shape, dim), dtype=x.dtype, device=x.device)
    return one, torch.zeros_like(one)


class _Attention:
    """The attention function that transformers calls: looks the plan up by layer and head."""

    def __init__(self, plans: Sequence[Sequence[Plan]], frequencies: torch.Tensor) -> None:
        made: dict[int, Prepared] = {}
        self._layers: list[list[tuple[Prepared, list[int]]]] = []
        for row in plans:
            groups: dict[int, list[int]] = {}
            for head, plan in enumerate(row):
                groups.setdefault(id(plan), []).append(head)
                if id(plan) not in made:
                    made[id(plan)] = Prepared(plan, frequencies)
            self._layers.append([(made[key], heads) for key, heads in groups.items()])

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """See transformers' attention interface; returns (batch, n, heads, head_dim)."""
        import torch

        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        groups = self._layers[module.layer_idx]
        shared = query.shape[1] // key.shape[1]
        if len(groups) == 1:
            grouped = query.unflatten(1, (key.shape[1], shared))
            out = region_attention(grouped, key, value, groups[0][0], scale).flatten(1, 2)
        else:
            out = torch.empty_like(query)
            for plan, heads in groups:
                kv = [head // shared for head in heads]
                part = query[:, heads, None]
                found = region_attention(part, key[:, kv], value[:, kv], plan, scale)
                out[:, heads] = found[:, :, 0]
        return out.transpose(1, 2).contiguous(), None


def _no_mask(*args: Any, attention_mask: Any = None, **kwargs: Any) -> None:
    """The mask function: plans are causal by themselves, and padding is refused."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise UsageError(
            "position plans need sequences without padding", "pass one sequence at a time"
        )


@contextmanager
def positions_replaced(model: Any, plans: Sequence[Sequence[Plan]]) -> Iterator[None]:
    """The model with one plan for each layer and query head; as before afterwards.

    Parameters
    ----------
    model : PreTrainedModel
        With plain rotary embeddings, shared by the layers as ``model.model.rotary_emb``.
    plans : list of list of Plan
        ``plans[layer][head]``, see :func:`galoop.methods.positions.expand`. The caller has checked
        them.

    Notes
    -----
    A cache that was filled inside holds unrotated keys: it is of no use outside, and the other way
    round. Attention weights are not returned.
    """
    shape_of(model)  # refuses what has other positions
    rotary = model.model.rotary_emb
    function = _Attention(plans, rotary.inv_freq)
    name = f"galoop-positions-{id(function)}"  # the function lives as long as the name
    outer = vars(rotary).get("forward")  # contexts nest
    with attention_function(model, name, function, _no_mask):
        rotary.forward = partial(_unrotated, dim=2 * len(rotary.inv_freq))
        try:
            yield
        finally:
            del rotary.forward
            if outer is not None:
                rotary.forward = outer
