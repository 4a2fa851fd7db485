"""Methods of sparse decoding against naive references, row by row and head by head."""

import itertools
import math

import numpy as np
import pytest
import torch

from galoop.methods.kmeans import kmeans, nearest
from galoop.methods.oracle_topk import OracleTopK
from galoop.methods.pqcache import PQCache, build_codebook
from galoop.methods.quest import Quest, page_bounds
from galoop.methods.selection import Density, Step, attend, budget, shares, top
from galoop.methods.sliding_window import SlidingWindow

B, H, J, D, CONTEXT = 2, 6, 3, 8, 150
METHODS = [OracleTopK, PQCache, Quest, SlidingWindow]


def make(seed=0, m=9, rows=5, context=CONTEXT, dtype=torch.float64):
    """Keys and values of context and later tokens, and a step of the last rows."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    keys, values = draw(B, J, context + m, D), draw(B, J, context + m, D)
    step = Step(draw(B, H, rows, D), keys[:, :, context:], values[:, :, context:], context)
    return keys, values, step


def choose(method, keys, values, step):
    n = step.context
    return method.select(method.index(keys[:, :, :n], values[:, :, :n]), step)


def rows_of(step):
    """(row, number of entries it sees)."""
    return list(enumerate(range(step.length - step.rows + 1, step.length + 1)))


# -- sizes ----------------------------------------------------------------------------------------


def test_a_budget_is_the_floor_of_the_share_and_never_nothing():
    assert [budget(0.02, n) for n in (1, 49, 50, 149, 150, 32768)] == [1, 1, 1, 2, 3, 655]
    assert budget(0.29, 100) == 29  # 0.29 * 100 is 28.999...
    assert budget(1.0, 77) == 77


@pytest.mark.parametrize("sink_share", [0.0, 0.05, 0.2, 0.9])
@pytest.mark.parametrize("recent_share", [0.0, 0.2, 0.475, 0.9])
def test_shares_divide_the_room(sink_share, recent_share):
    room = torch.arange(1, 700)
    sink, recent, rest = shares(room, sink_share, recent_share)
    assert torch.equal(sink + recent + rest, room)
    assert int(recent.min()) >= 1  # the row itself
    assert int(sink.min()) >= 0
    assert int(rest.min()) >= 0
    assert bool((sink[1:] >= 1).all())


def test_top_takes_a_number_of_its_own_in_each_row_and_nothing_forbidden():
    scores = torch.tensor([[3.0, 1.0, 2.0, -math.inf], [0.0, 5.0, -math.inf, -math.inf]])
    chosen = top(scores, torch.tensor([2, 3]))
    assert chosen.tolist() == [[True, False, True, False], [True, True, False, False]]
    assert not top(scores, torch.tensor([0, 0])).any()


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("density", [0.0, -0.1, 1.5, math.nan])
def test_no_method_takes_a_density_that_is_none(kind, density):
    with pytest.raises(ValueError, match="density"):
        kind(density=density)


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("density", [0.007, 0.02, 0.05, 0.3, 0.77, 1.0])
def test_no_row_is_over_its_budget_or_looks_ahead_or_misses_itself(kind, density):
    keys, values, step = make(m=40, rows=30)
    chosen = choose(kind(density=density), keys, values, step)
    assert chosen.shape == (B, H, step.rows, step.length)
    for r, sees in rows_of(step):
        row = chosen[:, :, r]
        most = budget(density, sees)
        assert int(row.sum(-1).max()) <= most
        assert not row[..., sees:].any()
        assert row[..., sees - 1].all()
        if kind is not Quest:  # whole pages leave some room unused
            assert int(row.sum(-1).min()) == most
        if density == 1.0:
            assert row[..., :sees].all()


# -- against naive references ---------------------------------------------------------------------


def by_hand(step, density, sink_share, recent_share, best):
    """Sinks, recents and the best of the rest, one head and row after the other.

    ``best(b, h, r, candidates, count)`` orders the candidates.
    """
    chosen = torch.zeros(B, H, step.rows, step.length, dtype=torch.bool)
    for r, sees in rows_of(step):
        room = budget(density, sees)
        recent = min(room, max(1, math.floor(room * recent_share)))
        sink = min(room - recent, max(1, math.floor(room * sink_share)))
        fixed = {*range(sink), *range(sees - recent, sees)}
        rest = [j for j in range(sees) if j not in fixed]
        for b in range(B):
            for h in range(H):
                found = best(b, h, r, rest, room - len(fixed))
                chosen[b, h, r, sorted(fixed | set(found))] = True
    return chosen


@pytest.mark.parametrize("density", [0.02, 0.1, 0.4])
def test_oracle_topk_equals_sorting_by_hand(density):
    keys, values, step = make()

    def best(b, h, r, rest, count):
        scores = {j: float(step.queries[b, h, r] @ keys[b, h // 2, j]) for j in rest}
        return sorted(rest, key=lambda j: -scores[j])[:count]

    expected = by_hand(step, density, 0.2, 0.2, best)
    assert torch.equal(choose(OracleTopK(density), keys, values, step), expected)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("context", [150, 40])
def test_pqcache_equals_tables_by_hand(per_head, context):
    keys, values, step = make(context=context)
    method = PQCache(0.15, bits=4 if context == 150 else 6, per_head=per_head)
    index = method.index(keys[:, :, :context], values[:, :, :context])
    coarse = torch.empty_like(keys)  # every key as its nearest centroids
    for b, j, n, s in itertools.product(range(B), range(J), range(keys.shape[2]), range(2)):
        part = slice(s * D // 2, (s + 1) * D // 2)
        book = index["centroids"][b, j, s]
        coarse[b, j, n, part] = book[(book - keys[b, j, n, part]).square().sum(-1).argmin()]

    def best(b, h, r, rest, count):
        heads = [h] if per_head else [h // 2 * 2, h // 2 * 2 + 1]
        scores = sum(coarse[b, h // 2] @ step.queries[b, i, r] for i in heads).tolist()
        # Equal codes give equal scores; the earlier entry goes first.
        return sorted(rest, key=lambda j: (-round(scores[j], 9), j))[:count]

    expected = by_hand(step, 0.15, 0.05, 0.475, best)
    assert torch.equal(choose(method, keys, values, step), expected)


def test_pqcache_is_exact_where_every_key_is_its_own_centroid():
    """On a context of no more than 2^b tokens the scores are the true ones."""
    keys, values, _ = make(context=60, m=1, rows=1)
    index = PQCache(0.2).index(keys[:, :, :60], values[:, :, :60])
    assert index["centroids"].shape == (B, J, 2, 60, D // 2)
    assert torch.equal(index["codes"][0, 0, 1].long(), torch.arange(60))


@pytest.mark.parametrize("density", [0.1, 0.3])
def test_quest_equals_bounds_by_hand(density):
    keys, values, step = make(m=14)
    method = Quest(density)
    page = method.page_size(CONTEXT)
    assert page == {0.1: 3, 0.3: 11}[density]
    chosen = choose(method, keys, values, step)
    blocks = [range(i, min(i + page, CONTEXT)) for i in range(0, CONTEXT, page)]
    blocks += [range(i, i + page) for i in range(CONTEXT, step.length, page)]
    for r, sees in rows_of(step):
        room = budget(density, sees)
        recent, sink = max(1, math.floor(room * 0.25)), max(1, math.floor(room * 0.1))
        fixed = {*range(sink), *range(sees - recent, sees)}
        whole = [p for p in blocks if p[-1] < sees and not set(p) <= fixed]
        for b in range(B):
            for h in range(H):
                bound = []
                for p in whole:
                    k = keys[b, h // 2, p[0] : p[-1] + 1]
                    q = step.queries[b, h, r]
                    both = torch.stack([q * k.amin(0), q * k.amax(0)])
                    bound.append(float(both.amax(0).sum()))
                count = (room - len(fixed)) // page
                order = sorted(range(len(whole)), key=lambda i: -bound[i])[:count]
                expected = fixed | {j for i in order for j in whole[i]}
                assert set(chosen[b, h, r].nonzero()[:, 0].tolist()) == expected


def test_page_bounds_bound_every_score_of_a_page():
    keys, _, step = make()
    low, high = page_bounds(keys, 16)
    q = step.queries.reshape(B, J, 2, step.rows, D)
    exact = q @ keys[:, :, None].transpose(-1, -2)
    bound = torch.maximum(
        q[..., None, :] * low[:, :, None, None], q[..., None, :] * high[:, :, None, None]
    ).sum(-1)
    assert low.shape[2] == math.ceil(keys.shape[2] / 16)
    for j in range(keys.shape[2]):
        assert bool((exact[..., j] <= bound[..., j // 16] + 1e-12).all())


def test_the_sliding_window_is_first_and_last():
    keys, values, step = make(rows=2)
    chosen = choose(SlidingWindow(0.1, sink_share=0.2), keys, values, step)
    for r, sees in rows_of(step):
        assert budget(0.1, sees) == 15
        expected = [*range(3), *range(sees - 12, sees)]
        assert chosen[1, 4, r].nonzero()[:, 0].tolist() == expected


def test_attention_over_a_choice_equals_a_softmax_by_hand():
    keys, values, step = make()
    chosen = choose(OracleTopK(0.1), keys, values, step)
    found = attend(step.queries, keys, values, chosen, scaling=0.3)
    for b, h, r in [(0, 0, 0), (1, 5, 4), (1, 2, 2)]:
        at = chosen[b, h, r].nonzero()[:, 0]
        logits = 0.3 * (keys[b, h // 2, at] @ step.queries[b, h, r])
        expected = torch.softmax(logits, 0) @ values[b, h // 2, at]
        assert torch.allclose(found[b, r, h], expected, atol=1e-12)


# -- what an oracle is ----------------------------------------------------------------------------


def shares_alike(kind, density):
    """Methods with the same sinks and recent entries, so that k is the same for both."""
    extra = {"bits": 3} if kind is PQCache else {}
    return kind(density, sink_share=0.1, recent_share=0.2, **extra)


@pytest.mark.parametrize("density", [0.05, 0.1, 0.25, 0.5, 1.0])
def test_the_oracle_is_never_further_from_dense_attention_than_pqcache(density):
    """At the same k: in captured attention row by row, in the output's error on average."""
    for seed in range(5):
        keys, values, step = make(seed, context=300, m=30, rows=30)
        dense = attend(step.queries, keys, values, step.seen[None, None])
        weights = torch.softmax(
            (
                step.queries @ keys.repeat_interleave(2, dim=1).transpose(-1, -2) / math.sqrt(D)
            ).masked_fill(~step.seen, -math.inf),
            dim=-1,
        )
        mass, error = {}, {}
        for kind in (OracleTopK, PQCache):
            chosen = choose(shares_alike(kind, density), keys, values, step)
            out = attend(step.queries, keys, values, chosen)
            mass[kind] = (weights * chosen).sum(-1)
            error[kind] = (out - dense).norm(dim=-1) / dense.norm(dim=-1)
        assert bool((mass[OracleTopK] >= mass[PQCache] - 1e-12).all())
        assert float(error[OracleTopK].mean()) <= float(error[PQCache].mean()) + 1e-12
        if density == 1.0:
            assert float(error[OracleTopK].max()) < 1e-12


