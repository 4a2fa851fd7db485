"""Greedy decoding of many compressed caches at once, with the answers of one at a time.

Rows that belong to different artifacts and different examples share each forward pass
(:mod:`.packed`, :mod:`.padded`). Rows may have different kept lengths, different kept lengths per
layer, and masked keys per head.

A *draft* (the gold answer, or the answer that the reference gave) is checked in the same pass as
the question: it is accepted while it equals the arg-max, and decoding goes on greedily after it.

Where a packed pass gives the same bits as kvpress's own one-by-one pass, which is tried out once
for each model, its answers stand. Elsewhere passes round differently anyhow: attention is padded,
which is faster, and whenever the two best logits of a decided token lie closer than a margin, the
row is decoded again exactly as kvpress does it.
Equal answers come before speed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from galoop.domains.text.decoding.capture import attention_modules
from galoop.domains.text.decoding.packed import CompressedCache, GrowingCache, Piece, forward
from galoop.domains.text.decoding.padded import PaddedRow, PaddedRows, padded_bytes
from galoop.domains.text.decoding.stopping import ended, stop_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from galoop.domains.text.decoding.invariance import Grouping

__all__ = ["CompressedCache", "DecodeStats", "Decoder", "Row", "decode_one"]

#: Packed and one-by-one logits were seen to differ by up to 0.4 in bfloat16 and 3e-5 in float32.
MARGINS = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}

#: Most rows in a pass for which drafts are tried.
DRAFTED_ROWS = 8

#: Most bytes of a padded block; a row that needs more is alone in its block.
BLOCK_BYTES = 512 * 2**20


@dataclass(eq=False)
class Row:
    """One answer to be decoded.

    ``draft`` is a guess of the answer's token ids; it changes the speed and never the answer.
    ``eager`` rows belong to presses that read attention weights: kvpress's users run the whole
    pipeline in eager attention then, so these are decoded one by one in it.
    """

    cache: CompressedCache
    question_ids: list[int]
    draft: list[int]
    max_new_tokens: int
    eager: bool = False
    tokens: list[int] = field(default_factory=list)
    exact: bool = False  # decoded one by one, because a decision was close
    agreement: float | None = None  # share of the draft's tokens that are each the arg-max


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
    margin : float, optional
        Least distance between the two best logits for a packed decision to stand. By default 0
        where packed passes were found to give the bits of one-by-one passes, else
        :data:`MARGINS`.
    batch : int
        Most rows that share a forward pass.
    always_draft : bool
        Try drafts also where they save nothing, so that every row's ``agreement`` is measured.
    """

    def __init__(
        self,
        model: Any,
        *,
        margin: float | None = None,
        batch: int = 32,
        always_draft: bool = False,
    ) -> None:
        self._model = model
        self._always_draft = always_draft
        self._margin = margin
        self._batch = batch
        self._grouping: Grouping | None = None
        self._stop = stop_tokens(model)
        self.stats = DecodeStats()

    def decode(self, rows: Sequence[Row]) -> None:
        """Fill ``tokens`` of every row, the stop token included where it was generated."""
        import torch

        self._prepare()
        for module in attention_modules(self._model):
            module.masked_key_indices = None  # kvpress leaves masks behind
        alone = [row for row in rows if row.eager]
        packed = [row for row in rows if not row.eager]
        with torch.inference_mode():
            for chunk in self._chunks(packed):
                self._decode_chunk(chunk)
            for row in alone:
                row.tokens, row.exact = self._decode_alone(row), True
        self.stats.rows += len(rows)

    def products(self, length: int) -> AbstractContextManager[None]:
        """Matrix products of one context's tokens: the same bits, sooner, where that is sure."""
        self._prepare()
        if self._grouping is None or self._margin or not self._grouping.covers(length):
            return nullcontext()
        return self._grouping.applied([length])

    def _prepare(self) -> None:
        """Find out, once, how packed passes have to be made and how far they can be trusted."""
        if self._margin is not None:
            return
        dtype = str(self._model.dtype).removeprefix("torch.")
        self._margin = MARGINS.get(dtype, 0.5)
        # In float32 a margin that is hardly ever needed is cheaper than grouping.
        if dtype != "float32":
            from galoop.domains.text.decoding.invariance import Grouping
            from galoop.domains.text.decoding.selfcheck import same_bits

            self._grouping = Grouping(self._model)
            if same_bits(self._model, self._grouping):
                self._margin = 0.0

    @property
    def _padded(self) -> bool:
        return bool(self._margin)

    def _chunks(self, rows: list[Row]) -> Iterator[list[Row]]:
        """Rows that share their passes; in padded ones, rows of about one size."""
        if not self._padded:
            for start in range(0, len(rows), self._batch):
                yield rows[start : start + self._batch]
            return
        chunk: list[Row] = []
        for row in sorted(rows, key=lambda r: sum(k.shape[1] for k in r.cache.keys)):
            caches = [r.cache for r in (*chunk, row)]
            full = len(chunk) == self._batch
            if chunk and (full or padded_bytes(caches, _room([*chunk, row])) > BLOCK_BYTES):
                yield chunk
                chunk = []
            chunk.append(row)
        if chunk:
            yield chunk

    def _decode_chunk(self, rows: list[Row]) -> None:
        for row in rows:
            # Of many rows one is always wrong, so that drafts save no pass but cost their tokens.
            few = self._always_draft or len(rows) <= DRAFTED_ROWS
            row.draft = row.draft[: row.max_new_tokens - 1] if few else []
        if self._padded:
            block = PaddedRows([row.cache for row in rows], _room(rows))
            states = [_Growing(row, own) for row, own in zip(rows, block.rows, strict=True)]
        else:
            states = [_Growing(row) for row in rows]
        close = self._verify(states)
        while active := [s for s in states if not self._done(s.row) and s.row not in close]:
            self._step(active, close)
        for row in close:
            row.tokens, row.exact = self._decode_alone(row), True
            self.stats.redone += 1

    def _verify(self, states: Sequence[_Growing]) -> list[Row]:
        """The pass over questions and drafts; returns the rows that had a close decision."""
        decided = self._forward([piece for state in states for piece in state.first()])
        close = []
        for state in states:
            row = state.row
            accepted, sure = 0, True
            guesses, decided = decided[: len(row.draft) + 1], decided[len(row.draft) + 1 :]
            if row.draft:
                same = sum(t == d for (t, _), d in zip(guesses, row.draft, strict=False))
                row.agreement = same / len(row.draft)
            for j, (token, certain) in enumerate(guesses):
                sure &= certain
                row.tokens.append(token)
                agrees = j < len(row.draft) and row.draft[j] == token
                if self._done(row) or not agrees:
                    break
                accepted += 1
            state.settle(accepted)
            if not sure:
                close.append(row)
        return close

    def _step(self, states: Sequence[_Growing], close: list[Row]) -> None:
        decided = self._forward([state.next() for state in states])
        for state, (token, certain) in zip(states, decided, strict=True):
            state.row.tokens.append(token)
            if not certain:
                close.append(state.row)

    def _forward(self, pieces: list[Piece]) -> list[tuple[int, bool]]:
        """Next token after each piece, and whether the decision is clear."""
        padded = isinstance(pieces[0].cache, PaddedRow)
        logits = forward(self._model, pieces, self._grouping, padded=padded)
        self.stats.passes += 1
        best = logits.topk(2, dim=-1).values.float()
        margin = self._margin or 0.0
        clear = [not gap < margin for gap in (best[:, 0] - best[:, 1]).tolist()]
        return list(zip(logits.argmax(dim=-1).tolist(), clear, strict=True))

    def _decode_alone(self, row: Row) -> list[int]:
        """kvpress's own answer; where kvpress raises, greedy decoding of this row alone.

        kvpress finds no fake key for some masked heads (ValueError) and cannot feed a question of
        several tokens to a cache whose layers differ in length (RuntimeError). Without other rows
        in the pass the answer depends on nothing else.
        """
        try:
            return decode_one(self._model, row, self._stop)
        except (RuntimeError, ValueError):
            alone = Row(row.cache, row.question_ids, [], row.max_new_tokens)
            state = _Growing(alone)
            self._verify([state])
            while not self._done(alone):
                self._step([state], [])
            return alone.tokens

    def _done(self, row: Row) -> bool:
        return ended(row.tokens, row.max_new_tokens, self._stop)


