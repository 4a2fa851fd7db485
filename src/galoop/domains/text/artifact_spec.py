"""The artifact contract that the text domains share: what a folder may hold, what its TOML says.

Everything here is static: nothing of the candidate runs, and torch is not needed. A domain states
what is its own in :class:`SpecRules`.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from galoop.errors import ArtifactError

MANIFEST = "artifact.toml"
MAX_BYTES = 256 * 1024
MAX_FILES = 32
_ARTIFACT_KEYS = ("name", "domain", "entry", "mode")
_PROVENANCE_KEYS = ("origin", "parent", "note", "license", "tree")


@dataclass(frozen=True)
class SpecRules:
    """What a domain's artifacts may state.

    Attributes
    ----------
    domain : str
        The name that ``[artifact] domain`` has to give.
    entry : str
        Entry point of an artifact that names none: ``"press.py:build_press"``.
    signature : str
        How the entry point is defined, for messages:
        ``"def build_press(compression_ratio: float) -> BasePress"``.
    budget : mapping of str to (float, float)
        What a budget may fix: key -> (least value, value that it must stay below).
    required : mapping of str to str
        Keys that every budget fixes, each with the words that say how.
    modes : tuple of str
        What ``[artifact] mode`` may be; the first is the default.
    """

    domain: str
    entry: str
    signature: str
    budget: Mapping[str, tuple[float, float]]
    required: Mapping[str, str] = field(default_factory=dict)
    modes: tuple[str, ...] = ("auto",)

    def parse(self, files: Mapping[str, str]) -> ArtifactSpec:
        """See :func:`parse_spec`."""
        return parse_spec(files, self)


@dataclass(frozen=True)
class ArtifactSpec:
    """What ``artifact.toml`` says.

    Attributes
    ----------
    name : str
    domain : str
    entry : str
        ``"file.py:function"``.
    mode : str
        How the artifact is evaluated, where a domain knows several ways.
    budget : mapping of str to float
    provenance : mapping of str to str
        ``origin``, ``parent``, ``note``, ``license``.
    """

    name: str
    domain: str
    entry: str
    mode: str
    budget: Mapping[str, float]
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The file of the entry point."""
        return self.entry.partition(":")[0]

    @property
    def function(self) -> str:
        """The function of the entry point."""
        return self.entry.partition(":")[2]

    def to_toml(self) -> str:
        """The text of ``artifact.toml``; the inverse of :func:`parse_spec`."""
        lines = [
            "[artifact]",
            f"name = {_quote(self.name)}",
            f"domain = {_quote(self.domain)}",
            f"entry = {_quote(self.entry)}",
            f"mode = {_quote(self.mode)}",
            "",
            "[budget]",
            *(f"{key} = {float(value)!r}" for key, value in self.budget.items()),
            "",
            "[provenance]",
            *(f"{key} = {_quote(value)}" for key, value in self.provenance.items()),
        ]
        return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    """A TOML basic string."""
    special = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    out = "".join(special.get(c, c) for c in text)
    return (
        '"' + "".join(c if c.isprintable() or c == " " else f"\\u{ord(c):04x}" for c in out) + '"'
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"did you mean 'x'?"``, or the list of what is known when nothing is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not close:
        lowered = {n.lower(): n for n in names}
        match = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)
        close = [lowered[m] for m in match]
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(names)


def check_files(files: Mapping[str, str]) -> None:
    """Check names, number and size of an artifact's files.

    Raises
    ------
    ArtifactError
        For too many files, too many bytes, a path that is not a plain relative path, text that
        cannot be encoded as UTF-8, or a missing ``artifact.toml``.
    """
    if len(files) > MAX_FILES:
        raise ArtifactError(
            f"the artifact has {len(files)} files, at most {MAX_FILES} are allowed", "remove some"
        )
    total = 0
    for path, text in files.items():
        _check_path(path)
        if not isinstance(text, str):
            raise ArtifactError(f"artifact file {path!r} is not text", "artifacts hold text only")
        try:
            total += len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise ArtifactError(f"artifact file {path!r} is not valid UTF-8: {error}") from None
    if total > MAX_BYTES:
        raise ArtifactError(
            f"the artifact has {total} bytes, at most {MAX_BYTES} are allowed", "make it smaller"
        )
    if MANIFEST not in files:
        raise ArtifactError(f"the artifact has no {MANIFEST}", "every artifact folder needs one")


def _check_path(path: str) -> None:
    pure = PurePosixPath(path)
    plain = path == str(pure) and path not in ("", ".") and "\\" not in path and "\0" not in path
    if not plain or pure.is_absolute() or ".." in pure.parts or ":" in path:
        raise ArtifactError(
            f"artifact path {path!r} is not a plain relative path inside the folder",
            "use names such as 'press.py' or 'lib/pooling.py'",
        )


def is_path(text: str) -> bool:
    """Whether what somebody called an artifact is meant as a folder."""
    path = Path(text).expanduser()
    return path.is_dir() or text.startswith((".", "/", "~")) or (path / MANIFEST).is_file()


