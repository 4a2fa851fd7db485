"""What a trained model does within its window, and stretched: the figures of the model card.

Run ``python training/measure_stretch.py`` after the training. For each length it asks for one of
sixteen records in fresh text, with true positions and under each method, and writes a table to
``stretch.md`` beside the weights (``--out``).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from fast_batches import encode_documents
from fast_text import TextConfig, load_words, make_document

from galoop.evaluation.statistics import proportion_interval

METHODS = ("unextended", "interpolation", "ntk", "yarn", "dca", "self-extend")


def method(name: str, model: Any, length: int) -> AbstractContextManager[None]:
    """The context manager of a method; reaches ``length`` tokens."""
    from galoop.methods.dca import DualChunk
    from galoop.methods.rope_scaling import rescaled
    from galoop.methods.self_extend import SelfExtend

    factor = length / model.config.max_position_embeddings
    if name == "dca":
        return DualChunk().applied(model, length)
    if name == "self-extend":
        return SelfExtend().applied(model, length)
    if name == "unextended" or factor <= 1:
        return nullcontext()
    return rescaled(model, name, factor)  # type: ignore[arg-type]


def documents(tokenizer: Any, n: int, length: int, records: int, seed: int) -> list[Any]:
    """Prompts of ``length`` tokens at most, each with its gold tokens and what they cover."""
    rng, words = random.Random(f"stretch/{seed}/{length}"), load_words()
    config = TextConfig((records, records), 1, length // 4, prose_share=0.5)
    made = [make_document(rng, words, config) for _ in range(n)]
    rows = []
    for parts in encode_documents(tokenizer.backend_tokenizer, made, length - 40):
        rows.append((parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]))
    return rows


@torch.inference_mode()
def correct(model: Any, row: tuple[list[int], list[int]]) -> bool:
    """Whether every token of the gold answer is the arg-max after those before it."""
    ids, mask = row
    out = model(input_ids=torch.tensor([ids]), use_cache=False)
    predicted = out.logits[0, :-1].argmax(-1).tolist()
    return all(p == t for p, t, m in zip(predicted, ids[1:], mask[1:], strict=True) if m)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write the table."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    p = argparse.ArgumentParser(description=__doc__)
    root = Path(__file__).resolve().parents[1]
    p.add_argument("--model", type=Path, default=root / "src/galoop/models/fast")
    p.add_argument("--out", type=Path, default=None, help="a file; beside the weights by default")
    p.add_argument("--factors", type=float, nargs="+", default=[1, 2, 4])
    p.add_argument("--records", type=int, default=16)
    p.add_argument("--n", type=int, default=100)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args(argv)
    torch.set_num_threads(args.threads)
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    lines = ["| tokens | method | n | accuracy | interval |", "|---|---|---|---|---|"]
    for factor in args.factors:
        length = int(factor * model.config.max_position_embeddings)
        rows = documents(tokenizer, args.n, length, args.records, args.seed)
        for name in METHODS if factor > 1 else ("unextended",):
            with method(name, model, length):
                right = sum(correct(model, row) for row in rows)
            found = proportion_interval(right, args.n)
            lines.append(
                f"| {length} | {name} | {args.n} | {right / args.n:.3f} "
                f"| [{found.low:.3f}, {found.high:.3f}] |"
            )
            print(lines[-1], flush=True)
    text = f"Exact answers to one of {args.records} records in fresh text.\n\n" + "\n".join(lines)
    (args.out or args.model / "stretch.md").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
