"""SVG's maths and the plan executor, against masks written out in full."""

from __future__ import annotations

import math

import pytest
import torch

from galoop.errors import UsageError
from galoop.methods.svg import (
    PUBLISHED,
    SPATIAL,
    SVG,
    TEMPORAL,
    Call,
    Schedule,
    band_half_width,
    band_plan,
    choose_kinds,
    temporal_order,
    to_temporal,
    widest_band,
)
from galoop.methods.video_baselines import FixedPattern, TopKBlocks, block_means, blocks_to_keep
from galoop.methods.video_compute import attend
from galoop.methods.video_plan import (
    BandMask,
    BlockMask,
    HeadGroup,
    Plan,
    VideoShape,
    all_pairs,
    check_plan,
    selected_pairs,
)

SHAPE = VideoShape(5, 7)
TEXTED = VideoShape(4, 6, text=5)


def qkv(shape: VideoShape, batch: int = 2, heads: int = 3, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = (3, batch, heads, shape.length, 8)
    return list(torch.randn(size, generator=generator, dtype=torch.float64).unbind(0))


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention with the whole mask, [B, H, L, L]."""
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return logits.masked_fill(~mask, -math.inf).softmax(-1) @ v


def analytic(shape: VideoShape, kind: int, width: int, sink: int) -> torch.Tensor:
    """The mask of one head by SVG's definition, token by token, in the clip's own order."""
    mask = torch.zeros(shape.length, shape.length, dtype=torch.bool)
    for i in range(shape.length):
        for j in range(shape.length):
            if i >= shape.video or j >= shape.video:
                mask[i, j] = True
                continue
            place = []
            for token in (i, j):
                frame, spot = divmod(token, shape.per_frame)
                place.append(token if kind == SPATIAL else spot * shape.frames + frame)
            mask[i, j] = abs(place[0] - place[1]) <= width or place[1] < sink
    return mask


@pytest.mark.parametrize("shape", [SHAPE, TEXTED])
@pytest.mark.parametrize(("width", "sink"), [(0, 0), (3, 0), (4, 7), (2, 20), (100, 3)])
def test_layout_and_band_equal_the_analytic_mask(shape: VideoShape, width: int, sink: int) -> None:
    q, k, v = qkv(shape)
    kinds = torch.tensor([0, 1, 0, 1, 1, 0])
    plan = band_plan(kinds, BandMask(shape, width, sink))
    check_plan(plan, 6, shape)
    masks = torch.stack([analytic(shape, int(kind), width, sink) for kind in kinds])
    wanted = naive(q, k, v, masks.view(2, 3, shape.length, shape.length))
    for tile in (1, 4, 128):
        torch.testing.assert_close(attend(q, k, v, plan, shape, tile=tile), wanted)
    texts = [shape.text, shape.text]
    assert selected_pairs(plan, texts, 3) == int(masks.sum())
    assert all_pairs(shape, texts, 3) == masks.numel()


def test_padding_keys_are_neither_seen_nor_counted() -> None:
    q, k, v = qkv(TEXTED)
    valid = torch.ones(2, TEXTED.length, dtype=torch.bool)
    valid[0, -3:] = False
    kinds = torch.tensor([0, 1, 1, 1, 0, 0])
    plan = band_plan(kinds, BandMask(TEXTED, 3, 6))
    masks = torch.stack([analytic(TEXTED, int(kind), 3, 6) for kind in kinds])
    masks = masks.view(2, 3, TEXTED.length, TEXTED.length)
    wanted = naive(q, k, v, masks & valid[:, None, None, :])
    torch.testing.assert_close(attend(q, k, v, plan, TEXTED, valid), wanted)
    both = masks & valid[:, None, None, :] & valid[:, None, :, None]
    assert selected_pairs(plan, [2, 5], 3) == int(both.sum())
    assert all_pairs(TEXTED, [2, 5], 3) == 3 * (26**2 + 29**2)


@pytest.mark.parametrize("shape", [SHAPE, TEXTED])
@pytest.mark.parametrize("size", [1, 4, 6, 50])
def test_blocks_equal_the_whole_mask(shape: VideoShape, size: int) -> None:
    q, k, v = qkv(shape)
    blocks = -(-shape.video // size)
    generator = torch.Generator().manual_seed(1)
    keep = min(blocks, 2)
    kept = torch.rand(6, blocks, blocks, generator=generator).topk(keep, -1).indices
    mask = BlockMask(shape, size, kept)
    plan = Plan((HeadGroup(torch.arange(6), mask),))
    check_plan(plan, 6, shape)
    full = torch.ones(6, shape.length, shape.length, dtype=torch.bool)
    for member in range(6):
        for i in range(shape.video):
            for j in range(shape.video):
                full[member, i, j] = j // size in kept[member, i // size].tolist()
        positions = torch.arange(shape.length)
        found = mask.allowed(member, positions[:, None], positions[None, :])
        assert torch.equal(found, full[member])
    wanted = naive(q, k, v, full.view(2, 3, shape.length, shape.length))
    torch.testing.assert_close(attend(q, k, v, plan, shape), wanted)
    assert selected_pairs(plan, [shape.text] * 2, 3) == int(full.sum())


@pytest.mark.parametrize("shape", [SHAPE, TEXTED])
@pytest.mark.parametrize(
    "method", [SVG(1.0), FixedPattern("temporal", 1.0), TopKBlocks(1.0, block=4)]
)
def test_density_one_is_dense(shape: VideoShape, method: SVG) -> None:
    q, k, v = qkv(shape)
    plan = method.plan(q, k, v, Call(shape))
    texts = [shape.text] * 2
    assert selected_pairs(plan, texts, 3) == all_pairs(shape, texts, 3)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(attend(q, k, v, plan, shape), wanted)


def test_the_temporal_order_is_the_transpose() -> None:
    tokens = torch.arange(SHAPE.video)
    order = temporal_order(SHAPE)
    assert order[:6].tolist() == [0, 7, 14, 21, 28, 1]
    assert torch.equal(order[to_temporal(tokens, SHAPE)], tokens)
    assert to_temporal(torch.tensor([24, 28]), TEXTED).tolist() == [24, 28]  # text stays


@pytest.mark.parametrize("density", [0.1, 0.2, 0.3, 0.7])
def test_the_band_has_the_density_it_is_made_for(density: float) -> None:
    shape = VideoShape(8, 144)
    plan = band_plan(torch.zeros(1).long(), BandMask(shape, band_half_width(density, shape)))
    found = selected_pairs(plan, [0], 1) / shape.length**2
    assert 0 <= found - density < 3 / shape.length  # the diagonal, and rounding up


def test_wan_at_720p_is_034_with_its_sink() -> None:
    shape = VideoShape(21, 3600)
    mask = PUBLISHED["wan-720p"].mask(shape)
    assert mask.half_width % 128 == 0
    assert mask.half_width == math.ceil(75600 * (1 - math.sqrt(0.7)) / 128) * 128
    assert mask.selected(0)[0] / shape.length**2 == pytest.approx(0.34, abs=0.01)


def test_hunyuan_rounds_down_and_leaves_room_for_text() -> None:
    shape = VideoShape(33, 3600, 256)
    mask = PUBLISHED["hunyuan-720p"].mask(shape)
    left = 0.25 - 2 * 256 / shape.length
    tokens = shape.length * (1 - math.sqrt(1 - left))
    assert mask.half_width + 1 == math.floor(tokens / 128) * 128
    assert mask.sink == 0
    with pytest.raises(UsageError, match="used up by 40 text tokens"):
        band_half_width(0.5, VideoShape(2, 50, 40))


@pytest.mark.parametrize(
    ("shape", "density", "sink"),
    [
        (VideoShape(8, 144), 0.2, 0),
        (VideoShape(8, 144), 0.3, 144),
        (VideoShape(4, 30, 6), 0.5, 30),
    ],
)
def test_an_exact_density_counts_sink_and_text(
    shape: VideoShape, density: float, sink: int
) -> None:
    mask = widest_band(density, shape, sink)
    wider = BandMask(shape, mask.half_width + 1, sink)
    all_of_it = shape.length**2
    assert mask.selected(shape.text)[0] <= density * all_of_it
    assert wider.selected(shape.text)[0] > density * all_of_it
    frames = sink // shape.per_frame
    assert SVG(density, sink_frames=frames, exact=True).mask(shape) == mask
    assert widest_band(1.0, shape, sink).selected(shape.text) == [all_of_it]


def test_the_published_formula_overshoots_in_a_clip_of_few_frames() -> None:
    shape = VideoShape(8, 144)
    assert SVG(0.3).mask(shape).selected(0)[0] / shape.length**2 == pytest.approx(0.485, abs=0.001)
    exact = SVG(0.3, exact=True).mask(shape).selected(0)[0] / shape.length**2
    assert exact == pytest.approx(0.3, abs=0.002)
    with pytest.raises(UsageError, match=r"give 0\.126 or more"):
        SVG(0.1, exact=True).mask(shape)


def constructed(shape: VideoShape, kind: int, frame: int) -> list[torch.Tensor]:
    """One head that attends within its own frame, or to its own place in all frames."""
    tokens = torch.arange(shape.video)
    label = tokens // shape.per_frame if kind == SPATIAL else tokens % shape.per_frame
    q = torch.nn.functional.one_hot(label, max(shape.frames, shape.per_frame)).double() * 12
    generator = torch.Generator().manual_seed(frame)
    v = torch.randn(shape.video, q.shape[1], generator=generator, dtype=torch.float64)
    return [q, q.clone(), v]


def test_the_profile_finds_constructed_heads() -> None:
    shape = VideoShape(8, 12)
    kinds = [SPATIAL, TEMPORAL, TEMPORAL, SPATIAL]
    heads = [constructed(shape, kind, i) for i, kind in enumerate(kinds)]
    q, k, v = (torch.stack(parts)[None] for parts in zip(*heads, strict=True))
    method = SVG(0.3, rows=16, granularity=1, sink_frames=0)
    call = Call(shape, step=3, steps=10)
    found = choose_kinds(q, k, v, method.mask(shape), method.sampled(call))
    assert found.tolist() == [kinds]
    # Which is what makes the attention right: the other choice is far from dense.
    dense = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    chosen = attend(q, k, v, method.plan(q, k, v, call), shape)
    wrong = band_plan(1 - torch.tensor(kinds), method.mask(shape))
    assert (chosen - dense).abs().max() < 0.05
    assert (attend(q, k, v, wrong, shape) - dense).abs().mean() > 0.3


def test_the_profile_equals_one_with_whole_masks() -> None:
    q, k, v = qkv(TEXTED, batch=3, heads=6, seed=3)
    mask, rows = BandMask(TEXTED, 4, 6), torch.tensor([0, 3, 8, 9, 17, 23])
    valid = torch.ones(3, TEXTED.length, dtype=torch.bool)
    valid[1, -2:] = False
    dense = naive(q, k, v, valid[:, None, None, :])
    errors = [
        (naive(q, k, v, analytic(TEXTED, kind, 4, 6) & valid[:, None, None, :]) - dense)[:, :, rows]
        .square()
        .mean((-1, -2))
        for kind in (SPATIAL, TEMPORAL)
    ]
    wanted = (errors[TEMPORAL] < errors[SPATIAL]).long()
    assert 0 < int(wanted.sum()) < 18  # both kinds occur
    assert torch.equal(choose_kinds(q, k, v, mask, rows, valid), wanted)


def test_rows_are_seeded_private_and_the_same_for_every_clip() -> None:
    call = Call(VideoShape(8, 144), layer=2, step=5, steps=20)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    rows = SVG().sampled(call)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(rows, SVG().sampled(call))
    assert rows.unique().numel() == 64
    assert not torch.equal(rows, SVG(seed=1).sampled(call))
    assert not torch.equal(rows, SVG().sampled(Call(call.shape, layer=3, step=5, steps=20)))
    assert SVG(rows=64).sampled(Call(VideoShape(2, 5))).tolist() == list(range(10))


def test_the_schedule_is_floors() -> None:
    schedule = Schedule(0.3, 0.25)
    shape = VideoShape(2, 2)
    steps = [schedule.dense(Call(shape, 9, 10, step, 10)) for step in range(10)]
    assert steps == [True] * 3 + [False] * 7
    layers = [schedule.dense(Call(shape, layer, 10, 9, 10)) for layer in range(10)]
    assert layers == [True] * 2 + [False] * 8
    assert not Schedule(0.03, 0.03).dense(Call(shape, 0, 4, 0, 20))


def test_top_k_blocks_keeps_the_best() -> None:
    shape = VideoShape(3, 4)
    q = torch.zeros(1, 1, 12, 8)
    k = torch.randn(1, 1, 12, 8, generator=torch.Generator().manual_seed(0))
    q[0, 0, :, 0] = 1.0
    k[0, 0, :, 0] = torch.tensor([0.0] * 5 + [9.0] * 5 + [1.0] * 2)
    plan = TopKBlocks(0.34, block=5).plan(q, k, k, Call(shape))
    assert plan.groups[0].mask.kept.tolist() == [[[1]] * 3]
    means = block_means(k, shape, 5)
    torch.testing.assert_close(means[0, 0, 2], k[0, 0, 10:].mean(0))
    assert [blocks_to_keep(d, 18) for d in (0.01, 0.2, 0.3, 1.0)] == [1, 4, 5, 18]


def test_fixed_patterns() -> None:
    q, k, v = qkv(SHAPE, batch=2, heads=4)
    plan = FixedPattern("alternate").plan(q, k, v, Call(SHAPE))
    (group,) = plan.groups
    assert group.order is not None
    moved = (group.order != torch.arange(SHAPE.video)).any(1)
    assert moved.tolist() == [False, True] * 4
    assert torch.equal(group.order[1], temporal_order(SHAPE))
    spatial = FixedPattern("spatial").plan(q, k, v, Call(SHAPE))
    assert spatial.groups[0].order is None
    split = Plan((
        HeadGroup(torch.tensor([0, 2, 4, 6]), group.mask),
        HeadGroup(torch.tensor([1, 3, 5, 7]), group.mask, temporal_order(SHAPE)),
    ))  # fmt: skip
    check_plan(split, 8, SHAPE)
    torch.testing.assert_close(attend(q, k, v, split, SHAPE), attend(q, k, v, plan, SHAPE))
    with pytest.raises(UsageError, match="no pattern"):
        FixedPattern("diagonal")  # type: ignore[arg-type]


BAND = BandMask(SHAPE, 3)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(()), "does not cover"),
        (Plan((HeadGroup(torch.tensor([0, 1, 1]), BAND),)), "does not cover"),
        (Plan((HeadGroup(torch.arange(2), BandMask(TEXTED, 3)),)), "a mask is made for"),
        (Plan((HeadGroup(torch.arange(2), BAND, torch.zeros(35).long()),)), "no permutation"),
        (Plan((HeadGroup(torch.arange(2), BAND, torch.arange(34)),)), "no permutation"),
        (Plan((HeadGroup(torch.arange(2), BAND, torch.zeros(2, 35).long()),)), "no permutation"),
        (Plan((HeadGroup(torch.arange(2), BAND, torch.arange(35)[None]),)), "no permutation"),
        (
            Plan((HeadGroup(torch.arange(2), BlockMask(SHAPE, 5, torch.zeros(2, 7, 2).long())),)),
            "kept twice",
        ),
        (
            Plan((HeadGroup(torch.arange(2), BlockMask(SHAPE, 5, torch.full((2, 7, 1), 7))),)),
            "0 to 6",
        ),
        (
            Plan((HeadGroup(torch.arange(2), BlockMask(SHAPE, 5, torch.zeros(2, 3, 1).long())),)),
            "is needed",
        ),
    ],
)
def test_a_plan_that_lies_is_refused(plan: Plan, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_plan(plan, 2, SHAPE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SVG(0.0),
        lambda: SVG(1.5),
        lambda: SVG(rows=0),
        lambda: Schedule(-0.1),
        lambda: VideoShape(0, 4),
        lambda: TopKBlocks(block=0),
    ],
)
def test_knobs_out_of_range_are_refused(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]
