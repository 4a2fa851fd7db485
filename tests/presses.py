"""Shared fixtures of the session's tests: a tiny random model, artifacts, kvpress's own answers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from galoop.domains.kv_compression.artifact_loader import load_press
from galoop.domains.kv_compression.artifacts import materialise
from galoop.hashing import derive_seed
from galoop.models.info import ModelInfo
from galoop.types import Candidate, Example

SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "pa", "ri", "su", "ta", "ve", "zo")
WORDS = tuple(a + b for a in SYLLABLES for b in SYLLABLES)
TEMPLATE = (
    "{% for m in messages %}{{ '<user> ' + m['content'] + ' </s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' <bot> ' }}{% endif %}"
)


def make_tiny_model(folder: Path, *, window: int = 1024, seed: int = 0) -> Path:
    """A random Llama (3 layers, 4 heads on 2 KV heads) and a word tokenizer, in ``folder``.

    Random weights give hard near-ties, which is what a test of equal answers wants. The queries
    share an offset, as those of trained models do: without it kvpress finds no fake key for its
    head-wise presses and raises.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = _save_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=window,
        attention_bias=True,
        initializer_range=0.15,
        eos_token_id=vocabulary["</s>"],
        bos_token_id=vocabulary["<s>"],
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for layer in model.model.layers:
            bias = torch.zeros(4, 16)
            bias[:, 7] = bias[:, 15] = 6.0  # the slowest rotation: hardly turned by the position
            layer.self_attn.q_proj.bias.data.copy_(bias.flatten())
    model.eval().save_pretrained(folder)
    return folder


def _save_tokenizer(folder: Path) -> dict[str, int]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>", "<user>", "<bot>", "#", ".", ",", ":", "?", "-"]
    digits = [str(i) for i in range(10)]
    vocabulary = {word: i for i, word in enumerate([*special, *digits, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.decoder = decoders.WordPiece(prefix="", cleanup=False)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<user>", "<bot>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return vocabulary


def model_info(folder: Path, dtype: str = "float32", window: int = 1024) -> ModelInfo:
    return ModelInfo("tiny", folder, dtype, f"tiny-{dtype}", window, str(folder))


@contextmanager
def one_thread() -> Iterator[None]:
    """The isolated worker computes on one thread; so must what is compared with it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def example(seed: int, words: int, **changes: Any) -> Example:
    """A context of records among random words, and a question for one of them."""
    rng = random.Random(seed)
    keys = rng.sample(WORDS, 3)
    codes = [f"{rng.randrange(1000):03d}" for _ in keys]
    text = [rng.choice(WORDS) for _ in range(words)]
    for key, code in zip(keys, codes, strict=True):
        at = rng.randrange(len(text) + 1)
        text[at:at] = [f"{key} : {code} ."]
    pick = rng.randrange(3)
    given: dict[str, Any] = {
        "context": " ".join(text),
        "question": f" {' '.join(rng.sample(WORDS, rng.randrange(1, 6)))} {keys[pick]} ?",
        "answers": (codes[pick],),
        "answer_prefix": rng.choice(["", f"{keys[pick]} :"]),
        "max_new_tokens": rng.choice([3, 6, 10]),
        "seed": seed,
    }
    return Example(**{**given, **changes})


def examples(n: int, *, shortest: int = 40, longest: int = 120) -> list[Example]:
    """Examples of ``n`` different lengths."""
    step = (longest - shortest) / max(1, n - 1)
    return [example(i, round(shortest + i * step)) for i in range(n)]


def folder_artifact(
    body: str,
    *,
    mode: str = "auto",
    name: str = "candidate",
    ratio: float = 0.5,
    budget: Mapping[str, float] | None = None,
    more: Mapping[str, str] | None = None,
) -> Candidate:
    """A candidate whose ``press.py`` is ``body``."""
    lines = "\n".join(
        f"{k} = {v}" for k, v in {"compression_ratio": ratio, **(budget or {})}.items()
    )
    manifest = (
        f'[artifact]\nname = "{name}"\ndomain = "kv-compression"\n'
        f'entry = "press.py:build_press"\nmode = "{mode}"\n[budget]\n{lines}\n'
        '[provenance]\norigin = "test"\n'
    )
    return Candidate("artifact", {"artifact.toml": manifest, "press.py": body, **(more or {})})


COMPRESS = """
import os, sys, time, socket, torch
from dataclasses import dataclass
from kvpress import BasePress, KnormPress, ScorerPress


@dataclass
class Press(BasePress):
    compression_ratio: float = 0.0

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        n = max(1, int(keys.shape[2] * (1 - self.compression_ratio)))
{body}


def build_press(compression_ratio):
{load}
    return Press(compression_ratio)
"""


def press_that(body: str = "return keys[:, :, :n], values[:, :, :n]", load: str = "pass") -> str:
    """The source of a press whose ``compress`` (and entry point) do as told; ``n`` is allowed."""
    import textwrap

    return COMPRESS.format(
        body=textwrap.indent(textwrap.dedent(body).strip(), " " * 8),
        load=textwrap.indent(textwrap.dedent(load).strip(), " " * 4),
    )


@lru_cache(maxsize=4)
def _pipeline(folder: Path, dtype: str) -> Any:
    from kvpress import KVPressTextGenerationPipeline

    from galoop.models import load

    model, tokenizer = load(model_info(folder, dtype))
    return KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)


def kvpress_answer(
    info: ModelInfo, candidate: Candidate | None, asked: Example, ratio: float, repeat: int = 0
) -> str:
    """What kvpress's own pipeline answers, seeded as the session seeds the artifact."""
    import torch

    pipeline = _pipeline(info.path, info.dtype)
    press = load_press(candidate.files, ratio)[0] if candidate else None
    for layer in pipeline.model.model.layers:
        layer.self_attn.masked_key_indices = None
    if candidate:
        torch.manual_seed(derive_seed("artifact", candidate.key, asked.key, repeat))
    before = pipeline.model.config._attn_implementation
    try:
        from galoop.domains.kv_compression.replay_modes import needs_attentions

        if press is not None and needs_attentions(press):
            pipeline.model.config._attn_implementation = "eager"
        out = pipeline(
            asked.context,
            question=asked.question,
            answer_prefix=asked.answer_prefix,
            press=press,
            max_new_tokens=asked.max_new_tokens,
        )
    finally:
        pipeline.model.config._attn_implementation = before
    return str(out["answer"])


def by_expression(expression: str, ratio: float) -> Candidate:
    return materialise(expression, {"compression_ratio": ratio})
