"""Variable tracking: vt, one chain of assignments scattered through filler."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from galoop.suites.ruler.task import NOISE, Draft, stream


@dataclass(frozen=True)
class VariableTracking:
    """A chain ``VAR A = 12345``, ``VAR B = VAR A``, …, in order, among filler sentences.

    Parameters
    ----------
    hops : int
        Assignments from variable to variable; hops + 1 variables hold the value.
    worked_sentences : int or None
        Filler sentences of the worked example in front (its variables have three letters, as in
        RULER); None leaves the worked example out. RULER's has about 75.
    """

    hops: int = 4
    worked_sentences: int | None = 75
    name: str = "vt"
    max_new_tokens: int = 30
    most_units: int = 5_000_000

    @property
    def fewest_units(self) -> int:
        """One unit is one filler sentence; no fewer than the worked example has."""
        return max(len(NOISE), self.worked_sentences or 0)

    def draft(self, seed: int, units: int) -> Draft:
        """Build one example; see :class:`galoop.suites.ruler.task.Task`."""
        taken = {"VAR"}
        worked = ""
        if self.worked_sentences is not None:
            shown = self._problem(seed, "worked", self.worked_sentences, 3, taken)
            worked = (
                f"{shown.context}{shown.question}\n{shown.answer_prefix} "
                f"{' '.join(shown.answers)}\n\n"
            )
        asked = self._problem(seed, "asked", units, 5, taken)
        return Draft(
            context=worked + asked.context,
            question=asked.question,
            answer_prefix=asked.answer_prefix,
            answers=asked.answers,
            evidence=asked.evidence,
        )

    def _problem(self, seed: int, part: str, units: int, letters: int, taken: set[str]) -> Draft:
        rng = stream(seed, part)
        value = _fresh(rng, string.digits[1:], 5, taken)
        names = [_fresh(rng, string.ascii_uppercase, letters, taken) for _ in range(self.hops + 1)]
        chain = [f"VAR {names[0]} = {value}"]
        chain += [f"VAR {new} = VAR {old}" for old, new in itertools.pairwise(names)]
        lines = _scatter(stream(seed, f"{part} positions"), chain, units)
        return Draft(
            context="\n".join(
                ["The text below assigns values to variables. Follow the assignments.", "", *lines]
            ),
            question=f"\nQuestion: Which variables hold the value {value} in the text above?",
            answer_prefix=(
                f"Answer: In the text above, {len(names)} variables hold the value {value}, namely:"
            ),
            answers=tuple(names),
            evidence=tuple(chain),
        )

    def parameters(self) -> Mapping[str, Any]:
        """What distinguishes this form."""
        full = VariableTracking()
        return {
            "form": "ruler" if self == full else "reduced",
            "chains": 1,
            "hops": self.hops,
            "worked_sentences": self.worked_sentences,
        }


def _fresh(rng: random.Random, alphabet: str, size: int, taken: set[str]) -> str:
    """A string that is no part of another one: a substring would score for it."""
    while True:
        drawn = "".join(rng.choices(alphabet, k=size))
        if not any(drawn in other or other in drawn for other in taken):
            taken.add(drawn)
            return drawn


def _scatter(rng: random.Random, chain: list[str], units: int) -> list[str]:
    """Filler of ``units`` sentences with the chain's statements at random places, in order.

    The filler comes in lines of five sentences; where these are too few to separate the
    statements, single sentences are used, as in RULER.
    """
    sentences = [NOISE[i % len(NOISE)] for i in range(units)]
    lines = [" ".join(sentences[i : i + len(NOISE)]) for i in range(0, len(sentences), len(NOISE))]
    if len(lines) <= len(chain):
        lines = sentences
    gaps = range(len(lines) + 1)
    enough = len(gaps) >= len(chain)
    places = rng.sample(gaps, len(chain)) if enough else rng.choices(gaps, k=len(chain))
    # From the back, so that places stay right, and equal places keep the chain's order.
    for place, statement in reversed(list(zip(sorted(places), chain, strict=True))):
        lines.insert(place, statement)
    return lines
