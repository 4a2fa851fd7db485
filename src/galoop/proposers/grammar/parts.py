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
            sampled("keys", 'f"{trait} {thing}" for trait in TRAITS for thing in THINGS', number),
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
            sampled("keys", 'f"{name} {family}" for name in PEOPLE for family in FAMILIES', number),
        ),
        "numbered": (
            [],
            [f'keys = [f"{category} {{n}}" for n in rng.sample(range(10, 100), {number})]'],
        ),
        "coded": (
            [],
            bracketed(
                "keys = ",
                f'f"{category} {{rng.choice(LETTERS)}}{{n}}" '
                f"for n in rng.sample(range(10, 100), {number})",
            ),
        ),
    }[kind]
    constants = [block(name, draw(size)) for name, draw, size in lists]
    if kind == "coded":
        constants.append(LETTERS)
    return Part(tuple(lines), tuple(constants))


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
        lines = _value_lines(value, number)
    return Part(tuple(lines), tuple(constants))


def _value_lines(value: Value, number: int) -> list[str]:
    """Statements that draw values; those that are alike share a stem that is drawn first."""
    size = value.size
    numbers = f"for n in rng.sample(range({10 ** (size - 1)}, {10**size}), {number})"
    pairs = f"for n in rng.sample(range(10, 100), {number})"
    codes = f"for n in rng.sample(range({10 ** (size - 3)}, {10 ** (size - 2)}), {number})"
    stem = f"stem = rng.randrange({10 ** (size - 3)}, {10 ** (size - 2)})"
    if value.kind == "digits":
        if value.alike:
            return [stem, *bracketed("values = ", f'f"{{stem}}{{n}}" {pairs}')]
        return bracketed("values = ", f"str(n) {numbers}")
    if value.kind == "amount":
        if value.alike:
            return [stem, *bracketed("values = ", f'f"{{stem}}{{n}} dollars" {pairs}')]
        return bracketed("values = ", f'f"{{n}} dollars" {numbers}')
    if value.kind == "code":
        letters = "rng.choice(LETTERS) + rng.choice(LETTERS)"
        if value.alike:
            return [f"stem = {letters}", *bracketed("values = ", f'f"{{stem}}-{{n}}" {codes}')]
        return bracketed("values = ", f'{letters} + f"-{{n}}" {codes}')
    if value.kind == "date":
        day = 'f"{day} {month}" for day in range(10, 29)'
        if value.alike:
            return ["month = rng.choice(MONTHS)", *sampled("values", day, number)]
        return sampled("values", f"{day} for month in MONTHS", number)
    if value.kind == "time":
        minute = 'f"{hour}:{minute}" for minute in range(10, 60)'
        if value.alike:
            return ["hour = rng.randrange(10, 24)", *sampled("values", minute, number)]
        return sampled("values", f"{minute} for hour in range(10, 24)", number)
    if value.alike:
        second = 'f"{first} {second}" for second in SECOND_WORDS'
        return ["first = rng.choice(FIRST_WORDS)", *sampled("values", second, number)]
    both = 'f"{first} {second}" for first in FIRST_WORDS for second in SECOND_WORDS'
    return sampled("values", both, number)


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


def sampled(name: str, body: str, number: int) -> list[str]:
    """``number`` different results of a comprehension."""
    line = f"{name} = rng.sample([{body}], {number})"
    if len(line) + 4 <= WIDTH:
        return [line]
    return [*bracketed("pairs = ", body), f"{name} = rng.sample(pairs, {number})"]


def returned(expression: str) -> list[str]:
    """A return statement inside a function; in brackets where only these make it fit."""
    indent = 4
    if len(expression) + indent + len("return ") > WIDTH >= len(expression) + 2 * indent:
        return ["return (", f"    {expression}", ")"]
    return [f"return {expression}"]


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
