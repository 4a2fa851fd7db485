"""Needle in a haystack: one fact at a wanted depth of a text of a wanted length.

Source: Kamradt, *Needle In A Haystack: pressure testing LLMs* (2023): a sentence that does not
belong is put at the end of a sentence at the wanted depth of essays, over a grid of depths and
lengths. The original has one needle and lets a language model grade the answer from 1 to 10; here
the needle differs from example to example, and an answer counts if it says the fact's two words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from galoop.errors import UnknownNameError, UsageError
from galoop.hashing import derive_seed
from galoop.suites.fitting import largest
from galoop.suites.material import stream, words
from galoop.suites.prose import essay_sentences, generated_sentences, proper_name, stretch
from galoop.types import Example

_NAME = re.compile(r"depth(\d+)_length(\d+)")


@dataclass(frozen=True)
class Needle:
    """Needle in a haystack: a grid of depths and lengths, each cell a component.

    Parameters
    ----------
    essays : Path, optional
        The haystack; generated sentences without it.
    depths, lengths : tuple of int
        In percent: how deep the needle stands, and how much of the asked length is used.
    """

    essays: Path | None = None
    depths: tuple[int, ...] = (0, 25, 50, 75, 100)
    lengths: tuple[int, ...] = (50, 100)
    name: str = "needle"

    takes: ClassVar[tuple[str, ...]] = ("essays",)

    def components(self) -> tuple[str, ...]:
        """``depth50_length100`` and so on: lengths outside, depths inside."""
        return tuple(f"depth{d}_length{p}" for p in self.lengths for d in self.depths)

    def build(
        self,
        component: str,
        n: int,
        seed: int,
        length: int,
        count_tokens: Callable[[str], int],
    ) -> list[Example]:
        """Generate examples; see :meth:`galoop.suites.Suite.build`.

        All components of one length and seed hold the same texts and needles: only the depth
        differs.
        """
        depth, percent = self._cell(component)
        if n < 1:
            raise UsageError(f"{n} examples of {component} were asked for", "ask for at least one")
        most = length * percent // 100
        return [self._example(depth, most, seed, i, count_tokens) for i in range(n)]

    def _cell(self, component: str) -> tuple[int, int]:
        match = _NAME.fullmatch(component)
        if match is None or component not in self.components():
            raise UnknownNameError(
                f"needle has no component {component!r}",
                f"components: {', '.join(self.components())}",
            )
        return int(match[1]), int(match[2])

    def _example(
        self, depth: int, length: int, seed: int, index: int, count: Callable[[str], int]
    ) -> Example:
        own = derive_seed("needle", seed, index)
        rng = stream(own, "needle")
        place = proper_name(rng)
        fact = f"{rng.choice(words('adjective'))} {rng.choice(words('noun'))}"
        needle = f"On market day, people in {place} carry the {fact}."
        hay = self._hay(own, length)

        def draft(n: int) -> str | None:
            text = _insert(hay(n), needle, depth)
            return text if count(text) <= length else None

        context = largest(draft, 2, 500_000)
        if context is None:
            least = count(_insert(hay(2), needle, depth))
            raise UsageError(
                f"a needle does not fit a context of {length} tokens",
                f"the smallest workable length is about {least + 8} tokens for a component of "
                "length 100 with this tokenizer",
            )
        return Example(
            context=context,
            question=f"\nWhat do people in {place} carry on market day?",
            answers=(fact,),
            answer_prefix=f"On market day, people in {place} carry the",
            evidence=(needle,),
            seed=own,
            max_new_tokens=16,
            scoring="any",
        )

    def _hay(self, own: int, length: int) -> Callable[[int], list[str]]:
        rng = stream(own, "hay")
        if self.essays is not None:
            known = essay_sentences(self.essays)
            start = rng.randrange(len(known))
            return lambda n: stretch(known, start, n)
        state = rng.getstate()

        def generate(n: int) -> list[str]:
            rng.setstate(state)  # more sentences begin with the same ones
            return generated_sentences(rng, n)

        return generate

    def parameters(
        self, component: str, length: int, count_tokens: Callable[[str], int]
    ) -> Mapping[str, Any]:
        """Depth, length and kind of haystack."""
        depth, percent = self._cell(component)
        return {
            "form": "essays" if self.essays else "generated haystack",
            "depth_percent": depth,
            "max_new_tokens": 16,
            "length": length * percent // 100,
        }


def _insert(sentences: list[str], needle: str, depth: int) -> str:
    """The needle after the last sentence that ends at or before the depth, in characters."""
    target = depth / 100 * sum(len(s) + 1 for s in sentences)
    at, seen = 0, 0
    while at < len(sentences) and seen + len(sentences[at]) + 1 <= target + 1e-6:
        seen += len(sentences[at]) + 1
        at += 1
    return " ".join([*sentences[:at], needle, *sentences[at:]])
