"""Press program -> artifact folder, and back."""

from __future__ import annotations

import re

from galoop.domains.kv_compression.artifact_spec import MANIFEST, RULES, ArtifactSpec, parse_spec
from galoop.domains.kv_compression.grammar.tree import (
    BASE,
    Program,
    Signal,
    from_json,
    summary,
)
from galoop.errors import ArtifactError
from galoop.proposers.grammar.signals.text import docstring, letters, literal, weighted_sum
from galoop.proposers.grammar.signals.tree import to_json
from galoop.types import Candidate

PROGRAM_FILE = "press.py"
BASE_FILE = "base.py"
_HEADER = '''{docstring}

from dataclasses import dataclass{field_import}

{base_import}from kvpress import BasePress

from galoop.domains.kv_compression import signals


@dataclass
class ProgramPress(BasePress):
    """Keep the tokens with the highest priority, exactly as many as the budget allows."""

    compression_ratio: float = 0.0
'''
_SCOPES = {
    "head": "signals.keep_per_head(keys, values, priority, n)",
    "shared": "signals.keep_shared(keys, values, priority, n)",
    "heads": "signals.mask_head_budgets(module, keys, values, priority, n, floor={floor})",
    "layers": "self.across.add(module, keys, values, priority, n)",
    "consensus": "self.across.add(module, keys, values, priority, n)",
}
_SLOPED = {
    "head": "signals.mask_per_head(module, keys, values, priority, n)",
    "shared": "signals.mask_shared(module, keys, values, priority, n)",
}


def render(program: Program, ratio: float, note: str) -> Candidate:
    """Write the artifact folder of a program.

    Parameters
    ----------
    program : Program
        Normalised (see :func:`.tree.normalise`).
    ratio : float
        The budget's compression ratio.
    note : str
        Which move made it; for people, not part of the files.
    """
    spec = ArtifactSpec(
        "press-program",
        RULES.domain,
        RULES.entry,
        "auto",
        {"compression_ratio": ratio},
        {"origin": "galoop grammar", "note": summary(program), "tree": to_json(program)},
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
        again = render(program, spec.budget["compression_ratio"], "")
    except (ArtifactError, ValueError, KeyError, TypeError):
        return None
    return program if dict(again.files) == dict(candidate.files) else None


def wrappable(candidate: Candidate) -> str:
    """The source of a one-file artifact with a ``score`` method, to be wrapped; "" otherwise."""
    try:
        spec = parse_spec(candidate.files)
    except ArtifactError:
        return ""
    sources = [path for path in candidate.files if path.endswith(".py")]
    text = candidate.files[spec.file]
    plain = len(sources) == 1 and spec.function == "build_press"
    return text if plain and re.search(r"^\s+def score\(", text, re.M) else ""


def source(program: Program) -> str:
    """The text of ``press.py``."""
    stateful = program.scope in ("layers", "consensus")
    lines = [
        _HEADER.format(
            docstring=docstring("A press program", summary(program)),
            field_import=", field" if stateful else "",
            base_import="import base\n" if program.base else "",
        ).rstrip("\n")
    ]
    if stateful:
        lines += _field("signals.AcrossLayers", _across(program))
    if program.base:
        lines += ["", "    def __post_init__(self):"]
        lines += ["        self.base = base.build_press(self.compression_ratio)"]
        lines += ["", "    def post_init_from_model(self, model):"]
        lines += ["        self.base.post_init_from_model(model)"]
    lines += _priority(program) + _compress(program)
    return "\n".join(lines) + "\n"


def _field(kind: str, arguments: str) -> list[str]:
    short = f"    across: {kind} = field(default_factory=lambda: {kind}({arguments}))"
    if len(short) <= 100:
        return [short]
    return [
        f"    across: {kind} = field(",
        f"        default_factory=lambda: {kind}({arguments})",
        "    )",
    ]


def _across(program: Program) -> str:
    return "shared=True" if program.scope == "consensus" else f"floor={program.floor}"


def _priority(program: Program) -> list[str]:
    out = ["", "    def priority(self, layer: signals.Layer, n: int):"]
    out += ['        """Scores (batch, KV heads, tokens); the highest are kept."""']
    names = letters(program)
    for name, signal in zip(names, program.signals, strict=True):
        out += [f"        {line}" for line in _signal(name, signal)]
    out.append(f"        score = {_combine(program, names)}")
    if program.pool != "none":
        out.append(f'        score = signals.pool(score, "{program.pool}", {program.width})')
    size = program.grain_size
    if program.grain == "runs":
        out.append(f"        score = signals.by_runs(score, {int(size)})")
    elif program.grain == "chunks":
        out.append(f"        score = signals.by_chunks(score, {int(size)})")
    elif program.grain == "diverse":
        features = f'layer.source("{program.grain_source}")'
        out.append(f"        score = signals.diverse(score, {features}, n, penalty={size})")
    if program.first or program.last:
        out.append(f"        score = signals.guard(score, {program.first}, {program.last})")
    return [*out, "        return score"]


def _signal(name: str, signal: Signal) -> list[str]:
    if signal.name == BASE:
        call = "signals.press_score(layer, self.base)"
    else:
        options = "".join(f", {k}={literal(v)}" for k, v in signal.options)
        call = f"signals.{signal.name}(layer{options})"
    lines = [f"{name} = {'-' if signal.sign < 0 else ''}{call}"]
    wrapped = name
    if signal.transform != "none":
        wrapped = f"signals.{signal.transform}({wrapped})"
    if signal.pool != "none":
        wrapped = f'signals.pool({wrapped}, "{signal.pool}", {signal.width})'
    return lines if wrapped == name else [*lines, f"{name} = {wrapped}"]


def _combine(program: Program, names: list[str]) -> str:
    if program.combine == "sum":
        return weighted_sum(names, program.signals)
    if program.combine == "two_stage":
        rest = " + ".join(names[1:])
        return f"signals.two_stage({names[0]}, {rest}, int(n * {program.fraction}))"
    return f"signals.{program.combine}([{', '.join(names)}])"


def _compress(program: Program) -> list[str]:
    sloped = program.slope != 0.0
    keep = (_SLOPED if sloped else _SCOPES)[program.scope].format(floor=program.floor)
    budget = ["        size = keys.shape[2]"]
    budget += ["        n = signals.n_kept(size, self.compression_ratio)"]
    if sloped:
        arguments = f"n, layer.index, layer.n_layers, {program.slope}, size"
        budget += [f"        n = signals.layer_budget({arguments})"]
    return [
        "",
        "    def compress(self, module, hidden_states, keys, values, attentions, kwargs):",
        '        """Called by kvpress after each layer of the prefill."""',
        "        if self.compression_ratio == 0:",
        "            return keys, values",
        "        layer = signals.Layer(module, hidden_states, keys, values, kwargs)",
        *budget,
        "        priority = self.priority(layer, n)",
        f"        return {keep}",
        "",
        "",
        "def build_press(compression_ratio: float) -> BasePress:",
        '    """The entry point of the artifact."""',
        "    return ProgramPress(compression_ratio=compression_ratio)",
    ]
