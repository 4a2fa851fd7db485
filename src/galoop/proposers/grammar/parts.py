"""The parts of a probe: how keys, values and filler are drawn, and how code is laid out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from galoop.proposers.grammar.tree import Filler, Value
from galoop.proposers.grammar.vocabulary import (
    MONTHS,
    OTHER_ATTRIBUTES,
    STORY,
    TEMPLATES,
    Words,
)

WIDTH = 100


@dataclass(frozen=True)
class Part:
    """Source of one part.

    Attributes
    ----------
    lines : tuple of str
        Statements in the body of ``build``.
    constants : tuple of str
        Assignments at the top of the file.
    functions : tuple of str
        Functions of the file.
    """

    lines: tuple[str, ...]
    constants: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


def keys_part(kind: str, number: int, category: str, words: Words) -> Part:
    """Draw ``number`` different keys into ``keys``."""
    things = ("THINGS", words.nouns, 32 if kind in ("noun", "same adjective") else 24)
    traits = ("TRAITS", words.adjectives, 30 if kind == "same noun" else 18)
    people = ("PEOPLE", words.first_names, 27)
    families = ("FAMILIES", words.last_names, 18)
    lists, lines = {
        "noun": ([things], [f"keys = rng.sample(THINGS, {number})"]),
        "adjective noun": (
            [things, traits],
            [
                'keys = distinct(lambda: f"{rng.choice(TRAITS)} {rng.choice(THINGS)}", '
                f"{number})"
            ],
        ),
        "same noun": (
            [things, traits],
            [
                "thing = rng.choice(THINGS)",
                f'keys = [f"{{trait}} {{thing}}" for trait in rng.sample(TRAITS, {number})]',
            ],
        ),
        "same adjective": (
            [things, traits],
            [
                "trait = rng.choice(TRAITS)",
                f'keys = [f"{{trait}} {{thing}}" for thing in rng.sample(THINGS, {number})]',
            ],
        ),
        "person": ([people], [f"keys = rng.sample(PEOPLE, {number})"]),
        "full name": (
            [people, families],
            [
                "keys = distinct("
                f'lambda: f"{{rng.choice(PEOPLE)}} {{rng.choice(FAMILIES)}}", {number})'
            ],
        ),
        "numbered": (
            [],
            [f'keys = distinct(lambda: f"{category} {{rng.randint(10, 99)}}", {number})'],
        ),
        "coded": (
            [],
            [
                "keys = distinct(lambda: "
                f'f"{category} {{rng.choice(LETTERS)}}{{rng.randint(10, 99)}}", {number})'
            ],
        ),
    }[kind]
    constants = [block(name, draw(size)) for name, draw, size in lists]
    if kind == "coded":
        constants.append(LETTERS)
    return Part(tuple(lines), tuple(constants), _distinct_if_used(lines))


def values_part(value: Value, number: int, words: Words) -> Part:
    """Draw ``number`` different values into ``values``."""
    constants: list[str] = []
    if value.kind == "word":
        constants.append(block("WORDS", words.nouns(48)))
        lines = [f"values = rng.sample(WORDS, {number})"]
    elif value.kind == "name":
        constants.append(block("NAMES", words.first_names(27)))
        lines = [f"values = rng.sample(NAMES, {number})"]
    else:
        if value.kind == "two words":
            constants.append(block("FIRST_WORDS", words.adjectives(18)))
            constants.append(block("SECOND_WORDS", words.nouns(24)))
        elif value.kind == "date":
            constants.append(block("MONTHS", MONTHS))
        elif value.kind == "code":
            constants.append(LETTERS)
        before, draw = _value_expression(value)
        lines = [*before, f"values = distinct(lambda: {draw}, {number})"]
    return Part(tuple(lines), tuple(constants), _distinct_if_used(lines))


def _value_expression(value: Value) -> tuple[list[str], str]:
    """What is drawn once an example (the stem of values that are alike), and once a value."""
    size = value.size
    low, high = 10 ** (size - 1), 10**size - 1
    stem = [f"stem = str(rng.randint({low // 100}, {high // 100}))"]
    code = f"{{rng.randint({10 ** (size - 3)}, {10 ** (size - 2) - 1})}}"
    free: dict[str, str] = {
        "digits": f"str(rng.randint({low}, {high}))",
        "amount": f'f"{{rng.randint({low}, {high})}} dollars"',
        "code": f'f"{{rng.choice(LETTERS)}}{{rng.choice(LETTERS)}}-{code}"',
        "date": 'f"{rng.randint(10, 28)} {rng.choice(MONTHS)}"',
        "time": 'f"{rng.randint(10, 23)}:{rng.randint(10, 59)}"',
        "two words": 'f"{rng.choice(FIRST_WORDS)} {rng.choice(SECOND_WORDS)}"',
    }
    alike: dict[str, tuple[list[str], str]] = {
        "digits": (stem, 'f"{stem}{rng.randint(10, 99)}"'),
        "amount": (stem, 'f"{stem}{rng.randint(10, 99)} dollars"'),
        "code": (["stem = rng.choice(LETTERS) + rng.choice(LETTERS)"], f'f"{{stem}}-{code}"'),
        "date": (["month = rng.choice(MONTHS)"], 'f"{rng.randint(10, 28)} {month}"'),
        "time": (["hour = rng.randint(10, 23)"], 'f"{hour}:{rng.randint(10, 59)}"'),
        "two words": (
            ["first = rng.choice(FIRST_WORDS)"],
            'f"{first} {rng.choice(SECOND_WORDS)}"',
        ),
    }
    return alike[value.kind] if value.alike else ([], free[value.kind])


def filler_part(filler: Filler, words: Words) -> Part:
    """Draw more sentences than the text can hold into ``sentences``."""
    kind = filler.kind
    if kind == "more entries":
        return Part(())
    if kind in ("one sentence", "rotation", "shuffled sentences"):
        number = 6 if kind == "one sentence" else filler.sentences
        lines = {
            "one sentence": ["sentences = [rng.choice(SENTENCES)] * most"],
            "rotation": [
                "first = rng.randrange(len(SENTENCES))",
                "sentences = [SENTENCES[(first + i) % len(SENTENCES)] for i in range(most)]",
            ],
            "shuffled sentences": ["sentences = rng.choices(SENTENCES, k=most)"],
        }[kind]
        return Part(_at_most(lines), (table("SENTENCES", words.sentences(number)),))
    if kind == "readings":
        name = words.nouns(1)[0].capitalize()
        reading = f'f"{name} reading {{rng.uniform(0, 9):.1f}}."'
        return Part(_at_most([f"sentences = [{reading} for _ in range(most)]"]))
    nouns = block("NOUNS", words.nouns(18))
    if kind == "random words":
        line = 'sentences = [" ".join(rng.choices(NOUNS, k=8)) for _ in range(most)]'
        return Part(_at_most([line]), (nouns,))
    draw = _at_most(["sentences = [make_sentence(rng) for _ in range(most)]"])
    constants, lines = _sentence_maker(kind, words)
    maker = function("make_sentence(rng: random.Random) -> str", lines)
    return Part(draw, (nouns, *constants), (maker,))


def _sentence_maker(kind: str, words: Words) -> tuple[list[str], list[str]]:
    """Constants and body of ``make_sentence``."""
    if kind == "other facts":
        measures = block("MEASURES", OTHER_ATTRIBUTES)
        line = "The {rng.choice(MEASURES)} of the {rng.choice(NOUNS)} is {rng.randint(10, 99)}."
        return [measures], [f'return f"{line}"']
    adjectives = block("ADJECTIVES", words.adjectives(12))
    draw = ["noun, other = rng.sample(NOUNS, 2)", "adjective = rng.choice(ADJECTIVES)"]
    if kind == "templates":
        names = {"a": "{adjective}", "n": "{noun}", "m": "{other}", "v": "{verb}"}
        templates = [text.format(**names) for text in words.sample(TEMPLATES, 3)]
        fields = ["noun", "other", "adjective", "verb"]
        fields = [name for name in fields if any("{" + name + "}" in text for text in templates)]
        constants = [adjectives, table("TEMPLATES", templates)]
        lines = [line for line in draw if "adjective" in fields or "ADJECTIVES" not in line]
        if "verb" in fields:
            constants.insert(1, block("VERBS", words.verbs(12)))
            lines.append("verb = rng.choice(VERBS)")
        given = ", ".join(f"{name}={name}" for name in fields)
        return constants, [*lines, f"return rng.choice(TEMPLATES).format({given})"]
    constants = [adjectives]
    for name, options in (("WHEN", STORY[0]), ("ACTIONS", STORY[2])):
        constants.append(table(name, words.sample(options, 4)))
    lines = [
        *draw,
        'start = f"{rng.choice(WHEN)} the {noun} {rng.choice(ACTIONS)}"',
        'return f"{start} the {adjective} {other}."',
    ]
    return constants, lines


def _at_most(lines: Sequence[str]) -> tuple[str, ...]:
    return ("most = length // 5 + 1", *lines)


LETTERS = 'LETTERS = "BCDFGHJKLMNPRSTVWXZ"'
DISTINCT = '''\
def distinct(draw, count: int) -> list[str]:
    """Draw until there are `count` different results."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)'''


