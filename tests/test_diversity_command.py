"""`gal diversity` on runs of the fake domain: what is compared, behaviour, reports, exit codes."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fake_domain import World
from galoop.benchmark import read_slice
from galoop.cli.main import run
from galoop.diversity import embedding
from galoop.diversity.distance import cosine_distances
from galoop.diversity.embedding import WordCounts
from galoop.diversity.measure import EXAMPLES, behaviour_of, measure
from galoop.diversity.model import DiversityReport, read_diversity
from galoop.diversity.save import save_if_installed
from galoop.errors import ExitCode, NothingEvaluatedError, StoreError, UsageError
from galoop.loop import discover
from galoop.report.model import Cell, Column, LoopTable, ReplayResult, ReplayRow, Row, read_result
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from loop_tools import plain_files, small
from report_sample import sample

QUIET = NullProgress()


# -- what is compared ----------------------------------------------------------------------


def test_slices_are_compared_by_programs_and_open_examples(base: Path) -> None:
    report = measure(base, WordCounts())
    assert [(i.name, i.kind) for i in report.items] == [("B1", "slice"), ("B2", "slice")]
    slices = [read_slice(base / "benchmark" / n) for n in ("B1", "B2")]
    assert report.programs is not None
    sources = [s.probe.source for s in slices]
    expected = cosine_distances(WordCounts()(sources))[0, 1]
    assert report.programs.rows[0][1] == pytest.approx(expected, abs=1e-6)
    assert report.programs.mean == report.programs.rows[0][1]
    assert report.programs.effective is not None
    assert 1.0 < report.programs.effective < 2.0
    texts = [[f"{e.context}\n{e.question}" for e in s.open[:EXAMPLES]] for s in slices]
    first, second = (WordCounts()(t) for t in texts)
    assert report.examples is not None
    across = [1 - float(a @ b) for a in first for b in second]
    assert report.examples.rows[0][1] == pytest.approx(sum(across) / len(across), abs=1e-6)
    inside = [1 - float(a @ b) for a, b in combinations(first, 2)]
    assert report.examples.rows[0][0] == pytest.approx(sum(inside) / len(inside), abs=1e-6)


def test_the_figures_are_the_same_every_time(base: Path) -> None:
    before = measure(base, WordCounts())
    assert all(0 < item.examples <= EXAMPLES for item in before.items)
    assert measure(base, WordCounts()) == before


@pytest.fixture
def islands(world: World, fast_path: Path) -> Path:
    config = small(
        discriminator__search="islands", discriminator__max_candidates=40, criterion__tau=0.9
    )
    discover(config, fast_path / "islands", QUIET)
    return fast_path / "islands"


def test_refined_candidates_of_islands_are_compared(islands: Path) -> None:
    report = measure(islands, WordCounts(), searches=True)
    assert [i.kind for i in report.items] == ["refined"] * 4
    assert [i.name for i in report.items] == ["R1-1", "R1-2", "R1-3", "R1-4"]
    with RunStore.open(islands) as store:
        (event,) = store.events("refined")
        states = [e["payload"]["state"] for e in store.events("candidate")]
    assert [i.key for i in report.items] == event["payload"]["keys"]
    assert report.programs is not None
    assert len(report.programs.rows) == 4
    assert (report.examples, report.behaviour) == (None, None)
    (spread,) = report.searches
    assert (spread.round, spread.engine) == (1, "islands")
    assert spread.programs == states.count("scored")
    assert spread.mean is not None
    assert 0.0 < spread.mean < 1.0


def test_a_copied_folder_without_its_store_is_enough(base: Path, fast_path: Path) -> None:
    shutil.copytree(base, fast_path / "copy", ignore=shutil.ignore_patterns("run.sqlite*"))
    assert measure(fast_path / "copy", WordCounts()) == measure(base, WordCounts())


def test_nothing_to_compare(world: World, fast_path: Path) -> None:
    discover(small(artifact__start="identity"), fast_path / "run", QUIET)
    with pytest.raises(NothingEvaluatedError, match="nothing to compare"):
        measure(fast_path / "run", WordCounts())
    words = ["--embedding", "words"]
    assert run(["diversity", str(fast_path / "run"), *words]) == ExitCode.NOTHING_EVALUATED


# -- behaviour -----------------------------------------------------------------------------


def cell(estimate: float, n: int = 40) -> Cell:
    return Cell(estimate, max(0.0, estimate - 0.1), min(1.0, estimate + 0.1), n)


def result_with(reference: list[float], rows: dict[str, list[float | None]]) -> Any:
    made = sample()
    names = [f"B{i + 1}" for i in range(len(reference))]
    table = LoopTable(
        (Column("ruler/vt", "vt", "suite"), *(Column(n, n, "slice") for n in names)),
        tuple(
            Row(key, key, (cell(0.5), *(None if v is None else cell(v) for v in values)))
            for key, values in {"reference": reference, **rows}.items()
        ),
    )
    slices = tuple(replace(made.slices[0], name=n, probe_key=f"key-{n}") for n in names)
    provenance = replace(made.provenance, criterion={"tau0": 0.8, "tau": 0.3})
    return replace(made, table=table, slices=slices, provenance=provenance)


def test_behaviour_in_closed_form() -> None:
    made = result_with(
        [0.9, 0.8, 0.7, 1.0],
        {"A0": [0.6, 0.51, 0.1, 0.7], "Gen-1": [0.9, None, 0.6, 0.2]},
    )
    told = behaviour_of(made)
    assert told.slices == ("B1", "B2", "B3", "B4")
    assert told.methods == ("A0", "Gen-1")
    assert told.reference == (0.9, 0.8, 0.7, 1.0)
    assert told.gaps[0] == (0.3, 0.29, 0.6, 0.3)
    assert told.gaps[1] == (0.0, None, 0.1, 0.8)
    # B3: the reference itself is below τ₀; B1 and B4 stand on τ.
    assert told.broken == ((True, False, False, True), (False, None, False, True))
    assert told.patterns == 4
    assert told.examples == ((40, 40, 40, 40), (40, 0, 40, 40))
    rows = told.distances.rows
    assert rows[0][1] == pytest.approx(0.01), "over A0 alone"
    assert rows[0][2] == pytest.approx((0.3 + 0.1) / 2)
    assert rows[2][3] == pytest.approx((0.3 + 0.7) / 2)


def replayed(slice_key: str, model: str, rows: list[ReplayRow]) -> ReplayResult:
    return ReplayResult("B1", slice_key, model, "float32", tuple(rows))


def test_replays_are_further_methods() -> None:
    made = result_with([0.9, 0.9], {"A0": [0.2, 0.8]})
    model = made.provenance.model
    nothing = Cell(0.0, 0.0, 1.0, 0)
    second = ReplayRow("keydiff", cell(1.0, 20), cell(0.5, 20), cell(0))
    first = ReplayRow("keydiff", cell(0.9, 20), cell(0.9, 20), cell(0))
    elsewhere = ReplayRow("keydiff", cell(0.5), cell(0.1), cell(0))
    invalid = ReplayRow("broken", cell(0.9), nothing, nothing, {}, "bad")
    told = behaviour_of(
        made,
        [
            replayed("key-B2", model, [second]),
            replayed("key-B1", model, [first]),
            replayed("key-B1", "other", [elsewhere]),
            replayed("key-B1", model, [invalid]),
        ],
    )
    assert told.methods == ("A0", "keydiff", "keydiff on other", "broken")
    assert told.gaps[1] == (0.0, 0.5)
    assert told.examples[1] == (20, 20)
    assert told.broken[1] == (False, True)
    assert (told.gaps[2], told.broken[2]) == ((0.4, None), (False, None)), "its own reference fails"
    assert told.gaps[3] == (None, None)
    with pytest.raises(UsageError, match="a slice that this run does not hold"):
        behaviour_of(made, [replayed("elsewhere", model, [])])


def test_behaviour_of_a_run_is_that_of_its_table(base: Path) -> None:
    report, result = measure(base, None), read_result(base)
    told = report.behaviour
    assert told is not None
    assert told.methods == tuple(r.key for r in result.table.rows[1:])
    for method, gaps in zip(told.methods, told.gaps, strict=True):
        for name, gap in zip(told.slices, gaps, strict=True):
            reference, own = result.table.cell("reference", name), result.table.cell(method, name)
            assert reference is not None
            assert own is not None
            assert gap == pytest.approx(reference.estimate - own.estimate)
    assert (report.programs, report.examples, report.embedding) == (None, None, "")


# -- the command ---------------------------------------------------------------------------


def test_the_command_prints(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = plain_files(base)
    assert run(["diversity", str(base), "--embedding", "words", "--searches"]) == 0
    out = capsys.readouterr().out
    for words in ("word counts", "B₁", "behaviour", "effectively different of 2", "✗", "gepa"):
        assert words in out
    assert run(["diversity", str(base), "--embedding", "words", "--json"]) == 0
    report = DiversityReport.from_json(json.loads(capsys.readouterr().out))
    assert report == measure(base, WordCounts())
    assert plain_files(base) == before, "nothing is written unless it is asked for"


def test_saved_it_stands_in_every_report(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(base)]) == 0
    assert "Diversity" not in capsys.readouterr().out
    before = plain_files(base)
    assert run(["diversity", str(base), "--embedding", "words", "--save"]) == 0
    assert read_diversity(base) == measure(base, WordCounts())
    after = plain_files(base)
    changed = {n for n in after if after[n] != before.get(n)}
    assert changed == {"diversity.json", "report.md", "report.html"}
    assert "## Diversity" in after["report.md"].decode()
    assert "<h2>Diversity</h2>" in after["report.html"].decode()
    capsys.readouterr()
    for kind in ("terminal", "markdown", "html"):
        assert run(["show", str(base), "--format", kind]) == 0
        out = capsys.readouterr().out
        assert "Diversity" in out
        assert "word counts" in out
    assert run(["show", str(base), "--brief"]) == 0
    assert "Diversity" not in capsys.readouterr().out
    result = read_result(base)
    assert read_diversity(base, result) is not None
    fewer = replace(result, slices=result.slices[:1])
    assert read_diversity(base, fewer) is None, "it was measured on other slices"
    (base / "diversity.json").write_text('{"schema": 99}')
    assert run(["show", str(base)]) == ExitCode.INFRASTRUCTURE
    (base / "diversity.json").write_text("[")
    with pytest.raises(StoreError, match="cannot be read"):
        read_diversity(base)


def test_replays_and_judges_come_from_the_command_line(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = read_result(base)
    made = replayed(
        result.slices[0].probe_key, "fake", [ReplayRow("mine", cell(1.0), cell(0.4), cell(0.6))]
    )
    file = tmp_path / "replay.json"
    file.write_text(json.dumps(made.to_json()))
    judges = ModuleType("judges")
    judges.seven = lambda text: "DIFFERENCE: 7"  # type: ignore[attr-defined]
    judges.silent = lambda text: "no idea"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "judges", judges)
    command = ["diversity", str(base), "--embedding", "none", "--json", "--replay", str(file)]
    assert run([*command, "--judge", "judges:seven"]) == 0
    report = DiversityReport.from_json(json.loads(capsys.readouterr().out))
    assert report.behaviour is not None
    assert report.behaviour.methods[-1] == "mine"
    assert report.judged is not None
    assert (report.judge, report.judged.mean) == ("judges:seven", 0.7)
    assert run([*command, "--judge", "judges:silent"]) == 0
    report = DiversityReport.from_json(json.loads(capsys.readouterr().out))
    assert report.notes == ("the judge's answer could not be read for 1 pairs",)
    assert run([*command, "--judge", "judges"]) == ExitCode.USAGE
    file.write_text('{"rows": 3}')
    assert run(command) == ExitCode.USAGE
    assert "not a replay" in capsys.readouterr().err


def test_errors_have_their_codes(
    base: Path, fast_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--embedding", "words"]
    assert run(["diversity", str(fast_path / "none"), *words]) == ExitCode.INFRASTRUCTURE
    monkeypatch.setattr(embedding, "find_spec", lambda name: None)
    assert run(["diversity", str(base)]) == ExitCode.USAGE
    assert "pip install 'galoop[diversity]'" in capsys.readouterr().err
    probe = base / "benchmark" / "B1" / "probe.py"
    probe.write_text(probe.read_text() + "# better\n")
    assert run(["diversity", str(base), "--embedding", "words"]) == ExitCode.INFRASTRUCTURE
    assert "was changed after it was frozen" in capsys.readouterr().err


def test_a_loop_ends_with_it_where_the_extra_is_installed(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "MiniLM", WordCounts)
    save_if_installed(base)
    assert read_diversity(base) is None, "the fixture says that it is not installed"
    monkeypatch.setattr(embedding, "available", lambda: True)
    save_if_installed(base)
    assert read_diversity(base) == measure(base, WordCounts())
    (base / "benchmark" / "B1" / "probe.py").write_text("changed")
    save_if_installed(base)  # what goes wrong is no failure of the run
