"""Artifacts of sparse decoding: by name and by folder.

A named artifact is materialised from the installed package: ``selector.py`` is the source of the
method's module, followed by the entry point, so that a generator can rewrite it and a diff shows
what it changed.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from galoop.domains.sparse_decoding.artifact_spec import MANIFEST, RULES
from galoop.domains.text.artifact_spec import checked_budget
from galoop.domains.text.artifacts import candidate, from_folder, provenance, source_of
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
        return candidate(
            RULES,
            text,
            {**fixed, "density": 1.0},
            {"origin": "galoop", "note": "attends to everything"},
            _IDENTITY_SOURCE,
            _IDENTITY_SUMMARY,
        )
    if text in _PACKAGED:
        return _from_package(text, _PACKAGED[text], fixed)
    return from_folder(name_or_path, RULES, list_artifacts())


def is_packaged(artifact: Candidate) -> bool:
    """Whether a candidate's code is, to the letter, that of a named artifact."""
    if set(artifact.files) != {MANIFEST, SOURCE}:
        return False
    return artifact.files[SOURCE] in _known_sources()


@cache
def _known_sources() -> frozenset[str]:
    """Read once: every evaluation of a selector asks."""
    return frozenset({_IDENTITY_SOURCE, *map(_source, _PACKAGED.values())})


def _source(packaged: _Packaged) -> str:
    """The text of a named artifact's ``selector.py``."""
    return source_of(
        f"galoop.methods.{packaged.module}",
        f"build_selector(density: float) -> {packaged.cls}",
        f"{packaged.cls}(density=density)",
    )


def _from_package(name: str, packaged: _Packaged, budget: Mapping[str, float]) -> Candidate:
    made = provenance(
        f"galoop {importlib.metadata.version('galoop')} methods/{packaged.module}.py",
        "the installed source, with an entry point added at its end",
    )
    return candidate(RULES, name, budget, made, _source(packaged), packaged.summary)