def read_folder(folder: Path) -> dict[str, str]:
    """Read an artifact folder as relative POSIX path -> text.

    Hidden files, ``__pycache__`` and byte code are left out.

    Raises
    ------
    ArtifactError
        When the folder or its manifest is missing, a link leads outside, a file is not UTF-8, or
        the caps on files and bytes are passed.
    """
    if not folder.is_dir():
        raise ArtifactError(f"there is no artifact folder {str(folder)!r}", "check the path")
    root = folder.resolve()
    files: dict[str, str] = {}
    total = 0
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(d for d in folders if not d.startswith(".") and d != "__pycache__")
        for name in sorted(names):
            if name.startswith(".") or name.endswith((".pyc", ".pyo")):
                continue
            path = Path(base, name)
            relative = path.relative_to(folder).as_posix()
            if not path.resolve().is_relative_to(root):
                raise ArtifactError(
                    f"artifact file {relative!r} links outside its folder {str(folder)!r}",
                    "copy the file into the folder",
                )
            total += path.stat().st_size
            if total > MAX_BYTES or len(files) >= MAX_FILES:
                raise ArtifactError(
                    f"artifact folder {str(folder)!r} is too large: at most {MAX_FILES} files and "
                    f"{MAX_BYTES} bytes are allowed",
                    "keep only the sources in it",
                )
            try:
                files[relative] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise ArtifactError(
                    f"artifact file {relative!r} in {str(folder)!r} is not UTF-8 text: {error}",
                    "artifacts hold text only",
                ) from None
    check_files(files)
    return files


def parse_spec(files: Mapping[str, str], rules: SpecRules) -> ArtifactSpec:
    """Check an artifact's files and read its manifest.

    Raises
    ------
    ArtifactError
        With the file, the table and the key that are wrong.
    """
    check_files(files)
    try:
        data = tomllib.loads(files[MANIFEST])
    except tomllib.TOMLDecodeError as error:
        raise ArtifactError(f"{MANIFEST} is not valid TOML: {error}") from None
    for key in data:
        if key not in ("artifact", "budget", "provenance"):
            hint = did_you_mean(key, ("artifact", "budget", "provenance"))
            raise ArtifactError(f"{MANIFEST}: unknown table or key {key!r}", hint)
    artifact = _table(data, "artifact", _ARTIFACT_KEYS)
    budget = _table(data, "budget", tuple(rules.budget))
    provenance = _table(data, "provenance", _PROVENANCE_KEYS)
    mode = _string(artifact, "artifact", "mode", rules.modes[0])
    if mode not in rules.modes:
        raise ArtifactError(
            f"{MANIFEST}: [artifact] mode is {mode!r}", "one of " + ", ".join(rules.modes)
        )
    spec = ArtifactSpec(
        name=_string(artifact, "artifact", "name"),
        entry=_string(artifact, "artifact", "entry", rules.entry),
        mode=mode,
        budget=_budget(budget, rules),
        provenance={key: _string(provenance, "provenance", key) for key in provenance},
        domain=_string(artifact, "artifact", "domain", rules.domain),
    )
    if spec.domain != rules.domain:
        raise ArtifactError(
            f"{MANIFEST}: [artifact] domain is {spec.domain!r}", f"this domain is {rules.domain!r}"
        )
    _check_entry(spec, files, rules)
    return spec


def _table(data: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise ArtifactError(f"{MANIFEST}: {name} must be a table", f"write [{name}]")
    for key in table:
        if key not in known:
            raise ArtifactError(
                f"{MANIFEST}: unknown key {key!r} in [{name}]", did_you_mean(key, known)
            )
    return table


def _string(table: Mapping[str, Any], where: str, key: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if value is None:
        raise ArtifactError(f"{MANIFEST}: [{where}] has no {key!r}", "add it")
    if not isinstance(value, str) or (key in ("name", "entry") and not value.strip()):
        raise ArtifactError(f"{MANIFEST}: [{where}] {key} must be a text, not {value!r}")
    return value


def _budget(table: Mapping[str, Any], rules: SpecRules) -> dict[str, float]:
    for key, words in rules.required.items():
        if key not in table:
            raise ArtifactError(f"{MANIFEST}: [budget] has no {key!r}", words)
    budget = {}
    for key, value in table.items():
        low, high = rules.budget[key]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value < high:
            raise ArtifactError(
                f"{MANIFEST}: [budget] {key} is {value!r}",
                f"a number from {low} up to (not including) {high}",
            )
        budget[key] = float(value)
    return budget


def checked_budget(budget: Mapping[str, float], rules: SpecRules) -> dict[str, float]:
    """A budget that was asked for, held against the rules.

    Raises
    ------
    ArtifactError
        An unknown key, a value out of range, or a required key that is missing.
    """
    fixed = {}
    for key, value in budget.items():
        if key not in rules.budget:
            raise ArtifactError(f"unknown budget {key!r}", did_you_mean(key, rules.budget))
        low, high = rules.budget[key]
        if isinstance(value, bool) or not low <= value < high:
            raise ArtifactError(
                f"budget {key} is {value!r}", f"a number from {low} up to (not including) {high}"
            )
        fixed[key] = float(value)
    for key, words in rules.required.items():
        if key not in fixed:
            raise ArtifactError(f"the budget has no {key}", words)
    return fixed


def _check_entry(spec: ArtifactSpec, files: Mapping[str, str], rules: SpecRules) -> None:
    file, colon, function = spec.entry.partition(":")
    if not colon or not file.endswith(".py") or not function.isidentifier():
        raise ArtifactError(
            f"{MANIFEST}: [artifact] entry is {spec.entry!r}", f"write {rules.entry!r}"
        )
    _check_path(file)
    if file not in files:
        raise ArtifactError(
            f"{MANIFEST}: the entry file {file!r} is not in the artifact",
            "it has " + ", ".join(sorted(files)),
        )
