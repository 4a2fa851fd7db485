"""Grids for readers: on the terminal, as Markdown, as a picture and as a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from galoop.across.cells import GapCell, Grid
from galoop.report.heatmap import HeatCell, heatmap, page
from galoop.report.words import cell_words, number
from galoop.store.files import Files

if TYPE_CHECKING:
    from rich.console import Console

#: Before the gap, so that a verdict can be read without colours.
MARKS = {"breaks": "✗", "holds": "✓", "undecided": "?", "reference fails": "φ", "cannot run": "–"}
LEGEND = (
    "✗ breaks: the lower bound of the gap reaches τ; ✓ holds: its upper bound lies below τ; "
    "? undecided; φ the reference itself scores below τ₀; – cannot run. The gap is reference minus "
    "artifact, with a 95% interval."
)
_STYLES = {"breaks": "red", "holds": "green", "undecided": "yellow"}


def short(cell: GapCell | None) -> str:
    """``✗ 0.95 [0.80, 0.99] n=40``."""
    if cell is None:
        return ""
    mark = MARKS[cell.verdict]
    if cell.gap is None:
        return mark
    gap = cell.gap
    return f"{mark} {number(gap.estimate)} [{number(gap.low)}, {number(gap.high)}] n={gap.n}"


def reasons(grids: Sequence[Grid]) -> list[str]:
    """Why cells could not run, each reason once with its places."""
    places: dict[str, list[str]] = {}
    for grid in grids:
        for row, line in zip(grid.rows, grid.cells, strict=True):
            for column, cell in zip(grid.columns, line, strict=True):
                if cell is not None and cell.gap is None:
                    places.setdefault(cell.reason, []).append(f"{row} × {column}")
    return [f"– {', '.join(dict.fromkeys(where))}: {why}" for why, where in places.items()]


def print_grids(
    title: str, grids: Sequence[Grid], words: Sequence[str], console: Console | None = None
) -> None:
    """Print grids and what follows from them (standard output by default)."""
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    console = console or RichConsole(highlight=False)
    console.print(Text(title, style="bold"))
    for grid in grids:
        console.print(Text(f"\n{grid.title}" + (f" ({grid.note})" if grid.note else "")))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(f"{grid.row_title} \\ {grid.column_title}", overflow="fold")
        for name in grid.columns:
            table.add_column(name, overflow="fold")
        for name, line in zip(grid.rows, grid.cells, strict=True):
            shown = [Text(short(c), style=_STYLES.get(c.verdict, "dim") if c else "") for c in line]
            table.add_row(name, *shown)
        console.print(table)
    console.print(Text(f"\n{LEGEND}", style="dim"))
    for reason in reasons(grids):
        console.print(Text(reason, style="yellow"))
    for sentence in words:
        console.print(Text(f"\n{sentence}"))


def markdown(title: str, grids: Sequence[Grid], words: Sequence[str]) -> str:
    """Grids as Markdown tables."""
    lines = [f"# {_escape(title)}", ""]
    for sentence in words:
        lines += [_escape(sentence), ""]
    for grid in grids:
        lines += [f"## {_escape(grid.title)}", ""]
        if grid.note:
            lines += [_escape(grid.note), ""]
        head = [f"{grid.row_title} \\\\ {grid.column_title}", *map(_escape, grid.columns)]
        lines += [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
        for name, line in zip(grid.rows, grid.cells, strict=True):
            cells = [_escape(name), *(_escape(short(cell)) for cell in line)]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [LEGEND, *(f"\n{_escape(line)}" for line in reasons(grids))]
    return "\n".join(lines) + "\n"


def picture(grid: Grid) -> str:
    """A grid as a heat map (SVG)."""
    return heatmap(
        grid.rows,
        grid.columns,
        [[_heat(row, column, cell) for column, cell in zip(grid.columns, line, strict=True)]
         for row, line in zip(grid.rows, grid.cells, strict=True)],
        row_title=grid.row_title,
        column_title=grid.column_title,
        label=f"Gap by {grid.row_title} and {grid.column_title}, {grid.title}",
    )  # fmt: skip


def html(title: str, grids: Sequence[Grid], words: Sequence[str]) -> str:
    """A self-contained page with a heat map for each grid."""
    parts = [(g.title + (f" ({g.note})" if g.note else ""), picture(g)) for g in grids]
    return page(title, parts, words, [LEGEND, *reasons(grids)])


def save(
    folder: Path, name: str, title: str, data: Any, grids: Sequence[Grid], words: Sequence[str]
) -> None:
    """``NAME.json`` with ``data``, ``NAME.md`` and ``NAME.html`` in a run folder."""
    files = Files(folder, frozenset())
    files.write_text(f"{name}.json", dumps(data))
    files.write_text(f"{name}.md", markdown(title, grids, words))
    files.write_text(f"{name}.html", html(title, grids, words))


def dumps(data: Any) -> str:
    """JSON as files and ``--json`` have it."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _heat(row: str, column: str, cell: GapCell | None) -> HeatCell:
    if cell is None:
        return HeatCell(None, "", title=f"{row} × {column}: not asked")
    mark, title = MARKS[cell.verdict], f"{row} × {column}: {cell.verdict}"
    if cell.gap is None or cell.reference is None or cell.artifact is None:
        return HeatCell(None, "cannot run", mark=mark, title=f"{title}: {cell.reason}")
    detail = (
        f"{title}; reference {cell_words(cell.reference)}; artifact {cell_words(cell.artifact)}; "
        f"{cell.words}"
    )
    gap = cell.gap
    below = f"[{number(gap.low)}, {number(gap.high)}] n={gap.n}"
    fails = cell.verdict == "reference fails"
    return HeatCell(None if fails else gap.estimate, number(gap.estimate), below, mark, detail)


def _escape(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())