def _distinct_if_used(lines: Sequence[str]) -> tuple[str, ...]:
    return (DISTINCT,) if any("distinct(" in line for line in lines) else ()


# Layout of code, as the formatter would do it.


def block(name: str, words: Sequence[str]) -> str:
    """A named list of words, wrapped: ``NAME = \"\"\"…\"\"\".split()``."""
    body = textwrap.fill(" ".join(words), WIDTH - 4)
    return f'{name} = """\n{body}\n""".split()'


def table(name: str, lines: Sequence[str]) -> str:
    """A named list of strings, one a line."""
    return f"{name} = [\n" + "".join(f"    {quoted(line)},\n" for line in lines) + "]"


def quoted(text: str, formatted: bool = False) -> str:
    """A Python literal in the quotes that the formatter would choose."""
    body = text.replace("\\", "\\\\").replace("\n", "\\n")
    quote = "'" if '"' in body else '"'
    return f"{'f' if formatted and '{' in text else ''}{quote}{body}{quote}"


def function(signature: str, lines: Sequence[str]) -> str:
    """A function of these lines."""
    return "\n".join([f"def {signature}:", *(f"    {line}".rstrip() for line in lines)])


def bracketed(head: str, body: str, items: Sequence[str] = ()) -> list[str]:
    """A list display inside a function: on one line where that fits."""
    indent = 4
    line = f"{head}[{body}]"
    if len(line) + indent <= WIDTH:
        return [line]
    if items:
        return [f"{head}[", *(f"    {item}," for item in items), "]"]
    if len(body) + indent + 4 <= WIDTH:
        return [f"{head}[", f"    {body}", "]"]
    first, rest = body.split(" for ", 1)
    return [f"{head}[", f"    {first}", f"    for {rest}", "]"]
