"""Tokens of many independent rows in one forward pass, each row computed as if it were alone.

Decoding is bound by reading weights, so rows that belong to different artifacts and different
examples share every matrix product: their tokens are laid one after another in a single sequence,
without padding. Attention is computed row by row, with the very call that kvpress's pipeline would
make for that row (same shapes, same fake keys of head-wise presses), and where a processor's matrix
products depend on how many tokens share them, tokens are grouped so that they do not
(:mod:`.invariance`). In bfloat16 the logits are then equal to the last bit on the processors we
have seen, which no padded batch can give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from galoop.domains.text.decoding.padded import ATTENTION as PADDED
from galoop.domains.text.decoding.padded import PaddedPass
from galoop.domains.text.decoding.padded import attend as padded_attend

if TYPE_CHECKING:
    import torch

    from galoop.domains.text.decoding.invariance import Grouping

ATTENTION = "galoop_packed"


@dataclass(eq=False)
class CompressedCache:
    """The cache that an artifact made of one context.

    Attributes
    ----------
    keys, values : list of Tensor, one per layer, shape (H_kv, kept_l, head_dim)
    masked : list of (Tensor or None), one per layer, bool, shape (H_kv, kept_l)
        True where a head's entry is stored but must not be attended (kvpress's head-wise presses).
    context_length : int
        Position of the first token after the context (the uncompressed length S).
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    masked: list[torch.Tensor | None]
    context_length: int


