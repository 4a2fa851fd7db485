"""Scores and choices of sparse decoding against naive references, and the budget."""

from __future__ import annotations

import math

import pytest
import torch

from galoop.domains.sparse_decoding import scores
from galoop.domains.sparse_decoding.masks import SelectorError
from galoop.methods.selection import Step, budget

H, J, D, CONTEXT, NEW, ROWS = 6, 3, 8, 60, 7, 4
LENGTH = CONTEXT + NEW
ALL = [
    scores.Subset(share=0.5),
    scores.Subset(share=0.4, by="spread"),
    scores.Projected(share=0.5),
    scores.Projected(share=0.5, kind="random"),
    scores.Quantised(subvectors=2, bits=3),
    scores.Rounded(levels=15),
    scores.PageBounds(page=8),
    scores.PageMeans(page=8),
    scores.KeyNorm(),
    scores.ValueNorm(),
    scores.Recency(),
    scores.Previous(),
    scores.Below(),
]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def keys() -> torch.Tensor:
    return draw(1, J, LENGTH, D, seed=1) * torch.arange(1, D + 1)


@pytest.fixture
def values() -> torch.Tensor:
    return draw(1, J, LENGTH, D, seed=2)


@pytest.fixture
def step(keys: torch.Tensor, values: torch.Tensor) -> Step:
    return Step(
        draw(1, H, ROWS, D, seed=3), keys[:, :, CONTEXT:], values[:, :, CONTEXT:], CONTEXT, layer=1
    )


def score(made: scores.Score, keys: torch.Tensor, values: torch.Tensor, step: Step) -> torch.Tensor:
    index = scores.indices(keys[:, :, :CONTEXT], values[:, :, :CONTEXT], x=made)
    return made.score(scores.part(index, "x"), step)


def exact(step: Step, keys: torch.Tensor) -> torch.Tensor:
    return step.queries @ keys.repeat_interleave(2, dim=1).transpose(-1, -2)


@pytest.mark.parametrize("made", ALL, ids=str)
def test_every_score_has_its_shape_and_knows_no_later_token(made, keys, values, step) -> None:
    found = score(made, keys, values, step)
    assert found.shape == (1, H, ROWS, LENGTH)
    assert bool(torch.isfinite(found).all())
    other = keys.clone()
    other[:, :, -1] = 99.0
    changed = Step(step.queries, other[:, :, CONTEXT:], step.values, CONTEXT, layer=1)
    assert torch.equal(score(made, other, values, changed)[:, :, :-1, :-1], found[:, :, :-1, :-1])


def test_products_over_all_dimensions_are_exact(keys, values, step) -> None:
    wanted = exact(step, keys)
    for made in (scores.Subset(share=1.0), scores.Projected(share=1.0)):
        assert torch.allclose(score(made, keys, values, step), wanted, atol=1e-3)
    fine = score(scores.Rounded(levels=255), keys, values, step)
    assert float((fine - wanted).abs().max()) < 0.02 * float(wanted.abs().max())


def test_a_subset_takes_the_dimensions_in_which_keys_are_large(keys, values, step) -> None:
    """Keys grow with the dimension, so the last ones are chosen."""
    found = score(scores.Subset(share=0.5), keys, values, step)
    part = torch.zeros(D)
    part[4:] = 1.0
    assert torch.allclose(found, exact(step, keys * part), atol=1e-4)
    shifted = keys + 1000.0 * (torch.arange(D) < 2)  # large, but all alike
    index = scores.Subset(share=0.25, by="spread").index(shifted[:, :, :CONTEXT], values)
    assert set(index["dims"].flatten().tolist()) <= {4, 5, 6, 7}


def test_principal_directions_keep_more_than_random_ones(keys, values, step) -> None:
    wanted = exact(step, keys)
    errors = [
        float((score(scores.Projected(0.5, kind), keys, values, step) - wanted).square().mean())
        for kind in ("principal", "random")
    ]
    assert errors[0] < errors[1]


