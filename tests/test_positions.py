"""Position plans against a naive reference that builds the whole matrix of logits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from galoop.errors import UsageError
from galoop.methods.dca import DualChunk
from galoop.methods.positions import Band, Plan, Plans, PositionMethod, expand, identity_plan
from galoop.methods.rope_scaling import NTK, Interpolation, YaRN, rescaled
from galoop.methods.self_extend import SelfExtend

torch = pytest.importorskip("torch")

WINDOW = 64


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, initializer_range=0.3,
        max_position_embeddings=WINDOW, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tokens(n: int, seed: int = 1) -> Any:
    return torch.randint(0, 97, (1, n), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: Any, ids: Any) -> Any:
    return model(input_ids=ids, use_cache=False).logits[0]


@torch.no_grad()
def naive(model: Any, ids: Any, distance: Callable[[int, int], float | None], **scaled: Any) -> Any:
    """Logits with the full matrix of relative positions; ``distance`` None: not attended to.

    RoPE by complex numbers: the logit of a pair turns by its relative position.
    """
    config, body = model.config, model.model
    n, dim = ids.shape[1], config.head_dim
    inverse = 1e4 ** (-torch.arange(dim // 2, dtype=torch.float64) * 2 / dim)
    inverse = inverse * torch.tensor(scaled.get("frequency", 1.0))
    relative = torch.zeros(n, n, dtype=torch.float64)
    attended = torch.zeros(n, n, dtype=torch.bool)
    for i, j in itertools.product(range(n), range(n)):
        d = distance(i, j) if j <= i else None
        if d is not None:
            relative[i, j], attended[i, j] = d, True
    turn = torch.polar(
        torch.ones(n, n, dim // 2, dtype=torch.float64), relative[..., None] * inverse
    )
    scale = torch.tensor([scaled.get("scale", lambda i: 1.0)(i) for i in range(n)])
    hidden = body.embed_tokens(ids)[0]
    for layer in body.layers:
        x, attention = layer.input_layernorm(hidden), layer.self_attn
        q = attention.q_proj(x).unflatten(1, (4, dim)).transpose(0, 1)
        k = attention.k_proj(x).unflatten(1, (2, dim)).transpose(0, 1).repeat_interleave(2, 0)
        v = attention.v_proj(x).unflatten(1, (2, dim)).transpose(0, 1).repeat_interleave(2, 0)
        qc = torch.complex(q[..., : dim // 2].double(), q[..., dim // 2 :].double())
        kc = torch.complex(k[..., : dim // 2].double(), k[..., dim // 2 :].double())
        score = torch.einsum("hif,hjf,ijf->hij", qc, kc.conj(), turn).real * dim**-0.5
        score = (score * scale[:, None]).masked_fill(~attended, -torch.inf)
        out = (score.softmax(-1).float() @ v).transpose(0, 1).flatten(1)
        hidden = hidden + attention.o_proj(out)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return model.lm_head(body.norm(hidden))


class Fixed(PositionMethod):
    """A method made of a given plan."""

    def __init__(self, make: Callable[[int], Plans]) -> None:
        self.make = make

    def plan(self, shape: Any, length: int) -> Plans:
        return self.make(length)


def close(one: Any, other: Any, atol: float = 5e-5) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def test_true_positions_equal_dense(model: Any) -> None:
    ids = tokens(150)
    dense = logits(model, ids)
    with Fixed(identity_plan).applied(model, 150):
        close(logits(model, ids), dense)
    close(naive(model, ids[:, :40], lambda i, j: i - j), logits(model, ids[:, :40]))


def dca_distance(size: int, chunk: int) -> Callable[[int, int], float]:
    """Written from the paper's cases, one pair at a time."""

    def distance(i: int, j: int) -> float:
        apart = i // size - j // size
        if apart == 0:
            return i % size - j % size
        if apart == 1:
            return min(i % size + size, chunk) - j % size
        return min(2 * size - 1, chunk) - j % size

    return distance


