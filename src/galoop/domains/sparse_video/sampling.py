"""Raw frames from prompts: the same noise for the reference and for every artifact.

Both systems here give frames as float32 arrays [F, H, W, 3] in [0, 1], never through a video file.
A clip's noise follows from its own seed on the CPU, so it does not depend on the device, on the
batch, or on what was generated before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from galoop.domains.sparse_video.clips import FRAMES, HEIGHT, WIDTH
from galoop.domains.sparse_video.model import VideoModel, require_diffusers
from galoop.errors import ModelError, UsageError

if TYPE_CHECKING:
    import torch

    from galoop.methods.video_attention import VideoMethod

Array = NDArray[Any]


class VideoSampler(Protocol):
    """What turns prompts into clips."""

    @property
    def target(self) -> Any:
        """What :func:`galoop.methods.video_attention.sparse_attention` takes."""
        ...

    @property
    def steps(self) -> int:
        """Denoising steps of a clip."""
        ...

    def sample(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Array]:
        """One clip a prompt."""
        ...


@dataclass(frozen=True)
class Sampled:
    """Clips, and what the attention computed for them.

    Attributes
    ----------
    frames : list of array
        float32 [F, H, W, 3] in [0, 1].
    measured : dict
        The densities of :class:`galoop.methods.video_attention.DensityMeter`; empty for φ.
    """

    frames: list[Array]
    measured: dict[str, float]


def sample_with(
    sampler: VideoSampler, method: VideoMethod | None, prompts: Sequence[str], seeds: Sequence[int]
) -> Sampled:
    """Sample under a sparse attention, or densely with ``method=None``.

    Parameters
    ----------
    sampler : VideoSampler
    method : VideoMethod or None
        None: the reference φ.
    prompts : sequence of str
    seeds : sequence of int
        Of the noise, one a prompt.
    """
    from galoop.methods.video_attention import sparse_attention

    if method is None:
        return Sampled(sampler.sample(prompts, seeds), {})
    with sparse_attention(sampler.target, method, steps=sampler.steps) as meter:
        frames = sampler.sample(prompts, seeds)
    return Sampled(frames, meter.as_dict())


def noise(shape: Sequence[int], seeds: Sequence[int]) -> torch.Tensor:
    """Standard normal noise, N rows of ``shape``, each row from its own seed, drawn on the CPU."""
    import torch

    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        rows.append(torch.randn(tuple(shape), generator=generator))
    return torch.stack(rows)


@dataclass(frozen=True)
class SmallSampler:
    """The small model under Euler steps of the flow.

    Attributes
    ----------
    model : VideoModel
    steps : int
    guidance : float
        g in v = v(∅) + g·(v(prompt) − v(∅)); 1 needs no second forward pass.
    shift : float
        Moves the steps towards the noisy end, σ′ = shift·σ / (1 + (shift−1)·σ), as Wan does.
    batch : int
        Clips of one forward pass.
    """

    model: VideoModel
    steps: int = 20
    guidance: float = 3.0
    shift: float = 2.0
    batch: int = 8

    @property
    def target(self) -> Any:
        """The transformer."""
        return self.model.transformer

    def sample(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Array]:
        """See :class:`VideoSampler`."""
        import torch

        _same_number(prompts, seeds)
        found: list[Array] = []
        with torch.no_grad():
            for start in range(0, len(prompts), self.batch):
                rows = slice(start, start + self.batch)
                found.extend(self._batch(prompts[rows], seeds[rows]))
        return found

    def _batch(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Array]:
        import torch
        from diffusers import FlowMatchEulerDiscreteScheduler

        # Any: diffusers sets the attributes of its schedulers at run time.
        scheduler: Any = FlowMatchEulerDiscreteScheduler(shift=self.shift)
        scheduler.set_timesteps(self.steps)
        words, blank = self.model.encode(prompts), self.model.encode([""] * len(prompts))
        sample = noise((3, FRAMES, HEIGHT, WIDTH), seeds).to(words.device)
        for time in scheduler.timesteps:
            times = torch.full((len(prompts),), float(time), device=words.device)
            speed = self.model.velocity(sample, times, words)
            if self.guidance != 1.0:
                free = self.model.velocity(sample, times, blank)
                speed = free + self.guidance * (speed - free)
            sample = scheduler.step(speed, time, sample, return_dict=False)[0]
        frames = ((sample.float().cpu() + 1) / 2).clamp(0, 1).permute(0, 2, 3, 4, 1)
        return list(np.ascontiguousarray(frames.numpy()))


def _same_number(prompts: Sequence[str], seeds: Sequence[int]) -> None:
    if not prompts or len(prompts) != len(seeds):
        raise UsageError(
            f"{len(prompts)} prompts and {len(seeds)} seeds", "give as many of each, at least one"
        )


@dataclass(frozen=True)
class PipelineSampler:
    """A pipeline of diffusers (Wan, HunyuanVideo) as it is published.

    Attributes
    ----------
    pipeline
        For example a ``WanPipeline``, on its device.
    steps, height, width, frames : int
    guidance : float
    negative_prompt : str
    """

    pipeline: Any
    steps: int = 50
    height: int = 480
    width: int = 832
    frames: int = 81
    guidance: float = 5.0
    negative_prompt: str = ""

    @property
    def target(self) -> Any:
        """The pipeline."""
        return self.pipeline

    def sample(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Array]:
        """See :class:`VideoSampler`; one clip at a time."""
        import torch

        _same_number(prompts, seeds)
        found = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            video = self.pipeline(
                prompt=prompt,
                negative_prompt=self.negative_prompt or None,
                height=self.height,
                width=self.width,
                num_frames=self.frames,
                num_inference_steps=self.steps,
                guidance_scale=self.guidance,
                generator=torch.Generator().manual_seed(seed),
                output_type="np",
            ).frames[0]
            found.append(np.ascontiguousarray(video, dtype=np.float32))
        return found


PIPELINES = ("WanPipeline", "HunyuanVideoPipeline")


def load_pipeline(name: str, *, device: str = "cpu", dtype: str = "bfloat16") -> Any:
    """A published pipeline from the hub or a folder.

    Parameters
    ----------
    name : str
        A repository in diffusers' format (``Wan-AI/Wan2.1-T2V-1.3B-Diffusers``) or a folder.
    device : str
    dtype : str
        Of the weights; Wan's autoencoder is kept in float32, as its authors say.

    Raises
    ------
    UsageError
        diffusers is missing, or the pipeline is of another family.
    ModelError
        It cannot be fetched or read.
    """
    require_diffusers()
    import torch
    from diffusers import AutoencoderKLWan, DiffusionPipeline

    try:
        # the class is known from the index alone: no weights of another family are read
        kind = DiffusionPipeline.load_config(name).get("_class_name", "")
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{name!r} is no pipeline of diffusers: {str(error)[:300]}", "give a hub name or folder"
        ) from None
    if kind not in PIPELINES:
        raise UsageError(f"{name!r} is a {kind}", f"supported: {', '.join(PIPELINES)}")
    parts = {}
    try:
        if kind == "WanPipeline":
            parts["vae"] = AutoencoderKLWan.from_pretrained(
                name, subfolder="vae", torch_dtype=torch.float32
            )
        pipeline = DiffusionPipeline.from_pretrained(
            name, torch_dtype=getattr(torch, dtype), **parts
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"{name!r} cannot be loaded: {str(error)[:300]}") from None
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(device)
