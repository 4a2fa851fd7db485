"""Put a sparse attention into diffusers' Wan and HunyuanVideo transformers, and take it out again.

::

    with sparse_attention(pipeline, SVG(0.3)) as meter:
        clip = pipeline(prompt, generator=torch.Generator().manual_seed(0)).frames
    meter.density

Only the self-attention of the video blocks is replaced. Calls that the method leaves dense go
through the processor that was there before, so they give the same bits as without galoop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from galoop.errors import UsageError
from galoop.methods.svg import Call
from galoop.methods.video_compute import attend
from galoop.methods.video_plan import (
    Plan,
    VideoShape,
    all_pairs,
    check_plan,
    selected_pairs,
)

if TYPE_CHECKING:
    import torch


class VideoMethod(Protocol):
    """A sparse video attention: SVG, a baseline, or a candidate's."""

    def dense(self, call: Call) -> bool:
        """Whether this call is left dense."""
        ...

    def plan(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Call,
             valid: torch.Tensor | None = None) -> Plan:  # fmt: skip
        """What is computed in this call."""
        ...

    def profiled(self, call: Call, heads: int, texts: list[int]) -> int:
        """Pairs that making the plan costs on top."""
        ...


@dataclass
class DensityMeter:
    """Pairs that were computed, over pairs that dense attention computes; text padding left out.

    Counted from the plans that were computed, as whole numbers.

    Attributes
    ----------
    selected, sparse_all : int
        In calls with a plan: pairs computed, and pairs that dense attention would have.
    dense_all : int
        Pairs of the calls that were left dense.
    profiled : int
        Pairs that making the plans cost, by the method's own account; in no density below.
    """

    selected: int = 0
    sparse_all: int = 0
    dense_all: int = 0
    profiled: int = 0

    @property
    def sparse_density(self) -> float:
        """Of the calls with a plan alone; 1 where there was none."""
        return self.selected / self.sparse_all if self.sparse_all else 1.0

    @property
    def dense_share(self) -> float:
        """The share of all pairs that stands in calls that were left dense."""
        total = self.sparse_all + self.dense_all
        return self.dense_all / total if total else 0.0

    @property
    def density(self) -> float:
        """Of everything, the dense first steps and layers included; 1 where nothing ran."""
        total = self.sparse_all + self.dense_all
        return (self.selected + self.dense_all) / total if total else 1.0

    def as_dict(self) -> dict[str, float]:
        """The figures by name."""
        return {
            "density": self.density,
            "sparse_density": self.sparse_density,
            "dense_share": self.dense_share,
            "profiled_pairs": float(self.profiled),
        }


@dataclass
class _Clock:
    """Which denoising step this is: a new timestep is a new step, a rising one a new clip."""

    steps: Callable[[], int]
    step: int = -1
    last: float | None = None

    def tick(self, timestep: Any) -> None:
        now = float(timestep.max()) if hasattr(timestep, "max") else float(timestep)
        if self.last is None or now > self.last:
            self.step = 0
        elif now < self.last:
            self.step += 1
        self.last = now


@dataclass
class _State:
    """What the processors of one transformer share."""

    method: VideoMethod
    meter: DensityMeter
    clock: _Clock
    layers: int
    grid: Callable[[Any], tuple[int, int]]
    frames: tuple[int, int] = field(default=(0, 0))

    def before(self, _: Any, args: Any, kwargs: Any) -> None:
        """Forward pre-hook of the transformer."""
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        timestep = kwargs["timestep"] if "timestep" in kwargs else args[1]
        self.clock.tick(timestep)
        self.frames = self.grid(hidden)

    def call(self, layer: int, text: int) -> Call:
        """The call of one layer."""
        shape = VideoShape(*self.frames, text)
        steps = max(self.clock.steps(), self.clock.step + 1)
        return Call(shape, layer, self.layers, self.clock.step, steps)

    def attend(self, q: Any, k: Any, v: Any, call: Call, valid: Any) -> Any:
        """Plan, check, compute and count one call; q, k and v are [B, L, H, D]."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        batch, heads = q.shape[:2]
        plan = self.method.plan(q, k, v, call, valid)
        check_plan(plan, batch * heads, call.shape)
        out = attend(q, k, v, plan, call.shape, valid)
        texts = _texts(batch, call.shape, valid)
        self.meter.selected += selected_pairs(plan, texts, heads)
        self.meter.sparse_all += all_pairs(call.shape, texts, heads)
        self.meter.profiled += self.method.profiled(call, heads, texts)
        return out.transpose(1, 2)

    def left_dense(self, call: Call, batch: int, heads: int, valid: Any) -> None:
        """Count a call that was left dense."""
        self.meter.dense_all += all_pairs(call.shape, _texts(batch, call.shape, valid), heads)


def _texts(batch: int, shape: VideoShape, valid: Any) -> list[int]:
    if valid is None:
        return [shape.text] * batch
    return [int(n) for n in valid[:, shape.video :].sum(1).tolist()]


class _Sparse:
    """What both families' processors share: who was there before, and whose state it is."""

    def __init__(self, before: Any, state: _State, layer: int) -> None:
        self.before, self.state, self.layer = before, state, layer


