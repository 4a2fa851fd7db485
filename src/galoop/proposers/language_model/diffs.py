"""Applies unified diffs as models write them: the text counts, the line numbers are hints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@|^@@")
_NULL = "/dev/null"


class DiffError(ValueError):
    """A diff that cannot be read or does not fit the files."""


@dataclass
class _Hunk:
    """Lines to find and lines to put in their place."""

    line: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


@dataclass
class _FileDiff:
    old: str
    new: str
    hunks: list[_Hunk] = field(default_factory=list)


def apply(diff: str, files: Mapping[str, str]) -> dict[str, str]:
    """The files after a unified diff.

    A hunk is placed where its old lines stand; where they stand more than once, at the place
    nearest to its stated line. White space at the end of a line does not matter for finding it.

    Parameters
    ----------
    diff : str
        One or more files. Without ``---``/``+++`` lines it is for the only file there is, or the
        only Python file.
    files : mapping of path to text

    Raises
    ------
    DiffError
        What does not fit, and where.
    """
    out = dict(files)
    for part in _read(diff, files):
        if part.new == _NULL:
            if out.pop(part.old, None) is None:
                raise DiffError(f"the diff deletes {part.old}, which does not exist")
            continue
        source = part.new if part.old == _NULL else part.old
        if part.old != _NULL and source not in out:
            raise DiffError(f"the diff changes {source}, which does not exist")
        lines = [] if part.old == _NULL else out[source].split("\n")
        for number, hunk in enumerate(part.hunks, start=1):
            lines = _place(lines, hunk, f"hunk {number} of {part.new}")
        if part.old not in (_NULL, part.new):
            del out[part.old]
        text = "\n".join(lines)
        out[part.new] = text if text.endswith("\n") else text + "\n"
    return out


def _read(diff: str, files: Mapping[str, str]) -> list[_FileDiff]:
    parts: list[_FileDiff] = []
    old, lines = "", diff.split("\n")
    hunk: _Hunk | None = None
    for index, line in enumerate(lines):
        after = lines[index + 1] if index + 1 < len(lines) else ""
        if line.startswith("--- ") and after.startswith("+++ "):
            old, hunk = _path(line, files), None
        elif line.startswith("+++ ") and old:
            parts.append(_FileDiff(old, _path(line, files)))
            old = ""
        elif (start := _HUNK.match(line)) is not None:
            if not parts:
                only = _only(files)
                parts.append(_FileDiff(only, only))
            hunk = _Hunk(int(start[1] or 0))
            parts[-1].hunks.append(hunk)
        elif hunk is not None:
            _add(hunk, line, last=index == len(lines) - 1)
    if not any(part.hunks or part.new == _NULL for part in parts):
        raise DiffError("the diff has no hunk (a line that starts with @@)")
    return parts


def _add(hunk: _Hunk, line: str, last: bool) -> None:
    if line.startswith("+"):
        hunk.new.append(line[1:])
    elif line.startswith("-"):
        hunk.old.append(line[1:])
    elif line.startswith((" ", "\t")) or (not line and not last):
        text = line[1:] if line.startswith(" ") else line
        hunk.old.append(text)
        hunk.new.append(text)
    elif line.startswith(("\\", "diff ", "index ", "new file", "deleted file")) or not line:
        return
    else:
        raise DiffError(f"a line of the diff starts with none of ' ', '+', '-', '@@': {line[:60]}")


def _path(line: str, files: Mapping[str, str]) -> str:
    path = line[4:].split("\t")[0].strip()
    if path == _NULL:
        return path
    stripped = re.sub(r"^[ab]/", "", path)
    if stripped in files or path not in files:
        path = stripped
    return path


def _only(files: Mapping[str, str]) -> str:
    for names in (list(files), [name for name in files if name.endswith(".py")]):
        if len(names) == 1:
            return names[0]
    raise DiffError("the diff does not say which file it changes")


def _place(lines: list[str], hunk: _Hunk, where: str) -> list[str]:
    old, new = list(hunk.old), list(hunk.new)
    # A blank line that merely ends the block is read as context; it need not be there.
    while True:
        found = _occurrences(lines, old)
        if found or not (old and new and not old[-1].strip() and not new[-1].strip()):
            break
        old, new = old[:-1], new[:-1]
    if not hunk.old:  # nothing to find: the stated line, or the end
        at = min(hunk.line, len(lines)) if lines else 0
        return [*lines[:at], *new, *lines[at:]]
    if not found:
        first = next((line for line in hunk.old if line.strip()), "")
        raise DiffError(f"{where} does not fit: lines from {first.strip()[:60]!r} on are not there")
    at = min(found, key=lambda i: abs(i - (hunk.line - 1)))
    return [*lines[:at], *new, *lines[at + len(old) :]]


def _occurrences(lines: list[str], wanted: list[str]) -> list[int]:
    have = [line.rstrip() for line in lines]
    want = [line.rstrip() for line in wanted]
    if not want:
        return []
    return [i for i in range(len(have) - len(want) + 1) if have[i : i + len(want)] == want]
