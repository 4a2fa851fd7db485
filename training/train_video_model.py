"""Train the small text-to-video model: diffusers' Wan transformer on clips that this makes itself.

Run ``python training/train_video_model.py`` from the repository root, with the extra ``video``
installed. It writes weights, configuration, a log and a card into
``src/galoop/domains/sparse_video/weights``. Kill it at any time and run the same command again: it
goes on from the last checkpoint. ``--seconds`` ends a sitting early and leaves a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sittings import load_checkpoint, save_checkpoint, write_card

from galoop.domains.sparse_video.check import check
from galoop.domains.sparse_video.clips import render
from galoop.domains.sparse_video.model import (
    SHIPPED,
    VideoModel,
    VideoModelConfig,
    build_video_model,
    save_video_model,
)
from galoop.domains.sparse_video.pictures import png, stack, strip
from galoop.domains.sparse_video.prompts import held_out, ordinary_prompts, sample_scene
from galoop.domains.sparse_video.sampling import SmallSampler
from galoop.evaluation.statistics import proportion_interval
from galoop.hashing import derive_seed

MOST_BYTES = 25 * 2**20
EMPTY = 0.1
"""Share of clips whose prompt is left out, for guidance."""
WARM_UP = 200
DECAY = 0.3
"""Share of the steps, at the end, over which the learning rate falls to nothing."""


class Clips(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Batch ``i`` is a function of seed, step count and ``i`` alone, so that runs resume.

    The first third of the training has one kind of thing and steady light; what makes scenes hard
    comes in over the second third.
    """

    def __init__(self, seed: int, steps: int, batch: int) -> None:
        self.seed, self.steps, self.batch = seed, steps, batch

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[torch.Tensor, list[str]]:
        """Clips [N, 3, F, H, W] in [−1, 1], and prompts."""
        hard = min(1.0, max(0.0, 3 * index / self.steps - 1))
        frames, prompts = [], []
        for row in range(self.batch):
            rng = random.Random(f"{self.seed}/{index}/{row}")
            scene = sample_scene(rng, 0.35 * hard, 0.2 * hard)
            while held_out(scene):
                scene = sample_scene(rng, 0.35 * hard, 0.2 * hard)
            frames.append(render(scene, rng.getrandbits(48)).frames)
            prompts.append("" if rng.random() < EMPTY else str(scene))
        clips = torch.from_numpy(np.stack(frames)).permute(0, 4, 1, 2, 3)
        return clips * 2 - 1, prompts