@pytest.mark.parametrize("kind", METHODS)
def test_a_row_does_not_depend_on_what_comes_after_it(kind):
    keys, values, step = make(m=20, rows=12)
    before = choose(kind(0.15), keys, values, step)
    late = step.length - 4
    other = keys.clone()
    other[:, :, late:] += 100.0
    queries = step.queries.clone()
    queries[:, :, -4:] -= 50.0
    changed = Step(queries, other[:, :, CONTEXT:], step.values, CONTEXT)
    after = choose(kind(0.15), other, values, changed)
    assert torch.equal(before[:, :, :-4], after[:, :, :-4])
    if kind is not SlidingWindow:
        assert not torch.equal(before[:, :, -4:], after[:, :, -4:])


# -- density --------------------------------------------------------------------------------------


def test_density_counts_query_heads_and_reads_count_the_union_of_a_group():
    chosen = torch.zeros(1, 4, 2, 10, dtype=torch.bool)
    chosen[0, :, 0, 0] = True  # all heads of the first row
    chosen[0, 0, 1, 3] = chosen[0, 1, 1, 4] = True  # two heads of one group, different entries
    chosen[0, 2, 1, 5] = chosen[0, 3, 1, 5] = True  # the other group, the same entry
    seen = torch.arange(10) < torch.tensor([[9], [10]])
    counts = Density()
    counts.add(chosen, 2, seen)
    assert (counts.selected, counts.visible) == (8, 4 * 19)
    assert (counts.read, counts.readable) == (2 + 2 + 1, 2 * 19)
    counts.add(chosen, 2, seen)
    assert counts.density == 8 / 76
    assert counts.kv_read_density == 5 / 38
    assert math.isnan(Density().density)


