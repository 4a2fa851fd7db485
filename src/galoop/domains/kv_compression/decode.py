"""Greedy decoding of many compressed caches in one batch, with the answers of one at a time.

Decoding is bound by reading the weights, so rows that belong to different artifacts and different
examples share each forward pass. Rows may have different kept lengths, different kept lengths per
layer, and masked keys per head: caches are left-padded and every layer has its own validity mask.

A *draft* (the gold answer, or the answer that the reference gave) is checked in the same pass as
the question: it is accepted while it equals the arg-max, and decoding goes on greedily after it.

A batched pass rounds differently from kvpress's own one-by-one pass. Whenever the two best logits
of a decided token lie closer than ``margin``, the row is decoded again exactly as kvpress does it.
Equal answers come before speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from galoop.domains.kv_compression.capture import attention_modules

if TYPE_CHECKING:
    import torch

ATTENTION = "galoop_ragged"


@dataclass
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


@dataclass
class Row:
    """One answer to be decoded.

    ``draft`` is a guess of the answer's token ids; it changes the speed and never the answer.
    """

    cache: CompressedCache
    question_ids: list[int]
    draft: list[int]
    max_new_tokens: int
    tokens: list[int] = field(default_factory=list)
    exact: bool = False  # decoded again one by one, because a decision was close


@dataclass
class DecodeStats:
    """How much work the decoder did."""

    rows: int = 0
    redone: int = 0
    passes: int = 0


class Decoder:
    """Greedy decoding on one model.

    Parameters
    ----------
    model : PreTrainedModel
        In evaluation mode, SDPA attention.
    margin : float
        Least distance between the two best logits for a batched decision to stand.
    batch : int
        Most rows that share a forward pass.
    """

    def __init__(self, model: Any, *, margin: float, batch: int = 16) -> None:
        _register()
        self._model = model
        self._margin = margin
        self._batch = batch
        stop = model.generation_config.eos_token_id
        self._stop = set(stop if isinstance(stop, list) else [stop])
        self.stats = DecodeStats()

    def decode(self, rows: Sequence[Row]) -> None:
        """Fill ``tokens`` of every row, the stop token included where it was generated."""
        import torch

        # Rows of like length share a batch, so that padding stays small; the order of the result
        # is the caller's.
        order = sorted(range(len(rows)), key=lambda i: _cost(rows[i]))
        with torch.inference_mode():
            for start in range(0, len(order), self._batch):
                chunk = [rows[i] for i in order[start : start + self._batch]]
                self._decode_chunk(chunk)
        self.stats.rows += len(rows)

    def _decode_chunk(self, rows: list[Row]) -> None:
        state = _Batch(self._model, rows)
        with _ragged_attention(self._model):
            close = self._verify(state)
            while state.active and not all(close[i] for i in state.active):
                self._step(state, close)
        for i, row in enumerate(rows):
            if close[i]:
                row.tokens = decode_one(self._model, row, self._stop)
                row.exact = True
                self.stats.redone += 1

    def _verify(self, state: _Batch) -> list[bool]:
        """The pass over question and draft; returns which rows had a close decision."""
        logits = state.first_pass()
        self.stats.passes += 1
        close = [False] * len(state.rows)
        for i, row in enumerate(state.rows):
            best = logits[i].topk(2, dim=-1)
            gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
            ids = best.indices[:, 0].tolist()
            accepted = 0
            for j, token in enumerate(ids):
                close[i] |= gaps[j] < self._margin
                row.tokens.append(token)
                agrees = j < len(row.draft) and row.draft[j] == token
                if self._done(row) or not agrees:
                    break
                accepted += 1
            state.settle(i, accepted)
            if self._done(row) or close[i]:
                state.retire(i)
        return close

    def _step(self, state: _Batch, close: list[bool]) -> None:
        logits = state.next_pass()
        self.stats.passes += 1
        best = logits.topk(2, dim=-1)
        gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
        ids = best.indices[:, 0].tolist()
        for slot, i in enumerate(list(state.slots)):
            if i not in state.active:
                continue
            row = state.rows[i]
            row.tokens.append(ids[slot])
            close[i] |= gaps[slot] < self._margin
            if self._done(row) or close[i]:
                state.retire(i)

    def _done(self, row: Row) -> bool:
        # kvpress ignores a stop token in the first place: its loop tests only later tokens.
        stopped = len(row.tokens) > 1 and row.tokens[-1] in self._stop
        return stopped or len(row.tokens) >= row.max_new_tokens


def _cost(row: Row) -> tuple[int, int]:
    return (len(row.question_ids) + len(row.draft), max(k.shape[1] for k in row.cache.keys))


class _Batch:
    """The padded caches of some rows while they are decoded together."""

    def __init__(self, model: Any, rows: list[Row]) -> None:
        from transformers import DynamicCache

        self.rows = rows
        self.active = set(range(len(rows)))
        self.slots = list(range(len(rows)))  # slot in the batch -> row
        self._model = model
        self._device = model.device
        self._cache = DynamicCache()
        self._valid: list[torch.Tensor] = []  # per layer: (B, H_kv or 1, length)
        for layer in range(len(rows[0].cache.keys)):
            keys, values, valid = _pad_layer(rows, layer)
            self._cache.update(keys, values, layer)
            self._valid.append(valid)
        self._fresh: torch.Tensor | None = None  # validity of the tokens fed so far, (B, n)

    def first_pass(self) -> list[torch.Tensor]:
        """Feed question + draft; logits at the last question token and at each draft token."""
        import torch

        lengths = [len(r.question_ids) + len(r.draft) for r in self.rows]
        width = max(lengths)
        ids = torch.zeros(len(self.rows), width, dtype=torch.long)
        for i, row in enumerate(self.rows):
            ids[i, : lengths[i]] = torch.tensor(row.question_ids + row.draft)
        starts = torch.tensor([r.cache.context_length for r in self.rows])
        positions = starts[:, None] + torch.arange(width)[None]
        self._fresh = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
        hidden = self._forward(ids, positions)
        picked = [hidden[i, len(r.question_ids) - 1 : lengths[i]] for i, r in enumerate(self.rows)]
        logits = self._model.lm_head(torch.cat(picked))
        return list(logits.split([p.shape[0] for p in picked]))

    def settle(self, i: int, accepted: int) -> None:
        """Only the first ``accepted`` draft tokens of row ``i`` belong to its text."""
        assert self._fresh is not None
        self._fresh[i, len(self.rows[i].question_ids) + accepted :] = False

    def retire(self, i: int) -> None:
        self.active.discard(i)

    def next_pass(self) -> torch.Tensor:
        """Feed the last token of every row; logits (B, vocabulary)."""
        import torch

        self._shrink()
        assert self._fresh is not None
        rows = [self.rows[i] for i in self.slots]
        ids = torch.tensor([[r.tokens[-1]] for r in rows])
        positions = torch.tensor(
            [[r.cache.context_length + len(r.question_ids) + len(r.tokens) - 1] for r in rows]
        )
        self._fresh = torch.cat([self._fresh, torch.ones(len(rows), 1, dtype=torch.bool)], dim=1)
        hidden = self._forward(ids, positions)
        return self._model.lm_head(hidden[:, -1])

    def _shrink(self) -> None:
        """Drop finished rows once they are half of the batch: they would only cost time."""
        import torch

        if len(self.active) * 2 > len(self.slots):
            return
        keep = [slot for slot, i in enumerate(self.slots) if i in self.active]
        index = torch.tensor(keep, device=self._device)
        layers: list[Any] = self._cache.layers
        for layer in layers:
            layer.keys = layer.keys.index_select(0, index)
            layer.values = layer.values.index_select(0, index)
        self._valid = [v.index_select(0, index) for v in self._valid]
        assert self._fresh is not None
        self._fresh = self._fresh.index_select(0, index.cpu())
        self.slots = [self.slots[slot] for slot in keep]

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        import torch

        assert self._fresh is not None
        n_new, n_fed = ids.shape[1], self._fresh.shape[1]
        fresh = self._fresh.to(self._device)
        causal = (
            torch.arange(n_fed, device=self._device)[None]
            <= (torch.arange(n_fed - n_new, n_fed, device=self._device)[:, None])
        )
        new = (fresh[:, None, None, :] & causal[None, None]).expand(-1, 1, -1, -1)
        # A padded query row would see nothing at all and turn into NaN: let it see itself.
        itself = torch.eye(n_new, device=self._device, dtype=torch.bool)
        new = new.clone()
        new[..., n_fed - n_new :] |= itself
        out = self._model.model(
            input_ids=ids.to(self._device),
            position_ids=positions.to(self._device),
            past_key_values=self._cache,
            use_cache=True,
            galoop_valid=self._valid,
            galoop_new=new,
        )
        return out.last_hidden_state


def _pad_layer(rows: list[Row], layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Left-pad one layer's caches to a common length; validity is per head where it must be."""
    import torch

    longest = max(r.cache.keys[layer].shape[1] for r in rows)
    heads, _, dim = rows[0].cache.keys[layer].shape
    sample = rows[0].cache.keys[layer]
    keys = sample.new_zeros(len(rows), heads, longest, dim)
    values = torch.zeros_like(keys)
    per_head = any(r.cache.masked[layer] is not None for r in rows)
    valid = torch.zeros(
        len(rows), heads if per_head else 1, longest, dtype=torch.bool, device=sample.device
    )
    for i, row in enumerate(rows):
        kept = row.cache.keys[layer].shape[1]
        if kept == 0:
            continue
        keys[i, :, longest - kept :] = row.cache.keys[layer]
        values[i, :, longest - kept :] = row.cache.values[layer]
        masked = row.cache.masked[layer]
        valid[i, :, longest - kept :] = True if masked is None else ~masked
    return keys, values, valid


