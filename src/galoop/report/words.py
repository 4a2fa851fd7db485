"""A run's findings in sentences, and contexts shortened for a reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from galoop.report.model import (
    Cell,
    GenerationReport,
    LedgerRow,
    LoopResult,
    LoopTable,
    SliceReport,
)

_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def pretty(key: str) -> str:
    """``A0`` -> ``A₀``, ``B12`` -> ``B₁₂``; anything else as it is."""
    if len(key) > 1 and key[0] in "AB" and key[1:].isdigit():
        return key[0] + key[1:].translate(_SUBSCRIPTS)
    return key


def number(value: float) -> str:
    """Two decimals; a plain zero has no sign."""
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


def title_lines(title: str, width: int = 12) -> list[str]:
    """A long title in two lines, broken after an underscore near its middle."""
    cuts = [i + 1 for i, c in enumerate(title) if c == "_" and 0 < i < len(title) - 1]
    if len(title) <= width or not cuts:
        return [title]
    cut = min(cuts, key=lambda i: abs(i - len(title) / 2))
    return [title[:cut], title[cut:]]


def cell_words(cell: Cell) -> str:
    """``0.42 [0.28, 0.57], n = 40``."""
    return f"{number(cell.estimate)} [{number(cell.low)}, {number(cell.high)}], n = {cell.n}"


def cell_short(cell: Cell | None) -> str:
    """``0.42 [0.28, 0.57] n=40``; a dash for what was not measured."""
    if cell is None:
        return "–"
    return f"{number(cell.estimate)} [{number(cell.low)}, {number(cell.high)}] n={cell.n}"


def p_words(p: float) -> str:
    """``p = 0.004`` or ``p < 0.0001``."""
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"


def summary(
    table: LoopTable,
    slices: Sequence[SliceReport],
    generations: Sequence[GenerationReport],
) -> str:
    """What the run found, in a few sentences, from its own figures."""
    given = any(column.group == "slice" for column in table.columns)
    if not slices and not given:
        return (
            "No probe was admitted: within this budget nothing was found on which the artifact "
            "loses what the reference solves."
        )
    # `gal improve` is given its slices and searches for none.
    parts = [_slice_sentence(table, item) for item in slices]
    parts += [_generation_sentence(item) for item in generations]
    return " ".join(parts) or "No artifact was accepted: none was promising enough for a trial."


def _slice_sentence(table: LoopTable, item: SliceReport) -> str:
    reference, artifact = _cells(table, item)
    return (
        f"Round {item.round} found {pretty(item.name)}, on which the reference scores "
        f"{cell_words(reference)}, and {pretty(item.against)} {cell_words(artifact)}."
    )


def _cells(table: LoopTable, item: SliceReport) -> tuple[Cell, Cell]:
    """Reference and artifact on a slice: the table's (sealed) cells, else admission's."""
    pair = []
    for row, fallback in (
        ("reference", item.admission.reference),
        (item.against, item.admission.artifact),
    ):
        try:
            cell = table.cell(row, item.name)
        except (StopIteration, ValueError):
            cell = None
        pair.append(cell or fallback)
    return pair[0], pair[1]


def _generation_sentence(item: GenerationReport) -> str:
    if not item.accepted:
        return f"No artifact of round {item.round} was accepted: {item.reason.rstrip('.')}."
    moves = [
        f"{number(change.old.estimate)} → {number(change.new.estimate)} on the confirmation set of "
        f"{pretty(change.slice)} (n = {change.new.n})"
        for change in item.changes
    ]
    gating = [c for c in item.components if c.status != "not gating"]
    held = sum(c.status == "pass" for c in gating)
    gate = f", and {held} of {len(gating)} gating suite components held" if gating else ""
    return f"{item.name} moved {', '.join(moves) or 'nothing'}{gate}."


@dataclass(frozen=True)
class Segment:
    """A stretch of a shortened context. ``cut``: ``text`` says how much was left out."""

    text: str
    kind: Literal["text", "evidence", "cut"]


def shorten(context: str, evidence: Sequence[str], around: int = 120) -> list[Segment]:
    """A context with its evidence whole, some text around it, and the rest left out.

    Parameters
    ----------
    context : str
    evidence : sequence of str
        Passages of the context; one that does not occur is passed over.
    around : int
        Characters kept on both sides of each passage, at the start and at the end; widened to
        whole lines where lines are short, else to whole words.

    Returns
    -------
    list of Segment
        In order. The text and evidence segments are substrings of the context.
    """
    marks = bytearray(len(context))  # 0 left out, 1 kept, 2 evidence
    ends = [(0, around), (len(context) - around, len(context))]
    spans = _spans(context, evidence)
    for start, end in [*ends, *((a - around, b + around) for a, b in spans)]:
        start, end = _widen(context, max(0, start), min(end, len(context)))
        marks[start:end] = b"\1" * (end - start)
    for start, end in spans:
        marks[start:end] = b"\2" * (end - start)
    return _segments(context, marks)


def _spans(context: str, evidence: Sequence[str]) -> list[tuple[int, int]]:
    found = []
    for passage in evidence:
        start = context.find(passage) if passage else -1
        if start >= 0:
            found.append((start, start + len(passage)))
    return sorted(found)


_SHORT_LINE = 120
_LEAST_CUT = 40


def _widen(context: str, start: int, end: int) -> tuple[int, int]:
    """Widen a span to whole lines, or to whole words where the line is long."""
    line_start = context.rfind("\n", 0, start) + 1
    line_end = context.find("\n", end) + 1 or len(context)
    if start - line_start <= _SHORT_LINE:
        start = line_start
    while start > 0 and not context[start - 1].isspace():
        start -= 1
    if line_end - end <= _SHORT_LINE:
        return start, line_end
    while end < len(context) and not context[end].isspace():
        end += 1
    return start, end


def _segments(context: str, marks: bytearray) -> list[Segment]:
    found: list[Segment] = []
    start = 0
    for i in range(1, len(marks) + 1):
        if i < len(marks) and marks[i] == marks[start]:
            continue
        text, mark = context[start:i], marks[start]
        if mark == 0 and i - start >= _LEAST_CUT:
            before = "" if start == 0 or context[start - 1].isspace() else " "
            after = "\n" if text.endswith("\n") else " "
            found.append(Segment(f"{before}[… {i - start} characters …]{after}", "cut"))
        else:
            found.append(Segment(text, "evidence" if mark == 2 else "text"))
        start = i
    return found


def rejected_words(result: LoopResult) -> list[tuple[str, list[tuple[str, int]]]]:
    """Rejections for each search: (``round 1, discriminator``, [(reason, count), …])."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for item in result.rejections:
        groups.setdefault(f"round {item.round}, {item.search}", []).append(
            (item.reason, item.count)
        )
    return [
        (title, sorted(rows, key=lambda row: (-row[1], row[0]))) for title, rows in groups.items()
    ]


def dollars(value: float | None) -> str:
    """``$0.12``, ``$0.0012``; ``unknown`` for None."""
    if value is None:
        return "unknown"
    return f"${value:,.2f}" if value == 0 or value >= 0.01 else f"${value:.2g}"


def priced(row: LedgerRow) -> str:
    """The dollars of a row and where they come from, where there is anything to say."""
    said = dollars(row.dollars)
    return said if row.source in ("none", "unknown") else f"{said}, {row.source}"
