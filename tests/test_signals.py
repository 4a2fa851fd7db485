"""Each signal, transform and selection against a plain loop or kvpress's own code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from galoop.domains.kv_compression import signals

SIZE, HEADS, QUERIES, DIM = 23, 2, 6, 8


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=QUERIES * DIM,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=QUERIES,
        num_key_value_heads=HEADS,
        vocab_size=60,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def capture(model: LlamaForCausalLM, size: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Per layer what a press is called with, from a real prefill."""
    import kvpress

    rows = []

    class Recorder(kvpress.BasePress):
        def compress(self, *arguments: Any) -> Any:
            rows.append(arguments)
            return arguments[2], arguments[3]

    ids = torch.randint(0, 60, (1, size), generator=torch.Generator().manual_seed(seed))
    with Recorder()(model):
        model.model(input_ids=ids, past_key_values=DynamicCache())
    return rows


def layer_of(row: tuple[Any, ...]) -> signals.Layer:
    module, hidden, keys, values, _, kwargs = row
    return signals.Layer(module, hidden, keys, values, kwargs)


@pytest.fixture(scope="module")
def row(model: LlamaForCausalLM) -> tuple[Any, ...]:
    return capture(model, SIZE)[1]


@pytest.fixture(scope="module")
def layer(row: tuple[Any, ...]) -> signals.Layer:
    return layer_of(row)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.dot(a, b) / (a.norm() * b.norm()))


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-4) -> None:
    assert a.shape == b.shape
    assert torch.allclose(a, b, atol=tolerance, rtol=1e-3), (a - b).abs().max()


def test_views_match_the_cache(layer: signals.Layer, model: LlamaForCausalLM) -> None:
    from galoop.domains.kv_compression.signals.layer import rotate_half

    cos, sin = layer.kwargs["position_embeddings"]
    rotated = layer.keys_pre * cos[:, None] + rotate_half(layer.keys_pre) * sin[:, None]
    close(rotated, layer.keys)
    assert (layer.index, layer.n_layers) == (1, 3)
    with pytest.raises(ValueError, match="unknown source"):
        layer.source("key")


def whole_attention(layer: signals.Layer, block: int = 128) -> torch.Tensor:
    out = torch.zeros(1, QUERIES, SIZE, SIZE)
    for start, weights in layer.causal_attention(block):
        out[:, :, start : start + weights.shape[2], : weights.shape[3]] = weights
    return out


def test_causal_attention_matches_the_model(model: LlamaForCausalLM, row: tuple[Any, ...]) -> None:
    module, hidden, _, _, _, kwargs = row
    eager = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    mask = torch.full((SIZE, SIZE), float("-inf")).triu(1)[None, None]
    _, weights = module(hidden, kwargs["position_embeddings"], mask)
    model.config._attn_implementation = eager
    for block in (5, 128):
        close(whole_attention(layer_of(row), block), weights)


def test_distinctiveness_is_keydiff(row: tuple[Any, ...], layer: signals.Layer) -> None:
    from kvpress import KeyDiffPress

    close(signals.distinctiveness(layer), KeyDiffPress(0.5).score(*row))


@pytest.mark.parametrize("source", ["keys", "keys_pre", "values", "keys+values", "hidden"])
@pytest.mark.parametrize(
    ("reduce", "versus", "gap"),
    [("max", "all", 0), ("mean", "earlier", 2), ("top4", "later", 4), ("top16", "all", 1)],
)
def test_novelty(layer: signals.Layer, source: str, reduce: str, versus: str, gap: int) -> None:
    x = layer.source(source)
    expected = torch.zeros(1, HEADS, SIZE)
    for h in range(HEADS):
        head = x[0, min(h, x.shape[1] - 1)]
        for t in range(SIZE):
            others = [
                cosine(head[t], head[s])
                for s in range(SIZE)
                if abs(t - s) > gap and (versus == "all" or (s < t) == (versus == "earlier"))
            ]
            if not others:
                continue
            others.sort(reverse=True)
            width = {"max": 1, "top4": 4, "top16": 16, "mean": len(others)}[reduce]
            padded = others + [-1.0] * (width - len(others))
            expected[0, h, t] = -sum(padded[:width]) / width
    close(signals.novelty(layer, source, reduce, versus, gap), expected)


def test_leverage(layer: signals.Layer) -> None:
    x = layer.keys_pre.double()
    for h in range(HEADS):
        centred = x[0, h] - x[0, h].mean(dim=0)
        gram = centred.T @ centred
        ridge = 0.1 * gram.diagonal().mean() * torch.eye(DIM)
        inverse = torch.linalg.inv(gram + ridge)
        expected = torch.stack([v @ inverse @ v for v in centred])
        close(signals.leverage(layer, "keys_pre", 0.1)[0, h], expected.float())
    close(signals.leverage(layer), signals.leverage(layer))


