"""Plan program -> artifact folder, and back."""

from __future__ import annotations

import textwrap
from functools import lru_cache

from galoop.domains.context_extension.artifact_spec import DOMAIN, RULES, parse_spec
from galoop.domains.context_extension.artifacts import materialise
from galoop.domains.context_extension.grammar.tree import (
    NAMED,
    Program,
    from_json,
    summary,
    to_json,
)
from galoop.domains.text.artifact_spec import MANIFEST, ArtifactSpec
from galoop.errors import ArtifactError
from galoop.types import Candidate

_REACHING = ("level", "within", "grouped", "linear")
_HEADER = '''{docstring}
{imports}
from galoop.domains.context_extension import layouts
from galoop.methods.positions import Plan, Shape


def bands({arguments}):
    """The bands, nearest first; distances in tokens."""
'''


def render(program: Program, extension: float, note: str) -> Candidate:
    """Write the artifact folder of a program.

    Parameters
    ----------
    program : Program
        Normalised.
    extension : float
        The budget's extension.
    note : str
        Which move made it; for people, not part of the files.
    """
    words = summary(program)
    provenance = {"origin": "galoop grammar", "note": words, "tree": to_json(program)}
    spec = ArtifactSpec(
        "plan-program", DOMAIN, RULES.entry, RULES.modes[0], {"extension": extension}, provenance
    )
    files = {MANIFEST: spec.to_toml(), spec.file: source(program)}
    return Candidate("artifact", files, f"{note}: {words}")


def revive(candidate: Candidate) -> Program | None:
    """The tree of a folder that :func:`render` wrote, or of a method with a name; else None."""
    try:
        spec = parse_spec(candidate.files)
        if spec.name in NAMED and candidate.files[spec.file] == _named_source(spec.name):
            return NAMED[spec.name]
        program = from_json(spec.provenance.get("tree", ""))
        again = render(program, spec.budget["extension"], "")
    except (ArtifactError, ValueError, KeyError, TypeError):
        return None
    return program if dict(again.files) == dict(candidate.files) else None


@lru_cache(maxsize=8)
def _named_source(name: str) -> str:
    return materialise(name, {"extension": 2.0}).files[RULES.entry.partition(":")[0]]


def source(program: Program) -> str:
    """The text of ``plan.py``."""
    arguments = {
        "phase": "shape: Shape, length: int, late: bool = False",
        "size": "shape: Shape, length: int, half: bool = False",
        "far": "shape: Shape, length: int, flat: bool = False",
    }.get(program.vary, "shape: Shape, length: int")
    head = _HEADER.format(
        docstring=_docstring(program),
        imports="\nimport math\n" if program.far == "grouped" else "",
        arguments=arguments,
    ).rstrip("\n")
    lines = [head, *(f"    {line}" for line in [*_near(program), *_far(program), *_rest(program)])]
    return "\n".join([*lines, "", "", *_entry(program)]) + "\n"


def _docstring(program: Program) -> str:
    text = f'"""A plan program: {summary(program)}."""'
    if len(text) <= 100:
        return text
    return '"""A plan program.\n\n' + textwrap.fill(summary(program) + ".", 100) + '\n"""'


def _near(program: Program) -> list[str]:
    sized = program.near != "none" or program.far == "within"
    lines = [f"size = max(2, int({program.size} * shape.window))"] if sized else []
    if program.vary == "size":
        lines.append("size = size // 2 if half else size")
    if program.near == "window":
        return [*lines, "near = size", "found = layouts.window(length, near)"]
    if program.near == "chunks":
        late = program.vary == "phase"
        return [
            *lines,
            *(["near = size"] if program.far in ("grouped", "linear", "doubling") else []),
            f"local = int({program.local} * shape.window)",
            *(["phase = size // 2 if late else 0"] if late else []),
            f"found = layouts.chunks(length, size, local{', phase' if late else ''})",
        ]
    if program.far == "doubling":  # starts from a distance that is true up to there
        return [*lines, "near = shape.window // 8", "found = layouts.window(length, near)"]
    zero = ["near = 0"] if program.far in ("grouped", "linear") else []
    return [*lines, *zero, "found = []"]


def _far(program: Program) -> list[str]:
    lines = []
    if program.far in _REACHING or program.vary == "far":
        lines.append(f"reach = int({program.reach} * shape.window)")
    phase = ", phase" if program.vary == "phase" else ""
    if program.far in ("grouped", "linear"):
        lines.append("group = layouts.group_for(length, near, reach)")
    lines.append(
        {
            "true": "far = layouts.true(length)",
            "level": "far = layouts.level(length, reach)",
            "within": f"far = layouts.within(length, size, reach{phase})",
            "grouped": "far = layouts.grouped(length, near, math.ceil(group))",
            "linear": "far = layouts.linear(length, near, group)",
            "doubling": f"far = layouts.doubling(length, near, {program.growth})",
            "dropped": "far = layouts.dropped(length)",
        }[program.far]
    )
    if program.vary == "far":
        lines.append("far = layouts.level(length, reach) if flat else far")
    return lines


def _rest(program: Program) -> list[str]:
    lines = []
    if program.frequency != "none":
        name = {"base": "base_change", "slow": "slow_pairs"}[program.frequency]
        lines.append(f"factors = layouts.{name}(shape, shape.extension**{program.strength})")
        lines.append("far = layouts.with_frequency(far, factors)")
        if program.bands == "all":
            lines.append("found = layouts.with_frequency(found, factors)")
    if program.sinks:
        at = "reach" if program.far in _REACHING else "shape.window - 1"
        return [*lines, f"return layouts.with_sinks([*found, *far], {program.sinks}, {at})"]
    return [*lines, "return [*found, *far]"]


def _entry(program: Program) -> list[str]:
    lines = [
        "def build_plan(shape: Shape, length: int) -> Plan:",
        '    """The entry point of the artifact."""',
    ]
    scale = ""
    if program.scale == "log":
        lines.append(f"    scale = layouts.log_scale(length, shape.window, {program.power})")
    elif program.scale == "constant":
        lines.append(f"    scale = layouts.temper(length, shape.window, 1.2**{program.power})")
    if program.scale != "none":
        scale = ", scale"
    lines.append(f"    plan = Plan(bands(shape, length){scale})")
    if program.vary == "none":
        return [*lines, "    return plan"]
    flag = {"phase": "late", "size": "half", "far": "flat"}[program.vary]
    lines.append(f"    other = Plan(bands(shape, length, {flag}=True){scale})")
    choice = {
        "layers": "[other if layer % 2 else plan for layer in range(shape.layers)]",
        "depth": "[other if 2 * layer >= shape.layers else plan for layer in range(shape.layers)]",
    }.get(program.by)
    if choice is not None:
        return [*lines, f"    return {choice}"]
    heads = "    row = [other if head % 2 else plan for head in range(shape.heads)]"
    return [*lines, heads, "    return [row] * shape.layers"]
