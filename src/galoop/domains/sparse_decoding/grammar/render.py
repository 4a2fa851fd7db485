"""Selector program -> artifact folder, and back."""

from __future__ import annotations

from collections.abc import Mapping

from galoop.domains.sparse_decoding.artifact_spec import (
    DOMAIN,
    MANIFEST,
    RULES,
    ArtifactSpec,
    parse_spec,
)
from galoop.domains.sparse_decoding.grammar.tree import (
    Program,
    Signal,
    from_json,
    summary,
)
from galoop.errors import ArtifactError
from galoop.proposers.grammar.signals.text import WIDTH, docstring, letters, literal, weighted_sum
from galoop.proposers.grammar.signals.tree import to_json
from galoop.types import Candidate

PROGRAM_FILE = "selector.py"
BASE_FILE = "base.py"


def render(program: Program, budget: Mapping[str, float], note: str) -> Candidate:
    """Write the artifact folder of a program.

    Parameters
    ----------
    program : Program
        Normalised (see :func:`.tree.normalise`).
    budget : mapping of str to float
    note : str
        Which move made it; for people, not part of the files.
    """
    provenance = {
        "origin": "galoop grammar",
        "note": summary(program),
        "tree": to_json(program),
    }
    spec = ArtifactSpec(
        "selector-program", DOMAIN, RULES.entry, RULES.modes[0], dict(budget), provenance
    )
    files = {MANIFEST: spec.to_toml(), PROGRAM_FILE: source(program)}
    if program.base:
        files[BASE_FILE] = program.base
    return Candidate("artifact", files, f"{note}: {summary(program)}")


def revive(candidate: Candidate) -> Program | None:
    """The tree of a folder that :func:`render` wrote; None when it did not, or was edited since."""
    try:
        spec = parse_spec(candidate.files)
        program = from_json(spec.provenance.get("tree", ""), candidate.files.get(BASE_FILE, ""))
        again = render(program, spec.budget, "")
    except (ArtifactError, ValueError, KeyError, TypeError):
        return None
    return program if dict(again.files) == dict(candidate.files) else None


def wrappable(candidate: Candidate) -> str:
    """The source of a one-file selector, to be given a share of the budget; "" otherwise."""
    try:
        spec = parse_spec(candidate.files)
    except ArtifactError:
        return ""
    sources = [path for path in candidate.files if path.endswith(".py")]
    plain = len(sources) == 1 and spec.function == "build_selector"
    return candidate.files[spec.file] if plain else ""


def source(program: Program) -> str:
    """The text of ``selector.py``."""
    names = letters(program)
    made = [
        f"{name.upper()} = {_made(signal)}"
        for name, signal in zip(names, program.signals, strict=True)
    ]
    lines = [
        docstring("A selector program", summary(program)),
        "",
        *(["import base", ""] if program.base else []),
        "from galoop.domains.sparse_decoding import scores",
        "",
        *made,
        "",
        "",
        "class ProgramSelector:",
        '    """Attend to the entries with the highest scores, as many as the budget allows."""',
        "",
        "    def __init__(self, density):",
        "        self.density = density",
    ]
    parts = [f"{name}={name.upper()}" for name in names]
    if program.base:
        lines.append(f"        self.base = base.build_selector(density * {program.fraction})")
        parts.append("base=self.base")
    lines += [
        "",
        "    def index(self, keys, values):",
        '        """What is kept of a layer\'s context."""',
        f"        return scores.indices(keys, values, {', '.join(parts)})",
        "",
        "    def select(self, index, step):",
        '        """What the rows of a step attend to."""',
        *(f"        {line}" for line in _body(program, names)),
        "",
        "",
        "def build_selector(density):",
        '    """The entry point."""',
        "    return ProgramSelector(density)",
    ]
    return "\n".join(lines) + "\n"


def _made(signal: Signal) -> str:
    return f"scores.{signal.name}({', '.join(f'{k}={literal(v)}' for k, v in signal.options)})"


def _body(program: Program, names: list[str]) -> list[str]:
    out = []
    for name, signal in zip(names, program.signals, strict=True):
        call = f'{name.upper()}.score(scores.part(index, "{name}"), step)'
        if signal.sign < 0:
            call = "-" + call
        if signal.transform != "none":
            call = f"scores.{signal.transform}({call}, step)"
        out.append(f"{name} = {call}")
    out.append(f"score = {_combine(program, names)}")
    if program.group != "head":
        out.append(f'score = scores.grouped(score, step, "{program.group}")')
    if program.pool != "none":
        out.append(f'score = scores.pool(score, step, "{program.pool}", {program.width})')
    if program.spread:
        out.append(f"score = scores.spread(score, step, {program.spread})")
    arguments = ["score", "step", "self.density", f"sink={program.sink}"]
    arguments.append(f"recent={program.recent}")
    if program.run > 1:
        arguments.append(f"run={program.run}")
    if program.compete:
        arguments += ["compete=True", f"floor={program.floor}"]
    if program.base:
        out.append('kept = self.base.select(scores.part(index, "base"), step)')
        arguments.append("kept=scores.as_mask(kept, step)")
    call = f"return scores.choose({', '.join(arguments)})"
    if len(call) <= WIDTH - 8:
        return [*out, call]
    return [*out, "return scores.choose(", *(f"    {a}," for a in arguments), ")"]


def _combine(program: Program, names: list[str]) -> str:
    if program.combine == "sum":
        return weighted_sum(names, program.signals)
    if program.combine == "interleave":
        return f"scores.interleave([{', '.join(names)}], step)"
    return f"scores.maximum([{', '.join(names)}])"
