"""Artifacts of KV-cache compression: by name, by press expression, by folder.

An artifact that lives in kvpress is materialised from the installed package when it is asked for:
``press.py`` is the source of the press's module with its licence header, followed by the entry
point, so that a generator can rewrite it and a diff shows what it changed.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass

from galoop.domains.kv_compression.artifact_loader import load_press
from galoop.domains.kv_compression.artifact_spec import (
    RULES,
    ArtifactSpec,
    Mode,
    parse_spec,
)
from galoop.domains.kv_compression.press_expression import (
    build_expression,
    looks_like_expression,
    parse_expression,
    ratio_settable,
)
from galoop.domains.text.artifact_code import ArtifactRuntimeError, describe_failure
from galoop.domains.text.artifact_spec import checked_budget, is_path
from galoop.domains.text.artifacts import candidate, from_folder, provenance, source_of
from galoop.errors import ArtifactError, ModelError
from galoop.types import Candidate

__all__ = [
    "ArtifactRuntimeError",
    "ArtifactSpec",
    "check_model",
    "describe_failure",
    "list_artifacts",
    "load_press",
    "materialise",
    "parse_spec",
]

#: Models for which trained gates of FastKVzip are published (last part of the hub name).
FASTKVZIP_MODELS = (
    "Qwen2.5-7B-Instruct-1M",
    "Qwen2.5-14B-Instruct-1M",
    "Qwen3-8B",
    "Qwen3-14B",
    "Qwen3-4B-Instruct-2507",
    "gemma-3-12b-it",
)


@dataclass(frozen=True)
class _Packaged:
    """An artifact whose source is one press module of kvpress."""

    press: str
    summary: str
    mode: Mode = "auto"


_PACKAGED: dict[str, _Packaged] = {
    "compactor": _Packaged(
        "CompactorPress", "leverage scores of the keys blended with non-causal attention"
    ),
    "keydiff": _Packaged("KeyDiffPress", "keys least similar to the mean key"),
    "snapkv": _Packaged("SnapKVPress", "attention of the last window of tokens"),
    "expected-attention": _Packaged(
        "ExpectedAttentionPress", "attention that future queries are expected to pay"
    ),
    "knorm": _Packaged("KnormPress", "keys of small norm"),
    "streaming-llm": _Packaged("StreamingLLMPress", "the first and the most recent tokens"),
    "kvzip": _Packaged(
        "KVzipPress", "attention while the context is repeated (extra forward passes)", "prefill"
    ),
    "fastkvzip": _Packaged(
        "FastKVzipPress", "trained gates that imitate KVzip (published for a few models)", "prefill"
    ),
}
_EXPRESSIONS: dict[str, tuple[str, str]] = {
    "adakv-compactor": (
        "AdaKVPress(CompactorPress())",
        "Compactor's scores with budgets shared over the heads of a layer",
    ),
}
_IDENTITY_SUMMARY = "keeps everything: the null case (its budget is compression_ratio 0)"

_IDENTITY_SOURCE = '''"""The null artifact: a press that keeps everything."""

from dataclasses import dataclass

from kvpress import BasePress


@dataclass
class IdentityPress(BasePress):
    """Return keys and values as they are, whatever ratio is asked for."""

    compression_ratio: float = 0.0

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        return keys, values


def build_press(compression_ratio: float) -> BasePress:
    """The entry point."""
    return IdentityPress(compression_ratio=0.0)
'''


def list_artifacts() -> dict[str, str]:
    """The artifacts that have a name, each with one line on what it keeps."""
    named = {name: packaged.summary for name, packaged in _PACKAGED.items()}
    named.update({name: summary for name, (_, summary) in _EXPRESSIONS.items()})
    named["identity"] = _IDENTITY_SUMMARY
    return dict(sorted(named.items()))


def materialise(name_or_path: str, budget: Mapping[str, float]) -> Candidate:
    """The artifact of that name, press expression or folder as a candidate.

    Parameters
    ----------
    name_or_path : str
        A name of :func:`list_artifacts`, an expression over the presses of kvpress such as
        ``"AdaKVPress(CompactorPress())"``, or a folder that holds ``artifact.toml``.
    budget : mapping of str to float
        The fixed budget, for example ``{"compression_ratio": 0.75}``. It is written into the
        manifest of named artifacts and expressions; a folder keeps its own manifest; ``identity``
        has ``compression_ratio`` 0 whatever is asked.

    Raises
    ------
    UnknownNameError
        Nothing of that name.
    ArtifactError
        The expression, the folder or the budget is not valid.
    """
    text = name_or_path.strip()
    fixed = checked_budget(budget, RULES)
    if text == "identity":
        return candidate(
            RULES,
            text,
            {**fixed, "compression_ratio": 0.0},
            {"origin": "galoop", "note": "keeps everything"},
            _IDENTITY_SOURCE,
            _IDENTITY_SUMMARY,
        )
    if text in _PACKAGED:
        return _from_package(text, _PACKAGED[text], fixed)
    if text in _EXPRESSIONS:
        expression, summary = _EXPRESSIONS[text]
        return _from_expression(expression, fixed, text, summary)
    if not is_path(text) and looks_like_expression(text):
        return _from_expression(text, fixed, text, "press expression")
    return from_folder(name_or_path, RULES, list_artifacts(), "a press expression or a folder")


def check_model(files: Mapping[str, str], model_name: str) -> None:
    """Refuse, before anything runs, an artifact that has no parts for this model.

    Raises
    ------
    ModelError
        FastKVzip's gates are not published for the model: says for which they are.
    """
    uses_gates = any("FastKVzipPress" in text for text in files.values())
    short = model_name.rstrip("/").split("/")[-1].lower()
    if uses_gates and short not in {name.lower() for name in FASTKVZIP_MODELS}:
        raise ModelError(
            f"FastKVzip has no trained gates for model {model_name!r}",
            "gates are published for " + ", ".join(FASTKVZIP_MODELS) + "; or use kvzip",
        )


def _from_package(name: str, packaged: _Packaged, budget: Mapping[str, float]) -> Candidate:
    import kvpress

    cls = getattr(kvpress, packaged.press)
    source = source_of(
        cls.__module__,
        f"build_press(compression_ratio: float) -> {cls.__name__}",
        f"{cls.__name__}(compression_ratio=compression_ratio)",
    )
    relative = cls.__module__.replace(".", "/") + ".py"
    made = provenance(
        f"kvpress {importlib.metadata.version('kvpress')} {relative}",
        "the installed source, with an entry point added at its end",
    )
    return candidate(RULES, name, budget, made, source, packaged.summary, mode=packaged.mode)


def _from_expression(text: str, budget: Mapping[str, float], name: str, note: str) -> Candidate:
    expression = parse_expression(text)
    press = build_expression(expression)
    settable = ratio_settable(press) and not expression.states_ratio
    if not settable and not expression.states_ratio:
        raise ArtifactError(
            f"{type(press).__name__} takes no compression ratio from the budget",
            "state the ratios (or the threshold) in the expression",
        )
    imports = sorted({*expression.classes, "BasePress"})
    setting = "    press.compression_ratio = compression_ratio\n" if settable else ""
    source = (
        f'"""{_docstring(note)}: ``{_docstring(expression.source)}``."""\n\n'
        f"from kvpress import {', '.join(imports)}\n\n\n"
        "def build_press(compression_ratio: float) -> BasePress:\n"
        '    """The entry point of the artifact."""\n'
        f"    press = {expression.source}\n{setting}    return press\n"
    )
    made = provenance(f"kvpress {importlib.metadata.version('kvpress')}", note)
    return candidate(RULES, name, budget, made, source, note)


def _docstring(text: str) -> str:
    """Text that can stand in a docstring."""
    return text.replace("\\", "\\\\").replace('"', "'")