# -- k-means --------------------------------------------------------------------------------------


def lloyd(points, first, iterations):
    """Plain NumPy, one problem."""
    centroids = points[first].copy()
    for _ in range(iterations):
        codes = ((points[:, None] - centroids) ** 2).sum(-1).argmin(-1)
        for c in range(len(centroids)):
            if (codes == c).any():
                centroids[c] = points[codes == c].mean(0)
    return centroids, ((points[:, None] - centroids) ** 2).sum(-1).argmin(-1)


def test_kmeans_equals_lloyd_by_hand_in_every_problem_and_tile():
    points = torch.randn(4, 90, 5, generator=torch.Generator().manual_seed(1)).double()
    first = torch.randperm(90, generator=torch.Generator().manual_seed(7))[:8].numpy()
    for tile in (4096, 13, 1):
        centroids, codes = kmeans(points, 8, seed=7, tile=tile)
        for p in range(4):
            expected, labels = lloyd(points[p].numpy(), first, 10)
            assert np.allclose(centroids[p].numpy(), expected, atol=1e-10)
            assert np.array_equal(codes[p].numpy(), labels)


def test_a_centroid_without_points_stays_and_few_points_are_their_own():
    points = torch.tensor([[[0.0], [0.0], [0.0], [5.0]]])
    centroids, codes = kmeans(points, 3, seed=3)
    assert torch.isfinite(centroids).all()
    assert set(centroids.flatten().tolist()) == {0.0, 5.0}
    assert centroids[0, codes[0]].flatten().tolist() == [0.0, 0.0, 0.0, 5.0]
    centroids, codes = kmeans(points, 6)
    assert centroids.flatten().tolist() == [0.0, 0.0, 0.0, 5.0, 5.0, 5.0]
    assert codes.tolist() == [[0, 1, 2, 3]]


def test_kmeans_never_holds_points_times_centroids_times_dimensions(monkeypatch):
    """The largest product of the clustering is a tile of points by centroids."""
    largest = [0]
    plain = torch.baddbmm

    def watched(*args, **kwargs):
        out = plain(*args, **kwargs)
        largest[0] = max(largest[0], out.numel())
        return out

    monkeypatch.setattr(torch, "baddbmm", watched)
    kmeans(torch.randn(2, 1000, 16), 32, iterations=2, tile=100)
    assert largest[0] == 2 * 100 * 32


def test_codes_are_bytes_and_the_sinks_are_left_out_of_the_clustering():
    keys, _, _ = make()
    far = keys.clone()
    far[:, :, :4] += 1000.0
    for changed in (keys, far):
        centroids, codes = build_codebook(changed, 2, 4, skip=4, iterations=10, seed=0)
        assert codes.dtype == torch.uint8
        assert float(centroids.abs().max()) < 100.0
    assert torch.equal(
        codes[0, 1, 0].long(), nearest(far[0, 1, None, :, :4], centroids[0, 1, :1])[0]
    )
    with pytest.raises(ValueError, match="bits"):
        PQCache(bits=9)
