"""Renderings of a result: everything is in them, escaped, and the same bytes every time."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from galoop.evaluation.statistics import proportion_interval
from galoop.report import html, markdown, plot, terminal
from galoop.report.model import Cell, Column, LoopResult, LoopTable, ReplayResult, ReplayRow, Row
from galoop.report.words import number, pretty, shorten, summary, title_lines
from report_sample import cell, sample

VOID = {"meta", "br", "wbr", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and collects text, tables' rows and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.open and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += f" {data.strip()}"


def test_json_round_trip() -> None:
    result = sample()
    assert LoopResult.from_json(json.loads(result.dumps())) == result
    assert "NaN" not in result.dumps()


def test_no_times_and_no_paths_in_the_schema() -> None:
    names = re.findall(r'"(\w+)":', sample().dumps())
    assert not [n for n in names if re.search(r"second|time|(^|_)date|path|host|user", n)]


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        LoopTable((Column("a", "a", "slice"), Column("b", "b", "slice")), (Row("r", "r", (None,)),))


def test_cell_of_an_interval() -> None:
    interval = proportion_interval(12, 40)
    found = Cell.of(interval)
    assert (found.estimate, found.n) == (0.3, 40)
    assert found.low == interval.low < 0.3 < found.high == interval.high


def test_html_is_well_formed_and_self_contained() -> None:
    text = html.render(sample())
    page = Page(text)
    assert page.addresses == []
    assert "script" not in page.tags
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in text
    assert "@import" not in text


def test_html_holds_every_figure_of_the_table() -> None:
    result = sample()
    rows = Page(html.render(result)).rows
    for row in result.table.rows:
        (shown,) = [r for r in rows if r and r[0].split() == row.title.split()][:1]
        for found, wanted in zip(shown[1:], row.cells, strict=True):
            if wanted is None:
                assert found.strip() == "–"
            else:
                low, high = number(wanted.low), number(wanted.high)
                expected = f"{number(wanted.estimate)} {low} – {high} n = {wanted.n}"
                assert found.split() == expected.split()


EVERYWHERE = [
    "Ledgers of look-alike accounts",
    "What stands for account 417?",
    "71, as the ledger says",
    "entries = [(rng.randrange(100, 999)",
    "-from kvpress import CompactorPress",
    "+from kvpress import KeyDiffPress",
    "ruler/niah_multikey_3",
    "inconclusive",
    "the answer is not in the context",
    "p < 0.0001",
    "unknown",
]


@pytest.mark.parametrize("words", EVERYWHERE)
def test_every_part_is_in_html_and_markdown(words: str) -> None:
    result = sample()
    assert words in "".join(Page(html.render(result)).text)
    assert words in markdown.render(result)


@pytest.mark.parametrize("words", [w for w in EVERYWHERE if not w.startswith("entries")])
def test_every_part_but_the_probe_is_on_the_terminal(words: str) -> None:
    assert words in terminal.render(sample(), width=140)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_terminal_keeps_to_its_width_and_shows_every_column(width: int) -> None:
    result = sample()
    text = terminal.render(result, brief=True, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    for row in result.table.rows:
        # One line of estimates for each piece of the table; together they hold every cell.
        lines = [line for line in text.splitlines() if line.startswith(row.title + "  ")]
        found = " ".join(lines)
        for wanted in row.cells:
            if wanted is not None:
                assert f"{number(wanted.estimate)} n={wanted.n}" in found
    for column in result.table.columns:
        for part in title_lines(column.title):
            assert part in text


def test_renderings_are_deterministic() -> None:
    for render in (html.render, markdown.render, terminal.render):
        assert render(sample()) == render(sample())


def test_hostile_text_is_escaped() -> None:
    attack = '</pre><script>alert("x")</script>'
    result = sample()
    bad_slice = replace(
        result.slices[0],
        words=attack,
        source=attack,
        example=replace(result.slices[0].example, context=attack, question=attack, artifact=attack),
    )
    bad_row = replace(result.table.rows[0], title=attack)
    bad = replace(
        result,
        slices=(bad_slice,),
        notes=(attack, "`" + attack + "`"),
        table=replace(result.table, rows=(bad_row, *result.table.rows[1:])),
        generations=(replace(result.generations[0], diff="+" + attack),),
    )
    page = Page(html.render(bad))
    assert "script" not in page.tags
    assert attack in "".join(page.text)


def test_markup_of_the_terminal_is_not_interpreted() -> None:
    result = sample()
    example = replace(result.slices[0].example, artifact="[bold red]x[/] [/nope]")
    result = replace(result, slices=(replace(result.slices[0], example=example, words="[dim]w"),))
    text = terminal.render(result, width=120)
    assert "[bold red]x[/] [/nope]" in text
    assert "[dim]w" in text


def test_markdown_fence_is_longer_than_what_it_holds() -> None:
    result = sample()
    probe = replace(result.slices[0], source='"""\n````python\n"""\n')
    text = markdown.render(replace(result, slices=(probe,)))
    assert "\n`````python\n" in text


def test_markdown_table_has_the_columns_of_the_data() -> None:
    lines = markdown.table(sample().table).splitlines()
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert len(lines) == 2 + len(sample().table.rows)


def test_an_empty_run_is_rendered() -> None:
    empty = replace(
        sample(), table=LoopTable(), slices=(), generations=(), searches=(), rejections=(),
        ledger=(), notes=(), status="stopped", summary=summary(LoopTable(), (), ()),
    )  # fmt: skip
    for render in (html.render, markdown.render, terminal.render):
        text = " ".join(render(empty).split())
        assert "No probe was admitted" in text
        assert "stopped before its end" in text.lower()


def test_a_run_that_was_given_its_slices_did_not_fail_to_find_one() -> None:
    given = sample()
    words = summary(given.table, (), given.generations)
    assert "No probe was admitted" not in words
    assert given.generations[0].name in words
    assert summary(given.table, (), ()).startswith("No artifact was accepted")


def test_plot_is_xml_and_bars_are_to_scale() -> None:
    values = (0.0, 0.5, 1.0)
    columns = tuple(Column(str(v), f"c{v}", "suite") for v in values)
    row = Row("r", "<reference> & co", tuple(Cell(v, v / 2, min(1, v + 0.1), 10) for v in values))
    root = ElementTree.fromstring(plot.bars(LoopTable(columns, (row,))))
    space = {"s": "http://www.w3.org/2000/svg"}
    heights = [float(bar.get("height", "")) for bar in root.findall("s:g/s:rect", space)]
    assert heights[1] == pytest.approx(heights[2] / 2)
    assert 0 < heights[0] <= 2  # a zero is a line, not nothing
    titles = [title.text or "" for title in root.findall("s:g/s:title", space)]
    assert titles[1] == "<reference> & co, c0.5: 0.50 [0.25, 0.60], n = 10"


def test_summary_takes_its_figures_from_the_table() -> None:
    result = sample()
    words = summary(result.table, result.slices, result.generations)
    reference = result.table.cell("reference", "B1")
    assert reference is not None
    assert f"reference scores {number(reference.estimate)} [{number(reference.low)}" in words
    assert "A₀ 0.28 [" in words
    assert "No artifact of round 2 was accepted: vt lost 0.20." in words


def test_pretty_and_titles() -> None:
    assert [pretty(k) for k in ("A0", "B12", "Gen-1", "B", "A0x", "ruler/vt")] == [
        "A₀", "B₁₂", "Gen-1", "B", "A0x", "ruler/vt"
    ]  # fmt: skip
    assert title_lines("niah_multikey_2") == ["niah_", "multikey_2"]
    assert title_lines("cwe") == ["cwe"]
    assert "".join(title_lines("_" * 20)) == "_" * 20


@given(
    st.text(alphabet="ab \n", max_size=900),
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 40)), max_size=4),
    st.integers(0, 60),
)
def test_shortened_context_keeps_evidence_and_accounts_for_the_rest(
    context: str, spans: list[tuple[int, int]], around: int
) -> None:
    evidence = [context[a : a + n] for a, n in spans if context[a : a + n]]
    segments = shorten(context, evidence, around)
    rebuilt, at = "", 0
    for segment in segments:
        if segment.kind == "cut":
            at += int(re.search(r"… (\d+) characters …", segment.text).group(1))  # type: ignore[union-attr]
        else:
            assert context[at : at + len(segment.text)] == segment.text
            at += len(segment.text)
            rebuilt += segment.text
    assert at == len(context)
    for passage in evidence:
        assert passage in rebuilt
    marked = [s.text for s in segments if s.kind == "evidence"]
    assert bool(marked) == bool(evidence)


def test_long_context_is_shortened() -> None:
    context = " ".join(f"word{i}" for i in range(2000))
    segments = shorten(context, ["word1000 word1001"])
    assert sum(len(s.text) for s in segments) < 900
    assert [s.kind for s in segments] == ["text", "cut", "text", "evidence", "text", "cut", "text"]


def test_replay_is_printed() -> None:
    rows = (
        ReplayRow("compactor", cell(0.9), cell(0.2), cell(0.7)),
        ReplayRow("mine", cell(0.9), cell(0.0), cell(0.0), invalid="kept 0.4 of 0.25"),
    )
    stream = io.StringIO()
    result = ReplayResult("B1", "ab" * 8, "fast", "float32", rows, notes=("a note",))
    assert ReplayResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    terminal.print_replay(result, Console(file=stream, width=120))
    text = stream.getvalue()
    assert "0.20 [0.08, 0.32] n=40" in text
    assert "invalid: kept 0.4 of 0.25" in text
    assert "a note" in text
