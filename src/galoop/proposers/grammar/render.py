"""From a syntax tree to the Python source of a probe, and back."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from galoop.proposers.grammar.parts import (
    WIDTH,
    block,
    bracketed,
    filler_part,
    function,
    keys_part,
    quoted,
    returned,
    values_part,
)
from galoop.proposers.grammar.tree import Program, flat, from_flat, normalise
from galoop.proposers.grammar.vocabulary import (
    ATTRIBUTES,
    CATEGORIES,
    COLUMNS,
    MONTHS,
    OTHER_ATTRIBUTES,
    Words,
)
from galoop.proposers.grammar.wording import (
    FORM_WORDING,
    all_wording,
    named_with_article,
    question_and_prefix,
    resolve,
)

LINE_END = "\n"  # the question follows the context directly
MARK = "# Construction: "
_SPOTS = {
    "start": "rng.uniform(0.0, 0.1)",
    "middle": "rng.uniform(0.45, 0.55)",
    "end": "rng.uniform(0.9, 1.0)",
    "anywhere": "rng.random()",
}
_OTHERS = {
    "scattered": "rng.random()",
    "beside": "spot + rng.uniform(-1e-6, 1e-6)",
    "before": "rng.uniform(0.0, spot)",
    "after": "rng.uniform(spot, 1.0)",
}


def render(tree: Program) -> str:
    """The source of a probe program; the same tree gives the same text."""
    return _Writer(tree).source()


def recover(source: str) -> Program | None:
    """The tree of a source that :func:`render` wrote and nobody changed; None otherwise."""
    noted: list[str] = []
    reading = False
    for line in source.splitlines():
        if line.startswith(MARK):
            reading = True
            noted += line.removeprefix(MARK).split("; ")
        elif reading and line.startswith("#   "):
            noted += line.removeprefix("#   ").split("; ")
        elif reading:
            break
    if not reading:
        return None
    pairs = {name: str(value) for name, value in flat(Program())}
    try:
        for item in noted:
            name, value = item.strip(" ;").split("=", 1)
            pairs[name] = value
        tree = from_flat(pairs)
        if normalise(tree) == tree and render(tree) == source:
            return tree
    except (KeyError, ValueError, TypeError, IndexError):
        pass  # somebody changed the note
    return None


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
        self.entry_draws = False

    def source(self) -> str:
        tree = self.tree
        groups = tree.count * (1 + tree.entry.stale)
        keys = keys_part(tree.key, tree.count, self.category, self.words)
        values = values_part(tree.value, groups * tree.entry.values, self.words)
        filler = filler_part(tree.filler, self.words)
        entry = self.entry()
        build = self.build([*keys.lines, *values.lines], filler.lines)
        functions = [*keys.functions, *values.functions, *filler.functions, entry]
        functions += [self.lay_out(), self.fit(), build]
        functions = list(dict.fromkeys(functions))
        constants = [*keys.constants, *values.constants, *filler.constants, *self.constants]
        head = f'"""{self.title()}"""\n\n{self.construction()}\n\nimport random\n'
        top = "\n".join(dict.fromkeys(constants))
        head += f"\n{top}\n" if top else ""
        return "\n\n".join([head, *(text + "\n" for text in functions)])

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
        """The tree in a comment, without what is at its default: how :func:`recover` finds it."""
        default = dict(flat(Program()))
        items = [f"{name}={value}" for name, value in flat(self.tree) if value != default[name]]
        text = "; ".join(item.replace(" ", "\0") for item in items)
        lines = textwrap.wrap(text, WIDTH - len(MARK), break_long_words=False)
        lines = [line.replace("\0", " ") for line in lines] or [""]
        return "\n".join([MARK + lines[0], *(f"#   {line}" for line in lines[1:])])

    def entry(self) -> str:
        line = resolve(self.form.line, self.tree, self.attribute)
        lines: list[str] = []
        late = f'status == "{self.current}"'
        if self.form.stamp == "year":
            year = f"2024 if {late} else rng.randint(2012, 2023)" if self.stale else "2024"
            lines.append(f"year = {year}")
            line = line.replace("{stamp}", "{year}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}")
        elif self.form.stamp == "level":
            self.constants.append(block("LEVELS", ["INFO", "NOTICE", "DEBUG"]))
            line = line.replace("{stamp}", "{rng.choice(LEVELS)}")
        elif self.form.stamp == "week":
            days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
            self.constants.append(block("DAYS", days))
            if self.stale:
                lines.append(f"week = rng.randint(40, 52) if {late} else rng.randint(10, 39)")
            else:
                lines.append("week = rng.randint(10, 52)")
            line = line.replace("{day}", "{rng.choice(DAYS)}").replace("{stamp}", "{week}")
        elif self.form.stamp == "speakers":
            self.constants.append(block("SPEAKERS", self.words.first_names(6)))
            lines.append("asker, teller = rng.sample(SPEAKERS, 2)")
        if "{extra}" in line:
            column = self.words.choice(COLUMNS)
            self.constants.append(block("KINDS", self.words.adjectives(12)))
            line = line.replace("{Column}", column.capitalize())
            lines.append("extra = rng.choice(KINDS)")
            lines.append('group = rng.choice("ABCDEF")')
        self.entry_draws = "rng." in " ".join([*lines, line])
        parameters = ["rng: random.Random"] if self.entry_draws else []
        parameters += ["key: str", "value: str"] + (["status: str"] if self.stale else [])
        lines += returned(quoted(line, formatted=True))
        return function(f"entry({', '.join(parameters)}) -> str", lines)

    def call_entry(self, key: str, value: str, status: str = "") -> str:
        arguments = ["rng"] if self.entry_draws else []
        arguments += [key, value] + ([f'"{status or self.current}"'] if self.stale else [])
        return f"entry({', '.join(arguments)})"

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
        if self.dense:
            return function(
                "fit(placed, evidence, length: int, count_tokens) -> str",
                [
                    '"""As many entries as `length` tokens hold, the evidence always."""',
                    "placed.sort(key=lambda item: item[1] not in evidence)",
                    "while (tokens := count_tokens(lay_out(placed))) > length:",
                    "    keep = len(placed) * length // tokens",
                    "    if len(placed) == len(evidence):",
                    "        break",
                    "    placed = placed[: max(len(evidence), keep)]",
                    "return lay_out(placed)",
                ],
            )
        return function(
            "fit(placed, evidence, sentences, length: int, count_tokens) -> str",
            [
                '"""The longest text of at most `length` tokens; spare entries go last."""',
                "sample = sentences[:16]",
                'each = max(1.0, count_tokens(" ".join(sample)) / len(sample))',
                "room = length - count_tokens(lay_out(placed, []))",
                "sentences = sentences[: max(0, int(room / each))]",
                "placed.sort(key=lambda item: item[1] not in evidence)",
                "while (excess := count_tokens(text := lay_out(placed, sentences)) - length) > 0:",
                "    if sentences:",
                "        sentences = sentences[: -1 - int(excess / each)]",
                "    elif len(placed) > len(evidence):",
                "        keep = len(placed) * length // (length + excess)",
                "        placed = placed[: max(len(evidence), keep)]",
                "    else:",
                "        break",
                "return text",
            ],
        )

    def build(self, draws: Sequence[str], filler: Sequence[str]) -> str:
        tree = self.tree
        lines = [*draws, *self._entries()]
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
                *filler,
                "context = fit(placed, evidence, sentences, length, count_tokens)",
            ]
        question, prefix = question_and_prefix(tree, self.attribute)
        lines += [
            "return {",
            '    "context": context,',
            f'    "question": {self._asked(LINE_END + question)},',
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

    def _entries(self) -> list[str]:
        """The lines that write the entries of the drawn keys and values."""
        tree = self.tree
        each, number, asked = tree.entry.values, tree.count, tree.ask.keys
        lines: list[str] = []
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
