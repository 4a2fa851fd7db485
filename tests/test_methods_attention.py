"""Sparse attention inside a model: equal to dense at density 1, causal, cacheable, traceless."""

import copy
import itertools

import pytest
import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from galoop.methods.oracle_topk import OracleTopK
from galoop.methods.pqcache import PQCache
from galoop.methods.quest import Quest
from galoop.methods.sliding_window import SlidingWindow
from galoop.methods.sparse_attention import sparse_attention

METHODS = [OracleTopK, PQCache, Quest, SlidingWindow]
CONTEXT, LENGTH = 90, 104


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(0, 97, (2, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", METHODS)
def test_at_density_1_the_logits_are_those_of_dense_attention(model, ids, kind):
    expected = model(ids).logits
    with sparse_attention(model, kind(1.0), context=CONTEXT) as state:
        found = model(ids).logits
    assert torch.allclose(found, expected, atol=1e-9)
    assert state.counts.density == 1.0
    assert state.counts.kv_read_density == 1.0


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("sparse_from", [CONTEXT, CONTEXT + 6])
def test_reading_at_once_in_pieces_and_token_by_token_is_the_same(model, ids, kind, sparse_from):
    with sparse_attention(model, kind(0.1), context=CONTEXT, sparse_from=sparse_from) as state:
        at_once = model(ids).logits
        counted = copy.copy(state.counts)
        cache, pieces = DynamicCache(), []
        bounds = [0, 50, CONTEXT, CONTEXT + 6, *range(CONTEXT + 7, LENGTH + 1)]
        for start, stop in itertools.pairwise(bounds):
            pieces.append(model(ids[:, start:stop], past_key_values=cache).logits)
    assert torch.allclose(torch.cat(pieces, dim=1), at_once, atol=1e-9)
    assert state.counts.selected == 2 * counted.selected
    assert state.counts.read == 2 * counted.read
    dense = model(ids).logits
    assert torch.allclose(at_once[:, :sparse_from], dense[:, :sparse_from], atol=1e-9)
    assert not torch.allclose(at_once[:, sparse_from:], dense[:, sparse_from:], atol=1e-3)


@pytest.mark.parametrize("kind", METHODS)
def test_a_later_token_changes_nothing_before_it(model, ids, kind):
    other = ids.clone()
    other[:, -3:] = (other[:, -3:] + 1) % 97
    with sparse_attention(model, kind(0.1), context=CONTEXT):
        one, two = model(ids).logits, model(other).logits
    assert torch.allclose(one[:, :-3], two[:, :-3], atol=1e-10)
    assert not torch.allclose(one[:, -3:], two[:, -3:], atol=1e-3)


def test_another_text_gets_an_index_of_its_own(model, ids):
    other = (ids + 5) % 97
    with sparse_attention(model, PQCache(0.1, bits=3), context=CONTEXT):
        model(ids)
        found = model(other).logits
    with sparse_attention(model, PQCache(0.1, bits=3), context=CONTEXT):
        alone = model(other).logits
    assert torch.equal(found, alone)


def test_sparse_attention_equals_a_model_with_a_dense_mask(model, ids):
    """A naive reference: eager attention under the very mask that the method chose."""
    chosen = {}

    class Watched(OracleTopK):
        def select(self, index, step):
            chosen[step.layer] = super().select(index, step)
            return chosen[step.layer]

    with sparse_attention(model, Watched(0.1), context=CONTEXT):
        found = model(ids).logits

    def masked(module, query, key, value, mask, scaling, **kwargs):
        key, value = (t.repeat_interleave(3, dim=1) for t in (key, value))
        scores = query @ key.transpose(-1, -2) * scaling + mask
        late = scores[:, :, CONTEXT:]
        late.masked_fill_(~chosen[module.layer_idx], float("-inf"))
        return (torch.softmax(scores, -1) @ value).transpose(1, 2), None

    AttentionInterface.register("naive", masked)
    AttentionMaskInterface.register("naive", eager_mask)
    model.config._attn_implementation = "naive"
    try:
        expected = model(ids).logits
    finally:
        model.config._attn_implementation = "sdpa"
        del AttentionInterface._global_mapping["naive"]
        del AttentionMaskInterface._global_mapping["naive"]
    assert torch.allclose(found, expected, atol=1e-9)


def snapshot(model):
    """All that a context manager could leave behind."""
    modules = {
        name: (sorted(vars(module)), len(module._forward_hooks), len(module._forward_pre_hooks))
        for name, module in model.named_modules()
    }
    return (
        modules,
        model.config.to_dict(),
        model.config._attn_implementation,
        dict(ALL_ATTENTION_FUNCTIONS),
        dict(ALL_MASK_ATTENTION_FUNCTIONS),
    )


@pytest.mark.parametrize("kind", METHODS)
def test_nothing_is_left_behind_also_after_an_exception(model, ids, kind):
    before, logits = snapshot(model), model(ids).logits
    with sparse_attention(model, kind(0.1), context=CONTEXT):
        model(ids)
        assert snapshot(model) != before
    assert snapshot(model) == before

    class Broken(kind):
        def select(self, index, step):
            raise RuntimeError("broken")

    with (
        pytest.raises(RuntimeError, match="broken"),
        sparse_attention(model, Broken(0.1), context=CONTEXT),
    ):
        model(ids)
    assert snapshot(model) == before
    assert torch.equal(model(ids).logits, logits)


def test_one_may_stand_inside_another(model, ids):
    before = snapshot(model)
    with sparse_attention(model, OracleTopK(0.1), context=CONTEXT) as outer:
        with sparse_attention(model, SlidingWindow(0.5), context=CONTEXT) as inner:
            model(ids)
        assert outer.counts.visible == 0
        assert inner.counts.visible > 0
        model(ids)
        assert outer.counts.visible == inner.counts.visible
    assert snapshot(model) == before


def test_padding_and_sparse_rows_within_the_context_are_refused(model, ids):
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with (
        pytest.raises(ValueError, match="unpadded"),
        sparse_attention(model, OracleTopK(0.1), context=CONTEXT),
    ):
        model(ids, attention_mask=mask)
    for context, start in ((0, None), (10, 9)):
        with (
            pytest.raises(ValueError, match="context is"),
            sparse_attention(model, OracleTopK(0.1), context=context, sparse_from=start),
        ):
            pass
