"""A result as one self-contained HTML page: no script, no external asset, the same bytes always."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from galoop.report import plot
from galoop.report.model import Cell, LoopResult, LoopTable
from galoop.report.words import (
    cell_words,
    dollars,
    number,
    p_words,
    pretty,
    rejected_words,
    shorten,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from galoop.diversity.model import DiversityReport
    from galoop.report.shrunk import ShrunkReport


def render(
    result: LoopResult,
    diversity: DiversityReport | None = None,
    shrunk: Mapping[str, ShrunkReport] | None = None,
) -> str:
    """The report page of a run, with a section on diversity where one is given.

    ``shrunk`` has the smaller programs of slices, by name; they are shown, the originals below.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("galoop.report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        num=number,
        cell=cell_words,
        dollars=dollars,
        p=p_words,
        diff=diff_lines,
        pretty=pretty,
        code=code_spans,
    )
    return environment.get_template("report.html.j2").render(
        r=result,
        p=result.provenance,
        budget=", ".join(f"{k} {v:g}" for k, v in result.provenance.budget.items()),
        groups=_groups(result.table),
        shade=lambda row, column: _shade(result.table, row, column),
        plot=plot.bars(result.table) if result.table.columns else "",
        shorten=shorten,
        rejected=rejected_words(result),
        diversity=diversity,
        shrunk=shrunk or {},
        blocks=_blocks(diversity),
    )


def _blocks(diversity: DiversityReport | None) -> list[Any]:
    if diversity is None:
        return []
    from galoop.diversity.view import blocks

    return blocks(diversity)


def code_spans(text: str) -> Markup:
    """Escaped text in which `` `x` `` stands as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """(class, line) for each line of a unified diff."""
    found = []
    for line in diff.splitlines():
        if line.startswith(("+++", "---")):
            kind = "file"
        else:
            kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "same")
        found.append((kind, line))
    return found


def _groups(table: LoopTable) -> list[tuple[str, int]]:
    """Runs of columns with one heading: (title, number of columns)."""
    titles = {"slice": "slices found", "suite": "suites"}
    found: list[list[Any]] = []
    for column in table.columns:
        title = titles[column.group]
        if found and found[-1][0] == title:
            found[-1][1] += 1
        else:
            found.append([title, 1])
    return [(title, count) for title, count in found]


def _shade(table: LoopTable, row: int, column: int) -> str:
    """Background of a cell: the redder, the further below the reference."""
    if row == 0:
        return ""
    reference, cell = table.rows[0].cells[column], table.rows[row].cells[column]
    if not isinstance(reference, Cell) or not isinstance(cell, Cell):
        return ""
    loss = max(0.0, min(1.0, reference.estimate - cell.estimate))
    return f"background:rgba(200,85,61,{0.5 * loss:.2f})" if loss >= 0.05 else ""
