"""Transforms, grains and selections of press programs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from galoop.domains.kv_compression import signals


def scores(size: int, seed: int = 0, heads: int = 3) -> torch.Tensor:
    return torch.randn(1, heads, size, generator=torch.Generator().manual_seed(seed))


def module(index: int = 0, layers: int = 1) -> Any:
    config = SimpleNamespace(num_hidden_layers=layers)
    return SimpleNamespace(layer_idx=index, config=config, masked_key_indices=None)


def pair(size: int, heads: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    position = torch.arange(float(size)).view(1, 1, size, 1).expand(1, heads, size, 4)
    return position.clone(), position.clone() + 0.5


def kept_by_mask(mask: Any, shape: tuple[int, ...]) -> torch.Tensor:
    keep = torch.ones(shape, dtype=torch.bool)
    if mask is not None:
        keep[mask] = False
    return keep


def test_simple_transforms() -> None:
    x = torch.tensor([[[3.0, 1.0, 2.0, 2.0]]])
    assert signals.rank(x)[0, 0].tolist() == pytest.approx([1.0, 0.0, 1 / 3, 2 / 3])
    assert signals.scale(x)[0, 0].tolist() == pytest.approx([1.0, 0.0, 0.5, 0.5])
    z = signals.zscore(scores(50))
    assert torch.allclose(z.mean(dim=-1), torch.zeros(1, 3), atol=1e-5)
    assert torch.allclose(z.pow(2).mean(dim=-1), torch.ones(1, 3), atol=1e-4)
    assert torch.allclose(signals.softmax(x).mean(dim=-1), torch.ones(1, 1))
    for transform in (signals.zscore, signals.rank, signals.softmax, signals.log, signals.scale):
        assert torch.isfinite(transform(torch.full((1, 2, 5), 7.0))).all()
        assert torch.isfinite(transform(torch.full((1, 2, 1), 7.0))).all()
        order = transform(scores(30)).argsort(dim=-1)
        assert torch.equal(order, scores(30).argsort(dim=-1))


@pytest.mark.parametrize("kind", ["mean", "max", "median", "gauss"])
@pytest.mark.parametrize("width", [1, 3, 7, 25])
@pytest.mark.parametrize("size", [1, 2, 13])
def test_pool(kind: str, width: int, size: int) -> None:
    x, half = scores(size), width // 2
    expected = torch.zeros_like(x)
    for t in range(size):
        near = [s for s in range(t - half, t + half + 1) if 0 <= s < size]
        if kind == "median":  # repeats the ends
            near = [min(max(s, 0), size - 1) for s in range(t - half, t + half + 1)]
        part = x[..., near]
        if kind == "gauss":
            offset = torch.tensor([float(s - t) for s in near])
            weight = torch.exp(-0.5 * (offset / (width / 4)) ** 2)
            expected[..., t] = (part * weight).sum(-1) / weight.sum()
        elif kind == "mean":
            expected[..., t] = part.mean(-1)
        else:
            values = part.median(-1).values if kind == "median" else part.amax(-1)
            expected[..., t] = values
    assert torch.allclose(signals.pool(x, kind, width), expected, atol=1e-5)


def order(x: torch.Tensor) -> list[int]:
    return x[0, 0].argsort(descending=True, stable=True).tolist()


def test_combinations() -> None:
    a = torch.tensor([[[4.0, 3.0, 2.0, 1.0, 0.0]]])
    b = torch.tensor([[[0.0, 1.0, 2.0, 3.0, 4.0]]])
    assert order(signals.interleave([a, b])) == [0, 4, 1, 3, 2]
    assert order(signals.two_stage(b, a, 2))[:3] == [3, 4, 0]
    ranks = signals.reciprocal_rank([a, a])
    assert ranks[0, 0].tolist() == pytest.approx([2 / (60 + r) for r in range(1, 6)])
    assert torch.equal(signals.maximum([a, b]), torch.maximum(a, b))
    assert signals.product([a, b])[0, 0, 2] == pytest.approx(0.51**2)


def test_guard_protects_the_ends_in_their_own_order() -> None:
    x = torch.tensor([[[0.0, -5.0, 9.0, 8.0, 1.0]]])
    assert order(signals.guard(x, 2, 1)) == [4, 0, 1, 2, 3]
    assert order(signals.guard(x, 99, 99)) == order(x)
    assert torch.equal(signals.guard(x, 0, 0), x)


def test_runs_are_kept_whole() -> None:
    x = scores(26, heads=1)
    top = signals.by_runs(x, 4).topk(12).indices[0, 0]
    means = torch.stack([part.mean() for part in x[0, 0].split(4)])
    best = set(means.topk(4).indices.tolist())
    runs = [int(t) // 4 for t in top]
    assert set(runs) <= best
    whole = [r for r in set(runs) if runs.count(r) == min(4, 26 - 4 * r)]
    assert len(whole) >= 2


def test_every_chunk_has_its_share() -> None:
    top = signals.by_chunks(scores(40), 8).topk(10, dim=-1).indices
    for head in top[0]:
        counts = torch.bincount(head // 8, minlength=5)
        assert counts.tolist() == [2] * 5


def test_diverse_is_greedy_maximal_marginal_relevance() -> None:
    x, features = scores(15), torch.randn(1, 3, 15, 4)
    got = signals.diverse(x, features, 6, penalty=0.5)
    for h in range(3):
        relevance, taken = signals.scale(x)[0, h] * 0.5, []
        unit = torch.nn.functional.normalize(features[0, h], dim=-1)
        for _ in range(6):
            values = [
                float("-inf")
                if t in taken
                else float(relevance[t])
                - 0.5 * max([0.0, *(float(unit[t] @ unit[s]) for s in taken)])
                for t in range(15)
            ]
            taken.append(values.index(max(values)))
        ours = got[0, h].argsort(descending=True)[:6].tolist()
        assert ours == taken
        rest = [t for t in x[0, h].argsort(descending=True).tolist() if t not in taken]
        assert got[0, h].argsort(descending=True)[6:].tolist() == rest


@given(st.integers(1, 300), st.floats(0.0, 0.99))
def test_n_kept(size: int, ratio: float) -> None:
    assert signals.n_kept(size, ratio) == min(size, max(1, int(size * (1 - ratio))))


@given(st.integers(1, 80), st.integers(1, 40), st.floats(-0.9, 0.9), st.integers(0, 200))
@settings(max_examples=200)
def test_layer_budgets_never_pass_the_total(n: int, layers: int, slope: float, more: int) -> None:
    size = n + more
    budgets = [signals.layer_budget(n, i, layers, slope, size) for i in range(layers)]
    assert sum(budgets) <= n * layers
    assert all(1 <= b <= size for b in budgets)
    if slope > 0.3 and n > 10 and layers > 3:
        assert budgets[0] >= budgets[-1]


def test_keep_per_head_and_shared() -> None:
    keys, values = pair(12)
    x = scores(12)
    kept_keys, kept_values = signals.keep_per_head(keys, values, x, 4)
    for h in range(3):
        expected = sorted(x[0, h].topk(4).indices.tolist())
        assert kept_keys[0, h, :, 0].tolist() == expected
        assert (kept_values - kept_keys == 0.5).all()
    shared, _ = signals.keep_shared(keys, values, x, 4)
    expected = sorted(x.sum(1)[0].topk(4).indices.tolist())
    assert all(shared[0, h, :, 0].tolist() == expected for h in range(3))


def test_masks_drop_what_shrinking_would_drop() -> None:
    keys, values = pair(12)
    x = scores(12)
    for keep, mask in (
        (signals.keep_per_head, signals.mask_per_head),
        (signals.keep_shared, signals.mask_shared),
    ):
        layer = module()
        same_keys, same_values = mask(layer, keys, values, x, 4)
        assert same_keys is keys
        assert same_values is values
        kept = kept_by_mask(layer.masked_key_indices, (1, 3, 12))
        shrunk = keep(keys, values, x, 4)[0][..., 0].long()
        for h in range(3):
            assert kept[0, h].nonzero().flatten().tolist() == shrunk[0, h].tolist()
    layer = module()
    signals.mask_per_head(layer, keys, values, x, 12)
    assert layer.masked_key_indices is None


@pytest.mark.parametrize("floor", [0.05, 0.2, 0.5])
def test_head_budgets_are_adakv_s(floor: float) -> None:
    from kvpress import AdaKVPress, KnormPress

    x, (keys, values) = scores(40), pair(40)

    class Fixed(KnormPress):
        def score(self, *arguments: Any) -> torch.Tensor:
            return x.clone()

    ours, theirs = module(), module()
    theirs.config._attn_implementation = "sdpa"
    signals.mask_head_budgets(ours, keys, values, x, 10, floor)
    AdaKVPress(Fixed(0.75), floor).compress(theirs, None, keys, values, None, {})
    first = kept_by_mask(ours.masked_key_indices, (1, 3, 40))
    second = kept_by_mask(theirs.masked_key_indices, (1, 3, 40))
    assert torch.equal(first, second)
    assert int(first.sum()) == 30


def test_all_layers_compete() -> None:
    x = [scores(20, seed) * (1 + seed) for seed in range(3)]
    modules = [module(i, 3) for i in range(3)]
    across = signals.AcrossLayers(floor=0.2)
    for _ in range(2):  # a second prefill starts anew
        for m, priority in zip(modules, x, strict=True):
            keys, values = pair(20)
            assert across.add(m, keys, values, priority, 5)[0] is keys
    keep = torch.stack([kept_by_mask(m.masked_key_indices, (1, 3, 20)) for m in modules])
    assert int(keep.sum()) == 5 * 9
    stacked = torch.stack(x)
    forced = torch.zeros_like(keep).scatter_(-1, stacked.topk(1, dim=-1).indices, True)
    assert (keep & forced).sum() == 9
    free = stacked.masked_fill(forced, float("-inf")).flatten().topk(45 - 9).indices
    expected = forced.flatten().clone()
    expected[free] = True
    assert torch.equal(keep.flatten(), expected)


def test_one_choice_for_all_layers() -> None:
    x = [scores(20, seed) for seed in range(3)]
    modules = [module(i, 3) for i in range(3)]
    across = signals.AcrossLayers(shared=True)
    for m, priority in zip(modules, x, strict=True):
        across.add(m, *pair(20), priority, 5)
    z = torch.stack([signals.zscore(v) for v in x]).mean(dim=(0, 1, 2))
    expected = sorted(z.topk(5).indices.tolist())
    for m in modules:
        keep = kept_by_mask(m.masked_key_indices, (1, 3, 20))
        assert all(keep[0, h].nonzero().flatten().tolist() == expected for h in range(3))


def test_an_interrupted_prefill_is_forgotten() -> None:
    modules = [module(i, 2) for i in range(2)]
    across = signals.AcrossLayers()
    across.add(modules[0], *pair(9), scores(9), 2)  # never finished
    across.add(modules[0], *pair(20), scores(20), 5)
    across.add(modules[1], *pair(20), scores(20, 1), 5)
    total = sum(int(kept_by_mask(m.masked_key_indices, (1, 3, 20)).sum()) for m in modules)
    assert total == 5 * 6
