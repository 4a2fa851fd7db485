"""A tiny tokenizer and probes for the tests of the probe contract."""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ("<|im_start|>", "<|im_end|>", "<unk>")

GOOD = """
import random


def build(rng, length, count_tokens):
    code = str(rng.randint(1000, 9999))
    needle = f"The vault code is {code}."
    posts = ["alder", "birch", "cedar", "elm"]
    lines = []
    while True:
        line = f"The {rng.choice(posts)} post logged {rng.randint(10, 99)} crates."
        if count_tokens(" ".join([*lines, line, needle])) > length:
            break
        lines.append(line)
    lines.insert(rng.randrange(len(lines) + 1), needle)
    return {
        "context": " ".join(lines),
        "question": "\\nWhat is the vault code?",
        "answer": code,
        "answer_prefix": "The vault code is",
        "evidence": [needle],
    }
"""


def probe(change: str, *, head: str = "") -> str:
    """The good probe with ``change`` run on its dict ``d`` (and ``rng``, ``length``) at the end."""
    body = GOOD.replace("    return {", "    d = {")
    return f"{head}\n{body}\n    {change}\n    return d\n"


def write_tokenizer(folder: Path) -> Path:
    """A word-level tokenizer with control tokens and a real unknown token, in ``folder``.

    A few words and every printable ASCII character are tokens; everything else is unknown.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    whole = ["alder", "birch", "cedar", "code", "crates", "logged", "post", "The", "vault", "is"]
    tokens = [*SPECIAL, *whole, *(chr(code) for code in range(33, 127))]
    tokenizer = Tokenizer(
        models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Split(Regex("|".join([*whole, "."])), behavior="isolated"),
        ]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    # Truncation left over from training must not hide a long context.
    tokenizer.enable_truncation(max_length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|im_start|>", "extra_special_tokens": ["<tool>"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
