"""Artifacts of context extension: by name, or by folder.

A named artifact is the source of its method's module (:mod:`galoop.methods`) with an entry point
at its end, so that a generator can rewrite it and a diff shows what it changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from galoop.domains.context_extension.artifact_spec import RULES
from galoop.domains.text.artifact_spec import checked_budget
from galoop.domains.text.artifacts import candidate, from_folder, provenance, source_of
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
        line = _TRUE_POSITIONS[text]
        return candidate(RULES, text, own, provenance("galoop", line), _TRUE_SOURCE, line)
    return from_folder(name_or_path, RULES, list_artifacts())


def _from_method(name: str, budget: Mapping[str, float]) -> Candidate:
    module, method, line = _METHODS[name]
    source = source_of(
        f"galoop.methods.{module}",
        "build_plan(shape: Shape, length: int) -> Plan",
        f"{method}().plan(shape, length)",
    )
    made = provenance(f"galoop methods/{module}.py", line)
    return candidate(RULES, name, budget, made, source, line)
