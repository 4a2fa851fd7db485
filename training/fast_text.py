"""Natural-looking records, ledgers and lists with questions about them: what the fast model reads.

A *form* is how a record is written: a lead that ends right before the value, the glue between
lead and value, and a tail. The answer prefix of a question repeats the lead, so that the answer
follows by looking up where those words stood before. Some forms, attributes and nouns are held
out: they never occur in a training record and serve the evaluation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

LINKS = (
    "is", "was", "equals", "reads", "is set to", "is listed as", "remains", "became", "stands at",
    "is recorded as", "now reads", "is given as", "shows", "says", "has been", "comes to",
)  # fmt: skip
SENTENCE_LEADS = (
    "The {attr} of the {key} {link}",
    "The {attr} for the {key} {link}",
    "The {key} {attr} {link}",
    "The {key}'s {attr} {link}",
    "The {attr} of {key} {link}",
    "For the {key}, the {attr} {link}",
    "In the {key} file, the {attr} {link}",
    "{Attr} of the {key} {link}",
    "{Attr} for {key} {link}",
    "{Key} {attr} {link}",
    "{Key} {link}",
    "{Key} has the {attr}",
    "The {key} has the {attr}",
    "The {key} {link}",
    "Our {key} uses the {attr}",
    "At the {key} the {attr} {link}",
    "Regarding the {key}: its {attr} {link}",
    "The {attr} on the {key} label {link}",
    "To open the {key}, use the {attr}",
    "One should know that the {attr} of the {key} {link}",
)
LIST_LEADS = (
    "{key}:", "{key} =", "{key} ->", "- {key}:", "* {key} -", "| {key} |", "{attr} | {key} |",
    "{attr} {key}:", "{attr} of {key}:", "{key}, {attr},", "Entry {key}: {attr}", "{Key} {attr}:",
    "[{key}] {attr}:", "{key} ({attr}):", "Row {key} |", "{Attr}: {key} /", "{key} has {attr}",
)  # fmt: skip
HELD_OUT_LEADS = (
    "The {attr} assigned to the {key} {link}",
    "Everybody at the {key} knows the {attr}",
    "Under {key} one finds that the {attr} {link}",
    "My {key} carries the {attr}",
    "According to the {key} office, its {attr} {link}",
)
ATTRIBUTES = (
    "code", "access code", "pin", "number", "password", "serial number", "token", "secret",
    "badge", "key", "label", "price", "weight", "reference", "account", "room", "total", "balance",
    "score", "phone line", "tag", "date", "signal", "magic number", "value", "id", "order",
    "status", "color", "owner", "passcode", "rank", "amount", "locker", "flight", "invoice",
)  # fmt: skip
HELD_OUT_ATTRIBUTES = ("entry code", "ticket", "registration", "combination", "quota")
QUESTIONS = (
    "What is the {attr} of the {key}?",
    "What is the {attr} for the {key}?",
    "What was the {key}'s {attr}?",
    "Which {attr} belongs to the {key}?",
    "State the {attr} of the {key}.",
    "Give the {attr} for {key}.",
    "Find the {attr} that the text gives for the {key}.",
    "Question: what is the {attr} of {key}?",
    "Tell me the {attr} of the {key}.",
    "What does the text say about the {key}?",
    "Look up {key}.",
    "Complete the sentence about the {key}.",
    "\nWhat is the {key} {attr}?",
    "According to the records, what is the {attr} of the {key}?",
)
HELD_OUT_QUESTIONS = (
    "Which {attr} was assigned to the {key}?",
    "Can you recall the {attr} of the {key}?",
)
FILLER = (
    "The {adj} {noun} was near the {noun}.",
    "A {noun} and a {noun} stood by the {adj} {noun}.",
    "They {verb} the {noun} every day.",
    "Nobody could {verb} the {adj} {noun}.",
    "In the morning we {verb} and {verb}.",
    "It was a {adj} day, and the {noun} was {adj}.",
    "Some people say that the {noun} is {adj}.",
    "The old {noun} had a {adj} {noun} and no {noun}.",
    "We talked about the {noun}, the {noun} and the {noun}.",
    "There was nothing {adj} about it.",
    "After that, the {noun} did not {verb}.",
    "Every {noun} needs a {noun}.",
    "The report does not mention the {adj} {noun}.",
    "She wanted to {verb} before the {noun} could {verb}.",
    "{noun} {noun} {adj} {noun} {verb} {noun}.",
    "He said that {adj} things happen when you {verb} a {noun}.",
)
REPEATED = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
    "The harbor was quiet that day, and nothing of note was written down.",
    "The clerk checked the shelf and went on to the next one.",
    "All systems are normal and no action is required.",
)
# Leads that say no more than attribute and key, in other words than the record may have used.
PARAPHRASES = (
    "The {attr} of the {key} is",
    "The {key} {attr} is",
    "The {attr} for {key} is",
    "The {key}'s {attr} is",
    "The {attr} for {key} mentioned in the text is",
    "The {attr} of the {key} in the text is",
    "For the {key}, the {attr} is",
)
# What may follow a part of speech, and how often: the Markov chain that prose is drawn from.
PROSE: dict[str, tuple[tuple[str, int], ...]] = {
    "start": (("det", 5), ("pron", 3), ("adv", 1), ("prep", 1)),
    "det": (("noun", 6), ("adj", 4)),
    "adj": (("noun", 8), ("adj", 1), ("and", 1)),
    "noun": (("be", 3), ("aux", 3), ("prep", 3), ("and", 1), ("end", 3)),
    "pron": (("be", 2), ("aux", 6), ("adv", 1)),
    "be": (("adj", 3), ("det", 3), ("prep", 2), ("adv", 1)),
    "aux": (("verb", 8), ("adv", 1)),
    "verb": (("det", 5), ("prep", 3), ("adv", 1), ("end", 2)),
    "prep": (("det", 8), ("pron", 1), ("adj", 1)),
    "adv": (("verb", 2), ("adj", 2), ("pron", 2), ("end", 1)),
    "and": (("det", 4), ("pron", 2), ("adj", 2)),
}
FUNCTION_WORDS: dict[str, tuple[str, ...]] = {
    "det": ("the", "a", "this", "that", "every", "some", "another", "no", "their", "our", "his"),
    "pron": ("they", "we", "she", "he", "you", "it", "somebody", "nobody", "everyone"),
    "be": ("was", "is", "seems", "remains", "became", "looked"),
    "aux": ("could", "did", "will", "can", "would", "may", "must", "did not", "never did"),
    "prep": ("of", "in", "on", "near", "with", "for", "under", "behind", "by", "from", "to"),
    "adv": ("often", "later", "slowly", "almost", "again", "there", "never", "quite", "soon"),
    "and": ("and", "but", "while", "because", "or"),
}
OPENERS = ("", "", "", "", "Note: ", "Remember that ", "Also, ", "Important: ", "Then ")


@dataclass(frozen=True)
class Words:
    """Word lists of the ``wonderwords`` package, letters only, without its profanity list."""

    nouns: tuple[str, ...]
    held_out_nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]


@lru_cache(maxsize=1)
def load_words() -> Words:
    """The lists, split so that every fifth noun is never a key or value in training."""
    from importlib.resources import files

    def read(name: str) -> list[str]:
        return (files("wonderwords") / "assets" / name).read_text(encoding="utf-8").split("\n")

    profane = {word.strip().lower() for word in read("profanitylist.txt")}

    def clean(name: str) -> list[str]:
        words = sorted({word.strip() for word in read(name)} - profane)
        return [word for word in words if word.isascii() and word.isalpha() and 3 <= len(word) <= 9]

    nouns = [word for word in clean("nounlist.txt") if word.islower()]
    return Words(
        nouns=tuple(word for i, word in enumerate(nouns) if i % 5),
        held_out_nouns=tuple(word for i, word in enumerate(nouns) if not i % 5),
        adjectives=tuple(clean("adjectivelist.txt")),
        verbs=tuple(clean("verblist.txt")),
    )


@dataclass(frozen=True)
class Query:
    """A question, the prefix of its answer, the value that follows the prefix (with glue), and the
    key that it is about."""

    question: str
    prefix: str
    value: str
    key: str


@dataclass(frozen=True)
class Document:
    """A context in pieces (in order) and questions about it.

    Each piece carries its own leading separator, so that tokens of the joined text are the
    tokens of the pieces one after the other.
    """

    pieces: tuple[str, ...]
    is_record: tuple[bool, ...]
    queries: tuple[Query, ...]


@dataclass(frozen=True)
class TextConfig:
    """What kind of documents to write.

    Attributes
    ----------
    records : (int, int)
        Least and greatest number of records of a context.
    queries : int
        Questions a context.
    filler : int
        Sentences of filler to offer; the caller drops those that do not fit its length.
    bare_share : float
        Share of the questions whose prefix is not the lead of the record.
    paraphrase_share : float
        Share of the questions whose prefix says attribute and key in other words.
    prose_share : float
        Share of the filler sentences that come from the Markov chain instead of a template.
    update_share : float
        Share of the records that a second one with another value contradicts; the later one in
        the context counts, so that the order of things matters too.
    question_share : float
        Share of the queries that have a question; the others are a prefix alone, which is shorter
        and keeps the model from leaning on the wording of questions.
    held_out_forms, held_out_words : bool
        Draw leads, attributes and questions (or nouns) from the held-out lists only.
    """

    records: tuple[int, int] = (4, 10)
    queries: int = 4
    filler: int = 30
    bare_share: float = 0.0
    paraphrase_share: float = 0.0
    prose_share: float = 0.0
    update_share: float = 0.0
    question_share: float = 1.0
    held_out_forms: bool = False
    held_out_words: bool = False


def make_value(rng: random.Random, nouns: tuple[str, ...], adjectives: tuple[str, ...]) -> str:
    """A value: mostly digits, else a letter-digit code or words."""
    kind = rng.random()
    if kind < 0.55:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 6)))
    if kind < 0.70:
        letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(rng.randint(1, 2)))
        digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 4)))
        return letters + rng.choice(("", "-")) + digits
    if kind < 0.92:
        return rng.choice(nouns)
    return f"{rng.choice(adjectives)} {rng.choice(nouns)}"


def make_keys(
    rng: random.Random, nouns: tuple[str, ...], adjectives: tuple[str, ...], n: int
) -> list[str]:
    """Distinct keys: nouns, adjective and noun, or look-alikes that share a word."""
    kind = rng.random()
    keys: set[str] = set()
    shared = rng.choice(nouns)
    while len(keys) < n:
        if kind < 0.6:
            keys.add(rng.choice(nouns))
        elif kind < 0.8:
            keys.add(f"{rng.choice(adjectives)} {rng.choice(nouns)}")
        elif kind < 0.9:
            keys.add(f"{rng.choice(nouns)} {shared}")
        else:
            keys.add(f"{shared} {rng.randint(1, 99)}")
    result = sorted(keys)
    rng.shuffle(result)
    return result


def make_prose(rng: random.Random, words: Words) -> str:
    """One sentence of the Markov chain; frequent words are frequent (rank by a cubed uniform)."""
    pools = {
        **FUNCTION_WORDS, "noun": words.nouns, "adj": words.adjectives, "verb": words.verbs
    }  # fmt: skip
    said: list[str] = []
    part = "start"
    while len(said) < 16:
        following = PROSE[part]
        part = rng.choices([name for name, _ in following], [w for _, w in following])[0]
        if part == "end":
            break
        pool = pools[part]
        said.append(pool[int(len(pool) * rng.random() ** 3)])
    sentence = " ".join(said)
    return sentence[0].upper() + sentence[1:] + "."


def make_filler(rng: random.Random, words: Words, prose_share: float = 0.0) -> str:
    """One sentence of filler."""
    if rng.random() < prose_share:
        return make_prose(rng, words)
    sentence = rng.choice(FILLER)
    while "{" in sentence:
        for slot, pool in (("noun", words.nouns), ("adj", words.adjectives), ("verb", words.verbs)):
            sentence = sentence.replace("{" + slot + "}", rng.choice(pool), 1)
    return sentence[0].upper() + sentence[1:]


def fill(template: str, attr: str, key: str, link: str = "") -> str:
    """Fill the slots of a lead or a question."""
    return template.format(
        attr=attr, key=key, link=link, Attr=attr[0].upper() + attr[1:], Key=key[0].upper() + key[1:]
    )


@dataclass(frozen=True)
class Style:
    """The choices that all records of one document share (or draw anew)."""

    leads: tuple[str, ...]
    links: tuple[str, ...]
    attributes: tuple[str, ...]
    tail: str
    separator: str


def make_style(rng: random.Random, config: TextConfig) -> Style:
    """Sentences in prose, or a list with one record a line; one lead for all, or several."""
    if config.held_out_forms:
        leads, attributes, listed = HELD_OUT_LEADS, HELD_OUT_ATTRIBUTES, False
    else:
        listed = rng.random() < 0.3
        leads, attributes = (LIST_LEADS if listed else SENTENCE_LEADS), ATTRIBUTES
    uniform = rng.random() < 0.6
    return Style(
        leads=(rng.choice(leads),) if uniform else leads,
        links=(rng.choice(LINKS),) if uniform else LINKS,
        attributes=(rng.choice(attributes),) if rng.random() < 0.6 else attributes,
        tail=rng.choice(("", ";", ".", " |")) if listed else ".",
        separator="\n" if listed or rng.random() < 0.25 else " ",
    )


def make_document(rng: random.Random, words: Words, config: TextConfig) -> Document:
    """A context with records in filler, and questions about some of the records."""
    nouns = words.held_out_nouns if config.held_out_words else words.nouns
    style = make_style(rng, config)
    marked: list[tuple[str, Query | None]] = []
    for key in make_keys(rng, nouns, words.adjectives, rng.randint(*config.records)):
        attr = rng.choice(style.attributes)
        for _ in range(1 + (rng.random() < config.update_share)):
            marked.append(make_record(rng, style, config, attr, key, words))
    if rng.random() < 0.3:
        filler = [rng.choice(REPEATED)] * config.filler
    else:
        filler = [make_filler(rng, words, config.prose_share) for _ in range(config.filler)]
    marked += [(text, None) for text in filler]
    rng.shuffle(marked)
    latest = {query.key: query for _, query in marked if query is not None}
    queries = list(latest.values())
    rng.shuffle(queries)
    pieces = tuple((style.separator if i else "") + text for i, (text, _) in enumerate(marked))
    is_record = tuple(query is not None for _, query in marked)
    return Document(pieces, is_record, tuple(queries[: config.queries]))


def make_record(
    rng: random.Random, style: Style, config: TextConfig, attr: str, key: str, words: Words
) -> tuple[str, Query]:
    """The text of one record and a question about it."""
    nouns = words.held_out_nouns if config.held_out_words else words.nouns
    questions = HELD_OUT_QUESTIONS if config.held_out_forms else QUESTIONS
    lead = fill(rng.choice(style.leads), attr, key, rng.choice(style.links))
    value = make_value(rng, nouns, words.adjectives)
    opener = rng.choice(OPENERS) if style.separator == " " else ""
    bare = rng.random() < config.bare_share
    prefix = rng.choice(("", "Answer:", "The answer is")) if bare else lead
    if not bare and rng.random() < config.paraphrase_share:
        prefix = fill(rng.choice(PARAPHRASES), attr, key)
    glued = value if prefix == "" else f" {value}"
    asked = bare or rng.random() < config.question_share
    question = fill(rng.choice(questions), attr, key) if asked else ""
    return f"{opener}{lead} {value}{style.tail}", Query(question, prefix, glued, key)