def _ragged(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    galoop_valid: list[torch.Tensor] | None = None,
    galoop_new: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """SDPA whose mask is the layer's own: padded and masked entries out, new tokens causal."""
    import torch

    assert galoop_valid is not None
    assert galoop_new is not None
    groups = query.shape[1] // key.shape[1]
    valid = galoop_valid[module.layer_idx]
    new = galoop_new.expand(-1, valid.shape[1], -1, -1)
    old = valid[:, :, None, :].expand(-1, -1, query.shape[2], -1)
    mask = torch.cat([old, new], dim=-1)
    if mask.shape[1] > 1:
        mask = mask.repeat_interleave(groups, dim=1)
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(groups, dim=1),
        value.repeat_interleave(groups, dim=1),
        attn_mask=mask,
        scale=scaling,
    )
    return out.transpose(1, 2).contiguous(), None


def _register() -> None:
    """Make the attention function known to transformers, together with its (empty) mask."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, _ragged)
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)


@contextmanager
def _ragged_attention(model: Any) -> Iterator[None]:
    before = model.config._attn_implementation
    model.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = before


def decode_one(model: Any, row: Row, stop: set[int]) -> list[int]:
    """Decode one row as kvpress's pipeline does: the same calls, the same shapes.

    Source: ``KVPressTextGenerationPipeline.generate_answer`` of kvpress 0.5.5.
    """
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()
    modules = attention_modules(model)
    for layer, module in enumerate(modules):
        keys, values = row.cache.keys[layer][None], row.cache.values[layer][None]
        cache.update(keys.contiguous(), values.contiguous(), layer)
        masked = row.cache.masked[layer]
        # State left on the modules by an earlier row would change this one's logits.
        module.masked_key_indices = (
            None if masked is None else tuple(masked[None].nonzero(as_tuple=True))
        )
    try:
        with torch.inference_mode():
            return _greedy(model, row, cache, stop)
    finally:
        for module in modules:
            module.masked_key_indices = None


def _greedy(model: Any, row: Row, cache: Any, stop: set[int]) -> list[int]:
    import torch

    start = row.cache.context_length
    n = len(row.question_ids)
    positions = torch.arange(start, start + n, device=model.device)[None]
    out = model(
        input_ids=torch.tensor([row.question_ids], device=model.device),
        past_key_values=cache,
        position_ids=positions,
        logits_to_keep=1,
    )
    token = int(out.logits[0, -1].argmax())
    tokens = [token]
    for i in range(row.max_new_tokens - 1):
        out = model(
            input_ids=torch.tensor([[token]], device=model.device),
            past_key_values=cache,
            position_ids=positions[:, -1:] + 1 + i,
        )
        token = int(out.logits[0, -1].argmax())
        tokens.append(token)
        if token in stop:
            break
    return tokens