class WanSparseProcessor(_Sparse):
    """Self-attention of diffusers' ``WanAttention`` (``block.attn1``) under a plan."""

    def __call__(
        self, attn: Any, hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None, rotary_emb: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        """Called by ``WanAttention.forward``; ``hidden_states`` is [B, L, H·D]."""
        call = self.state.call(self.layer, 0)
        if self.state.method.dense(call):
            self.state.left_dense(call, len(hidden_states), attn.heads, None)
            return self.before(
                attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb
            )
        if attn.fused_projections:
            projected = attn.to_qkv(hidden_states).chunk(3, dim=-1)
        else:
            projected = [f(hidden_states) for f in (attn.to_q, attn.to_k, attn.to_v)]
        q, k = attn.norm_q(projected[0]), attn.norm_k(projected[1])
        q, k, v = (x.unflatten(2, (attn.heads, -1)) for x in (q, k, projected[2]))
        if rotary_emb is not None:
            q, k = rotate_pairs(q, *rotary_emb), rotate_pairs(k, *rotary_emb)
        out = self.state.attend(q, k, v, call, None).flatten(2, 3).type_as(q)
        return attn.to_out[1](attn.to_out[0](out))


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding on neighbouring pairs: (a, b) → (a·cos − b·sin, a·sin + b·cos).

    Parameters
    ----------
    x : Tensor
        [B, L, H, D].
    cos, sin : Tensor
        [1, L, 1, D], each value twice (diffusers' ``repeat_interleave_real``).
    """
    import torch

    pairs = x.unflatten(-1, (-1, 2))
    turned = torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
    return (x * cos + turned * sin).type_as(x)


class HunyuanSparseProcessor(_Sparse):
    """Joint self-attention of diffusers' HunyuanVideo blocks (video, then text) under a plan."""

    def __call__(
        self, attn: Any, hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None, image_rotary_emb: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """Called by diffusers' ``Attention.forward``; video [B, V, C], text [B, T, C]."""
        text = 0 if encoder_hidden_states is None else encoder_hidden_states.shape[1]
        call = self.state.call(self.layer, text)
        valid = None if attention_mask is None else attention_mask[:, 0, 0].bool()
        if self.state.method.dense(call):
            self.state.left_dense(call, len(hidden_states), attn.heads, valid)
            return self.before(
                attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb
            )
        q, k, v = _joint_projections(attn, hidden_states, encoder_hidden_states, image_rotary_emb)
        out = self.state.attend(q, k, v, call, valid).flatten(2, 3).to(q.dtype)
        video, words = out[:, : call.shape.video], out[:, call.shape.video :]
        if getattr(attn, "to_out", None) is not None:
            video = attn.to_out[1](attn.to_out[0](video))
        if getattr(attn, "to_add_out", None) is not None:
            words = attn.to_add_out(words)
        return video, (words if text else encoder_hidden_states)


def _joint_projections(attn: Any, video: Any, words: Any, rotary: Any) -> tuple[Any, Any, Any]:
    """q, k, v over video and text, [B, V + T, H, D]; only the video part is rotated."""
    import torch
    from diffusers.models.embeddings import apply_rotary_emb

    def split(x: Any) -> Any:
        return x.unflatten(2, (attn.heads, -1))

    def normed(norm: Any, x: Any) -> Any:
        return x if norm is None else norm(x)

    def rotated(x: Any) -> Any:
        return x if rotary is None else apply_rotary_emb(x, rotary, sequence_dim=1)

    parts = []
    for to, added, norm, added_norm, turn in (
        (attn.to_q, attn.add_q_proj, attn.norm_q, "norm_added_q", rotated),
        (attn.to_k, attn.add_k_proj, attn.norm_k, "norm_added_k", rotated),
        (attn.to_v, attn.add_v_proj, None, "", lambda x: x),
    ):
        part = [turn(normed(norm, split(to(video))))]
        if words is not None and added is None:  # single-stream blocks: one projection for both
            part.append(normed(norm, split(to(words))))
        elif words is not None:
            own = getattr(attn, added_norm, None) if added_norm else None
            part.append(normed(own, split(added(words))))
        parts.append(torch.cat(part, dim=1))
    return parts[0], parts[1], parts[2]


def _wan(model: Any) -> tuple[list[Any], Callable[[Any], tuple[int, int]]]:
    t, h, w = model.config.patch_size

    def grid(hidden: Any) -> tuple[int, int]:
        return hidden.shape[2] // t, (hidden.shape[3] // h) * (hidden.shape[4] // w)

    return [block.attn1 for block in model.blocks], grid


def _hunyuan(model: Any) -> tuple[list[Any], Callable[[Any], tuple[int, int]]]:
    size, t = model.config.patch_size, model.config.patch_size_t

    def grid(hidden: Any) -> tuple[int, int]:
        return hidden.shape[2] // t, (hidden.shape[3] // size) * (hidden.shape[4] // size)

    blocks = [*model.transformer_blocks, *model.single_transformer_blocks]
    return [block.attn for block in blocks], grid


FAMILIES: dict[str, tuple[Callable[[Any], Any], type[_Sparse]]] = {
    "WanTransformer3DModel": (_wan, WanSparseProcessor),
    "HunyuanVideoTransformer3DModel": (_hunyuan, HunyuanSparseProcessor),
}


def transformers_of(target: Any) -> list[Any]:
    """The transformers of a pipeline (Wan 2.2 has two), or the transformer itself.

    Raises
    ------
    UsageError
        Where there is none of a family that is supported.
    """
    found = [target] if type(target).__name__ in FAMILIES else []
    for name in ("transformer", "transformer_2"):
        part = getattr(target, name, None)
        if part is not None and type(part).__name__ in FAMILIES:
            found.append(part)
    if not found:
        raise UsageError(
            f"{type(target).__name__} holds no transformer that galoop can make sparse",
            f"supported: {', '.join(sorted(FAMILIES))}, and pipelines with one",
        )
    return found


@contextmanager
def sparse_attention(
    target: Any, method: VideoMethod, steps: int | None = None
) -> Iterator[DensityMeter]:
    """Run a pipeline or a transformer under a sparse attention; leave it as it was found.

    Parameters
    ----------
    target
        A diffusers pipeline of the Wan or HunyuanVideo family, or its transformer.
    method : VideoMethod
    steps : int, optional
        Denoising steps of a clip. A pipeline's are read from its scheduler; a bare transformer
        needs them. A step is a new timestep, so a scheduler that evaluates the model at two
        timesteps a step counts two.

    Yields
    ------
    DensityMeter
        What was computed so far.

    Raises
    ------
    UsageError
        A family that is not supported, steps that cannot be known, or a target that is already
        sparse.
    """
    models = transformers_of(target)
    scheduler = getattr(target, "scheduler", None)
    if steps is None and scheduler is None:
        raise UsageError("a bare transformer does not know its steps", "pass steps=…")
    meter = DensityMeter()
    clock = _Clock(lambda: steps if steps is not None else len(scheduler.timesteps))  # type: ignore[union-attr]
    with ExitStack() as undo:
        for model in models:
            find, processor = FAMILIES[type(model).__name__]
            layers, grid = find(model)
            if any(isinstance(attn.processor, _Sparse) for attn in layers):
                raise UsageError("this transformer is sparse already", "leave the first one")
            state = _State(method, meter, clock, len(layers), grid)
            handle = model.register_forward_pre_hook(state.before, with_kwargs=True)
            undo.callback(handle.remove)
            for index, attn in enumerate(layers):
                undo.callback(attn.set_processor, attn.processor)
                attn.set_processor(processor(attn.processor, state, index))
        yield meter
