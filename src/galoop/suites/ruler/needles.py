"""Needles in a haystack: niah_single_1, niah_multikey_2, niah_multikey_3."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from galoop.suites.ruler.task import NOISE, Draft, stream, words


@dataclass(frozen=True)
class Needle:
    """One needle among lines that are filler or other needles.

    Parameters
    ----------
    name : str
    haystack : {"noise", "needles"}
        Repeated filler, or needles with other keys. One unit is one line.
    key : {"words", "uuids"}
        An adjective and a noun, or a UUID.
    value : {"numbers", "uuids"}
        Seven digits, or a UUID.
    fewest_units : int
    """

    name: str
    haystack: Literal["noise", "needles"]
    key: Literal["words", "uuids"]
    value: Literal["numbers", "uuids"]
    fewest_units: int
    max_new_tokens: int = 128
    most_units: int = 1_000_000

    def draft(self, seed: int, units: int) -> Draft:
        """Build one example; see :class:`galoop.suites.ruler.task.Task`."""
        rng = stream(seed, "needle")
        key, value = identifier(rng, self.key), identifier(rng, self.value)
        kind = "number" if self.value == "numbers" else "code"
        needle = sentence(kind, key, value)
        lines = self._hay(stream(seed, "haystack"), units, kind, {key, value})
        lines.insert(stream(seed, "position").randrange(units + 1), needle)
        what = f"a registered {kind}" if self.haystack == "noise" else f"registered {kind}s"
        preamble = f"The text below names {what}. Remember: you will be asked about it afterwards."
        return Draft(
            context="\n".join([preamble, *lines]),
            question=f"\nWhat is the registered {kind} of {key} in the text above?",
            answer_prefix=f"In the text above, the registered {kind} of {key} is",
            answers=(value,),
            evidence=(needle,),
        )

    def _hay(self, rng: random.Random, units: int, kind: str, taken: set[str]) -> list[str]:
        if self.haystack == "noise":
            return [" ".join(NOISE)] * units
        lines: list[str] = []
        taken = set(taken)
        while len(lines) < units:
            key, value = identifier(rng, self.key), identifier(rng, self.value)
            if key in taken or value in taken:
                continue
            taken |= {key, value}
            lines.append(sentence(kind, key, value))
        return lines

    def parameters(self) -> Mapping[str, Any]:
        """What distinguishes this form."""
        return {
            "form": "ruler",
            "haystack": self.haystack,
            "key": self.key,
            "value": self.value,
            "needles_asked": 1,
        }


def identifier(rng: random.Random, kind: str) -> str:
    """A key or value: two words, seven digits, or a UUID."""
    if kind == "words":
        return f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}"
    if kind == "numbers":
        return str(rng.randint(1_000_000, 9_999_999))
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def sentence(kind: str, key: str, value: str) -> str:
    """A needle."""
    return f"The registered {kind} of {key} is {value}."