def test_page_scores_equal_those_by_hand(keys, values, step) -> None:
    means = score(scores.PageMeans(page=8), keys, values, step)
    high = score(scores.PageBounds(page=8), keys, values, step)
    wanted = exact(step, keys)
    for h, r, j in [(0, 0, 0), (3, 2, 17), (5, 3, 59)]:
        page = keys[0, h // 2, j // 8 * 8 : min(j // 8 * 8 + 8, CONTEXT)]
        q = step.queries[0, h, r]
        assert float(means[0, h, r, j]) == pytest.approx(float(q @ page.mean(0)), abs=1e-3)
        bound = torch.maximum(q * page.amin(0), q * page.amax(0)).sum()
        assert float(high[0, h, r, j]) == pytest.approx(float(bound), abs=1e-3)
    assert torch.allclose(means[..., CONTEXT:], wanted[..., CONTEXT:], atol=1e-4)


def test_norms_and_recency_and_earlier_choices(keys, values, step) -> None:
    assert torch.allclose(
        score(scores.KeyNorm(), keys, values, step)[0, 3, 1], keys[0, 1].norm(dim=-1), atol=1e-4
    )
    assert torch.allclose(
        score(scores.ValueNorm(), keys, values, step)[0, 5, 0], values[0, 2].norm(dim=-1), atol=1e-4
    )
    late = score(scores.Recency(), keys, values, step)
    assert float(late[0, 0, 0, LENGTH - ROWS]) == pytest.approx(1.0)
    before = torch.rand(1, H, LENGTH - ROWS) < 0.5
    below = torch.rand(1, H, ROWS, LENGTH) < 0.5
    told = Step(step.queries, step.keys, step.values, CONTEXT, 1, previous=before, below=below)
    found = score(scores.Previous(), keys, values, told)
    assert torch.equal(found[:, :, 2, : LENGTH - ROWS].bool(), before)
    assert not found[..., LENGTH - ROWS :].any()
    assert torch.equal(score(scores.Below(), keys, values, told).bool(), below)


# -- shapes ---------------------------------------------------------------------------------------


@pytest.fixture
def raw(step: Step) -> torch.Tensor:
    made = draw(1, H, ROWS, LENGTH, seed=9)
    return torch.where(step.seen, made, torch.tensor(1e9))  # what is not seen must not count


def test_transforms_count_only_what_a_row_sees(raw, step) -> None:
    z, ranks, soft = (f(raw, step) for f in (scores.zscore, scores.rank, scores.softmax))
    for h, r in [(0, 0), (4, 3), (5, 1)]:
        n = int(step.visible[r])
        row = raw[0, h, r, :n]
        assert torch.allclose(z[0, h, r, :n], (row - row.mean()) / row.std(correction=0), atol=1e-4)
        assert torch.allclose(soft[0, h, r, :n], torch.softmax(row / math.sqrt(D), 0), atol=1e-6)
        best = row.argmax()
        assert float(ranks[0, h, r, best]) == 1.0
        assert len(set(ranks[0, h, r, :n].tolist())) == n
        assert not ranks[0, h, r, n:].any()


@pytest.mark.parametrize("kind", ["mean", "max"])
def test_pooling_equals_neighbourhoods_by_hand(raw, step, kind) -> None:
    found = scores.pool(raw, step, kind, 5)
    for r in range(ROWS):
        n = int(step.visible[r])
        for j in (0, 1, 30, n - 2, n - 1):
            near = raw[0, 2, r, max(0, j - 2) : min(n, j + 3)]
            wanted = near.mean() if kind == "mean" else near.max()
            assert float(found[0, 2, r, j]) == pytest.approx(float(wanted), abs=1e-5)


def test_spread_puts_peaks_first(raw, step) -> None:
    found = scores.spread(raw, step, 5)
    n = int(step.visible[0])
    row, out = raw[0, 0, 0, :n], found[0, 0, 0, :n]
    peaks = [j for j in range(n) if row[j] == row[max(0, j - 2) : j + 3].max()]
    order = out.argsort(descending=True).tolist()
    assert set(order[: len(peaks)]) == set(peaks)


def test_grouping_joins_the_heads_of_a_kv_head(raw, step) -> None:
    pairs = raw.unflatten(1, (J, 2))
    assert torch.equal(scores.grouped(raw, step, "sum"), pairs.sum(2))
    assert torch.equal(scores.grouped(raw, step, "max"), pairs.amax(2))
    assert scores.grouped(raw, step, "votes").shape == (1, J, ROWS, LENGTH)


def test_interleaving_takes_turns(step) -> None:
    one = torch.arange(LENGTH).float().expand(1, H, ROWS, -1)
    found = scores.interleave([one, -one], step)
    n = int(step.visible[-1])
    order = found[0, 0, -1].argsort(descending=True).tolist()
    assert order[:4] == [n - 1, 0, n - 2, 1]


# -- choice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("density", [0.015, 0.05, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("compete", [False, True])
@pytest.mark.parametrize("run", [1, 4])
@pytest.mark.parametrize("heads", [H, J])
@pytest.mark.parametrize("kept", [False, True])
def test_a_choice_never_exceeds_the_budget(raw, step, density, compete, run, heads, kept) -> None:
    before = None
    if kept:  # half of the room is taken, unevenly
        before = scores.choose(raw.flip(-1), step, density / 2, compete=True, recent=0.0)
    chosen = scores.choose(
        raw[:, :heads], step, density, run=run, compete=compete, kept=before, sink=0.1, recent=0.2
    )
    assert chosen.shape == (1, H, ROWS, LENGTH)
    assert not (chosen & ~step.seen).any()
    for r in range(ROWS):
        n = int(step.visible[r])
        assert int(chosen[0, :, r].sum()) <= H * budget(density, n)
        assert bool(chosen[0, :, r, n - 1].all())
        if not kept:
            assert int(chosen[0, :, r].sum()) == H * budget(density, n)
    if before is not None:
        assert bool((chosen | ~before).all())


def test_a_choice_takes_the_best_of_what_is_open(raw, step) -> None:
    chosen = scores.choose(raw, step, 0.2, sink=0.1, recent=0.2)
    n = int(step.visible[2])
    assert budget(0.2, n) == 13
    row = raw[0, 1, 2, :n]
    fixed = {0, n - 1, n - 2}
    best = sorted((j for j in range(n) if j not in fixed), key=lambda j: -float(row[j]))[:10]
    assert set(chosen[0, 1, 2].nonzero()[:, 0].tolist()) == fixed | set(best)


def test_runs_stay_together(raw, step) -> None:
    chosen = scores.choose(raw, step, 0.25, sink=0.0, recent=0.0, run=4)
    context = chosen[..., :CONTEXT].unflatten(-1, (-1, 4))
    broken = (context.any(-1) & ~context.all(-1))[..., 1:]  # the first holds the sink
    assert int(broken.sum(-1).max()) <= 1


def test_heads_that_compete_keep_their_floor(step) -> None:
    uneven = torch.arange(LENGTH).float() + 1000.0 * torch.arange(H)[:, None, None]
    chosen = scores.choose(uneven[None].expand(1, H, ROWS, -1), step, 0.25, compete=True, floor=0.5)
    counts = chosen.sum(-1)[0, :, 0]
    room = budget(0.25, int(step.visible[0]))
    assert int(counts.sum()) == H * room
    assert int(counts[0]) < room < int(counts[-1])
    assert int(counts.min()) >= room // 2


# -- masks ----------------------------------------------------------------------------------------


def test_masks_and_numbers_say_the_same(step) -> None:
    mask = scores.choose(draw(1, J, ROWS, LENGTH), step, 0.2)
    numbers = torch.full((1, H, ROWS, LENGTH), -1)
    numbers[mask] = mask.nonzero()[:, 3]
    for given in (mask, mask[0], numbers, numbers[0].int(), mask[:, ::2]):
        assert torch.equal(scores.as_mask(given, step), mask)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "not a tensor"),
        (torch.ones(1, H, ROWS, LENGTH), "float32"),
        (torch.ones(1, H, ROWS, LENGTH - 1, dtype=torch.bool), "a mask of"),
        (torch.ones(1, H - 1, ROWS, LENGTH, dtype=torch.bool), "shape"),
        (torch.ones(2, H, ROWS, LENGTH, dtype=torch.bool), "shape"),
        (torch.full((1, H, ROWS, 1), LENGTH), "out of range"),
        (torch.full((1, H, ROWS, 1), -2), "out of range"),
        (torch.zeros(1, H, ROWS, 2, dtype=torch.long), "twice"),
    ],
)
def test_what_is_no_choice_is_refused(step, given, words) -> None:
    with pytest.raises(SelectorError, match=words):
        scores.as_mask(given, step)
