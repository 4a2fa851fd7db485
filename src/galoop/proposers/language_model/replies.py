"""Reads a candidate out of a model's answer, or says why there is none.

An answer may hold prose, thinking, drafts and examples beside the program; it may be cut off; and
it may be a diff. What cannot be read without guessing is refused with a reason, which costs no
evaluation and goes back to the model. The rules:

1. An answer that the model or the connection cut off is refused, however whole it looks.
2. Thinking is left out (:func:`galoop.proposers.language_model.blocks.split`).
3. A probe is the last fenced block that parses as Python and defines ``build``, else the last that
   parses; without any fence the whole answer counts if it parses.
4. An artifact is the parent's files with the files of the answer in their place: blocks with a path
   in the info string or as a heading above; without any path, the last Python block stands for the
   parent's only Python file.
5. A diff (``diff``, ``patch``) is applied to the parent's files. Whole files win over diffs.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from galoop.proposers.language_model import diffs
from galoop.proposers.language_model.blocks import Answer, Block, closing, fence_of, split
from galoop.proposers.protocol import Request
from galoop.types import Candidate

#: Longer answers are refused unread: no candidate may be so large.
MAX_CHARACTERS = 1_000_000
_PROBE = "probe.py"
_DIFFS = frozenset({"diff", "patch", "udiff"})
_PYTHON = frozenset({"", "python", "python3", "py"})
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_NOTE = re.compile(r"^\s*(?:\*\*)?(?:change|note|summary|idea)(?:\*\*)?\s*:\s*(?:\*\*)?(.+)$", re.I)
_NOTE_CHARACTERS = 160


class ReplyError(ValueError):
    """An answer without a candidate; the text is the reason, in words for the model."""


def read(text: str, request: Request, *, finished: bool = True) -> Candidate:
    """The candidate of an answer.

    Parameters
    ----------
    text : str
        The whole answer.
    request : Request
        What was asked: its parent's files are what a diff or a single file changes.
    finished : bool
        False when the model ran into its limit of tokens.

    Raises
    ------
    ReplyError
    """
    if not text.strip():
        raise ReplyError("the answer was empty")
    if len(text) > MAX_CHARACTERS:
        raise ReplyError(
            f"the answer has {len(text)} characters; more than {MAX_CHARACTERS} are not read"
        )
    answer = split(text)
    if answer.open == "thinking":
        raise ReplyError("the answer ended while thinking, before any program")
    if answer.open == "block":
        raise ReplyError("the answer was cut off inside a fenced block, which nothing closes")
    if not finished:
        raise ReplyError("the answer was cut off at the limit of tokens: write a shorter program")
    parent = dict(request.parent.candidate.files) if request.parent is not None else {}
    kind = request.task.kind
    files = _probe(answer, parent) if kind == "probe" else _artifact(answer, parent)
    candidate = Candidate(kind, files, _note(answer, request))
    if request.parent is not None and candidate.key == request.parent.candidate.key:
        raise ReplyError("the answer changes nothing: it is the same program as the parent")
    if any(candidate.key == known.candidate.key for known in request.history):
        raise ReplyError("this very program was evaluated before: write another one")
    return candidate


def _probe(answer: Answer, parent: Mapping[str, str]) -> dict[str, str]:
    programs = [b for b in answer.blocks if b.language in _PYTHON]
    texts = [_whole(answer, block) for block in programs]
    parsed = [text for text in texts if _is_program(text)]
    best = [text for text in parsed if re.search(r"^def build\b", text, re.M)] or parsed
    if best:
        return {_PROBE: best[-1]}
    if (patched := _patched(answer, parent)) is not None:
        return patched
    if texts:
        problem = _problem(_PROBE, texts[-1]) or "it defines nothing"
        raise ReplyError(f"no fenced block holds a program; the last one: {problem}")
    bare = "\n".join(answer.lines).strip() + "\n"
    if not answer.blocks and _is_program(bare):
        return {_PROBE: bare}
    raise ReplyError("the answer holds no fenced block of Python (```python … ```)")


def _artifact(answer: Answer, parent: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for block in answer.blocks:
        if block.path and block.language not in _DIFFS:
            found[_checked(block.path)] = block.text
    if not found:
        if (patched := _patched(answer, parent)) is not None:
            return patched
        found = _unnamed(answer, parent)
    for path, text in found.items():
        if problem := _problem(path, text):
            raise ReplyError(f"{path} does not parse: {problem}")
    return {**parent, **found}


def _unnamed(answer: Answer, parent: Mapping[str, str]) -> dict[str, str]:
    """The only Python file of the parent, from blocks that name no file."""
    own = [path for path in parent if path.endswith(".py")]
    texts = [_whole(answer, b) for b in answer.blocks if b.language in _PYTHON and not b.path]
    if not texts:
        raise ReplyError("the answer holds no fenced block with a file (```python press.py … ```)")
    if len(own) != 1:
        raise ReplyError("no block says which file it is: put the path after the language")
    parsed = [text for text in texts if not _problem(own[0], text)]
    return {own[0]: (parsed or texts)[-1]}


def _patched(answer: Answer, parent: Mapping[str, str]) -> dict[str, str] | None:
    """The parent's files with the answer's diffs applied; None where there is no diff."""
    texts = [b.text for b in answer.blocks if b.language in _DIFFS]
    if not texts:
        return None
    if not parent:
        raise ReplyError("the answer is a diff, and there is no parent: write the whole program")
    files = dict(parent)
    for text in texts:
        try:
            files = diffs.apply(text, files)
        except diffs.DiffError as error:
            raise ReplyError(f"the diff was not applied: {error}") from None
    for path, text in files.items():
        if parent.get(path) != text:
            _checked(path)
            if problem := _problem(path, text):
                raise ReplyError(f"after the diff, {path} does not parse: {problem}")
    return files


def _is_program(text: str) -> bool:
    """Whether a text parses and defines something: single words and numbers parse too."""
    if _problem(_PROBE, text):
        return False
    defining = (ast.FunctionDef, ast.Assign, ast.ClassDef, ast.Import)
    return any(isinstance(node, defining) for node in ast.parse(text).body)


def _whole(answer: Answer, block: Block) -> str:
    """A block's text; where a fence inside a string of the program closed it early, up to the first
    later fence with which it parses.
    """
    if not _problem(_PROBE, block.text):
        return block.text
    fence, end = fence_of(answer, block), block.end
    for _ in range(8):
        following = closing(answer.lines, end + 1, fence)
        if following is None:
            break
        end = following
        text = "\n".join(answer.lines[block.start + 1 : end]) + "\n"
        if not _problem(_PROBE, text):
            return text
    return block.text


def _checked(path: str) -> str:
    clean = path.removeprefix("./")
    if not _PATH.fullmatch(clean) or ".." in PurePosixPath(clean).parts or len(clean) > 200:
        raise ReplyError(f"{path!r} is not a relative path inside the artifact")
    return clean


def _problem(path: str, text: str) -> str:
    """Why a file does not parse; empty when it does, or when nobody can tell."""
    try:
        if path.endswith(".py"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in somebody else's program
                ast.parse(text)
        elif path.endswith(".toml"):
            tomllib.loads(text)
        elif path.endswith(".json"):
            json.loads(text)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def _note(answer: Answer, request: Request) -> str:
    """One line on the change: the line that says so, else the first line of prose."""
    lines: Sequence[str] = answer.prose.splitlines()
    stated = next((m[1] for line in lines if (m := _NOTE.match(line))), "")
    first = stated or next((line for line in lines if line.strip()), "")
    words = " ".join(first.strip(" *#`>-").split())
    fallback = "from nothing" if request.parent is None else "changed the parent"
    return words[:_NOTE_CHARACTERS] or fallback
