"""A heat map of gaps as a self-contained SVG, and the small page that holds one or more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_LETTER = 6.7
_ROW, _HEAD, _LEAST = 46, 40, 86
#: From no gap to all of it; tell apart in grey, too.
_LIGHT, _DARK = (247, 248, 250), (176, 52, 30)


@dataclass(frozen=True)
class HeatCell:
    """One cell: a value in [0, 1] that colours it (None: not measured), and what it says.

    ``mark`` is drawn in front of the first line; ``title`` appears when a reader points at it.
    """

    value: float | None
    line: str
    below: str = ""
    mark: str = ""
    title: str = ""


def heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[HeatCell]],
    *,
    row_title: str,
    column_title: str,
    label: str,
) -> str:
    """An SVG with a row for each of ``rows`` and a column for each of ``columns``.

    Parameters
    ----------
    rows, columns : sequence of str
        Their names.
    cells : sequence of sequence of HeatCell
        ``cells[row][column]``.
    row_title, column_title : str
        What rows and columns are.
    label : str
        What the picture shows, for readers who do not see it.
    """
    if len(cells) != len(rows) or any(len(line) != len(columns) for line in cells):
        raise ValueError(f"{len(rows)} rows by {len(columns)} columns do not fit the cells")
    left = 16 + _LETTER * max(map(len, (*rows, row_title)), default=0)
    texts = [len(text) for line in cells for c in line for text in (c.mark + c.line, c.below)]
    wide = max(_LEAST, 14 + _LETTER * max((*texts, *map(len, columns)), default=0))
    width, height = left + wide * len(columns) + 8, _HEAD + _ROW * len(rows) + 30
    parts = [
        f'<svg class="heatmap" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<text x="{left:.0f}" y="14" fill="#5b626d">{escape(column_title)}</text>',
        f'<text x="8" y="{_HEAD - 8}" fill="#5b626d">{escape(row_title)}</text>',
    ]
    for j, name in enumerate(columns):
        x = left + wide * (j + 0.5)
        parts.append(
            f'<text x="{x:.0f}" y="{_HEAD - 8}" text-anchor="middle">{escape(name)}</text>'
        )
    for i, name in enumerate(rows):
        y = _HEAD + _ROW * i
        parts.append(f'<text x="8" y="{y + _ROW / 2 + 4:.0f}">{escape(name)}</text>')
        for j, cell in enumerate(cells[i]):
            parts += _cell(left + wide * j, y, wide, cell)
    return "\n".join([*parts, *_scale(left, height), "</svg>"])


def _cell(x: float, y: float, wide: float, cell: HeatCell) -> list[str]:
    fill, ink = _colours(cell.value)
    dashes = ' stroke-dasharray="3 3"' if cell.value is None else ""
    parts = [
        f"<g><title>{escape(cell.title or cell.line)}</title>",
        f'<rect x="{x + 1:.0f}" y="{y + 1}" width="{wide - 2:.0f}" height="{_ROW - 2}" '
        f'fill="{fill}" stroke="#c9ced6"{dashes}/>',
    ]
    middle, first = x + wide / 2, y + (19 if cell.below else 27)
    line = f"{cell.mark} {cell.line}".strip()
    weight = ' font-weight="600"' if cell.value is not None else ""
    parts.append(
        f'<text x="{middle:.0f}" y="{first}" text-anchor="middle" fill="{ink}"{weight}>'
        f"{escape(line)}</text>"
    )
    if cell.below:
        parts.append(
            f'<text x="{middle:.0f}" y="{first + 16}" text-anchor="middle" fill="{ink}" '
            f'font-size="10.5">{escape(cell.below)}</text>'
        )
    return [*parts, "</g>"]


def _colours(value: float | None) -> tuple[str, str]:
    """Fill and ink."""
    if value is None:
        return "#ffffff", "#5b626d"
    share = min(1.0, max(0.0, value))
    mixed = [round(a + (b - a) * share) for a, b in zip(_LIGHT, _DARK, strict=True)]
    return "#{:02x}{:02x}{:02x}".format(*mixed), "#ffffff" if share > 0.55 else "#22262b"


def _scale(left: float, height: float) -> list[str]:
    y = height - 20
    parts = [f'<text x="8" y="{y + 10:.0f}" fill="#5b626d">gap</text>']
    for k in range(11):
        fill, _ = _colours(k / 10)
        x = left + 16 * k
        parts.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="16" height="12" fill="{fill}" stroke="#c9ced6"/>'
        )
    for k, text in ((0, "0"), (11, "1")):
        anchor = "end" if k == 0 else "start"
        place = f'x="{left + 16 * k + (6 if k else -6):.0f}" y="{y + 10:.0f}"'
        parts.append(f'<text {place} text-anchor="{anchor}" fill="#5b626d">{text}</text>')
    return parts


def page(
    title: str,
    parts: Sequence[tuple[str, str]],
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> str:
    """A self-contained page: a heading and an SVG for each part, paragraphs before and after."""
    body = "\n".join(f"<h2>{escape(head)}</h2>\n<div>{svg}</div>" for head, svg in parts)
    said, rest = (
        "\n".join(f"<p>{escape(note)}</p>" for note in notes) for notes in (before, after)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n"
        "<style>body{font:15px/1.5 system-ui,sans-serif;color:#22262b;margin:2rem auto;"
        "max-width:72rem;padding:0 1rem}h1{font-size:1.3rem}h2{font-size:1rem;margin-top:2rem}"
        "div{overflow-x:auto}p{max-width:50rem}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{said}\n{body}\n{rest}\n</body></html>\n"
    )
