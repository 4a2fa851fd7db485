"""How much faster paired evaluation is than kvpress's pipeline doing the same work.

    python benchmarks/paired_evaluation.py [--json] [--examples 16] [--lengths 250,1000]

Both sides answer the same questions with the reference and with one or ten presses at compression
0.75. kvpress's side is what its users run: one call of its pipeline for each (press, example). Our
side is one ``Session.run`` a group of examples, isolated, audited and scored. Groups alternate
between the sides, so that a drift of the machine cancels. Loading the models and starting the warm
server happen before the clock runs, on either side. Answers are compared, one by one.

The ratio is time(kvpress) / time(ours).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

PRESSES = (
    "CompactorPress()",
    "KeyDiffPress()",
    "SnapKVPress()",
    "ExpectedAttentionPress()",
    "KnormPress()",
    "StreamingLLMPress()",
    "TOVAPress()",
    "LagKVPress(lag_size=32)",
    "CURPress()",
    "AdaKVPress(CompactorPress())",
)
RATIO = 0.75
NEW_TOKENS = 16
NAMES = ("Ada", "Boris", "Chloe", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas")
PLACES = ("Oslo", "Lima", "Cairo", "Delhi", "Quito", "Turin", "Perth", "Kyoto", "Dakar", "Riga")
FILLER = (
    "The morning was quiet and the market opened late.",
    "A light rain fell on the roofs near the harbour.",
    "Nobody remembered who had painted the old fence.",
    "Two trains passed the bridge before noon.",
    "The library keeps its newspapers in the cellar.",
    "Some of the letters were never answered.",
    "In the evening the lamps along the river were lit.",
    "The garden behind the school needs water.",
)


def make_example(seed: int, length: int, count: Callable[[str], int]) -> Any:
    """Records among filler, about ``length`` tokens, and a question for one of the records."""
    from galoop.types import Example

    rng = random.Random(seed)
    people = rng.sample(NAMES, 4)
    codes = [str(rng.randrange(1000, 10000)) for _ in people]
    records = [
        f"{name} from {rng.choice(PLACES)} has the locker code {code}."
        for name, code in zip(people, codes, strict=True)
    ]
    lines = list(records)
    while count(" ".join(lines)) < length - 20:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(FILLER))
    pick = rng.randrange(len(people))
    return Example(
        context=" ".join(lines),
        question=f" What is the locker code of {people[pick]}?",
        answers=(codes[pick],),
        answer_prefix=f"The locker code of {people[pick]} is",
        seed=seed,
        max_new_tokens=NEW_TOKENS,
    )


@dataclass
class Tally:
    """Seconds and answers of both sides at one length and number of presses."""

    kvpress_seconds: float = 0.0
    galoop_seconds: float = 0.0
    answers: int = 0
    different: list[dict[str, str]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return self.kvpress_seconds / self.galoop_seconds


class Bench:
    """Both sides, loaded and warm."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        import torch
        from kvpress import KVPressTextGenerationPipeline

        from galoop.domains.kv_compression.artifacts import load_press, materialise
        from galoop.domains.kv_compression.session import Session
        from galoop.domains.text.model_session import Options
        from galoop.models import load, resolve

        torch.set_num_threads(threads)
        self.info = resolve(model, dtype=dtype)
        self.session = Session(self.info, Options(threads=threads, workers=threads))
        loaded, tokenizer = load(self.info)
        self.pipeline = KVPressTextGenerationPipeline(model=loaded, tokenizer=tokenizer)
        self.systems, self.presses = [self.session.reference()], [None]
        self.keys = [""]
        for expression in PRESSES:
            budget = {"compression_ratio": RATIO}
            candidate = materialise(expression, budget)
            self.systems.append(self.session.artifact(candidate, budget, name=expression))
            self.presses.append(load_press(candidate.files)[0])
            self.keys.append(candidate.key)

    def run_kvpress(self, example: Any, presses: int) -> list[str]:
        """The reference and each press, one call each."""
        import torch

        from galoop.hashing import derive_seed

        out = []
        for press, key in zip(self.presses[: presses + 1], self.keys, strict=False):
            if press is not None:  # kvpress seeds nothing; the session seeds random presses
                torch.manual_seed(derive_seed("artifact", key, example.key, 0))
            for layer in self.pipeline.model.model.layers:
                layer.self_attn.masked_key_indices = None
            answer = self.pipeline(
                example.context,
                question=example.question,
                answer_prefix=example.answer_prefix,
                press=press,
                max_new_tokens=example.max_new_tokens,
            )
            out.append(answer["answer"])
        return out

    def run_galoop(self, examples: Sequence[Any], presses: int) -> list[list[str]]:
        """The same through the session; answers by example, then by system."""
        systems = self.systems[: presses + 1]
        found: dict[tuple[str, str], str] = {}
        for rows in self.session.run(systems, examples):
            for system, example, outcome in rows:
                if outcome.state != "scored":
                    raise SystemExit(f"{system.name}: {outcome.state}: {outcome.reason}")
                found[system.key, example.key] = outcome.answer
        return [[found[s.key, e.key] for s in systems] for e in examples]


