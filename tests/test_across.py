"""Scope and matrix: figures by the systems' definition, reasons where nothing runs, resume."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import program_domain
from galoop.across.cells import GapCell, Grid, gap_cell
from galoop.across.depth import depth_of, move_evidence
from galoop.across.matrix import Matrix, contender, matrix
from galoop.across.scope import Ask, Scope, scope
from galoop.across.slices import Machine, read_origin
from galoop.across.view import html, markdown, picture, print_grids
from galoop.cli.machine import folder_of
from galoop.cli.main import run as gal
from galoop.errors import NothingEvaluatedError, StoreError, UsageError
from galoop.evaluation.admission import Criterion
from galoop.evaluation.paired import Scores
from galoop.report.heatmap import HeatCell, heatmap
from galoop.report.model import Cell
from galoop.report.progress import NullProgress
from galoop.types import Example, Outcome, State
from program_domain import PROBE, ProgramWorld, write_slice

CRITERION = Criterion(0.8, 0.4)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> ProgramWorld:
    return program_domain.install(ProgramWorld(), monkeypatch.setattr)


# -- cells ---------------------------------------------------------------------------------


def scores(*values: float, state: State = State.SCORED) -> Scores:
    rows = [[Outcome(State.SCORED, "", v, "", {"kept": 0.25})] for v in values]
    return Scores(None, state, "why" if state is not State.SCORED else "", rows)


@pytest.mark.parametrize(
    ("reference", "artifact", "verdict"),
    [
        ([1.0] * 20, [0.0] * 20, "breaks"),
        ([1.0] * 20, [1.0] * 20, "holds"),
        ([1.0] * 20, [0.0] * 9 + [1.0] * 11, "undecided"),
        ([1.0] * 10 + [0.0] * 10, [0.0] * 20, "reference fails"),
        ([1.0] * 3, [1.0] * 3, "undecided"),  # three examples rule nothing out
    ],
)
def test_a_cell_says_what_its_interval_allows(
    reference: list[float], artifact: list[float], verdict: str
) -> None:
    cell = gap_cell(scores(*reference), scores(*artifact), CRITERION)
    assert cell.verdict == verdict
    assert cell.gap is not None
    n = len(reference)
    assert cell.gap.estimate == pytest.approx((sum(reference) - sum(artifact)) / n)
    assert cell.gap.n == n
    if verdict == "breaks":
        assert cell.gap.low >= 0.4
    if verdict == "holds":
        assert cell.gap.high < 0.4
    assert cell.measured == {"kept": 0.25}
    assert GapCell.from_json(json.loads(json.dumps(cell.to_json()))) == cell


def test_a_failure_is_a_reason_and_no_figure() -> None:
    cell = gap_cell(scores(1.0), scores(state=State.FAILED), CRITERION)
    assert (cell.verdict, cell.gap, cell.reason) == ("cannot run", None, "failed: why")
    cell = gap_cell(scores(state=State.INVALID), scores(1.0), CRITERION)
    assert cell.reason == "the reference invalid: why"


# -- depth ---------------------------------------------------------------------------------

LINES = [f"line {i} of the text." for i in range(10)]


def told(context: str, *evidence: str) -> Example:
    return Example(context, "?", ("7",), evidence=evidence)


@pytest.mark.parametrize("place", [0, 4, 10])
@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_a_line_is_moved_among_lines(place: int, depth: float) -> None:
    fact = "the key is 7."
    example = told("\n".join([*LINES[:place], fact, *LINES[place:]]), fact)
    moved = move_evidence(example, depth)
    lines = moved.context.split("\n")
    assert [line for line in lines if line != fact] == LINES
    assert abs(lines.index(fact) - depth * 10) <= 0.5
    assert depth_of(moved) == pytest.approx(depth, abs=0.06)
    assert (moved.question, moved.answers, moved.evidence) == ("?", ("7",), (fact,))


def test_a_sentence_is_moved_among_sentences() -> None:
    before, fact = "One is here. Two is there. Three is far.", "The key is 7."
    example = told(f"One is here. Two is there. {fact} Three is far.", fact)
    assert move_evidence(example, 0.0).context == f"{fact} {before}"
    assert move_evidence(example, 1.0).context == f"{before} {fact}"
    assert move_evidence(example, 0.3).context == f"One is here. {fact} Two is there. Three is far."
    once = move_evidence(example, 1.0)
    assert move_evidence(once, 0.65).context == example.context


def test_few_lines_take_a_line_between_sentences() -> None:
    prose = " ".join(f"Sentence {i} is said." for i in range(40))
    fact = "Name: 7."
    moved = move_evidence(told(f"{prose}\n{fact}", fact), 0.5)
    head, line, tail = moved.context.split("\n")
    assert line == fact
    assert abs(len(head) - len(tail)) < 30
    assert f"{head} {tail}" == prose


def test_passages_that_adjoin_move_together() -> None:
    example = told("a is 1.\nb is 7.\n" + "\n".join(LINES), "b is 7.", "a is 1.")
    assert move_evidence(example, 1.0).context == "\n".join(LINES) + "\na is 1.\nb is 7."


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (told("text 7."), "names no evidence"),
        (told("7. 7.", "7."), "occurs 2 times"),
        (told("text.", "7."), "occurs 0 times"),
        (told("a 7.\nother text\nb 8.", "a 7.", "b 8."), "no one depth"),
        (told("it is 7 and more.", "is 7"), "part of a sentence"),
    ],
)
def test_what_cannot_be_moved_is_refused(example: Example, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        move_evidence(example, 0.5)
    with pytest.raises(UsageError, match="between 0 and 1"):
        move_evidence(told("7.", "7."), 1.5)


# -- scope ---------------------------------------------------------------------------------


def measured(path: Path, folder: Path, **changes: Any) -> Scope:
    ask = Ask(**{"examples": 20, "lengths": (40, 120), **changes})
    return scope(path, ask, artifact=None, length=None, run_dir=folder, machine=Machine(),
                 progress=NullProgress())  # fmt: skip


def column(grid: Grid, name: str) -> dict[str, str]:
    at = grid.columns.index(name)
    return {
        row: line[at].verdict  # type: ignore[union-attr]
        for row, line in zip(grid.rows, grid.cells, strict=True)
    }


def test_scope_finds_what_the_failure_depends_on(programs: ProgramWorld, tmp_path: Path) -> None:
    found = measured(write_slice(tmp_path / "run"), tmp_path / "out")
    lengths, depths = found.grids
    assert lengths.rows == ("40", "60 (own)", "120")
    assert lengths.columns == ("0.25", "0.5", "0.75", "0.875")
    # The artifact reads the right line below a ratio of 0.3, at any length.
    assert set(column(lengths, "0.25").values()) == {"holds"}
    assert set(column(lengths, "0.75").values()) == {"breaks"}
    # It answers with the last number: the evidence at the end is answered.
    assert column(depths, "0.75") == {
        "0": "breaks", "0.25": "breaks", "0.5": "breaks", "0.75": "breaks", "1": "holds",
    }  # fmt: skip
    assert set(column(depths, "0.25").values()) == {"holds"}
    own = lengths.cells[1][2]
    assert own is not None
    assert own.gap is not None
    assert own.gap.n == 20
    assert own.measured == {"kept": 0.25}
    first, budget, length, depth = found.words
    assert "B1 against last on arithmetic, as found (compression_ratio 0.75, 60 tokens)" in first
    assert "gap 1.00 [" in first
    assert "n = 20" in first
    assert budget.startswith("Over compression_ratio, at 60 tokens: it breaks at 0.5 (gap 1.00")
    assert "it holds at 0.25 (gap 0.00" in budget
    assert "it breaks at 40 (" in length
    assert "it holds at 1 (" in depth
    assert Scope.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_scope_uses_seeds_of_its_own_and_the_probes_program(
    programs: ProgramWorld, tmp_path: Path
) -> None:
    path = write_slice(tmp_path / "run")
    measured(path, tmp_path / "out")
    frozen = {e.key for e in read_origin(path).slice.open}
    assert not frozen & {example for _, example in programs.evaluated}


def test_cells_that_cannot_run_say_why(programs: ProgramWorld, tmp_path: Path) -> None:
    stiff = PROBE.replace("rest = length", "assert length > 40\n    rest = length")
    path = write_slice(tmp_path / "run", source=stiff)
    found = measured(path, tmp_path / "out", lengths=(20, 33, 900), depths=())
    (grid,) = found.grids
    verdicts = column(grid, "0.75")
    assert [verdicts[n] for n in ("20", "33", "900")] == ["cannot run"] * 3
    reasons = {row: line[0].reason for row, line in zip(grid.rows, grid.cells, strict=True)}  # type: ignore[union-attr]
    assert "greater than or equal to 32" in reasons["20"]
    assert "rejected at 33 tokens: AssertionError" in reasons["33"]
    assert "window of 400" in reasons["900"]
    text = markdown("t", found.grids, found.words)
    assert "– 900 × 0.25, 900 × 0.5, 900 × 0.75, 900 × 0.875: an example needs" in text
    hidden = PROBE.replace('        "evidence": [lines[0]],\n', "")
    other = write_slice(tmp_path / "other", source=hidden)
    found = measured(other, tmp_path / "out2", lengths=(60,), depths=(0.5,))
    assert column(found.grids[1], "0.75") == {"0.5": "cannot run"}
    assert "names no evidence" in " ".join(found.words)


def test_a_scope_that_is_stopped_goes_on(programs: ProgramWorld, tmp_path: Path) -> None:
    path = write_slice(tmp_path / "run")
    whole = measured(path, tmp_path / "whole")
    paid = len(programs.evaluated)
    programs.evaluated.clear()

    def stop(number: int) -> None:
        if number == 100:
            programs.before = lambda number: None
            raise KeyboardInterrupt

    programs.before = stop
    with pytest.raises(KeyboardInterrupt):
        measured(path, tmp_path / "cut")
    assert measured(path, tmp_path / "cut") == whole
    assert len(programs.evaluated) <= paid + 5  # a chunk in flight may be lost
    # A larger grid in the same folder pays for what is new alone.
    before = len(programs.evaluated)
    measured(path, tmp_path / "cut", lengths=(40, 80, 120))
    assert len(programs.evaluated) == before + 20 * 5


def test_wrong_questions_to_scope(programs: ProgramWorld, tmp_path: Path) -> None:
    path = write_slice(tmp_path / "run")
    with pytest.raises(UsageError, match="keys compression_ratio, not 'density'"):
        measured(path, tmp_path / "out", key="density")
    nobody = write_slice(tmp_path / "nobody", length=60, against="Gen-3")
    with pytest.raises(UsageError, match="found against Gen-3, whose folder is not"):
        measured(nobody, tmp_path / "out")
    old = write_slice(tmp_path / "old")
    about = json.loads((old / "slice.json").read_text())
    del about["length"]
    (old / "slice.json").write_text(json.dumps(about))
    with pytest.raises(UsageError, match="not known for which length"):
        measured(old, tmp_path / "out")
    (tmp_path / "old" / "experiment.toml").write_text("[discriminator]\nlength = 60\n")
    assert measured(old, tmp_path / "out").length == 60
    (old / "probe.py").write_text("changed")
    with pytest.raises(StoreError, match="changed after it was frozen"):
        measured(old, tmp_path / "out")


# -- matrix --------------------------------------------------------------------------------


def two_runs(folder: Path) -> list[Path]:
    """Two run folders with three slices and two artifacts."""
    write_slice(folder / "one", "B1")
    last = PROBE.replace("zip(keys, codes)", "zip(keys[::-1], codes[::-1])")
    second = write_slice(folder / "x", "B2", source=last.replace("[lines[0]]", "[lines[-1]]"))
    shutil.copytree(second, folder / "one" / "benchmark" / "B2")
    write_slice(folder / "two", "B1")
    for run, name in (("one", "last"), ("two", "blind")):
        (folder / run / "artifacts" / name).mkdir(parents=True)
        (folder / run / "artifacts" / name / "artifact.toml").write_text("")
    return [folder / "one", folder / "two"]


def filled(sources: list[Path], folder: Path, *artifacts: str, **changes: Any) -> Matrix:
    models = changes.pop("models", ())
    n = changes.pop("examples", None)
    return matrix(sources, artifacts, models, run_dir=folder, examples=n, machine=Machine(),
                  progress=NullProgress())  # fmt: skip


def test_matrix_of_run_folders(programs: ProgramWorld, tmp_path: Path) -> None:
    found = filled(two_runs(tmp_path), tmp_path / "out")
    assert found.slices == ("one/B1", "one/B2", "two/B1")
    assert found.artifacts == ("one/last", "two/blind")
    assert found.models == ("arithmetic",)
    verdicts = {(c.slice, c.artifact): c.result.verdict for c in found.cells}
    # "last" answers with the last number, which is right on B2; "blind" answers nothing.
    assert verdicts == {
        ("one/B1", "one/last"): "breaks", ("one/B1", "two/blind"): "breaks",
        ("one/B2", "one/last"): "holds", ("one/B2", "two/blind"): "breaks",
        ("two/B1", "one/last"): "breaks", ("two/B1", "two/blind"): "breaks",
    }  # fmt: skip
    assert "On arithmetic, one/last breaks on one/B1 (gap 1.00 [" in found.words[0]
    assert "holds on one/B2 (gap 0.00" in found.words[0]
    assert Matrix.from_json(json.loads(json.dumps(found.to_json()))) == found
    paid = len(programs.evaluated)
    assert filled(two_runs_again(tmp_path), tmp_path / "out") == found
    assert len(programs.evaluated) == paid, "nothing is paid twice"


def two_runs_again(folder: Path) -> list[Path]:
    return [folder / "one", folder / "two"]


def test_matrix_says_why_cells_cannot_run(programs: ProgramWorld, tmp_path: Path) -> None:
    path = write_slice(tmp_path / "run")
    found = filled([path], tmp_path / "out", "last", "nowhere", "broken", "identity",
                   models=("arithmetic", "absent"), examples=10)  # fmt: skip
    here = {c.artifact: c.result for c in found.cells if c.model == "arithmetic"}
    assert here["last"].verdict == "breaks"
    assert here["identity"].gap is not None
    assert here["identity"].gap.estimate == 0.0
    assert here["nowhere"].reason == "there is no artifact 'nowhere'"
    assert here["broken"].reason == "failed: crashed: on purpose"
    there = [c.result for c in found.cells if c.model == "absent"]
    assert len(there) == 4
    assert {c.reason for c in there} == {"there is no model absent"}
    assert [g.title for g in found.grids] == ["on arithmetic", "on absent"]
    long = write_slice(tmp_path / "long", length=800)
    both = filled([path, long], tmp_path / "out", "last")
    assert both.slices == ("run/B1", "long/B1")
    too_long = both.cell("long/B1", "last", "arithmetic")
    assert too_long is not None
    assert "window of 400" in too_long.reason
    with pytest.raises(NothingEvaluatedError, match="no model absent"):
        filled([path], tmp_path / "out", "last", models=("absent",))


def test_a_domain_may_stand_before_an_artifact(programs: ProgramWorld) -> None:
    assert contender("kv-compression:knorm").domain == "kv-compression"
    assert contender("kv-compression:knorm").name == "knorm"
    assert contender("C:/press").domain is None
    assert contender("last").name == "last"


def test_folders_are_called_by_their_names_where_these_differ(
    programs: ProgramWorld, tmp_path: Path
) -> None:
    (tmp_path / "a" / "last").mkdir(parents=True)
    (tmp_path / "b" / "last").mkdir(parents=True)
    (tmp_path / "b" / "blind").mkdir()
    path = write_slice(tmp_path / "run")
    given = [str(tmp_path / name) for name in ("a/last", "b/last", "b/blind")]
    found = filled([path], tmp_path / "out", *given, "identity", "identity")
    assert found.artifacts == (*given[:2], "blind", "identity")


def test_wrong_sources(programs: ProgramWorld, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no slice folder"):
        filled([tmp_path], tmp_path / "out", "last")
    with pytest.raises(UsageError, match="name some with --artifact"):
        filled([write_slice(tmp_path / "run")], tmp_path / "out")


def test_a_slice_of_a_run_says_where_it_came_from(
    world: Any, base: Path, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = base / "benchmark" / "B1"
    origin = read_origin(path)
    assert (origin.domain, origin.length, origin.artifact) == ("fake", 256, "weak")
    args = ["scope", str(path), "--examples", "8", "--lengths", "128", "--depths", "", "--quiet"]
    assert gal([*args, "--run-dir", str(fast_path / "scope"), "--json"]) == 0
    (grid,) = json.loads(capsys.readouterr().out)["grids"]
    assert grid["rows"] == ["128", "256 (own)"]
    assert gal(["matrix", str(base), "--artifact", "weak", "--artifact", "identity", "--run-dir",
                str(fast_path / "matrix"), "--quiet", "--json"]) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert found["slices"] == ["B1", "B2"]
    exact = [c["result"]["gap"]["estimate"] for c in found["cells"] if c["artifact"] == "identity"]
    assert exact == [0.0, 0.0]


# -- pictures and commands -----------------------------------------------------------------


def grid_of(*verdicts: str) -> Grid:
    gap = Cell(0.5, 0.25, 0.75, 8)
    whole = Cell(1.0, 0.7, 1.0, 8)
    cells = tuple(
        GapCell(v, reason="a < b & c") if v == "cannot run" else GapCell(v, whole, whole, gap)  # type: ignore[arg-type]
        for v in verdicts
    )
    return Grid("a & b", "rows", "columns", ("<r>",), tuple(f"c{i}" for i in range(len(cells))),
                (cells,))  # fmt: skip


def test_the_picture_is_well_formed_and_says_everything() -> None:
    verdicts = ("breaks", "holds", "undecided", "reference fails", "cannot run")
    grid = grid_of(*verdicts)
    tree = ElementTree.fromstring(picture(grid))
    texts = [t.text or "" for t in tree.iter() if t.tag.endswith(("text", "title"))]
    for verdict in verdicts:
        assert any(f": {verdict}" in text for text in texts), verdict
    assert "✗ 0.50" in texts
    assert "[0.25, 0.75] n=8" in texts
    assert "<r>" in texts
    assert any("a < b & c" in text for text in texts)
    fills = [r.get("fill") for r in tree.iter() if r.tag.endswith("rect")]
    assert fills[0] == fills[1] != "#ffffff"  # equal gaps look alike
    assert fills[3] == fills[4] == "#ffffff"  # nothing is coloured that was not measured
    page = html("t <1>", [grid], ["said"])
    assert "t &lt;1&gt;" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_darker_is_a_larger_gap_and_wrong_shapes_are_refused() -> None:
    line = [HeatCell(v, f"{v}") for v in (0.0, 0.3, 0.6, 1.0)]
    made = heatmap(["r"], list("abcd"), [line], row_title="", column_title="", label="x")
    fills = [
        r.get("fill", "") for r in ElementTree.fromstring(made).iter() if r.tag.endswith("rect")
    ]
    light = [sum(int(f[i : i + 2], 16) for i in (1, 3, 5)) for f in fills[:4]]
    assert light == sorted(light, reverse=True)
    assert len(set(light)) == 4
    with pytest.raises(ValueError, match="do not fit"):
        heatmap(["r"], ["a"], [line], row_title="", column_title="", label="x")


def test_tables_escape_and_print(capsys: pytest.CaptureFixture[str]) -> None:
    grid = grid_of("breaks", "cannot run")
    text = markdown("a|b", [grid], ["x | y"])
    assert "| <r> | ✗ 0.50 [0.25, 0.75] n=8 | – |" in text
    assert "a\\|b" in text
    print_grids("title", [grid], ["words"])
    out = capsys.readouterr().out
    assert "✗ 0.50 [0.25, 0.75] n=8" in out
    assert "a < b & c" in out


def test_the_commands(
    programs: ProgramWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_slice(tmp_path / "run")
    out = tmp_path / "out"
    args = ["scope", str(path), "--run-dir", str(out), "--examples", "10", "--lengths", "120",
            "--depths", "0,1", "--budget", "0.25", "--quiet"]  # fmt: skip
    assert gal([*args, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [g["rows"] for g in data["grids"]] == [["60 (own)", "120"], ["0", "1"]]
    assert data["grids"][0]["columns"] == ["0.25", "0.75"]
    assert json.loads((out / "scope.json").read_text()) == data
    assert "<svg" in (out / "scope.html").read_text()
    assert gal(args) == 0
    assert "Over the depth of the evidence" in " ".join(capsys.readouterr().out.split())
    assert gal(["scope", str(path), "--budget", "density=0.1", "--quiet"]) == 4
    assert gal(["scope", str(path), "--lengths", "many", "--quiet"]) == 4
    assert "'many' is no list of numbers" in capsys.readouterr().err
    assert gal(["scope", str(tmp_path), "--quiet"]) == 3

    assert folder_of("scope", path) == Path("runs/scope-run-B1")
    assert folder_of("scope", tmp_path / "mine") == Path("runs/scope-mine")

    out = tmp_path / "matrix"
    args = ["matrix", str(path), "--artifact", "last", "--artifact", "identity", "--run-dir",
            str(out), "--quiet"]  # fmt: skip
    assert gal([*args, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [c["result"]["verdict"] for c in data["cells"]] == ["breaks", "holds"]
    assert gal([*args, "--markdown"]) == 0
    assert capsys.readouterr().out == (out / "matrix.md").read_text()
    assert gal(["matrix", str(path), "--artifact", "nowhere", "--run-dir", str(out),
                "--quiet"]) == 5  # fmt: skip
    assert gal(["matrix", str(tmp_path), "--artifact", "last", "--quiet"]) == 4
