"""Needles in essays: niah_single_2, niah_single_3, niah_multikey_1, multivalue and multiquery."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from galoop.suites.prose import essay_sentences, stretch
from galoop.suites.ruler.needles import identifier, sentence
from galoop.suites.ruler.task import NOISE, Draft, stream


@dataclass(frozen=True)
class EssayNeedles:
    """Needles between the sentences of essays; one unit is one sentence.

    Parameters
    ----------
    name : str
    essays : Path or None
        The essays. None takes RULER's repeated filler instead, a variant of this harness.
    value : {"numbers", "uuids"}
    keys, values, queries : int
        Needles have ``keys`` different keys with ``values`` values each; ``queries`` of the keys
        are asked for. RULER: multikey_1 4, 1, 1; multivalue 1, 4, 1; multiquery 4, 1, 4.

    RULER always takes the essays from their beginning; here every example begins elsewhere.
    """

    name: str
    essays: Path | None
    value: Literal["numbers", "uuids"] = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1
    max_new_tokens: int = 128
    most_units: int = 500_000

    @property
    def fewest_units(self) -> int:
        """Enough sentences to stand between the needles."""
        return self.keys * self.values + 2

    def draft(self, seed: int, units: int) -> Draft:
        """Build one example; see :class:`galoop.suites.ruler.task.Task`."""
        rng = stream(seed, "needle")
        kind = "number" if self.value == "numbers" else "code"
        told = self._needles(rng)
        needles = [sentence(kind, key, value) for key, values in told.items() for value in values]
        asked = rng.sample(list(told), self.queries)
        answers = tuple(value for key in asked for value in told[key])
        order = stream(seed, "order")
        placed = order.sample(needles, len(needles))
        hay = self._hay(stream(seed, "haystack"), units)
        # Places are fractions drawn once: a longer haystack leaves them where they are.
        places = stream(seed, "places")
        for at, needle in sorted(
            ((round(places.random() * units), needle) for needle in placed), reverse=True
        ):
            hay.insert(at, needle)
        plural = len(answers) > 1
        what = f"registered {kind}s" if len(needles) > 1 else f"a registered {kind}"
        names = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])}, and {asked[-1]}"
        are = f"are all the registered {kind}s" if plural else f"is the registered {kind}"
        return Draft(
            context=f"The text below names {what}. Remember: you will be asked about it "
            f"afterwards.\n{' '.join(hay)}",
            question=f"\nWhat {are} of {names} in the text above?",
            answer_prefix=f"In the text above, the registered {kind}{'s' if plural else ''} of "
            f"{names} {'are' if plural else 'is'}",
            answers=answers,
            evidence=tuple(sentence(kind, key, v) for key in asked for v in told[key]),
        )

    def _needles(self, rng: random.Random) -> dict[str, list[str]]:
        """Values by key, none of them twice."""
        told: dict[str, list[str]] = {}
        taken: set[str] = set()
        while len(told) < self.keys:
            key = identifier(rng, "words")
            if any(key in other or other in key for other in told):
                continue
            values: list[str] = []
            while len(values) < self.values:
                value = identifier(rng, self.value)
                if value not in taken:
                    taken.add(value)
                    values.append(value)
            told[key] = values
        return told

    def _hay(self, rng: random.Random, units: int) -> list[str]:
        if self.essays is None:
            return [NOISE[i % len(NOISE)] for i in range(units)]
        known = essay_sentences(self.essays)
        return stretch(known, rng.randrange(len(known)), units)

    def parameters(self) -> Mapping[str, Any]:
        """What distinguishes this form."""
        return {
            "form": "ruler" if self.essays else "noise haystack",
            "haystack": "essays" if self.essays else "noise",
            "key": "words",
            "value": self.value,
            "keys": self.keys,
            "values": self.values,
            "needles_asked": self.queries * self.values,
        }
