"""The benchmark of searches on its stand-in: same start, same budget, honest figures, resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from loop_tools import in_memory

FOLDER = Path(__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(find_spec("openevolve") is None, reason="extra openevolve")


@pytest.fixture(scope="module")
def out() -> Iterator[Path]:
    with in_memory() as folder:
        yield folder / "out"


def run(out: Path, *arguments: str) -> str:
    command = [sys.executable, str(FOLDER / "search_engines.py"), "--model", "stand-in"]
    command += ["--out", str(out), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(out, "--json", "--seeds", "2", "--evaluations", "400"))
    return found


def test_every_engine_has_the_same_start_and_budget(result: dict[str, Any]) -> None:
    assert result["same_start"] is True
    assert [e["engine"] for e in result["engines"]] == ["gepa", "openevolve", "islands"]
    assert len(result["searches"]) == 6
    for search in result["searches"]:
        assert search["evaluations"] <= 400
        assert search["stopped_by"].startswith("evaluations:")
        assert search["candidates"] == len(search["first"]) > 8
    firsts = {(s["seed"], tuple(s["first"])) for s in result["searches"]}
    assert len(firsts) > 2, "after the start the engines go their own ways"


def at(search: dict[str, Any], evaluations: int) -> float:
    return max((gap for used, gap in search["curve"] if used <= evaluations), default=0.0)


def test_figures_follow_from_the_searches(result: dict[str, Any]) -> None:
    rows = {row["engine"]: row for row in result["engines"]}
    searches = {
        engine: sorted((s for s in result["searches"] if s["engine"] == engine),
                       key=lambda s: s["seed"])
        for engine in rows
    }  # fmt: skip
    for engine, row in rows.items():
        mine = searches[engine]
        assert row["n"] == 2
        assert row["programs"] == sum(s["candidates"] for s in mine) / 2
        values = [max(0.0, s["confirmed"] or 0.0) for s in mine]
        assert row["found"]["values"] == values
        assert row["found"]["mean"] == pytest.approx(sum(values) / 2)
        assert (row["found"]["least"], row["found"]["most"]) == (min(values), max(values))
        for step, cell in row["best_gap"].items():
            assert cell["values"] == [at(s, int(step)) for s in mine]
        means = [cell["mean"] for cell in row["best_gap"].values()]
        assert means == sorted(means), "the best so far never falls"
        # The area under the curve, one evaluation after another.
        areas = [sum(at(s, e) for e in range(400)) / 400 for s in mine]
        assert row["mean_best_gap"]["values"] == pytest.approx(areas, abs=1e-9)
        first = [next((u for u, gap in s["curve"] if gap >= 0.3 - 1e-9), None) for s in mine]
        assert row["evaluations_to_tau"] == first
        for search in mine:
            assert search["curve"][-1][1] == search["screened"]
    for engine in ("openevolve", "islands"):
        pair = rows[engine]["against"]["found"]
        assert pair["values"] == pytest.approx(
            [a - b for a, b in zip(rows[engine]["found"]["values"],
                                   rows["gepa"]["found"]["values"], strict=True)]
        )  # fmt: skip
        assert pair["low"] <= pair["mean"] <= pair["high"]


def test_a_finished_search_is_not_repeated_and_the_table_tells_everything(
    out: Path, result: dict[str, Any]
) -> None:
    before = {p: p.stat().st_mtime_ns for p in out.glob("seed-*/*.json")}
    assert len(before) == 6
    text = run(out, "--seeds", "2", "--evaluations", "400")
    assert {p: p.stat().st_mtime_ns for p in out.glob("seed-*/*.json")} == before
    assert (out / "table.md").read_text() == text
    assert json.loads((out / "result.json").read_text()) == result
    for words in ("n = 2 seeds (0, 1), 400 evaluations each", "| islands − gepa | 2 |",
                  "the first 8 programs the same", "evaluations to τ = 0.3"):  # fmt: skip
        assert words in text
    cell = result["engines"][1]["found"]
    shown = (cell["mean"], cell["low"], cell["high"], cell["least"], cell["most"])
    assert "{:.2f} [{:.2f}, {:.2f}] ({:.2f} to {:.2f})".format(*shown) in text


# -- killed and gone on with ---------------------------------------------------------------


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import search_engines

    return search_engines


class Killed(BaseException):
    """Ends the process in place of a signal."""


def options(benchmark: ModuleType, out: Path, *arguments: str) -> Any:
    given = ["--model", "stand-in", "--out", str(out), "--seeds", "1", "--first-seed", "3"]
    return benchmark.parser().parse_args(
        [*given, "--evaluations", "300", "--engines", "gepa,islands", *arguments]
    )


def test_a_killed_run_goes_on_without_computing_an_answer_twice(
    benchmark: ModuleType, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import stand_in

    calls: Counter[tuple[str, str]] = Counter()
    left = [10**9]
    answer = stand_in.StandIn._answer

    def counted(self: Any, system: Any, example: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        calls[system.key, example.key] += 1
        return answer(self, system, example)

    monkeypatch.setattr(stand_in.StandIn, "_answer", counted)
    base = options(benchmark, fast_path / "base")
    benchmark.run(base)
    assert max(calls.values()) == 1, "two engines share what both ask"
    total = sum(calls.values())
    calls.clear()
    args, kills = options(benchmark, fast_path / "again"), 0
    while True:
        left[0] = total // 3
        try:
            benchmark.run(args)
            break
        except Killed:
            kills += 1
    assert kills >= 2
    assert benchmark.gather(args) == benchmark.gather(base)
    # One example (two systems) at a time is recorded: what was under way is computed again.
    again = [key for key, n in calls.items() if n > 1]
    assert len(again) <= kills
    assert calls
    assert max(calls.values()) <= 1 + kills


def test_other_settings_need_another_folder(
    benchmark: ModuleType, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from galoop.errors import StoreError

    args = options(benchmark, fast_path, "--engines", "gepa")
    with pytest.raises(SystemExit, match="no seed has been finished"):
        benchmark.gather(args)
    benchmark.run(args)
    said = capsys.readouterr().err
    assert "seed 3, gepa: " in said
    assert "of 300 evaluations" in said
    with pytest.raises(StoreError):
        benchmark.run(options(benchmark, fast_path, "--evaluations", "200"))
    benchmark.run(options(benchmark, fast_path, "--evaluations", "200", "--first-seed", "4"))
    mixed = options(benchmark, fast_path, "--engines", "gepa", "--seeds", "2")
    with pytest.raises(SystemExit, match="other settings"):
        benchmark.gather(mixed)
