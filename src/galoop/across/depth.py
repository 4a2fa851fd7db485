"""Move the evidence of an example to another depth of its context.

The passage is taken out where it stands and put in where a passage ends: before a line, or after a
sentence where the text has few lines. Everything else keeps its words and order. What a text says
through the order of its parts ("the last entry", "the one after") may change its meaning; no
program can see that, so the reference's score at each depth has to be looked at.
"""

from __future__ import annotations

import re
from dataclasses import replace

from galoop.errors import UsageError
from galoop.types import Example

_SENTENCE_END = re.compile(r"(?<=[.!?]) ")


def move_evidence(example: Example, depth: float) -> Example:
    """The example with its evidence at ``depth`` of the rest of its context.

    Parameters
    ----------
    example : Example
    depth : float
        0 is the start, 1 the end, in characters; the nearest place where a passage may stand is
        taken.

    Raises
    ------
    UsageError
        No evidence, more than one passage, a passage that occurs more than once or not at all,
        or one that is a part of a sentence.
    """
    if not 0.0 <= depth <= 1.0:
        raise UsageError(f"a depth lies between 0 and 1, got {depth:g}")
    start, end = _span(example)
    context = example.context
    before, passage, after = context[:start], context[start:end], context[end:]
    if _is_lines(before, after):
        rest = _joined(before, after)
        starts = {0, len(rest), *(m.end() for m in re.finditer(r"\n", rest))}
        # Few lines: a line of its own may then stand between two sentences.
        if len(starts) < 8:
            starts |= {m.end() for m in _SENTENCE_END.finditer(rest)}
        at = _nearest(starts, depth * len(rest))
        moved = _as_line(rest[:at], passage, rest[at:])
    elif _is_sentence(before, after):
        rest = before.rstrip(" ") + (" " if before.strip() and after.strip() else "")
        rest += after.lstrip(" ")
        starts = {0, len(rest), *(m.end() for m in _SENTENCE_END.finditer(rest))}
        at = _nearest(starts, depth * len(rest))
        moved = " ".join(part for part in (rest[:at].rstrip(" "), passage, rest[at:]) if part)
    else:
        raise UsageError(
            "its evidence is a part of a sentence, which cannot stand alone elsewhere",
            "a probe whose evidence is whole lines or sentences can be moved",
        )
    return replace(example, context=moved)


def depth_of(example: Example) -> float:
    """Where the evidence stands now: 0 start, 1 end.

    Raises
    ------
    UsageError
        As :func:`move_evidence`.
    """
    start, end = _span(example)
    rest = len(example.context) - (end - start)
    return start / rest if rest else 0.0


def _span(example: Example) -> tuple[int, int]:
    """Start and end of the one passage; passages that adjoin are one."""
    if not example.evidence:
        raise UsageError("the probe names no evidence, so that there is nothing to move")
    spans = []
    for passage in example.evidence:
        times = example.context.count(passage) if passage else 0
        if times != 1:
            raise UsageError(f"a passage of its evidence occurs {times} times in the context")
        start = example.context.index(passage)
        spans.append((start, start + len(passage)))
    spans.sort()
    merged = spans[:1]
    for start, end in spans[1:]:
        last = merged[-1][1]
        if example.context[last:start].strip():
            raise UsageError(
                f"its evidence is {len(example.evidence)} passages with other text in between, "
                "which have no one depth"
            )
        merged[-1] = (merged[-1][0], max(last, end))
    return merged[0]


def _is_lines(before: str, after: str) -> bool:
    return (not before or before.endswith("\n")) and (not after or after.startswith("\n"))


def _is_sentence(before: str, after: str) -> bool:
    starts = not before.strip() or before.rstrip(" ")[-1] in ".!?\n:"
    ends = not after.strip() or after[0] in " \n"
    return starts and ends


def _joined(before: str, after: str) -> str:
    """The text without the line that was between the two."""
    return before + after.removeprefix("\n") if after else before.removesuffix("\n")


def _nearest(places: set[int], target: float) -> int:
    return min(sorted(places), key=lambda place: abs(place - target))


def _as_line(before: str, passage: str, after: str) -> str:
    parts = [before.rstrip(" ").removesuffix("\n"), passage, after.removeprefix("\n")]
    return "\n".join(part for part in parts if part)