class GrowingCache:
    """A compressed cache with room for the tokens that follow; shared with nobody.

    Parameters
    ----------
    cache : CompressedCache
    room : int
        Tokens that may be fed.

    Attributes
    ----------
    fed : int
        Tokens after the context that count as read. Lowering it forgets the last ones.
    """

    def __init__(self, cache: CompressedCache, room: int) -> None:
        self.fed = 0
        self.start = cache.context_length
        self._kept = [k.shape[1] for k in cache.keys]
        self._keys = [_with_room(k, room) for k in cache.keys]
        self._values = [_with_room(v, room) for v in cache.values]
        self._masked = [
            None if m is None or not bool(m.any()) else m[None].nonzero(as_tuple=True)
            for m in cache.masked
        ]

    def append(
        self, layer: int, at: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new entries behind ``at`` fed tokens; the layer's entries up to and with them."""
        first = self._kept[layer] + at
        last = first + keys.shape[2]
        self._keys[layer][:, :, first:last] = keys
        self._values[layer][:, :, first:last] = values
        return self._keys[layer][:, :, :last], self._values[layer][:, :, :last]

    def masked(self, layer: int) -> Any:
        """Indices of masked entries, as kvpress's attention wants them, or None."""
        return self._masked[layer]


def _with_room(tensor: torch.Tensor, room: int) -> torch.Tensor:
    heads, kept, dim = tensor.shape
    out = tensor.new_empty(1, heads, kept + room, dim)
    out[0, :, :kept] = tensor
    return out


@dataclass(eq=False)
class Piece:
    """Consecutive tokens of one row that kvpress would feed in one call.

    Attributes
    ----------
    cache : GrowingCache or PaddedRow
    ids : list of int
        A whole question, or one generated (or drafted) token; in a padded pass also a question
        with its draft.
    at : int
        Tokens of the row that were fed before.
    wanted : int
        Of so many last tokens the logits are asked for.
    """

    cache: Any
    ids: list[int]
    at: int
    wanted: int = 1
    start: int = 0  # where the piece lies in the packed sequence


@dataclass
class _Pack:
    """What the attention function needs to know about a packed pass."""

    pieces: Sequence[Piece]
    masks: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def mask(self, n: int, total: int, device: Any) -> torch.Tensor | None:
        """Every earlier entry is seen, the n new ones causally; nothing to say for one token."""
        import torch

        if n == 1:
            return None
        if (n, total) not in self.masks:
            whole = torch.ones(n, total, dtype=torch.bool, device=device)
            self.masks[n, total] = whole.tril(total - n)[None, None]
        return self.masks[n, total]


def forward(
    model: Any, pieces: Sequence[Piece], grouping: Grouping | None, *, padded: bool = False
) -> torch.Tensor:
    """Feed the pieces; logits after the wanted tokens of each, shape (wanted, vocabulary).

    Pieces of one row must be in the order of its text. ``grouping`` None leaves all tokens in one
    matrix product. ``padded`` computes attention as :mod:`.padded` does, for rows of one block.
    """
    import torch

    ids: list[int] = []
    positions: list[int] = []
    for piece in pieces:
        piece.start = len(ids)
        first = piece.cache.start + piece.at
        ids += piece.ids
        positions += range(first, first + len(piece.ids))
    lengths = [len(p.ids) for p in pieces]
    what: dict[str, Any] = {"galoop_pack": _Pack(pieces)}
    if padded:
        what = {"galoop_pass": PaddedPass(pieces, model.device)}
    with _attention(model, padded), _grouped(grouping, lengths):
        hidden = model.model(
            input_ids=torch.tensor([ids], device=model.device),
            position_ids=torch.tensor([positions], device=model.device),
            past_key_values=_passing_cache(),
            use_cache=True,
            **what,
        ).last_hidden_state
    ends = [(p.start + len(p.ids), p.wanted) for p in pieces]
    last = [end - n + i for end, n in ends for i in range(n)]
    picked = hidden[:, torch.tensor(last, device=model.device)]
    # The head sees one token at a time in kvpress, whatever the length of the piece.
    with _grouped(grouping, [1] * len(last)):
        logits: torch.Tensor = model.lm_head(picked)[0]
    return logits


def _passing_cache() -> Any:
    """A cache that stores nothing: the attention function keeps each row's own entries."""
    from transformers import DynamicCache

    class Passing(DynamicCache):
        def update(
            self,
            key_states: torch.Tensor,
            value_states: torch.Tensor,
            layer_idx: int,
            cache_kwargs: dict[str, Any] | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return key_states, value_states

    return Passing()


#: Where a piece lies in the packed sequence, its queries, and the row's keys and values.
_Ready = tuple[slice, "torch.Tensor", "torch.Tensor", "torch.Tensor"]


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    galoop_pack: _Pack | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of each piece over its own row; shapes (1, H, tokens, head_dim)."""
    assert galoop_pack is not None
    kwargs.setdefault("dropout", 0.0)
    layer = module.layer_idx
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    alike: dict[tuple[int, int], list[_Ready]] = {}
    for piece in galoop_pack.pieces:
        n = len(piece.ids)
        part = slice(piece.start, piece.start + n)
        new = query[:, :, part]
        keys, values = piece.cache.append(layer, piece.at, key[:, :, part], value[:, :, part])
        masked = piece.cache.masked(layer)
        if masked is None:
            alike.setdefault((n, keys.shape[2]), []).append((part, new, keys, values))
        else:
            mask = galoop_pack.mask(n, keys.shape[2], query.device)
            out[:, part] = _headwise(module, new, keys, values, mask, masked, **kwargs)
    for (n, total), ready in alike.items():
        mask = galoop_pack.mask(n, total, query.device)
        _together(module, ready, mask, out, **kwargs)
    return out, None


def _together(
    module: Any, ready: list[_Ready], mask: torch.Tensor | None, out: torch.Tensor, **kwargs: Any
) -> None:
    """Pieces of equal shape in one call: the kernel treats each of a batch alike.

    Without masked entries, kvpress's wrapper around this function would do nothing.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if len(ready) == 1:
        ((part, query, keys, values),) = ready
        out[:, part] = sdpa_attention_forward(module, query, keys, values, mask, **kwargs)[0]
        return
    query = torch.cat([r[1] for r in ready])
    keys = torch.cat([r[2] for r in ready])
    values = torch.cat([r[3] for r in ready])
    found = sdpa_attention_forward(module, query, keys, values, mask, **kwargs)[0]
    for i, (part, *_) in enumerate(ready):
        out[0, part] = found[i]


def _headwise(
    module: Any,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    masked: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """kvpress's own way with masked entries: put keys there that attract nothing."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    module.masked_key_indices = masked
    try:
        out: torch.Tensor = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, keys, values, mask, **kwargs
        )[0]
    except ValueError:  # no such key exists: mask, which is what it stands for
        out = _masked(module, query, keys, values, mask, kwargs.get("scaling"))
    finally:
        module.masked_key_indices = None
    return out


def _masked(
    module: Any,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    import torch

    groups = query.shape[1] // keys.shape[1]
    seen = torch.ones(keys.shape[:3], dtype=torch.bool, device=keys.device)
    seen[module.masked_key_indices] = False
    seen = seen.repeat_interleave(groups, dim=1)[:, :, None].expand(-1, -1, query.shape[2], -1)
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        keys.repeat_interleave(groups, dim=1),
        values.repeat_interleave(groups, dim=1),
        attn_mask=seen if mask is None else seen & mask,
        scale=scaling,
    )
    return out.transpose(1, 2)


@contextmanager
def _attention(model: Any, padded: bool) -> Iterator[None]:
    import kvpress  # noqa: F401 - wraps the attention functions so that masked keys are handled
    from transformers import AttentionInterface

    name, function = (PADDED, padded_attend) if padded else (ATTENTION, _attend)
    AttentionInterface.register(name, function)
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _grouped(grouping: Grouping | None, lengths: Sequence[int]) -> AbstractContextManager[None]:
    return grouping.applied(lengths) if grouping else nullcontext()