def test_dca_equals_the_naive_reference(model: Any) -> None:
    ids = tokens(130)
    expected = naive(model, ids, dca_distance(40, 48))
    with DualChunk().applied(model, 130):  # chunk 48, local 8, chunks of 40
        close(logits(model, ids), expected)
    expected = naive(model, ids[:, :50], dca_distance(9, 12))
    with DualChunk(chunk=12, local=3).applied(model, 60):
        close(logits(model, ids[:, :50]), expected)
    assert (expected - logits(model, ids[:, :50])).abs().max() > 0.1  # and it is not dense


def test_dca_equals_dense_within_one_chunk(model: Any) -> None:
    ids = tokens(40)
    dense = logits(model, ids)
    with DualChunk().applied(model, 256):
        close(logits(model, ids), dense)


def test_dca_keeps_true_distances_up_to_local(model: Any) -> None:
    """At a chunk's border too: the plan's relative positions, pair by pair."""
    from galoop.methods.region_attention import shape_of

    plan = DualChunk().plan(shape_of(model), 256)
    for i in range(256):
        for j in range(max(0, i - 8), i + 1):
            band = next(b for b in plan.bands if np.asarray(b.start)[i] <= j)
            assert np.asarray(band.query)[i] - np.asarray(band.key)[j] == i - j


def test_self_extend_equals_the_naive_reference_and_dense_when_short(model: Any) -> None:
    ids = tokens(90)

    def distance(i: int, j: int) -> float:
        return i - j if i - j < 16 else i // 4 + 16 - 4 - j // 4

    with SelfExtend(group=4, neighbours=16).applied(model, 90):
        close(logits(model, ids), naive(model, ids, distance))
    short = logits(model, ids[:, :16])
    with SelfExtend(group=4, neighbours=16).applied(model, 90):
        close(logits(model, ids[:, :16]), short)


def test_log_scale_and_temper_scale_the_logits(model: Any) -> None:
    ids, low = tokens(100), np.log(WINDOW)
    expected = naive(
        model, ids, lambda i, j: i - j if i - j < 16 else i // 3 + 16 - 5 - j // 3,
        scale=lambda i: max(1.0, np.log(i + 1) / low),
    )  # fmt: skip
    with SelfExtend(group=3, neighbours=16, log_scale=True).applied(model, 100):
        close(logits(model, ids), expected)
    factor = (0.05 * np.log(256 / WINDOW) + 1) ** 2
    expected = naive(model, ids, dca_distance(40, 48), scale=lambda i: factor)
    with DualChunk(temper=True).applied(model, 256):
        close(logits(model, ids), expected)


@pytest.mark.parametrize(
    ("kind", "method"),
    [("interpolation", Interpolation(4.0)), ("ntk", NTK(4.0)), ("yarn", YaRN(4.0))],
)
def test_scaled_frequencies_equal_transformers_own(model: Any, kind: Any, method: Any) -> None:
    ids = tokens(200)
    dense = logits(model, ids)
    with rescaled(model, kind, 4.0):
        own = logits(model, ids)
    assert (own - dense).abs().max() > 0.1
    with method.applied(model, 200):
        # Frequencies that differ in the last bit of float32, times positions up to 200.
        close(logits(model, ids), own, atol=5e-4)
    close(logits(model, ids), dense)


def test_ntk_equals_transformers_dynamic_setting_at_its_full_length(model: Any) -> None:
    """Independent of our formula: transformers' dynamic NTK computes the base by itself."""
    import copy

    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = copy.deepcopy(model.config)
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0}
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=4 * WINDOW)
    with rescaled(model, "ntk", 4.0):
        torch.testing.assert_close(model.model.rotary_emb.inv_freq, expected)


def bands_of_all_kinds(length: int) -> Plan:
    """Irregular bands: a sink, a dropped gap, grouped positions, a nearest band."""
    i = np.arange(length)
    near, gap = np.maximum(i - 10, 0), np.maximum(i - 30, 0)
    sink = np.minimum(3, gap)
    return Plan(
        [
            Band(near, i, i),
            Band(gap, i / 2 + 6, i / 2, frequency=np.linspace(1, 0.5, 8)),
            Band(sink, i, i, drop=True),
            Band(np.zeros_like(i), np.full(length, 40.0), i),
        ],
        scale=1 + i / length,
    )


