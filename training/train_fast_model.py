"""Train the fast model: a small RoPE language model that finds records in a context.

Run ``python training/train_fast_model.py`` from the repository root. It writes the model,
its tokenizer, a log and a card into ``src/galoop/models/fast``. Kill it at any time and run the
same command again: it goes on from the last checkpoint and ends with the same weights.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from fast_batches import PAD, Batch, copy_row, encode_documents, record_row, stack, text_batch
from fast_model import build_model, save_tokenizer, train_tokenizer
from fast_text import TextConfig, Words, load_words, make_document
from sittings import load_checkpoint, save_checkpoint, write_card

from galoop.evaluation.statistics import proportion_interval

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM


@dataclass(frozen=True)
class Phase:
    """One stage of the curriculum; it ends after ``steps``, or earlier at ``target`` accuracy."""

    name: str
    kind: str  # "copies", "records" or "text"
    steps: int
    size: int
    length: int
    target: float = 2.0
    text: TextConfig = field(default_factory=TextConfig)
    prose: float = 0.0  # weight of the loss on the context's own words
    decay: bool = False


def curriculum(window: int, scale: float, batch: float = 1.0) -> list[Phase]:
    """Short copies, longer copies, records of random tokens, then text up to the window.

    The steps to copying grow with the vocabulary, since every token has to be seen often enough
    (about 300 with 1,536 tokens; with 4,096 not within 300), and copying learned on a part of the
    vocabulary did not carry over to the rest. ``window`` counts context and questions. Only the
    last phase also learns the prose itself: before the model copies, that would be all it learns.
    """
    context = window - 40
    half = window // 2 - 16

    def text(records: tuple[int, int], queries: int, filler: int, other: float = 0.0) -> TextConfig:
        return TextConfig(
            records, queries, filler, question_share=0.5, bare_share=other / 2,
            paraphrase_share=other, prose_share=0.5, update_share=other / 2,
        )  # fmt: skip

    phases = [
        Phase("copies-32", "copies", 2000, 32, 32, 0.90),
        Phase("copies-96", "copies", 400, 16, 96, 0.93),
        Phase("records-96", "records", 200, 24, 96, 0.86),
        Phase("text-64", "text", 400, 20, 64, 0.93, text((2, 4), 4, 6)),
        Phase("text-120", "text", 500, 14, 120, 0.95, text((3, 8), 8, 10)),
        Phase("text-half", "text", 800, 8, half, 0.95, text((6, 14), 10, 20, 0.2)),
        Phase(
            "text-window", "text", 2400, 6, context, text=text((8, 20), 14, 50, 0.2),
            prose=0.2, decay=True,
        ),
    ]  # fmt: skip
    return [
        replace(p, steps=max(1, round(p.steps * scale)), size=max(1, round(p.size * batch)))
        for p in phases
    ]


class Trainer:
    """Weights, optimizers and the log; everything that a checkpoint holds."""

    def __init__(self, args: argparse.Namespace, tokenizer: Tokenizer) -> None:
        self.args, self.tokenizer, self.words = args, tokenizer, load_words()
        self.phases = curriculum(args.window, args.scale, args.batch_scale)
        self.digits = sorted({i for d in "0123456789" for i in tokenizer.encode(f"{d} {d}").ids})
        self.vocab = tokenizer.get_vocab_size()
        self.model = build_model(
            vocab=self.vocab, window=args.window, width=args.width, layers=args.layers,
            heads=args.heads, kv_heads=args.kv_heads, head_dim=args.head_dim, seed=args.seed,
        )  # fmt: skip
        self.optimizers = make_optimizers(self.model, args.learning_rate)
        self.base = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.state: dict[str, Any] = {"phase": 0, "in_phase": 0, "step": 0, "accuracy": 0.0}
        self.log: list[dict[str, Any]] = []
        self.seconds = 0.0

    def batch(self, phase: Phase) -> Batch:
        """The batch of this step: a function of seed, phase and step only, so that runs resume."""
        rng = random.Random(f"{self.args.seed}/{self.state['phase']}/{self.state['in_phase']}")
        if phase.kind == "copies":
            rows = range(phase.size)
            return stack([copy_row(rng, self.vocab, phase.length) for _ in rows])
        if phase.kind == "records" or (not phase.decay and rng.random() < 0.1):
            rows = range(phase.size)
            return stack([record_row(rng, self.vocab, self.digits, phase.length) for _ in rows])
        # The last phase mixes short and long contexts.
        length = rng.randint(min(120, phase.length), phase.length) if phase.decay else phase.length
        return text_batch(
            rng, self.tokenizer, self.words, phase.text,
            size=phase.size, length=length, window=self.args.window,
        )  # fmt: skip

    def step(self, phase: Phase) -> float:
        """One update; returns the loss."""
        batch = self.batch(phase)
        loss, accuracy = loss_and_accuracy(self.model, batch, phase.prose)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = min(1.0, (self.state["step"] + 1) / 50)
        if phase.decay:
            factor *= 1.0 - self.state["in_phase"] / phase.steps
        for optimizer, base in zip(self.optimizers, self.base, strict=True):
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        keep = 0.95 if self.state["in_phase"] else 0.0
        self.state["accuracy"] = keep * self.state["accuracy"] + (1 - keep) * accuracy
        self.state["step"] += 1
        self.state["in_phase"] += 1
        return float(loss.detach())

    def run(self, work: Path) -> None:
        """Train to the end, with a checkpoint every ``--checkpoint-steps`` steps."""
        while self.state["phase"] < len(self.phases):
            phase, started = self.phases[self.state["phase"]], time.perf_counter()
            loss = self.step(phase)
            self.seconds += time.perf_counter() - started
            reached = self.state["in_phase"] >= 40 and self.state["accuracy"] >= phase.target
            ended = reached or self.state["in_phase"] >= phase.steps
            if self.state["step"] % 20 == 0 or ended:
                self.note(phase, loss)
            if ended:
                self.state.update(phase=self.state["phase"] + 1, in_phase=0, accuracy=0.0)
            if ended or self.state["step"] % self.args.checkpoint_steps == 0:
                self.save(work)

    def note(self, phase: Phase, loss: float) -> None:
        """Add a row to the log and say it."""
        row = {
            "step": self.state["step"],
            "phase": phase.name,
            "loss": round(loss, 4),
            "accuracy": round(self.state["accuracy"], 4),
            "retrieval": self.retrieval(phase),
        }
        self.log.append(row)
        print(*row.values(), f"{self.seconds:.0f}s", flush=True)

    def retrieval(self, phase: Phase) -> str:
        """Now and then: the share of 24 fresh full windows of 16 records answered exactly."""
        if phase.kind != "text" or self.state["step"] % 200:
            return ""
        self.model.eval()
        config, length = evaluations(self.args.window)["sixteen records, whole window"]
        right = evaluate(
            self.model, self.tokenizer, self.words, config,
            length=length, n=24, seed=self.args.seed + 1,
        )  # fmt: skip
        self.model.train()
        return f"{right / 24:.3f}"

    def save(self, work: Path) -> None:
        """Write the checkpoint."""
        save_checkpoint(
            {
                "model": self.model.state_dict(),
                "optimizers": [o.state_dict() for o in self.optimizers],
                "state": self.state,
                "log": self.log,
                "seconds": self.seconds,
                "arguments": identity(self.args),
            },
            work,
        )

    def restore(self, work: Path) -> bool:
        """Go on from a checkpoint of the same arguments; False where there is none."""
        # Another number of threads rounds differently: that may change within a run, with other
        # weights at its end.
        data = load_checkpoint(identity(self.args), work, free=("threads",))
        if data is None:
            return False
        self.model.load_state_dict(data["model"])
        for optimizer, saved in zip(self.optimizers, data["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.state, self.log, self.seconds = data["state"], data["log"], data["seconds"]
        return True


def identity(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that decide the weights."""
    return {
        k: v for k, v in vars(args).items() if k not in ("work", "out", "checkpoint_steps", "n")
    }


