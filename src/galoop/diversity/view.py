"""A look at diversity on the terminal and in Markdown; the HTML page has its own template."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from galoop.diversity.model import Behaviour, Distances, DiversityReport
from galoop.report.words import number, pretty

#: A table: title, column heads, rows (the first cell is the row's head), a sentence below.
Block = tuple[str, list[str], list[list[str]], str]

#: Above so many items the tables of pairs are left to ``--json``.
_WIDEST = 12


def blocks(report: DiversityReport) -> list[Block]:
    """The tables of a report, for every rendering."""
    found: list[Block] = []
    if report.programs is not None:
        found.append(_pairs(f"programs, cosine distance ({report.embedding})", report.programs))
    if report.examples is not None:
        found.append(
            _pairs(
                f"examples, mean cosine distance ({report.embedding}); on the diagonal the spread "
                "within a slice",
                report.examples,
            )
        )
    if report.behaviour is not None:
        found.append(_behaviour(report.behaviour))
    if report.judged is not None:
        found.append(
            _pairs(f"judged difference of abilities, 0 to 1 ({report.judge})", report.judged)
        )
    if report.searches:
        heads = ["round", "engine", "programs", "mean distance", "effective number"]
        rows = [
            [str(s.round), s.engine, str(s.programs), _figure(s.mean), _figure(s.effective)]
            for s in report.searches
        ]
        found.append(("scored programs of each search", heads, rows, ""))
    return found


def print_report(report: DiversityReport, console: Console | None = None) -> None:
    """Print a report to ``console`` (standard output by default)."""
    console = console or Console(highlight=False)
    for item in report.items:
        text = Text.assemble((pretty(item.name), "bold"), f"  {item.words}")
        console.print(text)
    for title, heads, rows, below in blocks(report):
        console.print(Text(f"\n{title}", style="bold underline"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for head in heads:
            table.add_column(head)
        for row in rows:
            table.add_row(*row)
        if rows:
            console.print(table)
        if below:
            console.print(Text(below, style="dim"))
    for note in report.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def markdown(report: DiversityReport) -> list[str]:
    """The lines of a section of a Markdown report."""
    lines = ["", "## Diversity", "", "Reported, and never optimised."]
    for title, heads, rows, below in blocks(report):
        lines += ["", f"{title[0].upper()}{title[1:]}:", ""]
        if rows:
            lines += [_line(heads), "|" + " --- |" * len(heads), *map(_line, rows)]
        if below:
            lines += ["", below]
    lines += [f"\n> {note}" for note in report.notes]
    return lines


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _pairs(title: str, told: Distances) -> Block:
    names = [pretty(name) for name in told.names]
    words = []
    if told.mean is not None:
        words.append(f"mean over pairs {number(told.mean)}")
    if told.effective is not None:
        words.append(
            f"{number(told.effective)} effectively different of {len(names)} (Vendi score)"
        )
    if len(names) > _WIDEST:
        return (title, [], [], "; ".join([*words, "the pairs stand in --json"]))
    rows = [[n, *map(_figure, row)] for n, row in zip(names, told.rows, strict=True)]
    return (title, ["", *names], rows, "; ".join(words))


def _behaviour(told: Behaviour) -> Block:
    rows = [["reference", *map(_figure, told.reference)]]
    for method, gaps, counts, broken in zip(
        told.methods, told.gaps, told.examples, told.broken, strict=True
    ):
        rows.append([pretty(method), *map(_gap, gaps, counts, broken)])
    n, k = len(told.slices), told.patterns
    words = [f"{k} different {'pattern' if k == 1 else 'patterns'} of breaks over {n} slices"]
    if told.distances.mean is not None:
        words.append(f"mean difference of gaps {number(told.distances.mean)}")
    heads = ["", *(pretty(name) for name in told.slices)]
    return ("behaviour: gap to the reference; ✗ meets the criterion", heads, rows, "; ".join(words))


def _gap(gap: float | None, n: int, broken: bool | None) -> str:
    return "–" if gap is None else f"{number(gap)} n={n}{' ✗' if broken else ''}"


def _figure(value: float | None) -> str:
    return "–" if value is None else number(value)
