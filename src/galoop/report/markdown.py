"""A result as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from galoop.report.model import GenerationReport, LoopResult, LoopTable, PrintedExample, SliceReport
from galoop.report.words import (
    cell_short,
    cell_words,
    number,
    p_words,
    pretty,
    priced,
    rejected_words,
    shorten,
)

if TYPE_CHECKING:
    from galoop.diversity.model import DiversityReport
    from galoop.report.shrunk import ShrunkReport


def render(
    result: LoopResult,
    diversity: DiversityReport | None = None,
    shrunk: Mapping[str, ShrunkReport] | None = None,
) -> str:
    """A result as a Markdown document, with a section on diversity where one is given.

    ``shrunk`` has the smaller programs of slices, by name; they are shown, the originals below.
    """
    lines = list(_lines(result, shrunk or {}))
    if diversity is not None:
        from galoop.diversity.view import markdown

        lines += markdown(diversity)
    return "\n".join(lines) + "\n"


def table(data: LoopTable) -> str:
    """The table alone, as a Markdown table."""
    titles = ["", *(c.title + (f" ({c.note})" if c.note else "") for c in data.columns)]
    lines = [_row(titles), "|" + " --- |" * len(titles)]
    lines += [_row([row.title, *(cell_short(cell) for cell in row.cells)]) for row in data.rows]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())


def _fence(text: str, language: str = "") -> list[str]:
    """A fenced block whose fence is longer than any run of backticks inside."""
    fence = "```"
    while fence in text:
        fence += "`"
    return ["", f"{fence}{language}", text.rstrip("\n"), fence]


def _lines(result: LoopResult, shrunk: Mapping[str, ShrunkReport]) -> Iterable[str]:
    p = result.provenance
    budget = ", ".join(f"{k} {v:g}" for k, v in p.budget.items())
    yield f"# {p.name}"
    yield ""
    yield f"{p.start} at {budget} on {p.model} ({p.dtype}), seed {p.seed}."
    if result.status != "complete":
        yield "\n**Stopped before its end; these are the figures so far.**"
    yield ""
    yield table(result.table)
    yield ""
    yield "Mean score, 95% interval, number of examples; from examples that no search saw."
    if result.summary:
        yield f"\n{result.summary}"
    for note in result.notes:
        yield f"\n> {note}"
    for item in result.slices:
        yield from _slice(item, shrunk.get(item.name))
    for generation in result.generations:
        yield from _generation(generation)
    yield from _rest(result)


def _slice(item: SliceReport, small: ShrunkReport | None) -> Iterable[str]:
    a = item.admission
    yield f"\n## {pretty(item.name)}: found in round {item.round} against {pretty(item.against)}"
    yield f"\n{item.words}"
    yield (
        f"\nAdmitted on {a.n} fresh examples (attempt {a.attempt}): reference "
        f"{cell_words(a.reference)}; {pretty(item.against)} {cell_words(a.artifact)}; gap "
        f"{cell_words(a.gap)}, at least {number(a.gap_lower)}. The search had seen a gap of "
        f"{number(item.screening_gap)}."
    )
    yield from _example(item.example, pretty(item.against))
    if small is not None:
        yield f"\nThe probe, shrunk. {small.words}"
        yield from _fence(small.source, "python")
    yield "\nThe probe as it was found:" if small is not None else "\nThe probe:"
    yield from _fence(item.source, "python")


def _example(example: PrintedExample, against: str) -> Iterable[str]:
    yield f"\nOne example (seed {example.seed}):"
    context = "".join(segment.text for segment in shorten(example.context, example.evidence))
    yield from _fence(context)
    yield ""
    yield f"- question: {_escape(example.question)}"
    yield f"- gold: {_escape(', '.join(example.gold))}"
    yield f"- reference: {_escape(example.reference)}"
    yield f"- {against}: {_escape(example.artifact)}"


def _generation(item: GenerationReport) -> Iterable[str]:
    verdict = "accepted" if item.accepted else "not accepted"
    yield f"\n## {item.name}: {verdict}, from {pretty(item.parent)}"
    yield f"\n{item.words}"
    if item.reason:
        yield f"\n{item.reason}"
    if item.changes:
        yield ""
    for change in item.changes:
        yield (
            f"- {pretty(change.slice)}: {cell_short(change.old)} → {cell_short(change.new)}; "
            f"{change.gained} gained, {change.lost} lost, {p_words(change.p_value)}"
        )
    if item.components:
        yield "\n| component | verdict | old | new | lower bound | -δ | n |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
    for c in item.components:
        yield _row(
            [
                c.component,
                c.status + (f": {c.reason}" if c.reason else ""),
                number(c.old.estimate),
                number(c.new.estimate),
                number(c.difference.low),
                number(-c.delta),
                str(c.n),
            ]
        )
    if item.diff:
        yield from _fence(item.diff, "diff")


def _rest(result: LoopResult) -> Iterable[str]:
    groups = rejected_words(result)
    if groups:
        yield "\n## Rejected candidates"
    for title, rows in groups:
        yield f"\n{title}:\n"
        yield from (f"- {count} × {_escape(reason)}" for reason, count in rows)
    if result.agents:
        yield "\n## Agents\n"
        yield from (f"- {_escape(sentence)}" for sentence in result.agents)
    if result.ledger:
        yield "\n## Ledger\n"
        yield "| stage | who | kind | count | evaluations | tokens | dollars |"
        yield "| --- | --- | --- | --- | --- | --- | --- |"
    for row in result.ledger:
        yield _row(
            [
                row.stage,
                row.who,
                row.kind,
                str(row.count),
                str(row.evaluations),
                str(row.input_tokens + row.output_tokens),
                priced(row),
            ]
        )