def make_optimizers(model: LlamaForCausalLM, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (fewer steps to the copying circuit), AdamW for the rest."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.0),
        torch.optim.AdamW(rest, lr=rate / 10, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def loss_and_accuracy(
    model: LlamaForCausalLM, batch: Batch, prose: float = 0.0
) -> tuple[torch.Tensor, float]:
    """Cross-entropy and accuracy over the masked positions (the head runs on those alone).

    With ``prose``, every fourth of the other positions joins with that weight.
    """
    hidden = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state[:, :-1]
    chosen = batch.mask[:, 1:]
    logits, gold = model.lm_head(hidden[chosen]), batch.ids[:, 1:][chosen]
    accuracy = (logits.argmax(-1) == gold).float().mean().item()
    loss = F.cross_entropy(logits, gold)
    if prose:
        rest = ~chosen & (batch.ids[:, 1:] != PAD)
        rest[:, torch.arange(rest.shape[1]) % 4 != int(batch.ids.sum()) % 4] = False
        loss = loss + prose * F.cross_entropy(model.lm_head(hidden[rest]), batch.ids[:, 1:][rest])
    return loss, accuracy


@torch.no_grad()
def evaluate(
    model: LlamaForCausalLM, tokenizer: Tokenizer, words: Words, config: TextConfig,
    *, length: int, n: int, seed: int,
) -> int:  # fmt: skip
    """How many of ``n`` fresh documents are answered exactly: value, full stop, end of text.

    All tokens of the gold answer being the arg-max after the gold prefix is the same as greedy
    decoding giving exactly the gold answer.
    """
    rng, correct = random.Random(f"evaluation/{seed}"), 0
    for start in range(0, n, 20):
        documents = [make_document(rng, words, config) for _ in range(min(20, n - start))]
        rows = []
        for parts in encode_documents(tokenizer, documents, length):
            rows.append((parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]))
        batch = stack(rows)
        predicted = model(input_ids=batch.ids).logits[:, :-1].argmax(-1)
        wrong = (predicted != batch.ids[:, 1:]) & batch.mask[:, 1:]
        correct += int((~wrong.any(1)).sum())
    return correct


def evaluations(window: int) -> dict[str, tuple[TextConfig, int]]:
    """Name -> documents and context length of each evaluation."""
    records = (6, 10)
    return {
        "trained forms, fresh text": (TextConfig(records, 1, 14), 180),
        "held-out nouns": (TextConfig(records, 1, 14, held_out_words=True), 180),
        "held-out forms": (TextConfig(records, 1, 14, held_out_forms=True), 180),
        "held-out forms and nouns": (
            TextConfig(records, 1, 14, held_out_forms=True, held_out_words=True), 180),
        "no lead in the prefix": (TextConfig(records, 1, 14, bare_share=1.0), 180),
        "half a window of prose": (TextConfig(records, 1, 40, prose_share=1.0), window // 2),
        "question in other words": (TextConfig(records, 1, 14, paraphrase_share=1.0), 180),
        "later record counts": (TextConfig((4, 6), 1, 14, update_share=1.0), 180),
        "sixteen records, whole window": (
            TextConfig((16, 16), 1, 60, prose_share=0.5), window - 40),
    }  # fmt: skip


def report(trainer: Trainer, n: int, seed: int) -> list[dict[str, Any]]:
    """The figures of the card."""
    trainer.model.eval()
    rows = []
    for name, (config, length) in evaluations(trainer.args.window).items():
        correct = evaluate(
            trainer.model, trainer.tokenizer, trainer.words, config, length=length, n=n, seed=seed
        )
        found = proportion_interval(correct, n)
        rows.append({"what": name, "context": length, "correct": correct, "n": n,
                     "accuracy": correct / n, "low": found.low, "high": found.high})  # fmt: skip
        print(f"{name}: {correct}/{n} [{found.low:.3f}, {found.high:.3f}]", flush=True)
    return rows


def tell(trainer: Trainer, figures: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the card and the log beside the weights."""
    table = "\n".join(
        f"| {r['what']} | {r['context']} | {r['n']} | {r['accuracy']:.3f} "
        f"| [{r['low']:.3f}, {r['high']:.3f}] |"
        for r in figures
    )
    phases = "\n".join(
        f"- `{p.name}`: at most {p.steps} steps of {p.size} × {p.length} tokens"
        + (f", until accuracy {p.target}" if p.target <= 1 else "")
        for p in trainer.phases
    )
    facts = {
        "TABLE": table,
        "PHASES": phases,
        "PARAMETERS": f"{sum(p.numel() for p in trainer.model.parameters()):,}",
        "VOCAB": str(trainer.vocab),
        "STEPS": str(trainer.state["step"]),
        "SECONDS": f"{trainer.seconds:.0f}",
        "TORCH": torch.__version__.split("+")[0],
        "ARGUMENTS": json.dumps(identity(trainer.args), sort_keys=True),
        **{name.upper(): str(value) for name, value in identity(trainer.args).items()},
    }
    write_card("MODEL_CARD.template.md", facts, trainer.log, folder)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command-line arguments."""
    root = Path(__file__).resolve().parents[1]
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", type=Path, default=root / "src/galoop/models/fast")
    p.add_argument("--work", type=Path, default=root / "build/fast-model", help="checkpoints")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--window", type=int, default=512, help="native window, in tokens")
    p.add_argument("--vocab", type=int, default=2048)
    p.add_argument("--width", type=int, default=160)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--kv-heads", type=int, default=4)
    p.add_argument("--head-dim", type=int, default=32)
    p.add_argument("--learning-rate", type=float, default=0.02)
    p.add_argument("--scale", type=float, default=1.0, help="multiplies the steps of all phases")
    p.add_argument("--batch-scale", type=float, default=1.0, help="multiplies the batch sizes")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--n", type=int, default=400, help="documents of each evaluation")
    p.add_argument("--tokenizer-documents", type=int, default=3000)
    p.add_argument("--checkpoint-steps", type=int, default=50)
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train (or go on training), evaluate and write everything."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(args.vocab, args.seed, args.tokenizer_documents)
    trainer = Trainer(args, tokenizer)
    if trainer.restore(args.work):
        print(f"going on at step {trainer.state['step']}", flush=True)
    trainer.run(args.work)
    figures = report(trainer, n=args.n, seed=args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    trainer.model.save_pretrained(args.out)
    save_tokenizer(tokenizer, args.out, args.window)
    tell(trainer, figures, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
