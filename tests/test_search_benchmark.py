"""The benchmark of searches on its stand-in: same start, same budget, honest figures."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "search_engines.py"
pytestmark = pytest.mark.skipif(find_spec("openevolve") is None, reason="extra openevolve")


def run(*arguments: str) -> str:
    command = [sys.executable, str(BENCHMARK), "--model", "stand-in", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("--json", "--seeds", "2", "--evaluations", "400"))
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


def test_figures_follow_from_the_searches(result: dict[str, Any]) -> None:
    for row in result["engines"]:
        mine = [s for s in result["searches"] if s["engine"] == row["engine"]]
        assert row["n"] == 2
        assert row["programs"] == sum(s["candidates"] for s in mine) / 2
        values = [s["confirmed"] for s in mine]
        assert row["confirmed"]["values"] == values
        assert row["confirmed"]["mean"] == pytest.approx(sum(max(0.0, v) for v in values) / 2)
        means = [row["best_gap"][step]["mean"] for step in ("100", "200", "300", "400")]
        assert means == sorted(means), "the best so far never falls"
        for search in mine:
            assert search["curve"][-1][1] == search["screened"]
            assert max(g for used, g in search["curve"] if used <= 400) == search["screened"]


def test_it_is_reproducible_and_has_a_table(result: dict[str, Any]) -> None:
    arguments = ["--seeds", "1", "--evaluations", "400", "--engines", "gepa,islands"]
    again = json.loads(run("--json", *arguments))
    kept = [s for s in result["searches"] if s["seed"] == 0 and s["engine"] != "openevolve"]
    assert again["searches"] == kept
    table = run(*arguments)
    assert "n = 1 seeds" in table
    assert "islands - gepa" in table
