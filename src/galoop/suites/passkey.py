"""Passkey retrieval: a number among sentences that repeat.

Source: Mohtashami and Jaggi, *Landmark Attention* (arXiv 2305.16300), appendix: the filler, a pass
key of up to five digits that is said twice, at a random place; an answer counts if it holds the
key. The prompt says the same in other words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from galoop.errors import UnknownNameError, UsageError
from galoop.hashing import derive_seed
from galoop.suites.fitting import largest
from galoop.suites.material import NOISE, stream
from galoop.types import Example

_PREAMBLE = (
    "Somewhere in the irrelevant text below stands one thing that matters. Find it and keep it in "
    "mind; you will be asked about it."
)


@dataclass(frozen=True)
class Passkey:
    """Passkey retrieval: a five-digit key among repeated filler."""

    name: str = "passkey"

    def components(self) -> tuple[str, ...]:
        """One: ``passkey``."""
        return ("passkey",)

    def build(
        self,
        component: str,
        n: int,
        seed: int,
        length: int,
        count_tokens: Callable[[str], int],
    ) -> list[Example]:
        """Generate examples; see :meth:`galoop.suites.Suite.build`."""
        _check(component, n)
        return [self._example(seed, i, length, count_tokens) for i in range(n)]

    def _example(self, seed: int, index: int, length: int, count: Callable[[str], int]) -> Example:
        own = derive_seed("passkey", seed, index)
        key = str(stream(own, "key").randint(10_000, 99_999))
        needle = f"The pass key is {key}. Keep it in mind. {key} is the pass key."
        filler = " ".join(NOISE)

        def draft(lines: int) -> str | None:
            # The place is a fraction drawn once, so that a longer haystack keeps it.
            at = round(stream(own, "place").random() * lines)
            text = "\n".join([_PREAMBLE, *[filler] * at, needle, *[filler] * (lines - at)])
            return text if count(text) <= length else None

        context = largest(draft, 1, 1_000_000)
        if context is None:
            least = count("\n".join([_PREAMBLE, filler, needle]))
            raise UsageError(
                f"a passkey does not fit a context of {length} tokens",
                f"the smallest workable length is about {least + 4} tokens with this tokenizer",
            )
        return Example(
            context=context,
            question="\nWhat is the pass key?",
            answers=(key,),
            answer_prefix="The pass key is",
            evidence=(needle,),
            seed=own,
            max_new_tokens=16,
            scoring="any",
        )

    def parameters(
        self, component: str, length: int, count_tokens: Callable[[str], int]
    ) -> Mapping[str, Any]:
        """Constant, apart from the length."""
        _check(component, 1)
        return {"form": "original", "digits": 5, "max_new_tokens": 16, "length": length}


def _check(component: str, n: int) -> None:
    if component != "passkey":
        raise UnknownNameError(f"passkey has no component {component!r}", "components: passkey")
    if n < 1:
        raise UsageError(f"{n} examples of passkey were asked for", "ask for at least one")