def measure(bench: Bench, tally: Tally, group: Sequence[Any], presses: int, ours: bool) -> None:
    """One group of examples on both sides; ``ours`` says which goes first."""

    def kvpress() -> list[list[str]]:
        began = time.perf_counter()
        answers = [bench.run_kvpress(example, presses) for example in group]
        tally.kvpress_seconds += time.perf_counter() - began
        return answers

    def galoop() -> list[list[str]]:
        began = time.perf_counter()
        answers = bench.run_galoop(group, presses)
        tally.galoop_seconds += time.perf_counter() - began
        return answers

    if ours:
        second, first = galoop(), kvpress()
    else:
        first, second = kvpress(), galoop()
    for example, theirs, mine in zip(group, first, second, strict=True):
        tally.tokens.append(len(bench.session.tokenise(example)[0]))
        for system, a, b in zip(bench.systems, theirs, mine, strict=False):
            tally.answers += 1
            if a != b:
                row = {"system": system.name, "seed": str(example.seed), "kvpress": a, "galoop": b}
                tally.different.append(row)


def run(args: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(args.model, args.dtype, args.threads)
    count = bench.session.count_tokens
    lengths = [int(v) for v in args.lengths.split(",")]
    for length in lengths:  # warm: the server, its children's first fork, the libraries' kernels
        warm = [make_example(10**6 + length, length, count)]
        bench.run_galoop(warm, len(PRESSES))
        bench.run_kvpress(warm[0], len(PRESSES))
    out: dict[str, Any] = {}
    details: dict[str, Any] = {}
    seed = 0
    for length in lengths:
        for presses in (1, len(PRESSES)):
            tally = Tally()
            # Fresh examples each time: what the session remembers of others must not help it.
            examples = [make_example(seed + i, length, count) for i in range(args.examples)]
            seed += args.examples
            for i, start in enumerate(range(0, len(examples), args.group)):
                group = examples[start : start + args.group]
                measure(bench, tally, group, presses, ours=bool(i % 2))
            out.setdefault(str(length), {})[str(presses)] = round(tally.ratio, 3)
            details.setdefault(str(length), {})[str(presses)] = describe(tally, args.examples)
    stats = bench.session.decode_stats
    out["details"] = {
        "model": bench.info.name,
        "dtype": bench.info.dtype,
        "threads": args.threads,
        "processors": os.cpu_count(),
        "compression_ratio": RATIO,
        "max_new_tokens": NEW_TOKENS,
        "presses": list(PRESSES),
        "examples_per_group": args.group,
        "all_answers_equal": not any(
            d["different"] for by in details.values() for d in by.values()
        ),
        "rows_decoded": stats.rows,
        "rows_decoded_again": stats.redone,
        "runs": details,
    }
    bench.session.close()
    return out


def describe(tally: Tally, n: int) -> dict[str, Any]:
    return {
        "n": n,
        "context_tokens": [min(tally.tokens), max(tally.tokens)],
        "kvpress_seconds": round(tally.kvpress_seconds, 3),
        "galoop_seconds": round(tally.galoop_seconds, 3),
        "answers": tally.answers,
        "different": tally.different,
    }


def show(result: dict[str, Any]) -> None:
    about = result["details"]
    print(f"{about['model']}, {about['dtype']}, {about['threads']} thread(s)")
    print(f"{'context':>9}{'presses':>9}{'n':>5}{'kvpress s':>11}{'galoop s':>10}{'ratio':>8}")
    for length, by in about["runs"].items():
        for presses, d in by.items():
            print(
                f"{length:>9}{presses:>9}{d['n']:>5}{d['kvpress_seconds']:>11.2f}"
                f"{d['galoop_seconds']:>10.2f}{result[length][presses]:>8.2f}"
            )
    total = sum(d["answers"] for by in about["runs"].values() for d in by.values())
    if about["all_answers_equal"]:
        print(f"all {total} answers are equal")
    for by in about["runs"].values():
        for d in by.values():
            for row in d["different"]:
                print(f"DIFFERENT: {row}")
    print(f"rows decoded: {about['rows_decoded']}, of these again: {about['rows_decoded_again']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--examples", type=int, default=16, help="per length and press count")
    parser.add_argument("--group", type=int, default=8, help="examples per alternation")
    parser.add_argument("--lengths", default="250,1000", help="context tokens, comma-separated")
    args = parser.parse_args()
    result = run(args)
    if args.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if result["details"]["all_answers_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