def test_norms(layer: signals.Layer) -> None:
    close(signals.norm(layer, "keys"), layer.keys.pow(2).sum(-1).sqrt())
    weight = layer.module.o_proj.weight
    group = QUERIES // HEADS
    expected = torch.zeros(1, HEADS, SIZE)
    for h in range(HEADS):
        for q in range(h * group, (h + 1) * group):
            part = weight[:, q * DIM : (q + 1) * DIM]
            expected[0, h] += (layer.values[0, h] @ part.T).norm(dim=-1) / group
    close(signals.output_norm(layer), expected)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("gap", [0, 3])
def test_received_attention(layer: signals.Layer, reduce: str, gap: int) -> None:
    group = QUERIES // HEADS
    weights = whole_attention(layer)
    expected = torch.zeros(1, HEADS, SIZE)
    for h in range(HEADS):
        for q in range(h * group, (h + 1) * group):
            for t in range(SIZE):
                got = [float(weights[0, q, s, t]) for s in range(t + gap, SIZE)]
                value = {"sum": sum(got), "max": max(got, default=0.0)}.get(
                    reduce, sum(got) / max(1, len(got))
                )
                expected[0, h, t] += value / group
    close(signals.received_attention(layer, reduce, gap), expected)


def test_window_attention_is_snapkv_s_before_the_window(row: tuple[Any, ...]) -> None:
    from kvpress import SnapKVPress

    ours = signals.window_attention(layer_of(row), window=5)
    theirs = SnapKVPress(0.5, window_size=5, kernel_size=1).score(*row)
    close(ours[..., :-5], theirs[..., :-5])
    assert signals.window_attention(layer_of(row), window=99).shape == (1, HEADS, SIZE)


