"""Counting words: cwe (common words) and fwe (frequent code words)."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from galoop.suites.ruler.task import Draft, stream, words

_LISTS = ("noun", "adjective", "verb")


@dataclass(frozen=True)
class CommonWords:
    """A numbered list in which some words stand often and the others rarely.

    One unit is one rare word. RULER: 10 common words 30 times, the others 3 times, and below 4,096
    tokens 6 times and once. The worked example in front has as many rare words as common ones;
    they stand (10 and 3, or 3 and 1) times.

    Parameters
    ----------
    common : int
        How many common words; all are asked for.
    repeats, rare_repeats : int
    worked_repeats, worked_rare_words, worked_rare_repeats : int
        Of the worked example; no rare words (None) leave it out.
    form : str
        ``ruler`` or ``reduced``, for records.
    """

    common: int = 10
    repeats: int = 6
    rare_repeats: int = 1
    worked_repeats: int = 3
    worked_rare_words: int | None = 10
    worked_rare_repeats: int = 1
    form: str = "ruler"
    name: str = "cwe"
    max_new_tokens: int = 120

    @property
    def fewest_units(self) -> int:
        """As many rare words as common ones."""
        return self.common

    @property
    def most_units(self) -> int:
        """What the word lists hold, with room for the words that have to be left out."""
        return len(words(*_LISTS)) // 2

    def draft(self, seed: int, units: int) -> Draft:
        """Build one example; see :class:`galoop.suites.ruler.task.Task`."""
        preamble = (
            "Here is a numbered list of words. Some of them stand in it more often than others; "
            "take note of those."
        )
        question = f"\nQuestion: Which {self.common} words occur most often in the list above?"
        prefix = f"Answer: The {self.common} words that occur most often are:"
        worked = ""
        if self.worked_rare_words is not None:
            answers, shown = self._list(
                stream(seed, "worked"),
                self.worked_repeats,
                self.worked_rare_words,
                self.worked_rare_repeats,
            )
            worked = f"{preamble}\n{shown}{question} {prefix} {_numbered(answers)}\n"
        answers, asked = self._list(stream(seed, "asked"), self.repeats, units, self.rare_repeats)
        return Draft(
            context=f"{worked}{preamble}\n{asked}",
            question=question,
            answer_prefix=prefix,
            answers=tuple(answers),
        )

    def _list(
        self, rng: random.Random, repeats: int, rare: int, rare_repeats: int
    ) -> tuple[list[str], str]:
        pool = words(*_LISTS)
        common: list[str] = []
        while len(common) < self.common:
            word = rng.choice(pool)
            if not any(word in other or other in word for other in common):
                common.append(word)
        # The score asks for substrings: "art" must not be found because "cart" was written.
        others: dict[str, None] = {}
        while len(others) < rare:
            word = rng.choice(pool)
            if not any(other in word for other in common):
                others[word] = None
        listed = common * repeats + list(others) * rare_repeats
        rng.shuffle(listed)
        return common, _numbered(listed)

    def parameters(self) -> Mapping[str, Any]:
        """What distinguishes this form."""
        return {
            "form": self.form,
            "common_words": self.common,
            "repeats": [self.repeats, self.rare_repeats],
            "worked_example": self.worked_rare_words is not None,
        }


def _numbered(items: list[str]) -> str:
    return " ".join(f"{i}. {item}" for i, item in enumerate(items, start=1))


@dataclass(frozen=True)
class FrequentWords:
    """Code words whose frequencies fall like k^-α; rank 1 is noise ("...").

    One unit is one word of the text, before rounding: rank k occurs ⌊units · k^-α / ζ(α)⌋ times.
    The three words of rank 2 to 4 are asked for. Where rounding would make rank 5 as frequent as
    rank 4, the lower ranks lose one occurrence, so that the answer is unique.

    Parameters
    ----------
    vocabulary : int
        Ranks. RULER: a fiftieth of the length in tokens; here never fewer than 5, since there
        would be nothing to confuse the answers with.
    alpha : float
    """

    vocabulary: int
    alpha: float = 2.0
    letters: int = 6
    name: str = "fwe"
    max_new_tokens: int = 50
    # From here on ranks 4 and 5 occur twice and once.
    fewest_units: int = 53
    most_units: int = 5_000_000

    def draft(self, seed: int, units: int) -> Draft:
        """Build one example; see :class:`galoop.suites.ruler.task.Task`."""
        rng = stream(seed, "vocabulary")
        ranked = ["..."]
        while len(ranked) < self.vocabulary:
            word = "".join(rng.choices(string.ascii_lowercase, k=self.letters))
            if word not in ranked:
                ranked.append(word)
        text = [
            word
            for word, times in zip(ranked, self._counts(units), strict=True)
            for _ in range(times)
        ]
        stream(seed, "order").shuffle(text)
        preamble = (
            "Here is a text of code words. Keep track of how often each of them occurs, and leave "
            "the dots '...' aside."
        )
        return Draft(
            context=f"{preamble}\n{' '.join(text)}",
            question=(
                "\nQuestion: Which three code words occur most often in the text above? Give the "
                "words alone, without explanation."
            ),
            answer_prefix="Answer: The three code words that occur most often are:",
            answers=tuple(ranked[1:4]),
        )

    def _counts(self, units: int) -> list[int]:
        zeta = _zeta(self.alpha)
        counts = [int(units * rank**-self.alpha / zeta) for rank in range(1, self.vocabulary + 1)]
        return counts[:4] + [min(count, counts[3] - 1) for count in counts[4:]]

    def parameters(self) -> Mapping[str, Any]:
        """What distinguishes this form."""
        return {
            "form": "ruler",
            "alpha": self.alpha,
            "vocabulary": self.vocabulary,
            "letters": self.letters,
        }


def _zeta(alpha: float, terms: int = 1000) -> float:
    """Riemann's ζ by its first terms and the Euler-Maclaurin remainder (error below 1e-12)."""
    head = sum(k**-alpha for k in range(1, terms))
    return (
        head
        + terms ** (1 - alpha) / (alpha - 1)
        + terms**-alpha / 2
        + alpha * terms ** (-alpha - 1) / 12
    )
