"""What generated examples are made of: filler, words, and a source of chance for each part."""

from __future__ import annotations

import random
from functools import lru_cache
from importlib.resources import files

from galoop.hashing import derive_seed

# The filler of the passkey test (Mohtashami and Jaggi, arXiv 2305.16300), which RULER repeats too.
NOISE: tuple[str, ...] = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)


def stream(seed: int, what: str) -> random.Random:
    """An own source of chance for one part of an example.

    With one for each part, a longer haystack does not change what is asked.
    """
    return random.Random(derive_seed(seed, what))


@lru_cache(maxsize=8)
def words(*lists: str) -> tuple[str, ...]:
    """Lower-case words of the lists of ``wonderwords`` (noun, adjective, verb), sorted.

    RULER takes the same lists whole. Here words with spaces, hyphens or capitals are left out,
    and so are the package's own profanities, since people read these texts.
    """
    assets = files("wonderwords") / "assets"

    def read(name: str) -> set[str]:
        text = (assets / f"{name}list.txt").read_text(encoding="utf-8")
        return {line.strip() for line in text.splitlines()}

    found = set().union(*(read(name) for name in lists)) - read("profanity")
    return tuple(
        sorted(
            word
            for word in found
            if word.isascii() and word.isalpha() and word.islower() and len(word) > 1
        )
    )