@pytest.mark.parametrize("chunk", [23, 8, 64])
@pytest.mark.parametrize("by_value", [True, False])
def test_chunk_attention(layer: signals.Layer, chunk: int, by_value: bool) -> None:
    group = QUERIES // HEADS
    expected = torch.zeros(1, HEADS, SIZE)
    for start in range(0, SIZE, chunk):
        inside = range(start, min(start + chunk, SIZE))
        rescale = min(chunk, SIZE) / len(inside)
        for q in range(QUERIES):
            keys = layer.keys[0, q // group, list(inside)]
            for s in inside:
                weights = (keys @ layer.queries[0, q, s]).softmax(dim=0) * rescale / group
                for i, t in enumerate(inside):
                    expected[0, q // group, t] += weights[i]
    if by_value:
        expected = expected * layer.values.norm(dim=-1)
    close(signals.chunk_attention(layer, chunk, by_value), expected)


def test_chunk_attention_is_compactor_s_on_full_chunks(model: LlamaForCausalLM) -> None:
    from kvpress import NonCausalAttnPress

    row = capture(model, 24)[0]
    ours = signals.chunk_attention(layer_of(row), 8)
    pooled = torch.nn.functional.avg_pool1d(ours, 3, stride=1, padding=1)
    theirs = NonCausalAttnPress(0.5, chunk_size=8).score(*row)
    close((pooled - pooled.mean()) / pooled.std(), theirs, 1e-3)


@pytest.mark.parametrize("covariance", [True, False])
@pytest.mark.parametrize("by_value", [True, False])
def test_expected_attention(row: tuple[Any, ...], covariance: bool, by_value: bool) -> None:
    from kvpress import ExpectedAttentionPress

    theirs = ExpectedAttentionPress(
        0.5, n_future_positions=32, n_sink=0, use_covariance=covariance, use_vnorm=by_value
    ).score(*row)
    ours = signals.expected_attention(layer_of(row), 32, covariance, by_value, skip=0)
    close(ours, theirs)


@pytest.mark.parametrize("reduce", ["max", "mean"])
@pytest.mark.parametrize("by_value", [True, False])
def test_repeat_attention(layer: signals.Layer, reduce: str, by_value: bool) -> None:
    """Query t, moved on by S positions: its logit with key s depends on t + S − s alone."""
    frequency = layer.module.rotary_emb.inv_freq
    expected = torch.zeros(1, HEADS, SIZE)
    for q in range(QUERIES):
        h, rows = q // (QUERIES // HEADS), []
        for t in range(SIZE):
            logits = []
            for s in range(SIZE):
                angle = torch.cat([(t + SIZE - s) * frequency] * 2)
                x = layer.queries_pre[0, q, t]
                turned = torch.cat([-x[DIM // 2 :], x[: DIM // 2]])
                moved = x * angle.cos() + turned * angle.sin()
                logits.append(moved @ layer.keys_pre[0, h, s] / math.sqrt(DIM))
            rows.append(torch.stack(logits).softmax(dim=0))
        weights = torch.stack(rows)
        if reduce == "max":
            expected[0, h] = torch.maximum(expected[0, h], weights.amax(dim=0))
        else:
            expected[0, h] += weights.mean(dim=0) / (QUERIES // HEADS)
    if by_value:
        expected = expected * layer.values.norm(dim=-1)
    close(signals.repeat_attention(layer, reduce, by_value), expected)


@pytest.mark.parametrize("versus", ["before", "around"])
@pytest.mark.parametrize("width", [3, 0])
def test_surprise(layer: signals.Layer, versus: str, width: int) -> None:
    x = torch.nn.functional.normalize(layer.values, dim=-1)
    expected = torch.ones(1, HEADS, SIZE)
    reach = width or SIZE
    for h in range(HEADS):
        for t in range(SIZE):
            near = [
                s
                for s in range(SIZE)
                if 0 < t - s <= reach or (versus == "around" and 0 < s - t <= reach)
            ]
            if near:
                expected[0, h, t] = 1 - cosine(x[0, h, t], x[0, h, near].mean(dim=0))
    close(signals.surprise(layer, width, versus, "values"), expected)


def test_lag(layer: signals.Layer) -> None:
    size = 8  # blocks 0-7, 8-15, 16-22
    expected = torch.zeros(1, HEADS, SIZE)
    for x in (layer.keys, layer.values):
        for block, reference in (((0, 8), (8, 16)), ((8, 16), (16, 23)), ((16, 23), (8, 16))):
            ref = x[:, :, slice(*reference)]
            low, high = ref.min(dim=2, keepdim=True).values, ref.max(dim=2, keepdim=True).values
            spread = ((x[:, :, slice(*block)] - low) / (high - low)).std(dim=-1)
            expected[..., slice(*block)] += spread.softmax(dim=-1)
    close(signals.lag(layer, size), expected)


def test_press_score(row: tuple[Any, ...], model: LlamaForCausalLM) -> None:
    from kvpress import CompactorPress, KnormPress

    close(signals.press_score(layer_of(row), KnormPress(0.5)), KnormPress(0.5).score(*row))
    short = layer_of(capture(model, 6)[0])  # Compactor cannot score twelve tokens or fewer
    assert torch.equal(signals.press_score(short, CompactorPress(0.5)), torch.zeros(1, HEADS, 6))

    class Broken(KnormPress):
        def score(self, *arguments: Any, **named: Any) -> Any:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        signals.press_score(layer_of(capture(model, 70)[0]), Broken(0.5))


ALL: dict[str, Any] = {
    "distinctiveness": signals.distinctiveness,
    "novelty": signals.novelty,
    "leverage": signals.leverage,
    "norm": signals.norm,
    "output_norm": signals.output_norm,
    "received_attention": signals.received_attention,
    "window_attention": signals.window_attention,
    "chunk_attention": signals.chunk_attention,
    "expected_attention": signals.expected_attention,
    "surprise": signals.surprise,
    "lag": signals.lag,
    "recency": signals.recency,
    "repeat_attention": signals.repeat_attention,
}


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 13, 65])
def test_no_nan_in_half_precision_and_on_odd_sizes(
    model: LlamaForCausalLM, name: str, dtype: torch.dtype, size: int
) -> None:
    module, hidden, keys, values, _, kwargs = capture(model, size)[2]
    module.to(dtype)
    # norms of these overflow in fp16; a run of equal tokens has no spread
    hidden, keys, values = (x.to(dtype) * 100 for x in (hidden, keys, values))
    keys[:, :, size // 2 :] = keys[:, :, -1:].clone()
    layer = signals.Layer(module, hidden, keys, values, kwargs)
    score = ALL[name](layer)
    module.to(torch.float32)
    assert score.shape == (1, HEADS, size)
    assert score.dtype == torch.float32
    assert torch.isfinite(score).all()


def test_blocks_of_queries_do_not_matter(model: LlamaForCausalLM) -> None:
    """Contexts longer than a block give what one block gives."""
    layer = layer_of(capture(model, 300)[1])
    logits = (
        layer.queries.reshape(HEADS, -1, DIM) @ layer.keys[0].transpose(-2, -1) / math.sqrt(DIM)
    )
    logits = logits.view(QUERIES, 300, 300)
    weights = logits.masked_fill(torch.ones(300, 300, dtype=torch.bool).triu(1), -1e30).softmax(-1)
    for gap in (0, 16):
        far = torch.ones(300, 300).tril(-gap)
        expected = (weights * far).amax(dim=1).view(HEADS, -1, 300).mean(dim=1)
        close(signals.received_attention(layer, "max", gap)[0], expected)
        expected = (weights * far).sum(dim=1).view(HEADS, -1, 300).mean(dim=1)
        close(signals.received_attention(layer, "sum", gap)[0], expected)


def test_attention_scale(layer: signals.Layer) -> None:
    """Received attention sums to one per query."""
    total = signals.received_attention(layer, "sum").sum(dim=-1)
    close(total, torch.full((1, HEADS), float(SIZE)))
    assert math.isclose(float(signals.window_attention(layer, 4).sum()), HEADS, rel_tol=1e-4)
