"""What all RULER tasks share: a draft of an example, and the haystack's size as the free knob."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Protocol

from galoop.hashing import derive_seed

# The filler of the passkey test (Mohtashami and Jaggi, arXiv 2305.16300), which RULER repeats too.
NOISE: tuple[str, ...] = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)


@dataclass(frozen=True)
class Draft:
    """The parts of an example that depend on chance and on the size of the haystack."""

    context: str
    question: str
    answer_prefix: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...] = ()


class Task(Protocol):
    """One task in one form.

    ``draft(seed, units)`` is a pure function; more units make a longer context and leave the
    question, and what it asks for, alone.
    """

    @property
    def name(self) -> str:
        """Name of the component."""
        ...

    @property
    def max_new_tokens(self) -> int:
        """RULER's length of the answer, in tokens."""
        ...

    @property
    def fewest_units(self) -> int:
        """Smallest haystack that still makes the task."""
        ...

    @property
    def most_units(self) -> int:
        """Largest haystack that there is material for."""
        ...

    def draft(self, seed: int, units: int) -> Draft:
        """Build one example with a haystack of ``units``."""
        ...

    def parameters(self) -> Mapping[str, Any]:
        """What distinguishes this form, for records."""
        ...


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
