"""The words that the probe grammar writes into its programs.

Nouns, adjectives and verbs come from the lists of the ``wonderwords`` package; names and the
names of attributes are ordinary English. One program gets disjoint sets of words for its keys,
its values and its filler, so that no filler sentence can state an answer.
"""

from __future__ import annotations

import random
from functools import lru_cache


def listed(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


FIRST_NAMES = listed(
    "Adam Alice Amira Anna Arthur Astrid Bella Bruno Carla Cecil Clara Daniel David Diana Edgar "
    "Elena Emil Erika Felix Fiona Frank Greta Hanna Hector Helen Hugo Ingrid Irene Ivan Jonas "
    "Julia Karim Laura Leon Lydia Magnus Marta Maya Nadia Nils Nora Olga Oscar Paula Pedro "
    "Quentin Ralph Rosa Samir Silvia Simon Sofia Tara Theo Tomas Ursula Vera Victor Wanda Yusuf"
)
LAST_NAMES = listed(
    "Abbott Bauer Bennett Carter Castro Dalton Eriksen Fischer Fontaine Garcia Hansen Hoffman "
    "Ishida Jensen Kaplan Keller Larsen Lindgren Mendez Moreau Nakamura Novak Okafor Petrov "
    "Quinn Ramos Rossi Sato Schultz Silva Tanaka Vogel Weber Yamada Zeller"
)
MONTHS = listed(
    "January February March April May June July August September October November December"
)

ATTRIBUTES = {
    "digits": ("access code", "locker number", "badge number", "serial number", "extension"),
    "word": ("password", "code word", "symbol", "secret word"),
    "two words": ("password", "code phrase", "call sign", "motto"),
    "code": ("reference code", "ticket code", "license plate", "product key"),
    "name": ("owner", "guardian", "contact", "helper"),
    "date": ("opening date", "inspection date", "deadline", "delivery date"),
    "time": ("departure time", "closing time", "arrival time", "start time"),
    "amount": ("price", "balance", "fee", "deposit"),
}
OTHER_ATTRIBUTES = ("height", "weight", "age", "rank", "score", "distance")
CATEGORIES = ("unit", "room", "station", "machine", "vessel", "gate")
COLUMNS = ("color", "region", "material", "season")

TEMPLATES = (
    "The {a} {n} stood beside the {m}.",
    "Nobody could {v} without the {n}.",
    "They wanted to {v} near the {a} {n}.",
    "Later the {n} seemed rather {a}.",
    "We saw the {n} before the {m}.",
    "It was a calm day for the {a} {n}.",
    "Some people {v} when the {n} is {a}.",
    "Her {n} was more {a} than the {m}.",
    "In the evening we would {v} by the {n}.",
    "There is always one {a} {n} in the {m}.",
)
STORY = (
    ("In the morning", "After lunch", "Before dawn", "That evening", "On the way home"),
    ("the {n}", "the {a} {n}", "a friend of the {n}", "someone with a {a} {n}"),
    ("walked past", "looked for", "talked about", "waited near", "carried", "forgot"),
    ("the {m}", "another {m}", "the {a} {m}"),
)


@lru_cache(maxsize=4)
def _words(category: str) -> tuple[str, ...]:
    from wonderwords import RandomWord, is_profanity

    found = RandomWord().filter(include_categories=[category], regex=r"[a-z]{4,6}")
    return tuple(sorted({word for word in found if not is_profanity(word)}))


class Words:
    """Draws words for one program; no word is given twice, and none is part of another.

    Parameters
    ----------
    seed : int
    avoid : str
        Text in which no drawn word may occur (the fixed wording of the program).
    """

    def __init__(self, seed: int, avoid: str) -> None:
        self._rng = random.Random(seed)
        self._avoid = avoid.lower()
        self._used: list[str] = []

    def _draw(self, pool: tuple[str, ...], count: int) -> list[str]:
        taken: list[str] = []
        # More than are needed, since some are refused; shuffling all of a long list is slow.
        for word in self._rng.sample(pool, min(len(pool), 4 * count + 60)):
            low = word.lower()
            if low in self._avoid or any(low in old or old in low for old in self._used):
                continue
            self._used.append(low)
            taken.append(word)
            if len(taken) == count:
                break
        return taken

    def nouns(self, count: int) -> list[str]:
        """``count`` nouns in lower case."""
        return self._draw(_words("noun"), count)

    def adjectives(self, count: int) -> list[str]:
        """``count`` adjectives in lower case."""
        return self._draw(_words("adjective"), count)

    def verbs(self, count: int) -> list[str]:
        """``count`` verbs in lower case, in the infinitive."""
        return self._draw(_words("verb"), count)

    def first_names(self, count: int) -> list[str]:
        """Up to ``count`` given names."""
        return self._draw(FIRST_NAMES, count)

    def last_names(self, count: int) -> list[str]:
        """Up to ``count`` family names."""
        return self._draw(LAST_NAMES, count)

    def choice(self, options: tuple[str, ...]) -> str:
        """One of the options (not remembered as used)."""
        return self._rng.choice(options)

    def sample(self, options: tuple[str, ...], count: int) -> list[str]:
        """``count`` different options (not remembered as used)."""
        return self._rng.sample(options, count)

    def sentences(self, count: int) -> list[str]:
        """``count`` plain sentences of prose, each with words of its own."""
        templates = self._rng.sample(TEMPLATES, min(count, len(TEMPLATES)))
        while len(templates) < count:
            templates.append(self._rng.choice(TEMPLATES))
        return [
            template.format(
                a=self.adjectives(1)[0],
                n=(nouns := self.nouns(2))[0],
                m=nouns[1],
                v=self.verbs(1)[0],
            )
            for template in templates
        ]
