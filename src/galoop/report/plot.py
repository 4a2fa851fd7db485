"""The table as a picture: grouped bars with intervals, as a self-contained SVG."""

from __future__ import annotations

from html import escape

from galoop.report.model import Cell, LoopTable
from galoop.report.words import cell_words, title_lines

#: Reference first, then the artifacts in order; the last colour repeats. Tell apart in grey, too.
COLOURS = ("#9aa1ab", "#c8553d", "#e0a030", "#2a7f9e", "#1f5c57", "#6b4e8f")

_LEFT, _TOP, _HEIGHT, _BOTTOM = 34, 34, 190, 46
_GAP, _BAR = 22, 15


def bars(table: LoopTable) -> str:
    """An SVG with a group of bars for each column and a bar for each row.

    The whiskers are the cells' intervals; a system that was not measured on a column has no bar.
    """
    step = max(_BAR * len(table.rows), 58) + _GAP
    width = _LEFT + step * len(table.columns) + 10
    height = _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg class="plot" viewBox="0 0 {width} {height}" width="{width}" '
        f'xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="Scores of each system on each column">',
        *_axis(width),
        *_legend(table),
    ]
    for j, column in enumerate(table.columns):
        x0 = _LEFT + step * j + _GAP / 2
        if j and column.group != table.columns[j - 1].group:
            x = x0 - _GAP / 2
            parts.append(
                f'<line x1="{x:g}" y1="{_TOP}" x2="{x:g}" y2="{_TOP + _HEIGHT + 30}" '
                'stroke="#b9bec6" stroke-dasharray="3 3"/>'
            )
        offset = (step - _GAP - _BAR * len(table.rows)) / 2
        for i, row in enumerate(table.rows):
            cell = row.cells[j]
            if cell is not None:
                title = f"{row.title}, {column.title}: {cell_words(cell)}"
                parts += _bar(x0 + offset + _BAR * i, cell, colour(i), title)
        parts += _label(x0 + (step - _GAP) / 2, column.title)
    return "\n".join([*parts, "</svg>"])


def colour(index: int) -> str:
    """The colour of a row."""
    return COLOURS[min(index, len(COLOURS) - 1)]


def _y(value: float) -> float:
    return round(_TOP + _HEIGHT * (1.0 - min(1.0, max(0.0, value))), 2)


def _axis(width: int) -> list[str]:
    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(value)
        stroke = "#8b919b" if value == 0 else "#e3e6ea"
        parts.append(f'<line x1="{_LEFT}" y1="{y:g}" x2="{width}" y2="{y:g}" stroke="{stroke}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:g}" text-anchor="end" class="tick">{value:g}</text>'
        )
    return parts


def _legend(table: LoopTable) -> list[str]:
    parts, x = [], float(_LEFT)
    for i, row in enumerate(table.rows):
        parts.append(f'<rect x="{x:g}" y="8" width="11" height="11" fill="{colour(i)}"/>')
        parts.append(f'<text x="{x + 16:g}" y="18" class="legend">{escape(row.title)}</text>')
        x += 34 + 6.6 * len(row.title)
    return parts


def _bar(x: float, cell: Cell, fill: str, title: str) -> list[str]:
    top, middle = _y(cell.estimate), round(x + _BAR / 2 - 1, 2)
    low, high = _y(cell.low), _y(cell.high)
    height = max(_TOP + _HEIGHT - top, 1.5)
    return [
        f"<g><title>{escape(title)}</title>"
        f'<rect x="{x:g}" y="{_TOP + _HEIGHT - height:g}" width="{_BAR - 2}" height="{height:g}" '
        f'fill="{fill}"/>'
        f'<path d="M{middle:g} {low:g}V{high:g}M{middle - 3:g} {low:g}h6'
        f'M{middle - 3:g} {high:g}h6" stroke="#22262b" fill="none"/></g>'
    ]


def _label(x: float, title: str) -> list[str]:
    """A column's title below its bars, in two lines where it is long."""
    return [
        f'<text x="{x:g}" y="{_TOP + _HEIGHT + 17 + 14 * k}" text-anchor="middle" '
        f'class="label">{escape(line)}</text>'
        for k, line in enumerate(title_lines(title, 10))
    ]
