"""Dual Chunk Attention against dense attention: time and memory of a prefill, in one run.

``python benchmarks/extended_prefill.py`` measures 1k, 2k, 4k and 8k tokens on a randomly
initialised Llama; ``--json FILE`` writes what was measured. Dense is transformers' SDPA on the same
model, with the same tokens, alternating with ours; the best of the repeats counts. Memory is how
far the process's peak rises above what it holds before one prefill, in a process of its own, read
from Linux's /proc.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

WINDOW = 512


def make_model(layers: int, heads: int, kv_heads: int, head_dim: int) -> Any:
    """A random Llama: only shapes matter for time and memory."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=heads * head_dim, intermediate_size=2 * heads * head_dim,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=head_dim, max_position_embeddings=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def method(name: str, model: Any, length: int) -> AbstractContextManager[None]:
    """The method's context manager; ``dense`` is the model as it is."""
    from galoop.methods.dca import DualChunk

    return nullcontext() if name == "dense" else DualChunk().applied(model, length)


def prefill(name: str, model: Any, length: int) -> float:
    """Seconds of one prefill, the laying out of positions included."""
    import torch
    from transformers import DynamicCache

    ids = torch.arange(length)[None] % 256
    began = time.perf_counter()
    with torch.inference_mode(), method(name, model, length):
        model(input_ids=ids, past_key_values=DynamicCache(), logits_to_keep=1)
    return time.perf_counter() - began


def resident_mib(what: str) -> float:
    """This process's resident memory (``VmRSS``) or its peak (``VmHWM``), in MiB; Linux alone."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(what):
            return float(line.split()[1]) / 2**10
    return float("nan")


def memory(name: str, length: int, shape: Sequence[int], threads: int) -> float:
    """MiB by which a prefill raises the peak, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--lengths", str(length)]
    command += ["--shape", *map(str, shape), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure(args: argparse.Namespace) -> list[dict[str, float]]:
    """A row for each length."""
    model = make_model(*args.shape)
    rows = []
    for length in args.lengths:
        best = {name: float("inf") for name in ("dense", "dca")}
        for _ in range(args.repeats):
            for name in best:
                best[name] = min(best[name], prefill(name, model, length))
        peak = {name: memory(name, length, args.shape, args.threads) for name in best}
        rows.append(
            {
                "tokens": length,
                "dense_seconds": best["dense"],
                "dca_seconds": best["dca"],
                "seconds_ratio": best["dca"] / best["dense"],
                "dense_mib": peak["dense"],
                "dca_mib": peak["dca"],
            }
        )
        print(
            f"{length:>6} tokens: dense {best['dense']:.2f} s, DCA {best['dca']:.2f} s "
            f"({rows[-1]['seconds_ratio']:.2f}x); peak +{peak['dense']:.0f} and "
            f"+{peak['dca']:.0f} MiB",
            flush=True,
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write JSON where it is asked for."""
    import torch

    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    p.add_argument(
        "--shape", type=int, nargs=4, default=[4, 8, 4, 64],
        metavar=("LAYERS", "HEADS", "KV_HEADS", "HEAD_DIM"),
    )  # fmt: skip
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--json", type=Path, default=None)
    p.add_argument("--one", choices=("dense", "dca"), help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.one:
        model = make_model(*args.shape)
        prefill(args.one, model, 64)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = resident_mib("VmRSS")
        prefill(args.one, model, args.lengths[0])
        print(resident_mib("VmHWM") - before)
        return 0
    rows = measure(args)
    if args.json:
        about = {
            "torch": torch.__version__,
            "threads": args.threads,
            "shape": args.shape,
            "window": WINDOW,
            "machine": platform.processor() or platform.machine(),
        }
        args.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