class Trainer:
    """Weights, their running average, the optimizer and the log: what a checkpoint holds."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        config = VideoModelConfig(
            heads=args.heads, head_dim=args.head_dim, layers=args.layers, ffn=args.ffn
        )
        self.model = build_video_model(config, args.seed)
        self.average = build_video_model(config, args.seed)
        for model in (self.model, self.average):
            for part in model.modules().values():
                part.to(args.device)
        weights = [p for part in self.model.modules().values() for p in part.parameters()]
        fused = torch.device(args.device).type == "cuda"
        self.optimizer = torch.optim.AdamW(
            weights, lr=args.learning_rate, betas=(0.9, 0.99), weight_decay=0.01, fused=fused
        )
        self.step, self.seconds, self.log = 0, 0.0, list[dict[str, Any]]()
        self.recent: list[float] = []

    def rate(self) -> float:
        """The learning rate of this step: warm-up, a plateau, a straight decay."""
        left = (self.args.steps - self.step) / max(1, round(DECAY * self.args.steps))
        return float(self.args.learning_rate * min(1.0, (self.step + 1) / WARM_UP, left))

    def loss(self, clips: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        """Rectified flow: the squared error of the velocity ε − x₀ at a random σ.

        σ is logit-normal (Esser et al., 2024, arXiv:2403.03206), shifted to the noisy end.
        """
        generator = torch.Generator().manual_seed(derive_seed(self.args.seed, "noise", self.step))
        sigma = torch.randn(len(clips), generator=generator).sigmoid()
        sigma = self.args.shift * sigma / (1 + (self.args.shift - 1) * sigma)
        noise = torch.randn(clips.shape, generator=generator)
        clips, noise, sigma = (x.to(self.args.device) for x in (clips, noise, sigma))
        mix = sigma.view(-1, 1, 1, 1, 1)
        with torch.autocast(
            torch.device(self.args.device).type, torch.bfloat16, enabled=self.args.bf16
        ):
            words = self.model.encode(prompts)
            found = self.model.velocity((1 - mix) * clips + mix * noise, 1000 * sigma, words)
        return (found.float() - (noise - clips)).square().mean()

    def update(self, clips: torch.Tensor, prompts: list[str]) -> float:
        """One step; returns the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        loss = self.loss(clips, prompts)
        loss.backward()  # type: ignore[no-untyped-call]
        weights = self.optimizer.param_groups[0]["params"]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        keep = min(self.args.average, (1 + self.step) / (10 + self.step))
        averaged = [p for part in self.average.modules().values() for p in part.parameters()]
        with torch.no_grad():
            torch._foreach_lerp_(averaged, weights, 1 - keep)
        self.step += 1
        return float(loss.detach())

    def run(self) -> bool:
        """Train to the end, or to ``--seconds``; returns whether the end was reached."""
        began = time.perf_counter()
        for clips, prompts in self.batches():
            started = time.perf_counter()
            self.recent.append(self.update(clips, list(prompts)))
            self.seconds += time.perf_counter() - started
            if self.step % self.args.log_steps == 0 or self.step == self.args.steps:
                self.note()
            spent = time.perf_counter() - began
            ended = bool(self.args.seconds) and spent > self.args.seconds
            if ended or self.step % self.args.checkpoint_steps == 0:
                self.save()
            if self.args.look_steps and self.step % self.args.look_steps == 0:
                self.look()
            if ended:
                break
        self.save()
        return bool(self.step >= self.args.steps)

    def batches(self) -> Iterator[tuple[torch.Tensor, list[str]]]:
        """The batches from this step on."""
        data = Clips(self.args.seed, self.args.steps, self.args.batch)
        loader = torch.utils.data.DataLoader(
            data, batch_size=None, sampler=range(self.step, self.args.steps),
            num_workers=self.args.workers,
        )  # fmt: skip
        return iter(loader)

    def note(self) -> None:
        """Add a row to the log and say it."""
        row = {
            "step": self.step,
            "loss": round(sum(self.recent) / len(self.recent), 5),
            "rate": f"{self.rate():.2e}",
        }
        self.log.append(row)
        self.recent = []
        print(*row.values(), f"{self.seconds:.0f}s", flush=True)

    def look(self) -> None:
        """Say how well a few prompts are drawn, and put the pictures beside the checkpoint.

        Nothing in the weights depends on it.
        """
        prompts = ordinary_prompts(self.args.look_prompts, self.args.seed)
        clips = draw(self.average, prompts, self.args.seed)
        verdicts = [check(clip, prompt) for clip, prompt in zip(clips, prompts, strict=True)]
        passed = sum(verdict.passes for verdict in verdicts)
        mean = sum(verdict.score for verdict in verdicts) / len(verdicts)
        print(
            f"step {self.step}: {passed} of {len(clips)} prompts right, mean score {mean:.3f}",
            flush=True,
        )
        picture = png(stack([strip(clip) for clip in clips]))
        (self.args.work / f"look-{self.step:06d}.png").write_bytes(picture)

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(
            {
                "model": {k: v.state_dict() for k, v in self.model.modules().items()},
                "average": {k: v.state_dict() for k, v in self.average.modules().items()},
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "seconds": self.seconds,
                "log": self.log,
                "recent": self.recent,
                "arguments": identity(self.args),
            },
            self.args.work,
        )

    def restore(self) -> bool:
        """Go on from a checkpoint of the same arguments; False where there is none."""
        data = load_checkpoint(identity(self.args), self.args.work, device=self.args.device)
        if data is None:
            return False
        for model, saved in ((self.model, data["model"]), (self.average, data["average"])):
            for name, part in model.modules().items():
                part.load_state_dict(saved[name])
        self.optimizer.load_state_dict(data["optimizer"])
        self.step, self.seconds = data["step"], data["seconds"]
        self.log, self.recent = data["log"], data["recent"]
        return True


