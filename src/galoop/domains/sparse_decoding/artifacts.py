"""Artifacts of sparse decoding: by name and by folder.

A named artifact is materialised from the installed package: ``selector.py`` is the source of the
method's module, followed by the entry point, so that a generator can rewrite it and a diff shows
what it changed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from galoop.domains.sparse_decoding.artifact_spec import (
    DOMAIN,
    MANIFEST,
    RULES,
    ArtifactSpec,
    did_you_mean,
    parse_spec,
)
from galoop.domains.text.artifact_spec import checked_budget, is_path, read_folder
from galoop.errors import UnknownNameError
from galoop.types import Candidate

SOURCE = "selector.py"


@dataclass(frozen=True)
class _Packaged:
    """An artifact whose source is one module of :mod:`galoop.methods`."""

    module: str
    cls: str
    summary: str


_PACKAGED: dict[str, _Packaged] = {
    "oracle-topk": _Packaged(
        "oracle_topk", "OracleTopK", "exact top-k for each query head (reads every key)"
    ),
    "pqcache": _Packaged(
        "pqcache", "PQCache", "top-k over product-quantised keys, one choice a KV head"
    ),
    "quest": _Packaged("quest", "Quest", "pages with the highest upper bounds of their scores"),
    "sliding-window": _Packaged(
        "sliding_window", "SlidingWindow", "the first and the most recent entries"
    ),
}
_IDENTITY_SUMMARY = "attends to everything: the null case (its density is 1)"
_IDENTITY_SOURCE = '''"""The null artifact: every row attends to everything it sees."""


class Everything:
    """Choose all, whatever density is asked for."""

    def index(self, keys, values):
        """Nothing is kept."""
        return {}

    def select(self, index, step):
        """Bool, (1, query heads, rows, entries)."""
        return step.seen.expand(1, step.queries.shape[1], -1, -1)


def build_selector(density: float) -> Everything:
    """The entry point."""
    return Everything()
'''


def list_artifacts() -> dict[str, str]:
    """The artifacts that have a name, each with one line on what it attends to."""
    named = {name: packaged.summary for name, packaged in _PACKAGED.items()}
    named["identity"] = _IDENTITY_SUMMARY
    return dict(sorted(named.items()))


def materialise(name_or_path: str, budget: Mapping[str, float]) -> Candidate:
    """The artifact of that name or folder as a candidate.

    Parameters
    ----------
    name_or_path : str
        A name of :func:`list_artifacts`, or a folder that holds ``artifact.toml``.
    budget : mapping of str to float
        The fixed budget, for example ``{"density": 0.02}``. It is written into the manifest of
        named artifacts; a folder keeps its own manifest; ``identity`` has density 1 whatever is
        asked.

    Raises
    ------
    UnknownNameError
        Nothing of that name.
    ArtifactError
        The folder or the budget is not valid.
    """
    text = name_or_path.strip()
    fixed = checked_budget(budget, RULES)
    if text == "identity":
        return _candidate(
            text,
            {**fixed, "density": 1.0},
            {"origin": "galoop", "note": "attends to everything"},
            _IDENTITY_SOURCE,
            _IDENTITY_SUMMARY,
        )
    if text in _PACKAGED:
        return _from_package(text, _PACKAGED[text], fixed)
    if is_path(text):
        files = read_folder(Path(text).expanduser())
        spec = parse_spec(files)
        return Candidate("artifact", files, f"{spec.name} (from a folder)")
    raise UnknownNameError(
        f"there is no artifact {name_or_path!r}",
        did_you_mean(text, list_artifacts()) + "; a folder will do as well",
    )


def _candidate(
    name: str,
    budget: Mapping[str, float],
    provenance: Mapping[str, str],
    source: str,
    note: str,
) -> Candidate:
    spec = ArtifactSpec(name, DOMAIN, RULES.entry, RULES.modes[0], budget, provenance)
    files = {MANIFEST: spec.to_toml(), SOURCE: source}
    parse_spec(files)
    return Candidate("artifact", files, note)


def is_packaged(candidate: Candidate) -> bool:
    """Whether a candidate's code is, to the letter, that of a named artifact."""
    if set(candidate.files) != {MANIFEST, SOURCE}:
        return False
    known = {_IDENTITY_SOURCE, *(_source(packaged) for packaged in _PACKAGED.values())}
    return candidate.files[SOURCE] in known


def _source(packaged: _Packaged) -> str:
    """The text of a named artifact's ``selector.py``."""
    module = importlib.import_module(f"galoop.methods.{packaged.module}")
    entry = (
        f"\n\ndef build_selector(density: float) -> {packaged.cls}:\n"
        f'    """The entry point of the artifact."""\n'
        f"    return {packaged.cls}(density=density)\n"
    )
    return inspect.getsource(module).rstrip() + "\n" + entry


def _from_package(name: str, packaged: _Packaged, budget: Mapping[str, float]) -> Candidate:
    provenance = {
        "origin": f"galoop {importlib.metadata.version('galoop')} methods/{packaged.module}.py",
        "parent": "",
        "note": "the installed source, with an entry point added at its end",
        "license": "Apache-2.0",
    }
    return _candidate(name, budget, provenance, _source(packaged), packaged.summary)
