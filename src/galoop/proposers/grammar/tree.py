"""The syntax tree of a probe, and every option that it can take.

This module *is* the space of the probe grammar: a program is one :class:`Program`, each field
takes one of the options listed here, and :func:`normalise` states which combinations make sense.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from galoop.hashing import canonical_json

VALUE_KINDS = ("digits", "word", "two words", "code", "name", "date", "time", "amount")
VALUE_SIZES = (2, 3, 4, 5, 6, 7, 8)
KEY_KINDS = (
    "noun",
    "adjective noun",
    "same noun",
    "same adjective",
    "person",
    "full name",
    "numbered",
    "coded",
)
FORMS = (
    "sentence",
    "reminder",
    "possession",
    "record",
    "wide record",
    "ledger",
    "table",
    "list",
    "log",
    "note",
    "dialogue",
    "calendar",
    "json",
)
STATUSES = ("current/former", "new/old", "valid/expired", "active/retired")
FILLERS = (
    "one sentence",
    "rotation",
    "shuffled sentences",
    "templates",
    "random words",
    "story",
    "other facts",
    "readings",
    "more entries",
)
FILLER_SENTENCES = (2, 3, 4, 6, 8, 12)
SPOTS = ("start", "middle", "end", "anywhere")
OTHERS = ("scattered", "beside", "before", "after")
QUESTIONS = ("what is", "tell me", "according to", "look up", "I need")
PREFIXES = ("none", "as in the entry", "sentence", "label")
DIRECTIONS = ("value", "key")
MOST_ENTRIES = 120
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24)

# How many different keys a program of each kind can draw without running dry.
KEY_ROOM = {
    "noun": 20,
    "adjective noun": 160,
    "same noun": 20,
    "same adjective": 20,
    "person": 20,
    "full name": 160,
    "numbered": 60,
    "coded": 60,
}
# The same for values, when they share a stem and when they do not.
ALIKE_ROOM = {"digits": 60, "two words": 16, "code": 60, "date": 12, "time": 33, "amount": 60}
FREE_ROOM = {"code": 60, "word": 32, "name": 20, "date": 150}
# A shared stem needs something to share.
CAN_BE_ALIKE = tuple(ALIKE_ROOM)


@dataclass(frozen=True)
class Value:
    """What is asked for: its kind, its length (digits or characters), and whether all are alike."""

    kind: str = "digits"
    size: int = 4
    alike: bool = False


@dataclass(frozen=True)
class Entry:
    """One entry: its form, values a key, and how many outdated entries a key has."""

    form: str = "sentence"
    values: int = 1
    stale: int = 0
    status: str = STATUSES[0]


@dataclass(frozen=True)
class Filler:
    """What stands between the entries; ``sentences`` is the variety of the rotating kinds."""

    kind: str = "rotation"
    sentences: int = 4


@dataclass(frozen=True)
class Placement:
    """Where the asked entry stands, and where the others stand relative to it."""

    asked: str = "anywhere"
    others: str = "scattered"


@dataclass(frozen=True)
class Ask:
    """The question: its wording, the answer prefix, what is asked for, and of how many keys."""

    question: str = "what is"
    prefix: str = "sentence"
    direction: str = "value"
    keys: int = 1


@dataclass(frozen=True)
class Program:
    """One probe program.

    Attributes
    ----------
    count : int
        Keys that have entries (before the text is fitted to its length).
    hops : int
        Entries to follow from the asked key to its value: 1 states it, 2 refers to another key.
    attribute : int
        Which name the value goes by (an index into the names that suit the kind of value).
    words : int
        The seed of the words that are written into the program.
    """

    value: Value = field(default_factory=Value)
    key: str = "noun"
    entry: Entry = field(default_factory=Entry)
    count: int = 4
    hops: int = 1
    filler: Filler = field(default_factory=Filler)
    placement: Placement = field(default_factory=Placement)
    ask: Ask = field(default_factory=Ask)
    attribute: int = 0
    words: int = 0


def answer_tokens(tree: Program) -> int:
    """A generous estimate of the tokens in the answer (small tokenizers split digits)."""
    if tree.ask.direction == "key":
        return 8
    size = tree.value.size
    each = {
        "digits": size,
        "word": 3,
        "two words": 6,
        "code": size + 1,
        "name": 3,
        "date": 4,
        "time": 5,
        "amount": size + 1,
    }[tree.value.kind]
    number = tree.ask.keys * tree.entry.values
    return number * each + 2 * (number - 1)


def value_room(value: Value) -> int:
    """How many different values one example can draw without running dry."""
    if value.alike:
        return ALIKE_ROOM[value.kind]
    if value.kind == "digits":
        return 9 * 10 ** (value.size - 1) // 2
    return FREE_ROOM.get(value.kind, 240)


def normalise(tree: Program) -> Program:
    """The nearest program that makes sense: equal programs get equal trees.

    Fields that have no effect get their first option; answers fit in about 14 tokens, so that
    the default 16 new tokens can hold them; keys and values never run dry.
    """
    value, entry, ask, hops = tree.value, tree.entry, tree.ask, max(1, tree.hops)
    value = _normalise_value(value, tree.key)
    if entry.form == "reminder":
        hops = 1  # it names the value before the key, where a reference would not read well
    if value.kind == "digits":  # unlike the numbers of a calendar, a ledger or a filler
        fewest = 5 if entry.form == "ledger" else 3 if entry.form == "calendar" else 2
        fewest = max(fewest, 3 if tree.filler.kind == "other facts" else 2)
        value = dataclasses.replace(value, size=max(value.size, fewest))
    if hops > 1 or ask.direction == "key":
        ask = dataclasses.replace(ask, keys=1)
        entry = dataclasses.replace(entry, values=1)
        hops = 1 if ask.direction == "key" else hops
    if ask.keys > 1:
        entry = dataclasses.replace(entry, values=1)
    if ask.direction == "key" and ask.prefix == "as in the entry":
        ask = dataclasses.replace(ask, prefix="sentence")  # the key comes first in most entries
    if ask.keys > 1 and ask.prefix == "as in the entry":
        ask = dataclasses.replace(ask, prefix="sentence")
    if entry.stale == 0:
        entry = dataclasses.replace(entry, status=STATUSES[0])
    filler = tree.filler
    if filler.kind not in ("rotation", "shuffled sentences"):
        filler = Filler(filler.kind, FILLER_SENTENCES[0])
    tree = dataclasses.replace(
        tree, value=value, entry=entry, ask=ask, hops=hops, filler=filler, attribute=tree.attribute
    )
    return _normalise_sizes(tree)


def _normalise_value(value: Value, key: str) -> Value:
    if value.kind not in CAN_BE_ALIKE:
        value = dataclasses.replace(value, alike=False)
    size = value.size
    if value.kind == "digits":
        size = max(size, 4) if value.alike else size
        size = max(size, 3) if key in ("numbered", "coded") else size
    elif value.kind == "code":
        size = min(max(size, 4), 8)
    elif value.kind == "amount":
        size = min(max(size, 3), 6)
    else:
        size = VALUE_SIZES[0]
    return dataclasses.replace(value, size=size)


def _normalise_sizes(tree: Program) -> Program:
    value, entry, ask = tree.value, tree.entry, tree.ask
    while answer_tokens(tree) > 14:
        if ask.keys > 1:
            ask = dataclasses.replace(ask, keys=ask.keys - 1)
        elif entry.values > 1:
            entry = dataclasses.replace(entry, values=entry.values - 1)
        else:
            value = dataclasses.replace(value, size=value.size - 1)
        tree = dataclasses.replace(tree, ask=ask, entry=entry, value=value)
    room = min(KEY_ROOM[tree.key], value_room(value) // (entry.values * (1 + entry.stale)))
    count = max(min(tree.count, room), ask.keys, tree.hops)
    if tree.filler.kind == "more entries":
        count = max(min(MOST_ENTRIES, room), ask.keys, tree.hops)  # as many as fit
    placement = tree.placement
    if count == 1 and entry.stale == 0 and tree.hops == 1:
        placement = Placement(placement.asked, OTHERS[0])
    return dataclasses.replace(tree, count=count, placement=placement)


def identity(tree: Program) -> str:
    """One string for all programs that differ in their words only."""
    return canonical_json(dataclasses.asdict(dataclasses.replace(tree, words=0)))


def flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a tree as (dotted name, value), in order."""
    for node in dataclasses.fields(tree):
        value = getattr(tree, node.name)
        if dataclasses.is_dataclass(value):
            yield from flat(value, f"{prefix}{node.name}.")
        else:
            yield prefix + node.name, value


def from_flat(pairs: dict[str, str]) -> Program:
    """The inverse of :func:`flat`, from text. Raises ValueError or KeyError on other input."""

    def build(node: type, prefix: str) -> Any:
        hints = get_type_hints(node)
        values: dict[str, Any] = {}
        for name, kind in hints.items():
            if dataclasses.is_dataclass(kind) and isinstance(kind, type):
                values[name] = build(kind, f"{prefix}{name}.")
            elif kind is bool:
                values[name] = {"True": True, "False": False}[pairs[prefix + name]]
            elif kind is int:
                values[name] = int(pairs[prefix + name])
            else:
                values[name] = pairs[prefix + name]
        return node(**values)

    tree: Program = build(Program, "")
    return tree
