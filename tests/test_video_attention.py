"""Sparse attention in diffusers' own transformers: equal to dense at density 1, and no traces."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("diffusers", reason="needs the extra `video` (pip install galoop[video])")

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoTransformer3DModel,
    WanTransformer3DModel,
)

from galoop.errors import UsageError
from galoop.methods.svg import SVG, Call, Schedule
from galoop.methods.video_attention import (
    DensityMeter,
    rotate_pairs,
    sparse_attention,
    transformers_of,
)
from galoop.methods.video_baselines import FixedPattern, TopKBlocks
from galoop.methods.video_plan import Plan, VideoShape

NEVER_DENSE = Schedule(0.0, 0.0)
FULL = [
    SVG(1.0, NEVER_DENSE),
    FixedPattern("alternate", 1.0, NEVER_DENSE),
    TopKBlocks(1.0, 16, NEVER_DENSE),
]
STEPS = 5


def wan(seed: int = 0) -> WanTransformer3DModel:
    torch.manual_seed(seed)
    return WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=3,
        out_channels=3, text_dim=16, freq_dim=32, ffn_dim=32, num_layers=3, rope_max_seq_len=32,
    ).eval()  # fmt: skip


def hunyuan() -> HunyuanVideoTransformer3DModel:
    torch.manual_seed(0)
    return HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1,
        num_single_layers=2, num_refiner_layers=1, patch_size=2, patch_size_t=1, text_embed_dim=16,
        pooled_projection_dim=8, rope_axes_dim=(2, 4, 4), guidance_embeds=False,
    ).eval()  # fmt: skip


def inputs(model: Any, seed: int = 0, batch: int = 2) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    channels = model.config.in_channels
    given = {
        "hidden_states": torch.randn(batch, channels, 4, 8, 8, generator=generator),
        "encoder_hidden_states": torch.randn(batch, 6, 16, generator=generator),
    }
    if isinstance(model, HunyuanVideoTransformer3DModel):
        mask = torch.ones(batch, 6, dtype=torch.long)
        mask[0, 4:] = 0
        given |= {
            "encoder_attention_mask": mask,
            "pooled_projections": torch.randn(batch, 8, generator=generator),
        }
    return given


@torch.no_grad()
def forward(model: Any, given: dict[str, torch.Tensor], time: float = 500.0) -> torch.Tensor:
    batch = len(given["hidden_states"])
    return model(**given, timestep=torch.full((batch,), time), return_dict=False)[0]


@torch.no_grad()
def generate(model: Any, seed: int = 0) -> torch.Tensor:
    """A loop like a pipeline's: two forwards a step (cond and uncond)."""
    given = inputs(model, seed, 1)
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(STEPS)
    sample = given["hidden_states"]
    for time in scheduler.timesteps:
        moved = {**given, "hidden_states": sample}
        blank = {**moved, "encoder_hidden_states": torch.zeros(1, 6, 16)}
        a, b = forward(model, moved, float(time)), forward(model, blank, float(time))
        sample = scheduler.step(b + 3 * (a - b), time, sample, return_dict=False)[0]
    return sample


@pytest.mark.parametrize("build", [wan, hunyuan])
@pytest.mark.parametrize("method", FULL, ids=lambda m: type(m).__name__)
def test_density_one_equals_dense(build: Any, method: Any) -> None:
    model = build()
    given = inputs(model)
    dense = forward(model, given)
    with sparse_attention(model, method, steps=STEPS) as meter:
        sparse = forward(model, given)
    torch.testing.assert_close(sparse, dense, atol=2e-5, rtol=1e-4)
    assert meter.density == meter.sparse_density == 1.0
    assert meter.dense_all == 0
    assert meter.sparse_all > 0


