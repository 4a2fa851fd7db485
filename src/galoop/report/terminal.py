"""A result on the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from galoop.report.model import (
    Cell,
    Column,
    GenerationReport,
    LoopResult,
    LoopTable,
    PrintedExample,
    ReplayResult,
    SliceReport,
)
from galoop.report.words import (
    cell_short,
    cell_words,
    number,
    p_words,
    pretty,
    priced,
    rejected_words,
    shorten,
    title_lines,
)

if TYPE_CHECKING:
    from galoop.diversity.model import DiversityReport

_STATUS = {"pass": "green", "fail": "red", "inconclusive": "yellow", "not gating": "dim"}


def print_result(
    result: LoopResult,
    brief: bool = False,
    console: Console | None = None,
    diversity: DiversityReport | None = None,
) -> None:
    """Print a result to ``console`` (standard output by default)."""
    console = console or Console(highlight=False)
    for part in _parts(result, console.width, brief):
        console.print(part)
    if diversity is not None and not brief:
        from galoop.diversity.view import print_report

        console.print(_heading("Diversity"))
        print_report(diversity, console)


def render(
    result: LoopResult,
    brief: bool = False,
    width: int = 100,
    diversity: DiversityReport | None = None,
) -> str:
    """A result as plain text, without colours."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    print_result(result, brief, console, diversity)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def print_replay(result: ReplayResult, console: Console | None = None) -> None:
    """Print a replay to ``console`` (standard output by default)."""
    console = console or Console(highlight=False)
    console.print(Text(f"slice {result.slice} on {result.model} ({result.dtype})", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("artifact", "reference", "artifact's score", "gap"):
        table.add_column(title)
    for row in result.rows:
        if row.invalid:
            table.add_row(row.artifact, "", Text(f"invalid: {row.invalid}", style="red"), "")
        else:
            cells = (cell_short(c) for c in (row.reference, row.score, row.gap))
            table.add_row(row.artifact, *cells)
    console.print(table)
    if result.example is not None:
        console.print()
        console.print(_example(result.example, "the first artifact"))
    for note in result.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _parts(result: LoopResult, width: int, brief: bool) -> Iterable[RenderableType]:
    p = result.provenance
    budget = ", ".join(f"{k} {v:g}" for k, v in p.budget.items())
    yield Text(f"{p.name}: {p.start} at {budget} on {p.model} ({p.dtype}), seed {p.seed}", "bold")
    if result.status != "complete":
        yield Text("stopped before its end; these are the figures so far", style="yellow")
    yield Text()
    yield from _tables(result.table, width)
    yield Text("mean score, 95% interval, examples; from examples that no search saw", style="dim")
    yield Text(f"\n{result.summary}" if result.summary else "")
    for note in result.notes:
        yield Text(f"note: {note}", style="yellow")
    if brief:
        return
    for item in result.slices:
        yield from _slice(item)
    for generation in result.generations:
        yield from _generation(generation)
    yield from _rejections(result)
    if result.agents:
        yield _heading("agents")
        yield from (Text(sentence) for sentence in result.agents)
    yield from _ledger(result)


def _tables(table: LoopTable, width: int) -> Iterable[RenderableType]:
    """The table in as many pieces as the width asks for; slices and suites stay apart."""
    label = max((len(row.title) for row in table.rows), default=0) + 2
    for group in ("slice", "suite"):
        indices = [i for i, c in enumerate(table.columns) if c.group == group]
        while indices:
            taken, used = 0, label
            for i in indices:
                used += max(12, *(len(part) for part in _title(table.columns[i]))) + 2
                if taken and used > width:
                    break
                taken += 1
            yield _piece(table, indices[:taken])
            indices = indices[taken:]


def _title(column: Column) -> list[str]:
    return [*title_lines(column.title), *([column.note] if column.note else [])]


def _piece(table: LoopTable, indices: list[int]) -> RenderableType:
    piece = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    piece.add_column("")
    for i in indices:
        piece.add_column("\n".join(_title(table.columns[i])), no_wrap=True)
    for row in table.rows:
        piece.add_row(row.title, *(_cell(row.cells[i]) for i in indices))
    return Padding(piece, (0, 0, 1, 0))


def _cell(cell: Cell | None) -> Text:
    if cell is None:
        return Text("–", style="dim")
    return Text.assemble(
        (f"{number(cell.estimate)}", "bold"),
        (f" n={cell.n}\n", "dim"),
        (f"[{number(cell.low)}, {number(cell.high)}]", "dim"),
    )


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold underline")


def _slice(item: SliceReport) -> Iterable[RenderableType]:
    yield _heading(
        f"{pretty(item.name)}: found in round {item.round} against {pretty(item.against)}"
    )
    yield Text(item.words)
    a = item.admission
    yield Text(
        f"admitted on {a.n} fresh examples (attempt {a.attempt}): reference "
        f"{cell_words(a.reference)}; {pretty(item.against)} {cell_words(a.artifact)}; gap "
        f"{cell_words(a.gap)}, at least {number(a.gap_lower)}. The search had seen a gap of "
        f"{number(item.screening_gap)}.",
        style="dim",
    )
    yield _example(item.example, pretty(item.against))


def _example(example: PrintedExample, against: str) -> RenderableType:
    styles = {"text": "", "evidence": "bold black on yellow", "cut": "dim italic"}
    context = Text()
    for segment in shorten(example.context, example.evidence):
        context.append(segment.text, style=styles[segment.kind])
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("context", context)
    grid.add_row("question", Text(example.question))
    if example.answer_prefix:
        grid.add_row("answer starts", Text(example.answer_prefix))
    grid.add_row("gold", Text(", ".join(example.gold), style="green"))
    grid.add_row("reference", Text(example.reference.strip()))
    grid.add_row(against, Text(example.artifact.strip(), style="red"))
    return Padding(Group(Text(f"example, seed {example.seed}", style="dim"), grid), (1, 0, 0, 2))


def _generation(item: GenerationReport) -> Iterable[RenderableType]:
    verdict = "accepted" if item.accepted else "not accepted"
    yield _heading(f"{item.name}: {verdict}, from {pretty(item.parent)}")
    yield Text(item.words)
    if item.reason:
        yield Text(item.reason, style="dim")
    for change in item.changes:
        yield Text(
            f"{pretty(change.slice)}: {cell_short(change.old)} → {cell_short(change.new)}; "
            f"{change.gained} gained, {change.lost} lost, {p_words(change.p_value)}"
        )
    if item.measured:
        yield Text(
            "measured: " + ", ".join(f"{k} {v:.4g}" for k, v in sorted(item.measured.items())),
            style="dim",
        )
    for c in item.components:
        yield Text.assemble(
            (f"{c.status:>12}  ", _STATUS[c.status]),
            f"{c.component}: {number(c.old.estimate)} → {number(c.new.estimate)}",
            (
                f", lower bound {number(c.difference.low)} against -{number(c.delta)}, n={c.n}"
                + (f"; {c.reason}" if c.reason else ""),
                "dim",
            ),
        )
    if item.diff:
        yield Padding(_diff(item.diff), (1, 0, 0, 2))


def _diff(diff: str) -> Text:
    text = Text()
    for line in diff.splitlines():
        text.append(line + "\n", style=diff_style(line))
    text.rstrip()
    return text


def diff_style(line: str) -> str:
    """The style of one line of a unified diff."""
    if line.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")


def _rejections(result: LoopResult) -> Iterable[RenderableType]:
    groups = rejected_words(result)
    if groups:
        yield _heading("rejected candidates")
    for title, rows in groups:
        yield Text(title)
        for reason, count in rows:
            yield Text(f"{count:>6}  {reason}", style="dim")


def _ledger(result: LoopResult) -> Iterable[RenderableType]:
    if not result.ledger:
        return
    yield _heading("ledger")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("stage", "who", "kind"):
        table.add_column(title)
    for title in ("count", "evaluations", "tokens", "dollars"):
        table.add_column(title, justify="right")
    for row in result.ledger:
        table.add_row(
            row.stage,
            row.who,
            row.kind,
            f"{row.count:,}",
            f"{row.evaluations:,}",
            f"{row.input_tokens + row.output_tokens:,}",
            priced(row),
        )
    yield table
