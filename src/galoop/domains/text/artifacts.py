"""Artifacts by name or by folder: what the text domains share.

A named artifact is materialised from an installed module: its source, followed by the entry point,
so that a generator can rewrite it and a diff shows what it changed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path

from galoop.domains.text.artifact_spec import (
    MANIFEST,
    ArtifactSpec,
    SpecRules,
    did_you_mean,
    is_path,
    read_folder,
)
from galoop.errors import UnknownNameError
from galoop.types import Candidate


def source_of(module: str, entry: str, returned: str) -> str:
    """The source of an installed module with an entry point at its end.

    Parameters
    ----------
    module : str
        Its full name.
    entry : str
        The entry point's signature, without ``def``.
    returned : str
        The expression that it returns.
    """
    text = inspect.getsource(importlib.import_module(module)).rstrip()
    return (
        f"{text}\n\n\ndef {entry}:\n"
        '    """The entry point of the artifact."""\n'
        f"    return {returned}\n"
    )


def provenance(origin: str, note: str) -> dict[str, str]:
    """The ``[provenance]`` of a named artifact."""
    return {"origin": origin, "parent": "", "note": note, "license": "Apache-2.0"}


def candidate(
    rules: SpecRules,
    name: str,
    budget: Mapping[str, float],
    made: Mapping[str, str],
    source: str,
    note: str,
    *,
    mode: str | None = None,
) -> Candidate:
    """A named artifact as a candidate; checked as a folder is.

    Parameters
    ----------
    rules : SpecRules
    name : str
    budget : mapping of str to float
    made : mapping of str to str
        The ``[provenance]``.
    source : str
        The text of the file with the entry point.
    note : str
        One line on what it does.
    mode : str, optional
        The domain's default by default.
    """
    spec = ArtifactSpec(name, rules.domain, rules.entry, mode or rules.modes[0], budget, made)
    files = {MANIFEST: spec.to_toml(), spec.file: source}
    rules.parse(files)
    return Candidate("artifact", files, note)


def from_folder(
    name_or_path: str, rules: SpecRules, known: Iterable[str], ways: str = "a folder"
) -> Candidate:
    """The artifact of that folder, where it is no name.

    Parameters
    ----------
    name_or_path : str
    rules : SpecRules
    known : iterable of str
        The names that there are, and ``ways`` what will do as well, for the message.
    ways : str

    Raises
    ------
    UnknownNameError
        It is not a path either.
    ArtifactError
        The folder is not valid.
    """
    text = name_or_path.strip()
    if is_path(text):
        files = read_folder(Path(text).expanduser())
        return Candidate("artifact", files, f"{rules.parse(files).name} (from a folder)")
    raise UnknownNameError(
        f"there is no artifact {name_or_path!r}",
        f"{did_you_mean(text, known)}; {ways} will do as well",
    )
