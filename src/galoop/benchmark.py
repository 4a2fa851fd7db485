"""Slices on disk: a probe that was admitted, frozen with its examples.

A slice folder holds ``probe.py``, ``examples.jsonl`` (the open part), ``sealed.jsonl`` (opened
once a generation, by the harness only), and ``slice.json`` with the evidence, the versions and the
hashes of the other files. A folder whose files do not hash to what ``slice.json`` says is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from galoop import plugins
from galoop.errors import StoreError
from galoop.store.run import RunStore
from galoop.types import Candidate, Example

SCHEMA = 1
#: The domain of slices that were frozen before there were others.
FIRST_DOMAIN = "kv-compression"
PROBE, OPEN, SEALED, ABOUT = "probe.py", "examples.jsonl", "sealed.jsonl", "slice.json"


@dataclass(frozen=True)
class Slice:
    """An admitted probe, frozen with its examples.

    Attributes
    ----------
    name : str
        ``B1``, ``B2``, …
    probe : Candidate
    open, sealed : tuple of Example
    about : dict
        What ``slice.json`` says beside the hashes: evidence, budget, model, versions.
    """

    name: str
    probe: Candidate
    open: tuple[Example, ...]
    sealed: tuple[Example, ...]
    about: dict[str, Any]

    @property
    def domain(self) -> str:
        """The domain it was found in."""
        return str(self.about.get("domain", FIRST_DOMAIN))

    @property
    def budget(self) -> dict[str, float]:
        """The budget that it was found under."""
        return dict(self.about.get("budget", {}))

    def budget_in(self, domain: str) -> dict[str, float]:
        """Its own budget; in another domain that domain's default.

        Raises
        ------
        UnknownNameError
            No such domain.
        """
        own = self.budget if domain == self.domain else {}
        return {**plugins.load("domains", domain)().budget_keys, **own}


def freeze(store: RunStore, folder: str, frozen: Slice) -> None:
    """Write a slice under the run folder; writing the same slice again changes nothing."""
    files = {
        PROBE: frozen.probe.source,
        OPEN: _lines(frozen.open),
        SEALED: _lines(frozen.sealed),
    }
    about = {
        "schema": SCHEMA,
        "name": frozen.name,
        "probe_key": frozen.probe.key,
        "note": frozen.probe.note,
        **frozen.about,
        "sha256": {name: _hash(text) for name, text in sorted(files.items())},
    }
    for name, text in files.items():
        store.write_text(f"{folder}/{name}", text)
    # Last: a folder without it is one whose writing was interrupted.
    store.write_text(f"{folder}/{ABOUT}", json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def read_slice(folder: Path) -> Slice:
    """Read a slice folder and check it against its hashes.

    Raises
    ------
    StoreError
        Not a slice folder, another schema, or a file that was changed.
    """
    try:
        about = json.loads(_text(folder / ABOUT))
        files = {name: _text(folder / name) for name in (PROBE, OPEN, SEALED)}
    except FileNotFoundError as error:
        raise StoreError(
            f"{folder}: not a slice folder: {Path(error.filename).name} is missing",
            "give a folder such as benchmark/B1 of a run",
        ) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder}: cannot be read as a slice: {error}") from None
    if not isinstance(about, dict) or about.get("schema") != SCHEMA:
        found = about.get("schema") if isinstance(about, dict) else None
        raise StoreError(f"{folder}: slice schema {found!r}, this galoop reads {SCHEMA}")
    hashes = about.get("sha256")
    if not isinstance(hashes, dict) or not isinstance(about.get("name"), str):
        raise StoreError(
            f"{folder}/{ABOUT}: has no name or no hashes", "take it from the run again"
        )
    for name, text in files.items():
        if hashes.get(name) != _hash(text):
            raise StoreError(
                f"{folder}/{name}: was changed after it was frozen",
                "a frozen slice is never edited: take it from the run again",
            )
    probe = Candidate("probe", {PROBE: files[PROBE]}, about.get("note", ""))
    return Slice(about["name"], probe, _examples(files[OPEN]), _examples(files[SEALED]), about)


def _text(path: Path) -> str:
    """The text as it stands: no translation of line ends, which the hashes cover too."""
    return path.read_bytes().decode("utf-8")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _lines(examples: Sequence[Example]) -> str:
    return "".join(
        json.dumps(e.to_json(), ensure_ascii=False, sort_keys=True) + "\n" for e in examples
    )


def _examples(text: str) -> tuple[Example, ...]:
    # Not splitlines, which also splits at characters that JSON leaves inside of strings.
    return tuple(Example.from_json(json.loads(line)) for line in text.split("\n") if line)
