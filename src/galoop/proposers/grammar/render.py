"""From a syntax tree to the Python source of a probe."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from galoop.proposers.grammar.tree import Program, flat, from_flat, normalise
from galoop.proposers.grammar.vocabulary import (
    ATTRIBUTES,
    CATEGORIES,
    COLUMNS,
    MONTHS,
    OTHER_ATTRIBUTES,
    STORY,
    TEMPLATES,
    Words,
)
from galoop.proposers.grammar.wording import (
    FORM_WORDING,
    all_wording,
    named_with_article,
    question_and_prefix,
    resolve,
)

WIDTH = 88
MARK = "# Construction: "
_SPOTS = {
    "start": "rng.uniform(0.0, 0.1)",
    "middle": "rng.uniform(0.45, 0.55)",
    "end": "rng.uniform(0.9, 1.0)",
    "anywhere": "rng.random()",
}
_OTHERS = {
    "scattered": "rng.random()",
    "beside": "spot",
    "before": "rng.uniform(0.0, spot)",
    "after": "rng.uniform(spot, 1.0)",
}


def render(tree: Program) -> str:
    """The source of a probe program; the same tree gives the same text."""
    return _Writer(tree).source()


def recover(source: str) -> Program | None:
    """The tree of a source that :func:`render` wrote and nobody changed; None otherwise."""
    lines = iter(source.splitlines())
    words: list[str] = []
    for line in lines:
        if line.startswith(MARK):
            words += line.removeprefix(MARK).split("; ")
            for following in lines:
                if not following.startswith("#   "):
                    break
                words += following.removeprefix("#   ").split("; ")
            break
    try:
        pairs = dict(word.strip(" ;").split("=", 1) for word in words)
        tree = from_flat(pairs)
        if normalise(tree) == tree and render(tree) == source:
            return tree
    except (KeyError, ValueError, TypeError, IndexError):
        pass
    return None


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
    is_f = formatted and "{" in text
    return f"{'f' if is_f else ''}{quote}{body}{quote}"


class _Writer:
    """Writes one program; each method gives one part of it."""

    def __init__(self, tree: Program) -> None:
        self.tree = tree
        options = ATTRIBUTES[tree.value.kind]
        self.attribute = options[tree.attribute % len(options)]
        attributes = " ".join(name for names in ATTRIBUTES.values() for name in names)
        others = " ".join([*OTHER_ATTRIBUTES, *CATEGORIES, *COLUMNS, *MONTHS])
        statuses = tree.entry.status.replace("/", " ")
        self.words = Words(tree.words, f"{all_wording()} {attributes} {others} {statuses}")
        self.current, self.outdated = tree.entry.status.split("/")
        self.stale = tree.entry.stale > 0
        self.form = FORM_WORDING[tree.entry.form]
        self.dense = tree.filler.kind == "more entries"
        self.category = self.words.choice(CATEGORIES)
        self.constants: list[str] = []

    def source(self) -> str:
        keys, values = self.draw_keys(), self.draw_values()
        entry, filler = self.entry(), self.filler()
        distinct = self.distinct() if "distinct(" in keys + values else ""
        functions = [
            distinct,
            keys,
            values,
            entry,
            filler,
            self.lay_out(),
            self.fit(),
            self.build(),
        ]
        head = f'"""{self.title()}"""\n\n{self.construction()}\n\nimport random\n\n'
        body = "\n\n\n".join(part for part in functions if part)
        return head + "\n".join(self.constants) + "\n\n\n" + body + "\n"

    def title(self) -> str:
        tree = self.tree
        filler = {
            "one sentence": "between one sentence over and over",
            "rotation": f"among {tree.filler.sentences} sentences in turn",
            "shuffled sentences": f"among {tree.filler.sentences} sentences in random order",
            "templates": "among made-up sentences",
            "random words": "among random words",
            "story": "within a story",
            "other facts": "among other facts",
            "readings": "among readings",
            "more entries": "filling the text",
        }[tree.filler.kind]
        entries = self.form.described
        return f"{self.attribute.capitalize()}s in {entries} {filler}."

    def construction(self) -> str:
        text = "; ".join(f"{name}={value}" for name, value in flat(self.tree))
        lines = textwrap.wrap(
            text.replace(" ", "\0").replace(";\0", "; "), WIDTH - len(MARK), break_long_words=False
        )
        lines = [line.replace("\0", " ") for line in lines]
        return "\n".join([MARK + lines[0], *(f"#   {line}" for line in lines[1:])])

    def constant(self, text: str) -> None:
        self.constants.append(text)

    def distinct(self) -> str:
        return (
            "def distinct(draw, count: int) -> list[str]:\n"
            '    """Draw until there are `count` different results."""\n'
            "    found: dict[str, None] = {}\n"
            "    while len(found) < count:\n"
            "        found[draw()] = None\n"
            "    return list(found)"
        )

    def draw_keys(self) -> str:
        kind = self.tree.key
        if kind in ("noun", "same adjective"):
            self.constant(block("THINGS", self.words.nouns(40)))
        elif kind in ("adjective noun", "same noun"):
            self.constant(block("THINGS", self.words.nouns(24)))
        if kind in ("adjective noun", "same noun", "same adjective"):
            self.constant(block("TRAITS", self.words.adjectives(40 if kind == "same noun" else 24)))
        if kind in ("person", "full name"):
            self.constant(block("PEOPLE", self.words.first_names(27)))
        if kind == "full name":
            self.constant(block("FAMILIES", self.words.last_names(24)))
        lines = {
            "noun": ["return rng.sample(THINGS, count)"],
            "adjective noun": [
                'return distinct(lambda: f"{rng.choice(TRAITS)} {rng.choice(THINGS)}", count)'
            ],
            "same noun": [
                "thing = rng.choice(THINGS)",
                'return [f"{trait} {thing}" for trait in rng.sample(TRAITS, count)]',
            ],
            "same adjective": [
                "trait = rng.choice(TRAITS)",
                'return [f"{trait} {thing}" for thing in rng.sample(THINGS, count)]',
            ],
            "person": ["return rng.sample(PEOPLE, count)"],
            "full name": [
                'return distinct(lambda: f"{rng.choice(PEOPLE)} {rng.choice(FAMILIES)}", count)'
            ],
            "numbered": [
                f'return distinct(lambda: f"{self.category} {{rng.randint(10, 99)}}", count)'
            ],
            "coded": [
                'letters = "BCDFGHJKLMNPRSTVWXZ"',
                "return distinct(\n"
                f'        lambda: f"{self.category} {{rng.choice(letters)}}{{rng.randint(10, 99)}}",'
                "\n        count,\n    )",
            ],
        }[kind]
        return function("draw_keys(rng: random.Random, count: int) -> list[str]", lines)

    def draw_values(self) -> str:
        kind, size, alike = self.tree.value.kind, self.tree.value.size, self.tree.value.alike
        if kind == "word":
            self.constant(block("WORDS", self.words.nouns(60)))
        elif kind == "two words":
            self.constant(block("FIRST_WORDS", self.words.adjectives(24)))
            self.constant(block("SECOND_WORDS", self.words.nouns(36)))
        elif kind == "name":
            self.constant(block("NAMES", self.words.first_names(27)))
        elif kind == "date":
            self.constant(block("MONTHS", MONTHS))
        if kind == "word":
            lines = ["return rng.sample(WORDS, count)"]
        elif kind == "name":
            lines = ["return rng.sample(NAMES, count)"]
        else:
            lines = _value_lines(kind, size, alike)
        return function("draw_values(rng: random.Random, count: int) -> list[str]", lines)

    def entry(self) -> str:
        line = resolve(self.form.line, self.tree, self.attribute)
        lines: list[str] = []
        late = f'status == "{self.current}"'
        if self.form.stamp == "year":
            year = f"2024 if {late} else rng.randint(2012, 2023)" if self.stale else "2024"
            lines.append(f"year = {year}")
            line = line.replace("{stamp}", "{year}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}")
        elif self.form.stamp == "clock":
            if self.stale:
                lines.append(f"hour = rng.randint(12, 23) if {late} else rng.randint(0, 11)")
            else:
                lines.append("hour = rng.randint(0, 23)")
            line = line.replace("{stamp}", "{hour:02}:{rng.randint(0, 59):02}")
        elif self.form.stamp == "week":
            days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
            self.constant(block("DAYS", days))
            if self.stale:
                lines.append(f"week = rng.randint(40, 52) if {late} else rng.randint(10, 39)")
            else:
                lines.append("week = rng.randint(10, 52)")
            line = line.replace("{day}", "{rng.choice(DAYS)}").replace("{stamp}", "{week}")
        elif self.form.stamp == "speakers":
            self.constant(block("SPEAKERS", self.words.first_names(6)))
            lines.append("asker, teller = rng.sample(SPEAKERS, 2)")
        if "{extra}" in line:
            column = self.words.choice(COLUMNS)
            self.constant(block("KINDS", self.words.adjectives(12)))
            line = line.replace("{Column}", column.capitalize())
            line = line.replace("{extra}", "{rng.choice(KINDS)}").replace("{group}", "{group}")
            lines.append('group = rng.choice("ABCDEF")')
        self.entry_draws = "rng." in " ".join([*lines, line])
        parameters = ["rng: random.Random"] if self.entry_draws else []
        parameters += ["key: str", "value: str"] + (["status: str"] if self.stale else [])
        lines.append(f"return {quoted(line, formatted=True)}")
        return function(f"entry({', '.join(parameters)}) -> str", lines)

    def call_entry(self, key: str, value: str, status: str = "") -> str:
        arguments = ["rng"] if self.entry_draws else []
        arguments += [key, value] + ([f'"{status or self.current}"'] if self.stale else [])
        return f"entry({', '.join(arguments)})"

    def filler(self) -> str:
        kind, number = self.tree.filler.kind, self.tree.filler.sentences
        signature = "draw_sentences(rng: random.Random, count: int) -> list[str]"
        if kind == "more entries":
            return ""
        if kind in ("one sentence", "rotation", "shuffled sentences"):
            self.constant(
                table("SENTENCES", self.words.sentences(6 if kind == "one sentence" else number))
            )
            return function(
                signature,
                {
                    "one sentence": ["return [rng.choice(SENTENCES)] * count"],
                    "rotation": [
                        "first = rng.randrange(len(SENTENCES))",
                        "order = SENTENCES[first:] + SENTENCES[:first]",
                        "return [order[i % len(order)] for i in range(count)]",
                    ],
                    "shuffled sentences": ["return rng.choices(SENTENCES, k=count)"],
                }[kind],
            )
        if kind == "readings":
            name = self.words.nouns(1)[0].capitalize()
            value = "{rng.uniform(0, 10):.1f}"
            return function(
                signature, [f'return [f"{name} reading {value}." for _ in range(count)]']
            )
        self.constant(block("NOUNS", self.words.nouns(24)))
        if kind == "random words":
            self.constant(block("ADJECTIVES", self.words.adjectives(12)))
            return function(
                signature,
                [
                    "words = NOUNS + ADJECTIVES",
                    'return [" ".join(rng.choices(words, k=8)) for _ in range(count)]',
                ],
            )
        if kind == "other facts":
            self.constant(block("MEASURES", OTHER_ATTRIBUTES))
            line = "The {rng.choice(MEASURES)} of the {rng.choice(NOUNS)} is {rng.randint(10, 99)}."
            return function(
                signature, ["return [", f'    f"{line}"', "    for _ in range(count)", "]"]
            )
        return self.made_up(signature, kind)

    def made_up(self, signature: str, kind: str) -> str:
        self.constant(block("ADJECTIVES", self.words.adjectives(16)))
        rename = {"a": "adjective", "n": "noun", "m": "other", "v": "verb"}
        if kind == "templates":
            self.constant(block("VERBS", self.words.verbs(16)))
            chosen = self.words.sample(TEMPLATES, 3)
            fields = {name: "{" + long + "}" for name, long in rename.items()}
            self.constant(table("TEMPLATES", [template.format(**fields) for template in chosen]))
        else:
            for name, parts in zip(("WHEN", "ACTION"), (STORY[0], STORY[2]), strict=True):
                self.constant(table(name, self.words.sample(parts, 4)))
        lines = [
            "sentences = []",
            "for _ in range(count):",
            "    noun, other = rng.sample(NOUNS, 2)",
        ]
        if kind == "templates":
            lines += [
                "    words = {",
                '        "noun": noun,',
                '        "other": other,',
                '        "adjective": rng.choice(ADJECTIVES),',
                '        "verb": rng.choice(VERBS),',
                "    }",
                "    sentences.append(rng.choice(TEMPLATES).format(**words))",
            ]
        else:
            lines += [
                "    adjective = rng.choice(ADJECTIVES)",
                '    act = f"{rng.choice(WHEN)} the {noun} {rng.choice(ACTION)}"',
                '    sentences.append(f"{act} the {adjective} {other}.")',
            ]
        return function(signature, [*lines, "return sentences"])

    def lay_out(self) -> str:
        glue = '" "' if self.form.prose else '"\\n"'
        if self.dense:
            return function(
                "lay_out(placed: list[tuple[float, str]]) -> str",
                [
                    '"""The entries in the order of their places."""',
                    "ordered = sorted(placed, key=lambda item: item[0])",
                    f"return {glue}.join(line for _, line in ordered)",
                ],
            )
        return function(
            "lay_out(placed: list[tuple[float, str]], sentences: list[str]) -> str",
            [
                '"""Each entry at its place (0 start, 1 end), sentences in between."""',
                "parts, used = [], 0",
                "for place, line in sorted(placed, key=lambda item: item[0]):",
                "    upto = round(place * len(sentences))",
                '    parts += [" ".join(sentences[used:upto]), line]',
                "    used = upto",
                'parts.append(" ".join(sentences[used:]))',
                f"return {glue}.join(part for part in parts if part)",
            ],
        )

    def fit(self) -> str:
        empty = "lay_out(placed)" if self.dense else "lay_out(placed, [])"
        drop = [
            f"text = {empty}",
            "while (tokens := count_tokens(text)) > length and len(placed) > len(evidence):",
            "    spare = [item for item in placed if item[1] not in evidence]",
            "    spare = spare[: len(spare) * length // tokens]",
            "    placed = [item for item in placed if item[1] in evidence] + spare",
            f"    text = {empty}",
        ]
        doc = '"""The longest text of at most `length` tokens; spare entries go first."""'
        if self.dense:
            return function("fit(placed, evidence, length: int, count_tokens) -> str", [
                doc, *drop, "return text"
            ])  # fmt: skip
        return function(
            "fit(placed, evidence, sentences, length: int, count_tokens) -> str",
            [
                doc,
                *drop,
                "sample = sentences[:24]",
                'each = max(1.0, count_tokens(" ".join(sample)) / len(sample))',
                "count = min(len(sentences), int((length - tokens) / each))",
                "while count > 0:",
                "    text = lay_out(placed, sentences[:count])",
                "    if (tokens := count_tokens(text)) <= length:",
                "        return text",
                "    count -= 1 + int((tokens - length) / each)",
                "return lay_out(placed, [])",
            ],
        )

    def build(self) -> str:
        tree = self.tree
        lines = self._draws()
        lines += [f"spot = {_SPOTS[tree.placement.asked]}"]
        rest = "others"
        if tree.hops > 1 or tree.ask.keys > 1:
            rest = "evidence[:-1] + others"
        lines += [
            "placed = [(spot, evidence[-1])]",
            f"placed += [({_OTHERS[tree.placement.others]}, line) for line in {rest}]",
            "rng.shuffle(placed)",
        ]
        if self.dense:
            lines.append("context = fit(placed, evidence, length, count_tokens)")
        else:
            lines += [
                "sentences = draw_sentences(rng, length // 4 + 1)",
                "context = fit(placed, evidence, sentences, length, count_tokens)",
            ]
        question, prefix = question_and_prefix(tree, self.attribute)
        lines += [
            "return {",
            '    "context": context,',
            f'    "question": {self._asked(question)},',
            f'    "answer": {self._answer()},',
            f'    "answer_prefix": {self._asked(prefix)},',
            '    "evidence": evidence,',
            "}",
        ]
        return function("build(rng: random.Random, length: int, count_tokens) -> dict", lines)

    def _asked(self, template: str) -> str:
        template = template.replace("{status}", self.current)
        return quoted(template, formatted=True)

    def _answer(self) -> str:
        tree = self.tree
        if tree.ask.direction == "key":
            return "asked"
        if tree.ask.keys > 1:
            return f"values[:{tree.ask.keys}]"
        if tree.entry.values > 1:
            return f"values[:{tree.entry.values}]"
        return f"values[{tree.hops - 1}]"

    def _draws(self) -> list[str]:
        """The lines that draw keys and values and write the entries."""
        tree = self.tree
        each, number, asked = tree.entry.values, tree.count, tree.ask.keys
        groups = number * (1 + tree.entry.stale)
        lines = [f"keys = draw_keys(rng, {number})", f"values = draw_values(rng, {groups * each})"]
        told = "values"
        if each > 1:
            told = "told"
            joined = f'" and ".join(values[i : i + {each}])'
            lines += bracketed("told = ", f"{joined} for i in range(0, len(values), {each})")
        used = max(asked, tree.hops)
        the = "the " if named_with_article(tree.key) else ""
        if tree.ask.direction == "key":
            lines.append("asked, value = keys[0], values[0]")
        elif asked > 1:
            names = f'f"{the}{{key}}" for key in keys[:{asked}]' if the else f"keys[:{asked}]"
            lines.append(f'asked = " and ".join({names})')
        else:
            lines.append("asked = keys[0]")
        if tree.hops > 1:
            for hop in range(tree.hops - 1):
                lines.append(f'link_{hop + 1} = f"the same as for {the}{{keys[{hop + 1}]}}"')
            facts = [
                self.call_entry(f"keys[{hop}]", f"link_{hop + 1}") for hop in range(tree.hops - 1)
            ]
            facts.append(self.call_entry(f"keys[{tree.hops - 1}]", f"{told}[{tree.hops - 1}]"))
            lines += bracketed("evidence = ", ", ".join(facts), facts)
        elif asked > 1:
            call = self.call_entry("key", "value")
            pairs = f"zip(keys[:{asked}], {told}[:{asked}])"
            lines += bracketed("evidence = ", f"{call} for key, value in {pairs}")
        else:
            lines.append(f"evidence = [{self.call_entry('keys[0]', f'{told}[0]')}]")
        if number > used:
            call = self.call_entry("key", "value" if tree.ask.direction == "value" else "other")
            name = "value" if tree.ask.direction == "value" else "other"
            pairs = f"zip(keys[{used}:], {told}[{used}:])"
            lines += bracketed("others = ", f"{call} for key, {name} in {pairs}")
        else:
            lines.append("others = []")
        if self.stale:
            call = self.call_entry("key", "old", self.outdated)
            several = f"keys * {tree.entry.stale}" if tree.entry.stale > 1 else "keys"
            pairs = f"zip({several}, {told}[{number}:])"
            lines += bracketed("others += ", f"{call} for key, old in {pairs}")
        return lines


def function(signature: str, lines: Sequence[str]) -> str:
    """A function of these lines."""
    return "\n".join([f"def {signature}:", *(f"    {line}".rstrip() for line in lines)])


def bracketed(head: str, body: str, items: Sequence[str] = (), indent: int = 4) -> list[str]:
    """A list display in the layout of the formatter: on one line where that fits."""
    line = f"{head}[{body}]"
    if len(line) + indent <= WIDTH:
        return [line]
    if items:
        return [f"{head}[", *(f"    {item}," for item in items), "]"]
    if len(body) + indent + 4 <= WIDTH:
        return [f"{head}[", f"    {body}", "]"]
    first, rest = body.split(" for ", 1)
    return [f"{head}[", f"    {first}", f"    for {rest}", "]"]


def _value_lines(kind: str, size: int, alike: bool) -> list[str]:
    low, high = 10 ** (size - 1), 10**size - 1
    stem = f"stem = str(rng.randint({low // 100}, {high // 100}))"
    draw: str
    before: list[str] = []
    if kind == "digits":
        draw = f"str(rng.randint({low}, {high}))"
        if alike:
            before, draw = [stem], 'f"{stem}{rng.randint(10, 99)}"'
    elif kind == "amount":
        draw = f'f"{{rng.randint({low}, {high})}} dollars"'
        if alike:
            before, draw = [stem], 'f"{stem}{rng.randint(10, 99)} dollars"'
    elif kind == "code":
        letters = '"".join(rng.choices("BCDFGHJKLMNPRSTVWXZ", k=2))'
        number = f"rng.randint({10 ** (size - 3)}, {10 ** (size - 2) - 1})"
        if alike:
            before, draw = [f"stem = {letters}"], f'f"{{stem}}-{{{number}}}"'
        else:
            before = ['letters = "BCDFGHJKLMNPRSTVWXZ"']
            draw = f'f"{{rng.choice(letters)}}{{rng.choice(letters)}}-{{{number}}}"'
    elif kind == "date":
        month = "rng.choice(MONTHS)"
        before, draw = [], f'f"{{rng.randint(10, 28)}} {{{month}}}"'
        if alike:
            before, draw = [f"month = {month}"], 'f"{rng.randint(10, 28)} {month}"'
    elif kind == "time":
        draw = 'f"{rng.randint(10, 23)}:{rng.randint(10, 59)}"'
        if alike:
            before, draw = ["hour = rng.randint(10, 23)"], 'f"{hour}:{rng.randint(10, 59)}"'
    else:
        draw = 'f"{rng.choice(FIRST_WORDS)} {rng.choice(SECOND_WORDS)}"'
        if alike:
            before, draw = (
                ["first = rng.choice(FIRST_WORDS)"],
                'f"{first} {rng.choice(SECOND_WORDS)}"',
            )
    return [*before, f"return distinct(lambda: {draw}, count)"]