def _room(rows: Sequence[Row]) -> int:
    return max(len(row.question_ids) + row.max_new_tokens for row in rows)


class _Growing:
    """A row with its growing cache."""

    def __init__(self, row: Row, cache: PaddedRow | None = None) -> None:
        self.row = row
        self._cache = cache or GrowingCache(row.cache, _room([row]))

    def first(self) -> list[Piece]:
        """The question in one piece, and each token of the draft as a step of its own.

        A padded pass is no image of kvpress's calls: there they are one piece.
        """
        n = len(self.row.question_ids)
        if isinstance(self._cache, PaddedRow):
            ids = [*self.row.question_ids, *self.row.draft]
            return [Piece(self._cache, ids, 0, wanted=1 + len(self.row.draft))]
        question = Piece(self._cache, self.row.question_ids, 0)
        return [question, *(Piece(self._cache, [t], n + j) for j, t in enumerate(self.row.draft))]

    def settle(self, accepted: int) -> None:
        """Only the first ``accepted`` draft tokens belong to the text."""
        self._cache.fed = len(self.row.question_ids) + accepted

    def next(self) -> Piece:
        """The last decided token, to be fed."""
        piece = Piece(self._cache, self.row.tokens[-1:], self._cache.fed)
        self._cache.fed += 1
        return piece


def decode_one(model: Any, row: Row, stop: Collection[int]) -> list[int]:
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
        with torch.inference_mode(), ExitStack() as stack:
            if row.eager:
                stack.enter_context(_eager(model))
            return _greedy(model, row, cache, stop)
    finally:
        for module in modules:
            module.masked_key_indices = None


def _greedy(model: Any, row: Row, cache: Any, stop: Collection[int]) -> list[int]:
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


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    try:
        yield
    finally:
        model.config._attn_implementation = before