def test_dropped_keys_sinks_and_frequencies_by_band(model: Any) -> None:
    """Per-band frequencies by hand: one layer's logits of two pairs."""
    from galoop.methods.region_attention import Prepared, region_attention, shape_of

    shape, n = shape_of(model), 60
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 1, n, 16, generator=generator) for _ in range(3))
    plan = bands_of_all_kinds(n)
    inverse = torch.tensor(shape.frequencies, dtype=torch.float32)
    out = region_attention(q[:, :, None], k, v, Prepared(plan, inverse), 0.25)[0, 0, 0]
    ramp = np.linspace(1, 0.5, 8)
    for i in (0, 5, 12, 29, 31, 45, 59):
        scores = np.full(n, -np.inf)
        for j in range(i + 1):
            if j >= i - 10:
                angle = (i - j) * shape.frequencies
            elif j >= i - 30:
                angle = (i / 2 + 6 - j / 2) * shape.frequencies * ramp
            elif j < 3:
                angle = (40 - j) * shape.frequencies
            else:
                continue
            a, b = (x[0, 0, at].double().numpy() for x, at in ((q, i), (k, j)))
            qc, kc = a[:8] + 1j * a[8:], b[:8] + 1j * b[8:]
            scores[j] = (qc * kc.conj() * np.exp(1j * angle)).real.sum() * 0.25 * (1 + i / n)
        weights = np.exp(scores - scores.max())
        expected = weights / weights.sum() @ v[0, 0].double().numpy()
        np.testing.assert_allclose(out[i].numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("tile", [(1, 1), (7, 5), (16, 64), (256, 512)])
def test_tiles_do_not_change_the_result(model: Any, tile: tuple[int, int]) -> None:
    from galoop.methods.region_attention import Prepared, region_attention, shape_of

    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 2, 2, 30, 16, generator=generator)
    k, v = (torch.randn(2, 2, 80, 16, generator=generator) for _ in range(2))
    inverse = torch.tensor(shape_of(model).frequencies, dtype=torch.float32)
    plan = Prepared(bands_of_all_kinds(80), inverse)
    expected = region_attention(q, k, v, plan, 0.25, tile=(80, 80))
    close(region_attention(q, k, v, plan, 0.25, tile=tile), expected)


@pytest.mark.parametrize("method", [DualChunk(), SelfExtend(group=8), Interpolation(4.0), NTK(4.0)])
@torch.no_grad()
def test_prefill_equals_chunks_and_single_tokens(model: Any, method: PositionMethod) -> None:
    from transformers import DynamicCache

    ids = tokens(140)
    with method.applied(model, 160):
        whole = logits(model, ids)
        cache, parts = DynamicCache(), []
        for piece in (*ids[:, :120].split(33, dim=1), *ids[:, 120:].split(1, dim=1)):
            parts.append(model(input_ids=piece, past_key_values=cache).logits[0])
        close(torch.cat(parts), whole)
        generated = model.generate(ids, max_new_tokens=8, do_sample=False)
        with torch.no_grad():
            for _ in range(8):
                ids = torch.cat((ids, logits(model, ids)[-1:].argmax(-1)[None]), dim=1)
        assert generated.tolist() == ids.tolist()


