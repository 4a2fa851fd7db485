"""Splits a model's answer into thinking, prose and fenced blocks (CommonMark fences)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPEN = re.compile(r"^ {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`\r\n]*)$")
_THINK = re.compile(r"^\s*<(?P<tag>think|thinking|reasoning|thought|scratchpad)>", re.I)
_END = re.compile(r"</(think|thinking|reasoning|thought|scratchpad)>", re.I)
_HEADING = re.compile(
    r"^\s*(?:#{1,6}\s*)?(?:\*\*|__)?(?:file(?:name)?\s*:?\s*)?[`\"']?"
    r"(?P<path>[A-Za-z0-9_][\w./-]*\.[A-Za-z0-9]{1,5})[`\"']?(?:\*\*|__)?\s*:?\s*(?:\*\*|__)?$",
    re.I,
)
_PATH = re.compile(r"(?:[\w-]+=)?[\"'`]?(?P<path>[^\s\"'`=]*[\w-]\.[A-Za-z0-9]{1,5})[\"'`]?")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes
    ----------
    language : str
        First word of the info string, lower case; empty when there is none.
    path : str
        A path from the info string, or from a heading right above the fence; else empty.
    text : str
    start, end : int
        Lines of the fences in :attr:`Answer.lines`; ``end`` is one past the last line when the
        answer broke off inside.
    """

    language: str
    path: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Answer:
    """A model's answer without its thinking.

    Attributes
    ----------
    lines : tuple of str
    blocks : tuple of Block
        The closed ones.
    prose : str
        Everything outside of the blocks.
    open : str
        ``"thinking"`` or ``"block"`` where the answer broke off inside one.
    """

    lines: tuple[str, ...]
    blocks: tuple[Block, ...]
    prose: str
    open: str = ""


def split(text: str) -> Answer:
    """Read an answer.

    Thinking is left out: a section between tags of its own outside of any block, and everything up
    to a closing tag at the beginning of a line when no tag opened it (some servers cut that off).
    """
    lines, thinking = _without_thinking(text.replace("\r\n", "\n").split("\n"))
    blocks: list[Block] = []
    prose: list[str] = []
    index = 0
    while index < len(lines):
        opening = _OPEN.match(lines[index])
        if opening is None:
            prose.append(lines[index])
            index += 1
            continue
        end = closing(lines, index + 1, opening["fence"])
        if end is None:
            return Answer(tuple(lines), tuple(blocks), "\n".join(prose), "block")
        language, path = _info(opening["info"])
        blocks.append(
            Block(
                language,
                path or _heading(prose),
                "\n".join(lines[index + 1 : end]) + "\n",
                index,
                end,
            )
        )
        index = end + 1
    return Answer(tuple(lines), tuple(blocks), "\n".join(prose), "thinking" if thinking else "")


def closing(lines: list[str] | tuple[str, ...], start: int, fence: str) -> int | None:
    """The first line from ``start`` on that closes a block opened by ``fence``."""
    wanted = re.compile(rf"^ {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$")
    return next((i for i in range(start, len(lines)) if wanted.match(lines[i])), None)


def fence_of(answer: Answer, block: Block) -> str:
    """The fence that opened a block."""
    found = _OPEN.match(answer.lines[block.start])
    assert found is not None
    return found["fence"]


def _without_thinking(lines: list[str]) -> tuple[list[str], bool]:
    """The lines outside of thinking, and whether the answer broke off while thinking."""
    kept: list[str] = []
    fence: str | None = None
    thinking = opened = False
    for line in lines:
        if thinking:
            end = _END.search(line)
            if end is not None:
                thinking = False
                if line[end.end() :].strip():
                    kept.append(line[end.end() :])
            continue
        if fence is None and (start := _THINK.match(line)) is not None:
            opened = True
            end = _END.search(line, start.end())
            thinking = end is None
            if end is not None:
                kept.append(line[end.end() :])
            continue
        stray = _END.match(line.lstrip())
        if stray is not None and not opened:
            opened = True
            kept, fence = [line.lstrip()[stray.end() :]], None
            continue
        if fence is not None:
            if closing([line], 0, fence) is not None:
                fence = None
        elif (opening := _OPEN.match(line)) is not None:
            fence = opening["fence"]
        kept.append(line)
    return kept, thinking


def _info(info: str) -> tuple[str, str]:
    """Language and path of an info string such as ``python press.py`` or ``py title="a/b.py"``."""
    words = info.strip().split()
    if not words:
        return "", ""
    path = next((m["path"] for w in words if (m := _PATH.fullmatch(w)) is not None), "")
    first = words[0].lower().lstrip("{.").rstrip("}")
    if ":" in first:  # python:press.py
        language, _, rest = words[0].partition(":")
        found = _PATH.fullmatch(rest)
        return language.lower(), found["path"] if found else path
    return ("" if path and words[0].endswith(path) else first), path


def _heading(prose: list[str]) -> str:
    """A file's name on the last line above a fence that says anything."""
    last = next((line for line in reversed(prose[-2:]) if line.strip()), "")
    found = _HEADING.match(last)
    return found["path"] if found else ""
