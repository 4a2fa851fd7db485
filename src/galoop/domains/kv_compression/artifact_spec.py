"""The artifact contract of the domain: which files a folder may hold and what its TOML says.

Everything here is static: nothing of the candidate runs, and neither torch nor kvpress is needed.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast, get_args

from galoop.errors import ArtifactError

Mode = Literal["auto", "replay", "prefill", "pipeline"]

DOMAIN = "kv-compression"
MANIFEST = "artifact.toml"
MAX_BYTES = 256 * 1024
MAX_FILES = 32
#: What a budget may fix: key -> (least value, value that it must stay below).
BUDGET_KEYS: dict[str, tuple[float, float]] = {
    "compression_ratio": (0.0, 1.0),
    "extra_forward_passes": (0.0, float("inf")),
    "added_latency": (0.0, float("inf")),
}
_ARTIFACT_KEYS = ("name", "domain", "entry", "mode")
_PROVENANCE_KEYS = ("origin", "parent", "note", "license", "tree")


@dataclass(frozen=True)
class ArtifactSpec:
    """What ``artifact.toml`` says.

    Attributes
    ----------
    name : str
    entry : str
        ``"press.py:build_press"``: file and function; the function takes ``compression_ratio``
        and returns a kvpress ``BasePress``.
    mode : {"auto", "replay", "prefill", "pipeline"}
        How the artifact is evaluated (see :mod:`.replay_modes`); ``auto`` lets the harness decide.
    budget : mapping of str to float
        ``compression_ratio`` (the fraction of KV entries to drop) and, optionally,
        ``extra_forward_passes`` and ``added_latency`` (relative to the prefill).
    provenance : mapping of str to str
        ``origin``, ``parent``, ``note``, ``license``.
    domain : str
    """

    name: str
    entry: str = "press.py:build_press"
    mode: Mode = "auto"
    budget: Mapping[str, float] = field(default_factory=lambda: {"compression_ratio": 0.0})
    provenance: Mapping[str, str] = field(default_factory=dict)
    domain: str = DOMAIN

    @property
    def file(self) -> str:
        """The file of the entry point."""
        return self.entry.partition(":")[0]

    @property
    def function(self) -> str:
        """The function of the entry point."""
        return self.entry.partition(":")[2]

    @property
    def compression_ratio(self) -> float:
        """The fraction of KV entries that the budget says to drop."""
        return self.budget["compression_ratio"]

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


def parse_spec(files: Mapping[str, str]) -> ArtifactSpec:
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
    budget = _table(data, "budget", tuple(BUDGET_KEYS))
    provenance = _table(data, "provenance", _PROVENANCE_KEYS)
    spec = ArtifactSpec(
        name=_string(artifact, "artifact", "name"),
        entry=_string(artifact, "artifact", "entry", "press.py:build_press"),
        mode=_mode(_string(artifact, "artifact", "mode", "auto")),
        budget=_budget(budget),
        provenance={key: _string(provenance, "provenance", key) for key in provenance},
        domain=_string(artifact, "artifact", "domain", DOMAIN),
    )
    if spec.domain != DOMAIN:
        raise ArtifactError(
            f"{MANIFEST}: [artifact] domain is {spec.domain!r}", f"this domain is {DOMAIN!r}"
        )
    _check_entry(spec, files)
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


def _mode(value: str) -> Mode:
    if value not in get_args(Mode):
        raise ArtifactError(
            f"{MANIFEST}: [artifact] mode is {value!r}", "one of " + ", ".join(get_args(Mode))
        )
    return cast(Mode, value)


def _budget(table: Mapping[str, Any]) -> dict[str, float]:
    if "compression_ratio" not in table:
        raise ArtifactError(
            f"{MANIFEST}: [budget] has no 'compression_ratio'",
            "state the fraction of KV entries to drop, for example 0.75",
        )
    budget = {}
    for key, value in table.items():
        low, high = BUDGET_KEYS[key]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value < high:
            raise ArtifactError(
                f"{MANIFEST}: [budget] {key} is {value!r}",
                f"a number from {low} up to (not including) {high}",
            )
        budget[key] = float(value)
    return budget


def _check_entry(spec: ArtifactSpec, files: Mapping[str, str]) -> None:
    file, colon, function = spec.entry.partition(":")
    if not colon or not file.endswith(".py") or not function.isidentifier():
        raise ArtifactError(
            f"{MANIFEST}: [artifact] entry is {spec.entry!r}", "write 'press.py:build_press'"
        )
    _check_path(file)
    if file not in files:
        raise ArtifactError(
            f"{MANIFEST}: the entry file {file!r} is not in the artifact",
            "it has " + ", ".join(sorted(files)),
        )