def test_fused_projections_are_understood() -> None:
    model = wan()
    for block in model.blocks:
        block.attn1.fuse_projections()
    given = inputs(model)
    dense = forward(model, given)
    with sparse_attention(model, SVG(1.0, NEVER_DENSE), steps=1):
        torch.testing.assert_close(forward(model, given), dense, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("build", [wan, hunyuan])
def test_calls_left_dense_give_the_same_bits(build: Any) -> None:
    model = build()
    given = inputs(model)
    dense = forward(model, given)
    with sparse_attention(model, SVG(0.5, Schedule(1.0, 0.0)), steps=STEPS) as meter:
        assert torch.equal(forward(model, given), dense)
    assert meter.density == 1.0
    assert meter.dense_share == 1.0
    assert meter.sparse_all == 0


@pytest.mark.parametrize("build", [wan, hunyuan])
@pytest.mark.parametrize("method", [SVG(0.6, NEVER_DENSE, granularity=1), TopKBlocks(0.5, 8)])
def test_a_sparse_call_differs_and_leaves_no_trace(build: Any, method: Any) -> None:
    model = build()
    given = inputs(model)
    dense = forward(model, given)
    before = dict(model.attn_processors)
    hooks = len(model._forward_pre_hooks)
    state = torch.get_rng_state()
    with sparse_attention(model, method, steps=STEPS) as meter:
        for time in (900.0, 700.0):
            sparse = forward(model, given, time)
    assert torch.equal(torch.get_rng_state(), state)
    assert 0 < meter.sparse_density < 1
    assert (sparse - forward(model, given, 700.0)).abs().max() > 1e-6
    assert torch.equal(forward(model, given), dense)
    assert model.attn_processors == before
    assert all(model.attn_processors[name] is before[name] for name in before)
    assert len(model._forward_pre_hooks) == hooks


class Breaks(SVG):
    """Raises in the middle layer, once others have run."""

    def plan(self, query: Any, key: Any, value: Any, call: Call, valid: Any = None) -> Plan:
        if call.layer == 1:
            raise ZeroDivisionError("in the middle of a step")
        return super().plan(query, key, value, call, valid)


def test_an_exception_restores_everything() -> None:
    model = wan()
    given = inputs(model)
    dense, before = forward(model, given), dict(model.attn_processors)
    broken = Breaks(0.5, NEVER_DENSE, granularity=1)
    with pytest.raises(ZeroDivisionError), sparse_attention(model, broken, steps=STEPS):
        forward(model, given)
    assert model.attn_processors == before
    assert not model._forward_pre_hooks
    assert torch.equal(forward(model, given), dense)


def test_a_transformer_is_made_sparse_once() -> None:
    model = wan()
    with sparse_attention(model, SVG(), steps=STEPS):
        before = dict(model.attn_processors)
        with (
            pytest.raises(UsageError, match="sparse already"),
            sparse_attention(model, SVG(), steps=STEPS),
        ):
            pass
        assert model.attn_processors == before
        assert len(model._forward_pre_hooks) == 1


def test_density_counts_the_dense_steps_and_layers() -> None:
    model = wan()
    method = SVG(0.4, Schedule(0.4, 0.34), granularity=1)  # 2 of 5 steps, 1 of 3 layers
    with sparse_attention(model, method, steps=STEPS) as meter:
        first = generate(model)
    pairs = 2 * 64**2  # heads × L², one clip
    assert meter.sparse_all == 2 * 3 * 2 * pairs  # cond and uncond, 3 steps, 2 layers
    assert meter.dense_all == 2 * (2 * 3 + 3 * 1) * pairs
    each = method.mask(VideoShape(4, 16)).selected(0)[0] / 64**2
    assert meter.sparse_density == pytest.approx(each)
    assert meter.dense_share == pytest.approx(18 / 30)
    assert meter.density == pytest.approx((18 + 12 * each) / 30)
    assert meter.profiled == 12 * 2 * 64 * 64  # 64 rows × 64 keys × 2 heads
    assert set(meter.as_dict()) == {"density", "sparse_density", "dense_share", "profiled_pairs"}
    with sparse_attention(model, method, steps=STEPS):
        assert torch.equal(generate(model), first)


def test_a_clip_does_not_depend_on_what_ran_before_it() -> None:
    model = wan()
    method = SVG(0.4, Schedule(0.2, 0.0), granularity=1)
    with sparse_attention(model, method, steps=STEPS):
        alone = generate(model, seed=3)
    with sparse_attention(model, method, steps=STEPS) as meter:
        generate(model, seed=1)
        assert torch.equal(generate(model, seed=3), alone)
    assert meter.dense_share == pytest.approx(0.2)  # the second clip's first step is dense too


def test_batched_clips_choose_their_own_heads() -> None:
    model = wan()
    given = inputs(model)
    method = SVG(0.4, NEVER_DENSE, granularity=1)
    with sparse_attention(model, method, steps=STEPS):
        both = forward(model, given)
        for index in (0, 1):
            one = {name: x[index : index + 1] for name, x in given.items()}
            torch.testing.assert_close(forward(model, one), both[index : index + 1])


def test_both_transformers_of_a_pipeline_share_the_clock() -> None:
    class Pipeline:
        """As Wan 2.2: one transformer for the noisy steps, another for the rest."""

        transformer, transformer_2 = wan(0), wan(1)
        scheduler = FlowMatchEulerDiscreteScheduler()

    pipe = Pipeline()
    pipe.scheduler.set_timesteps(4)
    seen = []

    class Watches(SVG):
        def dense(self, call: Call) -> bool:
            seen.append((call.step, call.steps))
            return super().dense(call)

    with sparse_attention(pipe, Watches(0.5, Schedule(0.5, 0.0), granularity=1)) as meter:
        for index, time in enumerate(pipe.scheduler.timesteps):
            model = pipe.transformer if index < 2 else pipe.transformer_2
            forward(model, inputs(model), float(time))
    assert seen[::3] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert meter.dense_share == 0.5


def test_per_token_timesteps_are_understood() -> None:
    """Wan 2.2 TI2V passes one timestep a token."""
    model = wan()
    given = inputs(model)
    with sparse_attention(model, SVG(0.5, NEVER_DENSE, granularity=1), steps=2) as meter:
        model(**given, timestep=torch.full((2, 64), 500.0))
    assert meter.sparse_all == 3 * 2 * 2 * 64**2


def test_rotation_equals_complex_multiplication() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, 8, generator=generator, dtype=torch.float64)
    angle = torch.randn(1, 5, 1, 4, generator=generator, dtype=torch.float64)
    cos, sin = (f(angle).repeat_interleave(2, -1) for f in (torch.cos, torch.sin))
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.exp(1j * angle)
    torch.testing.assert_close(rotate_pairs(x, cos, sin), torch.view_as_real(turned).flatten(-2))


def test_bad_targets() -> None:
    with pytest.raises(UsageError, match="Linear holds no transformer"):
        transformers_of(torch.nn.Linear(1, 1))
    with pytest.raises(UsageError, match="pass steps"), sparse_attention(wan(), SVG()):
        pass
    assert DensityMeter().density == 1.0