def test_each_layer_and_head_follows_its_own_plan(model: Any) -> None:
    """Heads under one plan give what they give when all heads are under it."""
    from galoop.methods.region_attention import _Attention, shape_of

    shape, n = shape_of(model), 70
    one, other = identity_plan(n), DualChunk(chunk=12, local=4).plan(shape, n)
    inverse = torch.tensor(shape.frequencies, dtype=torch.float32)
    generator = torch.Generator().manual_seed(4)
    q = torch.randn(1, 4, n, 16, generator=generator)
    k, v = (torch.randn(1, 2, n, 16, generator=generator) for _ in range(2))

    class Layer:
        layer_idx = 1

    def run(rows: Any) -> Any:
        return _Attention(rows, inverse)(Layer(), q, k, v, None)[0][0].transpose(0, 1)

    mixed = run([[one] * 4, [one, other, other, one]])
    first, second = run([[one] * 4] * 2), run([[other] * 4] * 2)
    assert (first - second).abs().max() > 0.1
    close(mixed[[0, 3]], first[[0, 3]])
    close(mixed[[1, 2]], second[[1, 2]])
    ids = tokens(n)
    by_layer = Fixed(lambda length: [one, [one, other, one, other]])
    with by_layer.applied(model, n):
        assert (logits(model, ids) - logits_under(model, one, ids)).abs().max() > 0.01


def logits_under(model: Any, plan: Plan, ids: Any) -> Any:
    from galoop.methods.region_attention import positions_replaced

    with positions_replaced(model, expand(plan, 2, 4)):
        return logits(model, ids)


def test_the_model_is_left_as_found_also_after_errors(model: Any) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    ids = tokens(50)
    before, rotary = logits(model, ids), model.model.rotary_emb
    names = set(AttentionInterface()), set(AttentionMaskInterface())
    attributes = set(vars(rotary)), set(vars(model.model)), model.config._attn_implementation
    for error in (KeyboardInterrupt, RuntimeError):
        with pytest.raises(error), DualChunk(chunk=12, local=4).applied(model, 60):
            raise error
        with pytest.raises(error), rescaled(model, "yarn", 2.0):
            raise error
    with pytest.raises(UsageError, match="more than the 40"), DualChunk().applied(model, 40):
        logits(model, ids)
    assert model.model.rotary_emb is rotary
    assert (set(vars(rotary)), set(vars(model.model)), model.config._attn_implementation) == (
        attributes)  # fmt: skip
    assert (set(AttentionInterface()), set(AttentionMaskInterface())) == names
    assert torch.equal(logits(model, ids), before)


def test_contexts_nest(model: Any) -> None:
    ids = tokens(60)
    with DualChunk(chunk=12, local=4).applied(model, 60):
        outer = logits(model, ids)
        with SelfExtend(group=2).applied(model, 60):
            assert (logits(model, ids) - outer).abs().max() > 0.01
        assert torch.equal(logits(model, ids), outer)


def test_padding_is_refused(model: Any) -> None:
    mask = torch.ones(1, 20, dtype=torch.long)
    mask[0, :3] = 0
    with DualChunk().applied(model, 40), torch.no_grad():
        model(input_ids=tokens(20), attention_mask=torch.ones_like(mask))
        with pytest.raises(UsageError, match="padding"):
            model(input_ids=tokens(20), attention_mask=mask)


def test_a_model_with_scaled_positions_is_refused(model: Any) -> None:
    with rescaled(model, "yarn", 2.0), pytest.raises(UsageError, match="plain rotary"):
        DualChunk().applied(model, 40).__enter__()


def test_expand_refuses_wrong_numbers() -> None:
    plan = identity_plan(4)
    assert expand([plan, [plan, plan]], 2, 2)[1] == [plan, plan]
    for wrong in ([plan], [plan, [plan]], [plan, [plan, 3]], [plan, 3], "plan", None):
        with pytest.raises(ValueError, match=r"one for each|not everything"):
            expand(wrong, 2, 2)  # type: ignore[arg-type]


def test_no_tile_is_the_whole_matrix(model: Any) -> None:
    """The largest tensor of a long prefill is a tile, not length × length."""
    from galoop.methods.region_attention import Prepared, region_attention, shape_of

    shape, n = shape_of(model), 3000
    inverse = torch.tensor(shape.frequencies, dtype=torch.float32)
    plan = Prepared(DualChunk().plan(shape, n), inverse)
    q, k = torch.randn(1, 1, 1, n, 16), torch.randn(1, 1, n, 16)
    sizes: list[int] = []

    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    with Watch(), torch.no_grad():
        region_attention(q, k, k, plan, 0.25)
    assert max(sizes) <= 256 * 512