def identity(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that decide the weights."""
    free = ("work", "out", "checkpoint_steps", "seconds", "workers", "threads", "n", "device",
            "look_steps", "look_prompts")  # fmt: skip
    return {k: v for k, v in vars(args).items() if k not in free}


def draw(model: VideoModel, prompts: Sequence[str], seed: int, steps: int = 20) -> list[Any]:
    """Dense clips of prompts, each from a noise of its own."""
    seeds = [derive_seed("evaluation", seed, prompt) for prompt in prompts]
    return SmallSampler(model.eval(), steps).sample(list(prompts), seeds)


def figures(model: VideoModel, n: int, seed: int) -> list[dict[str, Any]]:
    """Rates of the facets on prompts of trained and of held-out combinations."""
    rows = []
    for name, unseen in (("trained combinations", False), ("held-out combinations", True)):
        prompts = ordinary_prompts(n, seed + 1, unseen=unseen)  # not those of the looks
        clips = draw(model, prompts, seed)
        verdicts = [check(clip, prompt) for clip, prompt in zip(clips, prompts, strict=True)]
        facets = ("everything", *verdicts[0].facets)
        for facet in facets:
            good = sum(
                v.passes if facet == "everything" else v.facets[facet] == 1 for v in verdicts
            )
            found = proportion_interval(good, n)
            rows.append({"prompts": name, "facet": facet, "right": good, "n": n,
                         "low": found.low, "high": found.high})  # fmt: skip
            print(f"{name}: {facet} {good}/{n} [{found.low:.3f}, {found.high:.3f}]", flush=True)
    return rows


def tell(trainer: Trainer, rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the card and the log beside the weights."""
    table = "\n".join(
        f"| {r['prompts']} | {r['facet']} | {r['n']} | {r['right'] / r['n']:.3f} "
        f"| [{r['low']:.3f}, {r['high']:.3f}] |"
        for r in rows
    )
    facts = {
        "TABLE": table,
        "PARAMETERS": f"{trainer.model.parameters:,}",
        "TOKENS": f"{trainer.model.tokens:,}",
        "MODEL": json.dumps(asdict(trainer.model.config), sort_keys=True),
        "ARGUMENTS": json.dumps(identity(trainer.args), sort_keys=True),
        "STEPS": str(trainer.step),
        "SECONDS": f"{trainer.seconds:.0f}",
        "DEVICE": trainer.args.device,
        "TORCH": torch.__version__.split("+")[0],
    }
    write_card("VIDEO_CARD.template.md", facts, trainer.log, folder)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command-line arguments."""
    root = Path(__file__).resolve().parents[1]
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", type=Path, default=SHIPPED)
    p.add_argument("--work", type=Path, default=root / "build/video-model", help="checkpoints")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--steps", type=int, default=10_000)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--head-dim", type=int, default=32)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--ffn", type=int, default=512)
    p.add_argument("--learning-rate", type=float, default=1e-3)
    p.add_argument("--shift", type=float, default=2.0, help="of σ in training")
    p.add_argument("--average", type=float, default=0.999, help="memory of the averaged weights")
    p.add_argument("--bf16", action="store_true", help="autocast the forward pass to bfloat16")
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--workers", type=int, default=0, help="processes that render clips")
    p.add_argument("--seconds", type=float, default=0.0, help="end this sitting after so long")
    p.add_argument("--log-steps", type=int, default=20)
    p.add_argument("--checkpoint-steps", type=int, default=100)
    p.add_argument("--n", type=int, default=100, help="prompts of each evaluation")
    p.add_argument("--look-steps", type=int, default=1000, help="0: never draw while training")
    p.add_argument("--look-prompts", type=int, default=16)
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train (or go on training), evaluate and write everything."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    trainer = Trainer(args)
    if trainer.restore():
        print(f"going on at step {trainer.step}", flush=True)
    if not trainer.run():
        print(f"stopped at step {trainer.step} of {args.steps}; run the same again", flush=True)
        return 0
    weights = save_video_model(trainer.average, args.out)
    size = weights.stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"{weights} has {size:,} bytes, more than {MOST_BYTES:,}")
    tell(trainer, figures(trainer.average, args.n, args.seed), args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
