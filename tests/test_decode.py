"""Packed decoding against one row at a time, and how tokens may share matrix products."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from galoop.domains.text.decoding import decode, invariance
from galoop.domains.text.decoding.capture import prefill
from galoop.domains.text.decoding.decode import DRAFTED_ROWS, Decoder, Row, decode_one
from galoop.domains.text.decoding.invariance import SIZES, Grouping, class_of, plan_groups
from galoop.domains.text.decoding.packed import CompressedCache, GrowingCache, Piece, forward
from galoop.domains.text.decoding.padded import PaddedRows, padded_bytes
from galoop.domains.text.decoding.selfcheck import same_bits
from galoop.models import load
from presses import make_tiny_model, model_info, one_thread


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    with one_thread():
        yield load(model_info(folder, request.param))[0]


def make_row(model: Any, seed: int, **changes: Any) -> Row:
    """A random context with a random choice of entries in each layer, and a random question."""
    rng = random.Random(seed)
    vocabulary = model.config.vocab_size
    captured = prefill(model, [rng.randrange(vocabulary) for _ in range(rng.randrange(20, 90))])
    kept = sorted(rng.sample(range(captured.length), captured.length // 2))
    keys = [k[:, kept] for k in captured.keys]
    values = [v[:, kept] for v in captured.values]
    cache = CompressedCache(keys, values, [None] * len(keys), captured.length)
    question = [rng.randrange(vocabulary) for _ in range(rng.choice([1, 2, 7, 20]))]
    return Row(cache, question, **{"draft": [], "max_new_tokens": rng.choice([1, 5, 9]), **changes})


def alone(model: Any, row: Row) -> list[int]:
    return decode_one(model, row, {model.generation_config.eos_token_id})


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_tokens_of_a_batch_are_those_of_each_row_alone(model: Any, batch: int) -> None:
    rows = [make_row(model, seed) for seed in range(12)]
    decoder = Decoder(model, batch=batch)
    decoder.decode(rows)
    assert [r.tokens for r in rows] == [alone(model, r) for r in rows]
    assert decoder.stats.rows == 12
    if model.dtype == torch.bfloat16 and decoder._margin == 0.0:
        assert decoder.stats.redone == 0


def test_rows_of_equal_shape_share_attention(model: Any) -> None:
    """The same context and question for several artifacts: what the session does all the time."""
    rng = random.Random(5)
    whole = prefill(model, [rng.randrange(model.config.vocab_size) for _ in range(80)])
    question = [rng.randrange(model.config.vocab_size) for _ in range(9)]
    rows = []
    for i in range(9):
        kept = sorted(rng.sample(range(80), 40 if i < 6 else 41))
        keys, values = [k[:, kept] for k in whole.keys], [v[:, kept] for v in whole.values]
        cache = CompressedCache(keys, values, [None] * len(keys), 80)
        rows.append(Row(cache, question, [], max_new_tokens=3 + i))
    Decoder(model).decode(rows)
    assert [r.tokens for r in rows] == [alone(model, r) for r in rows]


def test_any_draft_gives_the_same_tokens(model: Any) -> None:
    rows, expected = [], []
    rng = random.Random(0)
    for seed in range(8):
        row = make_row(model, seed, max_new_tokens=7)
        right = alone(model, row)
        wrong_later = [*right[:3], (right[3] + 1) % 100 if len(right) > 3 else 5, *right[4:]]
        for draft in (
            [],
            right,
            right[:2],
            right * 5,
            wrong_later,
            [rng.randrange(100) for _ in range(4)],
            right[1:],
        ):
            rows.append(make_row(model, seed, max_new_tokens=7, draft=draft))
            expected.append(right)
    assert DRAFTED_ROWS >= 7
    decoder = Decoder(model, batch=7)
    decoder.decode(rows)
    assert [r.tokens for r in rows] == expected
    assert decoder.stats.passes <= 7 * 8  # a wrong draft never costs a pass


def test_an_infinite_margin_decodes_everything_again(model: Any) -> None:
    rows = [make_row(model, seed, max_new_tokens=4) for seed in range(4)]
    decoder = Decoder(model, margin=float("inf"))
    decoder.decode(rows)
    assert decoder.stats.redone == 4
    assert all(r.exact for r in rows)
    assert [r.tokens for r in rows] == [alone(model, r) for r in rows]


def test_stop_tokens(model: Any) -> None:
    """kvpress goes on after a stop token in the first place and ends at a later one."""
    rows = [make_row(model, seed, max_new_tokens=9) for seed in range(6)]
    tokens = [alone(model, r) for r in rows]
    before = model.generation_config.eos_token_id
    try:
        for stop in ([tokens[0][0], tokens[1][2]], tokens[2][0], [tokens[3][4], tokens[4][1]]):
            model.generation_config.eos_token_id = stop
            stops = set(stop if isinstance(stop, list) else [stop])
            for draft in ([], None):
                rows = [make_row(model, s, max_new_tokens=9) for s in range(6)]
                for row, own in zip(rows, tokens, strict=True):
                    row.draft = own if draft is None else []
                Decoder(model).decode(rows)
                assert [r.tokens for r in rows] == [decode_one(model, r, stops) for r in rows]
                for row in rows:
                    later = [t in stops for t in row.tokens[1:]]
                    assert True not in later[:-1]
    finally:
        model.generation_config.eos_token_id = before


def test_masked_heads_match_a_mask_written_by_hand(model: Any) -> None:
    """Attention that leaves masked entries out, per head: eager, in float64-like plainness."""
    row = make_row(model, 3, max_new_tokens=1)
    generator = torch.Generator().manual_seed(1)
    for i, keys in enumerate(row.cache.keys):
        row.cache.masked[i] = torch.rand(keys.shape[:2], generator=generator) < 0.5
    growing = GrowingCache(row.cache, len(row.question_ids))
    with torch.inference_mode():
        logits = forward(model, [Piece(growing, row.question_ids, 0)], None)[0].float()
    reference = _dense_logits(model, row).float()
    scale = 1e-4 if model.dtype == torch.float32 else 0.1
    assert (logits - reference).abs().max() < scale * reference.abs().max()


def _dense_logits(model: Any, row: Row) -> torch.Tensor:
    """The last question token's logits with masks as minus infinity, layer by layer."""
    import math

    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    base = model.model
    with torch.inference_mode():
        hidden = base.embed_tokens(torch.tensor([row.question_ids]))
        n = hidden.shape[1]
        at = torch.arange(row.cache.context_length, row.cache.context_length + n)[None]
        cos_sin = base.rotary_emb(hidden, at)
        for i, layer in enumerate(base.layers):
            attention, x = layer.self_attn, layer.input_layernorm(hidden)

            def split(y: torch.Tensor, d: int = attention.head_dim) -> torch.Tensor:
                return y.view(1, n, -1, d).transpose(1, 2)

            q, k = apply_rotary_pos_emb(
                split(attention.q_proj(x)), split(attention.k_proj(x)), *cos_sin
            )
            k = torch.cat([row.cache.keys[i][None], k], dim=2)
            v = torch.cat([row.cache.values[i][None], split(attention.v_proj(x))], dim=2)
            groups = q.shape[1] // k.shape[1]
            bias = torch.zeros(k.shape[1], n, k.shape[2])
            masked = row.cache.masked[i]
            assert masked is not None
            bias[:, :, : masked.shape[1]].masked_fill_(masked[:, None], -math.inf)
            bias += torch.full((n, k.shape[2]), -math.inf).triu(k.shape[2] - n + 1)
            scores = q.float() @ k.repeat_interleave(groups, 1).float().transpose(2, 3)
            weights = (scores * attention.scaling + bias.repeat_interleave(groups, 0)).softmax(-1)
            out = weights.to(v.dtype) @ v.repeat_interleave(groups, 1)
            hidden = hidden + attention.o_proj(out.transpose(1, 2).reshape(1, n, -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        logits: torch.Tensor = model.lm_head(base.norm(hidden))[0, -1]
        return logits


def test_heads_for_which_kvpress_finds_no_fake_key(model: Any) -> None:
    """Queries in all directions have no common hyperplane: kvpress raises, decoding does not."""
    saved = {}
    for i, layer in enumerate(model.model.layers):
        saved[i] = layer.self_attn.q_proj.bias.data.clone()
        layer.self_attn.q_proj.bias.data.zero_()
    try:
        rng = random.Random(0)
        rows = []
        for seed in range(2):
            row = make_row(model, seed, max_new_tokens=3)
            row.question_ids = [rng.randrange(model.config.vocab_size) for _ in range(60)]
            for i, keys in enumerate(row.cache.keys):
                row.cache.masked[i] = torch.arange(keys.shape[1]).expand(keys.shape[:2]) % 2 == 0
            rows.append(row)
        with pytest.raises(ValueError, match="fake keys"):
            alone(model, rows[0])
        for margin in (None, float("inf")):
            Decoder(model, margin=margin).decode(rows)
            together = [r.tokens for r in rows]
            assert all(len(t) > 1 for t in together)
            for row in rows:
                row.tokens = []
            for row in rows:
                Decoder(model, margin=margin).decode([row])
            assert [r.tokens for r in rows] == together
            for row in rows:
                row.tokens = []
    finally:
        for i, layer in enumerate(model.model.layers):
            layer.self_attn.q_proj.bias.data.copy_(saved[i])


def test_the_model_is_left_as_it_was(model: Any) -> None:
    before = model.config._attn_implementation
    rows = [make_row(model, seed) for seed in range(3)]
    rows[1].cache.masked[0] = torch.zeros(rows[1].cache.keys[0].shape[:2], dtype=torch.bool)
    rows[1].cache.masked[0][0, 0] = True
    contents = [[k.clone() for k in r.cache.keys] for r in rows]
    Decoder(model).decode(rows)
    assert model.config._attn_implementation == before
    for layer in model.model.layers:
        assert getattr(layer.self_attn, "masked_key_indices", None) is None
    assert not any("forward" in vars(module) for module in model.modules())
    for row, keys in zip(rows, contents, strict=True):  # the artifact's cache is not written to
        assert all(torch.equal(a, b) for a, b in zip(row.cache.keys, keys, strict=True))


def test_an_error_leaves_the_model_as_it_was(model: Any) -> None:
    row = make_row(model, 0)
    row.cache.keys[1] = row.cache.keys[1][..., :-1]
    with pytest.raises(RuntimeError):
        Decoder(model).decode([row])
    assert not any("forward" in vars(module) for module in model.modules())
    good = make_row(model, 1)
    Decoder(model).decode([good])
    assert good.tokens == alone(model, good)


# -- tokens that share a product ------------------------------------------------------------


def test_the_selfcheck_notices_one_bit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_thread():
        model = load(model_info(folder, "bfloat16"))[0]
        grouping = Grouping(model)
        if not same_bits(model, grouping):
            pytest.skip("packed passes do not give the same bits on this processor")

        def flipped(product: Any, x: Any) -> Any:
            out = product(x)
            last = out[..., -1:]
            bits = (last.contiguous().view(torch.int16) ^ 1).view(torch.bfloat16)
            return torch.cat([out[..., :-1], bits], dim=-1)

        name = next(iter(grouping._layers))
        whole = grouping._layers[name]
        monkeypatch.setitem(grouping._layers, name, lambda x: flipped(whole, x))
        assert not same_bits(model, grouping)


def test_classes_are_found_where_a_product_depends_on_its_size() -> None:
    """A product that adds from the left up to 7 tokens, and from the right beyond."""

    def product(x: torch.Tensor) -> torch.Tensor:
        a, b, c = x.unbind(-1)
        return ((a + b) + c if x.shape[1] <= 7 else a + (b + c))[..., None]

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, max(SIZES), 3, generator=generator)
    classes = invariance.size_classes(product, x, SIZES)
    assert classes == [0 if size <= 7 else 1 for size in SIZES]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.lists(st.integers(0, 3), min_size=len(SIZES), max_size=len(SIZES)),
)
def test_groups_cover_every_token_once_in_a_size_of_its_class(
    lengths: list[int], classes: list[int]
) -> None:
    plan = plan_groups(classes, lengths)
    used = [t for tokens, skip in plan for t in tokens[skip:]]
    assert sorted(used) == list(range(sum(lengths)))
    own = [n for n in lengths for _ in range(n)]
    for tokens, skip in plan:
        for token in tokens[skip:]:
            expected = class_of(classes, own[token])
            if expected is None:
                assert len(tokens) == own[token]
            else:
                assert class_of(classes, len(tokens)) == expected


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 24))
def test_grouped_products_are_those_of_each_piece(lengths: list[int], edge: int) -> None:
    """With a product whose result names its number of tokens' class, groups cannot hide."""
    classes = [int(size > edge) for size in SIZES]

    def product(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + float(x.shape[1] > edge)

    plan = plan_groups(classes, lengths)
    x = torch.arange(float(sum(lengths)))[None, :, None]
    whole = invariance._in_groups(product, plan, x)
    pieces = torch.cat([product(part) for part in x.split(lengths, dim=1)], dim=1)
    straddled = any(class_of(classes, n) is None for n in lengths)
    assert straddled or torch.equal(whole, pieces)


def masked_row(model: Any, seed: int) -> Row:
    """A row of which every head has masked other entries, and one head of a layer all of them."""
    row = make_row(model, seed, max_new_tokens=6)
    generator = torch.Generator().manual_seed(seed)
    masked: list[Any] = []
    for layer, keys in enumerate(row.cache.keys):
        table = torch.rand(keys.shape[:2], generator=generator) < 0.5
        table[0, :] |= layer == 0
        masked.append(table if layer % 2 == 0 else None)
    row.cache.masked[:] = masked
    return row


def test_padded_logits_are_those_of_each_row_alone(folder: Path) -> None:
    with one_thread():
        model = load(model_info(folder, "float32"))[0]
        rows = [*(make_row(model, s) for s in range(5)), *(masked_row(model, s) for s in range(5))]
        block = PaddedRows([r.cache for r in rows], 40)
        with torch.inference_mode():
            for row, own in zip(rows, block.rows, strict=True):
                # Row by row first: what one row feeds must not be seen by another.
                first = forward(model, [Piece(own, row.question_ids, 0)], None, padded=True)
                own.fed = len(row.question_ids)
                assert torch.allclose(first[0], by_hand(model, row, []), atol=2e-5)
            steps = [Piece(own, [7, 3], own.fed, wanted=2) for own in block.rows]
            both = forward(model, steps, None, padded=True)
            for i, row in enumerate(rows):
                assert torch.allclose(both[2 * i], by_hand(model, row, [7]), atol=2e-5)
                assert torch.allclose(both[2 * i + 1], by_hand(model, row, [7, 3]), atol=2e-5)


def by_hand(model: Any, row: Row, more: list[int]) -> torch.Tensor:
    """Logits after the last token: eager attention with a mask for each layer and head."""
    ids = torch.tensor([[*row.question_ids, *more]])
    hidden = model.model.embed_tokens(ids)
    start, n = row.cache.context_length, ids.shape[1]
    cos, sin = model.model.rotary_emb(hidden, torch.arange(start, start + n)[None])
    for i, layer in enumerate(model.model.layers):
        attention, normed = layer.self_attn, layer.input_layernorm(hidden)
        q, k, v = (
            p(normed)[0].unflatten(-1, (-1, attention.head_dim)).transpose(0, 1)
            for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = (x * cos[0] + rotated(x) * sin[0] for x in (q, k))
        keys = torch.cat([row.cache.keys[i], k], dim=1)
        values = torch.cat([row.cache.values[i], v], dim=1)
        dropped = row.cache.masked[i]
        groups = q.shape[0] // k.shape[0]
        out = []
        for head in range(q.shape[0]):
            kv = head // groups
            scores = q[head] @ keys[kv].T * attention.scaling
            kept = keys.shape[1] - n
            for t in range(n):
                scores[t, kept + t + 1 :] = -torch.inf
            if dropped is not None:
                scores[:, :kept][:, dropped[kv]] = -torch.inf
            out.append(scores.softmax(dim=-1) @ values[kv])
        hidden = hidden + attention.o_proj(torch.cat(out, dim=-1))[None]
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    logits: torch.Tensor = model.lm_head(model.model.norm(hidden))[0, -1]
    return logits


def rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], dim=-1)


def test_blocks_hold_rows_of_about_one_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_thread():
        model = load(model_info(folder, "float32"))[0]
        rows = [make_row(model, seed) for seed in range(12)]
        expected = [alone(model, r) for r in rows]
        one = max(padded_bytes([r.cache], 60) for r in rows)
        monkeypatch.setattr(decode, "BLOCK_BYTES", 3 * one)
        decoder = Decoder(model)
        chunks = list(decoder._chunks(rows)) if decoder._prepare() is None else []
        assert 2 < len(chunks) < 12
        assert sorted(map(id, (r for c in chunks for r in c))) == sorted(map(id, rows))
        monkeypatch.setattr(decode, "BLOCK_BYTES", 1)
        assert [len(c) for c in decoder._chunks(rows)] == [1] * 12
        decoder.decode(rows)
        assert [r.tokens for r in rows] == expected
