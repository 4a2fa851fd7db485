"""Artifacts of context extension: by name, or by folder.

A named artifact is the source of its method's module (:mod:`galoop.methods`) with an entry point
at its end, so that a generator can rewrite it and a diff shows what it changed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path

from galoop.domains.context_extension.artifact_spec import DOMAIN, RULES, parse_spec
from galoop.domains.text.artifact_spec import (
    MANIFEST,
    ArtifactSpec,
    checked_budget,
    did_you_mean,
    is_path,
    read_folder,
)
from galoop.errors import UnknownNameError
from galoop.types import Candidate

#: Name -> module and class of the method, and one line.
_METHODS: dict[str, tuple[str, str, str]] = {
    "dca": ("dca", "DualChunk", "Dual Chunk Attention: positions start anew in every chunk"),
    "self-extend": ("self_extend", "SelfExtend", "true positions nearby, grouped ones far away"),
    "interpolation": ("rope_scaling", "Interpolation", "all positions divided by the extension"),
    "ntk": ("rope_scaling", "NTK", "a larger RoPE base: slow pairs interpolated, fast ones kept"),
    "yarn": ("rope_scaling", "YaRN", "slow pairs interpolated by a ramp, and a temperature"),
}
_TRUE_POSITIONS = {
    "unextended": "true positions, however far beyond the window: what happens without a method",
    "identity": "the null case: nothing is extended (its budget is extension 1)",
}
_TRUE_SOURCE = '''"""True positions everywhere."""

from galoop.methods.positions import Plan, Shape, identity_plan


def build_plan(shape: Shape, length: int) -> Plan:
    """The entry point of the artifact."""
    return identity_plan(length)
'''


def list_artifacts() -> dict[str, str]:
    """The artifacts that have a name, each with one line on what it does."""
    named = {name: line for name, (_, _, line) in _METHODS.items()}
    return dict(sorted({**named, **_TRUE_POSITIONS}.items()))


def materialise(name_or_path: str, budget: Mapping[str, float]) -> Candidate:
    """The artifact of that name or folder as a candidate.

    Parameters
    ----------
    name_or_path : str
        A name of :func:`list_artifacts`, or a folder that holds ``artifact.toml``.
    budget : mapping of str to float
        ``{"extension": 4.0}``. It is written into the manifest of named artifacts; a folder keeps
        its own; ``identity`` has ``extension`` 1 whatever is asked.

    Raises
    ------
    UnknownNameError
        Nothing of that name.
    ArtifactError
        The folder or the budget is not valid.
    """
    text = name_or_path.strip()
    fixed = checked_budget(budget, RULES)
    if text in _METHODS:
        return _from_method(text, fixed)
    if text in _TRUE_POSITIONS:
        own = {**fixed, "extension": 1.0} if text == "identity" else fixed
        return _candidate(text, own, "galoop", _TRUE_POSITIONS[text], _TRUE_SOURCE)
    if is_path(text):
        files = read_folder(Path(text).expanduser())
        return Candidate("artifact", files, f"{parse_spec(files).name} (from a folder)")
    raise UnknownNameError(
        f"there is no artifact {name_or_path!r}",
        did_you_mean(text, list_artifacts()) + "; a folder will do as well",
    )


def _from_method(name: str, budget: Mapping[str, float]) -> Candidate:
    module_name, method, line = _METHODS[name]
    module = importlib.import_module(f"galoop.methods.{module_name}")
    entry = (
        "\n\ndef build_plan(shape: Shape, length: int) -> Plan:\n"
        '    """The entry point of the artifact."""\n'
        f"    return {method}().plan(shape, length)\n"
    )
    origin = f"galoop methods/{module_name}.py"
    return _candidate(name, budget, origin, line, inspect.getsource(module).rstrip() + "\n" + entry)


def _candidate(
    name: str, budget: Mapping[str, float], origin: str, note: str, source: str
) -> Candidate:
    provenance = {"origin": origin, "parent": "", "note": note, "license": "Apache-2.0"}
    spec = ArtifactSpec(name, DOMAIN, RULES.entry, RULES.modes[0], dict(budget), provenance)
    files = {MANIFEST: spec.to_toml(), spec.file: source}
    parse_spec(files)
    return Candidate("artifact", files, note)
