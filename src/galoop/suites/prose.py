"""Text for haystacks and windows: a user's own, or generated sentences that are labelled so."""

from __future__ import annotations

import json
import random
import re
from functools import lru_cache
from pathlib import Path

from galoop.errors import UsageError
from galoop.suites.material import words

_SENTENCE = re.compile(r"[^.!?]*[.!?]+[\"')\]]*\s*|[^.!?]+$")
#: More of one book is not read: PG19's longest have several million characters.
_MOST_CHARACTERS = 4_000_000


def text_files(path: Path, what: str) -> list[Path]:
    """A text file, or the .txt files below a folder in the order of their names.

    Raises
    ------
    UsageError
        Nothing there.
    """
    if path.is_file():
        return [path]
    found = sorted(p for p in path.rglob("*.txt") if p.is_file()) if path.is_dir() else []
    if not found:
        raise UsageError(f"{what}: {path} is no text file and holds none", "give .txt files")
    return found


def read_text(path: Path, what: str) -> str:
    """A file's text.

    Raises
    ------
    UsageError
        It cannot be read as UTF-8, or holds nothing.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(_MOST_CHARACTERS)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what}: {path} cannot be read: {error}", "give UTF-8 text") from None
    if not text.strip():
        raise UsageError(f"{what}: {path} is empty")
    return text


@lru_cache(maxsize=2)
def essay_sentences(path: Path) -> tuple[str, ...]:
    """Sentences of the essays at ``path``, white space folded.

    A ``.json`` file is RULER's: an object whose ``text`` holds all essays.

    Raises
    ------
    UsageError
        No such text there, or fewer than eight sentences.
    """
    what = "data.essays"
    text = "\n".join(read_text(file, what) for file in text_files(path, what))
    if path.suffix == ".json":
        try:
            text = json.loads(text)["text"]
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"{what}: {path} is not RULER's JSON of essays, an object with a key text",
                "give that file, or plain text",
            ) from None
    flat = " ".join(text.split())
    found = tuple(s.strip() for s in _SENTENCE.findall(flat) if s.strip())
    if len(found) < 8:
        raise UsageError(f"{what}: {path} has {len(found)} sentences", "give more text")
    return found


def stretch(sentences: tuple[str, ...], start: int, n: int) -> list[str]:
    """``n`` sentences from ``start`` on; after the last one the first follows."""
    return [sentences[(start + i) % len(sentences)] for i in range(n)]


_FORMS = (
    "The {a} {x} stood near the {b} {y}.",
    "{who} put the {x} beside the {y} and left.",
    "Every {day}, {who} looked for the {a} {x}.",
    "Nobody had moved the {x} since {day}.",
    "{who} told {other} about the {b} {y}.",
    "It was the {x}, not the {y}, that {who} wanted.",
    "On {day} the {a} {x} was sold to {other}.",
    "{other} had never seen such a {b} {y}.",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def generated_sentences(rng: random.Random, n: int) -> list[str]:
    """``n`` sentences about a few people and things that come back again and again.

    What comes back makes earlier text useful for what follows, as in a real text.
    """
    nouns, adjectives = words("noun"), words("adjective")
    things = [(rng.choice(nouns), rng.choice(adjectives)) for _ in range(10)]
    people: list[str] = []
    while len(people) < 5:
        people += {proper_name(rng)} - set(people)
    made = []
    for _ in range(n):
        (x, a), (y, b) = rng.sample(things, 2)
        who, other = rng.sample(people, 2)
        form = rng.choice(_FORMS)
        made.append(form.format(x=x, y=y, a=a, b=b, who=who, other=other, day=rng.choice(_DAYS)))
    return made


def proper_name(rng: random.Random) -> str:
    """An invented name of two syllables or three."""
    n = rng.choice((2, 3))
    syllables = [rng.choice("bdfgklmnprstv") + rng.choice("aeiou") for _ in range(n)]
    return ("".join(syllables) + rng.choice(("", "n", "r", "l"))).capitalize()
