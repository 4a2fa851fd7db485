"""Whole loops on the fake domain: reproducible, resumable, and never paying twice."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from fake_domain import World
from galoop.benchmark import read_slice
from galoop.errors import ExitCode, InfrastructureError, StoreError, UsageError
from galoop.loop import discover, improve, run_loop
from galoop.report.model import read_result
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from galoop.types import Candidate, Example, Outcome, State
from loop_tools import SMALL, plain_files, small

QUIET = NullProgress()


def recorded(path: Path) -> dict[str, Any]:
    """What the store of a run holds, without times and ids."""
    with RunStore.open(path) as store:
        return {
            "outcomes": [{k: v for k, v in row.items() if k != "at"} for row in store.to_rows()],
            "events": [(e["kind"], e["key"], e["payload"]) for e in store.events()],
            "stages": store.stages(),
            "evaluations": store.total().evaluations,
        }


# -- reproducible --------------------------------------------------------------------------


def test_the_small_loop_is_a_whole_one(base: Path) -> None:
    result = read_result(base)
    assert [s.name for s in result.slices] == ["B1", "B2"]
    assert any(g.accepted for g in result.generations)
    assert result.table.rows[0].key == "reference"
    names = set(plain_files(base))
    assert {"result.json", "report.md", "report.html", "experiment.toml"} <= names
    assert {f"benchmark/B1/{n}" for n in ("probe.py", "examples.jsonl", "sealed.jsonl")} <= names
    assert "artifacts/a0/params.json" in names
    assert "artifacts/gen-1/params.json" in names


def test_the_same_seed_gives_the_same_bytes(base: Path, fast_path: Path) -> None:
    run_loop(small(), fast_path / "again", QUIET)
    assert plain_files(fast_path / "again") == plain_files(base)
    assert recorded(fast_path / "again") == recorded(base)


def test_another_seed_gives_another_run(base: Path, fast_path: Path) -> None:
    run_loop(small(seed=SMALL["seed"] + 1), fast_path / "other", QUIET)
    ours, theirs = plain_files(base), plain_files(fast_path / "other")
    for name in ("result.json", "benchmark/B1/probe.py", "benchmark/B1/examples.jsonl"):
        assert ours[name] != theirs[name]


def test_nothing_is_evaluated_twice(finished: tuple[Path, World], base: Path) -> None:
    world = finished[1]
    assert max(world.calls.values()) == 1
    with RunStore.open(base) as store:
        assert store.total().evaluations == len(store.to_rows()) == sum(world.calls.values())


def test_figures_of_the_table_come_from_sealed_examples(base: Path) -> None:
    result = read_result(base)
    systems: dict[str, Any] = {"reference": None, "A0": fake.SKILLS["weak"]}
    for made in result.generations:
        if made.accepted:
            systems[made.name] = json.loads(made.files["params.json"])["skills"]
    assert [row.key for row in result.table.rows] == list(systems)
    for name in ("B1", "B2"):
        frozen = read_slice(base / "benchmark" / name)
        assert not {e.key for e in frozen.open} & {e.key for e in frozen.sealed}
        for row, skills in systems.items():
            cell = result.table.cell(row, name)
            assert cell is not None
            right = [fake.solves(skills, e) for e in frozen.sealed]
            assert cell.n == len(right)
            assert cell.estimate == pytest.approx(sum(right) / len(right))


def test_sealed_examples_are_answered_after_every_search(
    world: World, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = fake.FakeSession.run

    def note(self: Any, systems: Any, examples: Any, repeat: int) -> Any:
        order.extend(e.key for e in examples)
        return real(self, systems, examples, repeat)

    monkeypatch.setattr(fake.FakeSession, "run", note)
    run_loop(small(), fast_path / "run", QUIET)
    slices = [read_slice(fast_path / "run" / "benchmark" / n) for n in ("B1", "B2")]
    sealed = {e.key for s in slices for e in s.sealed}
    with RunStore.open(fast_path / "run") as store:
        suites = store.total("suites").evaluations
        assert store.total("sealed").evaluations == len(sealed) * 4
    first = min(i for i, key in enumerate(order) if key in sealed)
    rest = [key for key in order[first:] if key not in sealed]
    assert len(rest) <= suites, "after the first seal is broken, no search goes on"
    opened: dict[str, list[str]] = {}
    with RunStore.open(fast_path / "run") as store:
        for event in store.events("sealed-opened"):
            opened.setdefault(event["payload"]["slice"], []).append(event["payload"]["for"])
    rows = [r.key for r in read_result(fast_path / "run").table.rows][1:]
    assert opened == {"B1": rows, "B2": rows}, "once a generation"


# -- resumed -------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [130, 260])
def test_errors_at_every_kth_evaluation_end_in_the_same_bytes(
    world: World, base: Path, fast_path: Path, every: int
) -> None:
    path, errors = fast_path / "run", 0
    left = [every]

    def fail(number: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise InfrastructureError("the model server died")

    world.before = fail
    while True:
        left[0] = every
        try:
            run_loop(small(), path, QUIET)
            break
        except InfrastructureError:
            errors += 1
    assert errors == (sum(world.calls.values()) + errors) // every
    assert errors >= 2
    assert plain_files(path) == plain_files(base)
    assert recorded(path) == recorded(base)
    # What was computed in the chunk that broke was not recorded, and is the only thing repeated.
    repeated = sum(world.calls.values()) - len(world.calls)
    assert repeated <= errors * fake.CHUNK * 3


@pytest.mark.parametrize("method", ["event", "finish_stage", "write_text", "put_object", "spend"])
def test_a_store_that_fails_anywhere_ends_in_the_same_bytes(
    world: World, base: Path, fast_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Every n-th write of a kind raises, before or after it was done."""
    real = getattr(RunStore, method)
    path, calls, errors = fast_path / "run", [0], 0
    period = {"finish_stage": 4, "write_text": 13}.get(method, 29)

    def broken(self: RunStore, *arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] % period == 0 and errors < 5:
            raise StoreError("no space left")
        done = real(self, *arguments, **options)
        if calls[0] % period == period // 2 and errors < 5:
            raise StoreError("no space left")
        return done

    monkeypatch.setattr(RunStore, method, broken)
    while True:
        try:
            run_loop(small(), path, QUIET)
            break
        except StoreError:
            errors += 1
    assert errors >= 1
    assert plain_files(path) == plain_files(base)
    assert recorded(path)["outcomes"] == recorded(base)["outcomes"]
    assert recorded(path)["evaluations"] == recorded(base)["evaluations"]


def test_a_finished_run_is_read_and_not_run_again(world: World, base: Path) -> None:
    before = plain_files(base)
    result = run_loop(small(), base, QUIET)
    assert plain_files(base) == before
    assert not world.calls
    assert result == read_result(base)


def test_more_rounds_go_on(world: World, base: Path, fast_path: Path) -> None:
    path = fast_path / "run"
    run_loop(small(loop__rounds=1), path, QUIET)
    assert len(read_result(path).slices) == 1
    world.calls.clear()
    run_loop(small(), path, QUIET)
    assert max(world.calls.values()) == 1
    ours, theirs = plain_files(path), plain_files(base)
    assert ours == theirs


def test_caps_and_the_tier_may_change_when_a_run_goes_on(world: World, fast_path: Path) -> None:
    path = fast_path / "run"
    run_loop(small(loop__rounds=1), path, QUIET)
    changed = small(loop__rounds=1, discriminator__max_candidates=99, isolation__tier="plain")
    run_loop(changed, path, QUIET)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 99),
        ("criterion__tau", 0.35),
        ("artifact__start", "edge"),
        ("generator__examples", 7),
        ("gate__components", ("easy",)),
        ("evaluation__repeats", 2),
    ],
)
def test_another_experiment_on_the_same_folder_is_refused(
    world: World, base: Path, key: str, value: Any
) -> None:
    before = plain_files(base)
    with pytest.raises(StoreError, match="belongs to another experiment") as caught:
        run_loop(small(**{key: value}), base, QUIET)
    assert key.replace("__", ".") in str(caught.value)
    assert caught.value.exit_code == ExitCode.INFRASTRUCTURE
    assert plain_files(base) == before
    run_loop(small(), base, QUIET)


def test_another_model_or_version_on_the_same_folder_is_refused(
    world: World, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fake.FakeSession.describe
    for key, change in (
        ("fingerprint", {"fingerprint": "0" * 64}),
        ("dtype", {"dtype": "float32"}),
        ("versions.fake", {"versions": {"fake": "2"}}),
    ):

        def other(self: Any, change: Mapping[str, Any] = change) -> Mapping[str, Any]:
            return {**real(self), **change}

        monkeypatch.setattr(fake.FakeSession, "describe", other)
        with pytest.raises(StoreError, match=key.replace(".", r"\.")):
            run_loop(small(), base, QUIET)
    monkeypatch.setattr(
        fake.FakeSession, "describe", lambda self: {**real(self), "isolation": "bubblewrap"}
    )
    run_loop(small(), base, QUIET)  # how candidates are confined changes no answer


def test_a_run_folder_of_another_version_is_refused(world: World, base: Path) -> None:
    with sqlite3.connect(base / "run.sqlite") as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute(f"PRAGMA user_version={version + 1}")
    connection.close()
    with pytest.raises(StoreError, match=rf"store version {version + 1}.*reads version {version}"):
        run_loop(small(), base, QUIET)


def test_a_folder_of_something_else_is_refused(world: World, fast_path: Path) -> None:
    (fast_path / "thesis.tex").write_text("two years of work")
    with pytest.raises(StoreError, match="not empty and not a run folder"):
        run_loop(small(), fast_path, QUIET)
    assert [p.name for p in fast_path.iterdir()] == ["thesis.tex"]


def test_a_changed_slice_stops_a_resumed_run(world: World, base: Path) -> None:
    probe = base / "benchmark" / "B1" / "probe.py"
    probe.write_text(probe.read_text() + "# better\n")
    with pytest.raises(StoreError, match=r"probe\.py: was changed after it was frozen"):
        run_loop(small(), base, QUIET)


def test_the_session_is_closed_whatever_happens(
    world: World, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(fake.FakeSession, "close", lambda self: closed.append(True))
    world.before = lambda number: (_ for _ in ()).throw(InfrastructureError("gone"))
    with pytest.raises(InfrastructureError, match="gone"):
        run_loop(small(), fast_path / "run", QUIET)
    with pytest.raises(UsageError):
        run_loop(small(gate__components=("nothing",)), fast_path / "other", QUIET)
    assert closed == [True, True]
    assert not (fast_path / "other").exists(), "refused before a folder was made"


def test_infrastructure_is_never_a_score(
    world: World, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def infrastructure(self: Any, system: Any, example: Example, repeat: int) -> Outcome:
        return Outcome(State.INFRASTRUCTURE, reason="out of memory")

    monkeypatch.setattr(fake.FakeSession, "_answer", infrastructure)
    with pytest.raises(StoreError, match="infrastructure failure"):
        run_loop(small(), fast_path / "run", QUIET)
    with RunStore.open(fast_path / "run") as store:
        assert store.to_rows() == []


# -- one round without a repair, and each half alone ---------------------------------------


def test_generations_have_one_name_each(world: World, fast_path: Path) -> None:
    # A round without an acceptance must not lend its name to the next one.
    result = run_loop(small(seed=3, generator__max_candidates=2), fast_path / "run", QUIET)
    names = [g.name for g in result.generations]
    assert len(names) == len(set(names)), names


def test_nothing_found_ends_the_loop_and_says_so(world: World, fast_path: Path) -> None:
    result = run_loop(small(artifact__start="identity"), fast_path / "run", QUIET)
    assert result.slices == ()
    assert "nothing that breaks A0 was admitted" in result.notes[0]
    assert [c.group for c in result.table.columns] == ["suite"] * 3


def test_discover_then_improve_equals_a_round(world: World, base: Path, fast_path: Path) -> None:
    found = discover(small(), fast_path / "d", QUIET)
    whole = read_result(base)
    assert found.slices[0].probe_key == whole.slices[0].probe_key
    frozen = fast_path / "d" / "benchmark" / "B1"
    ours, theirs = read_slice(frozen), read_slice(base / "benchmark" / "B1")
    assert (ours.open, ours.sealed, ours.probe) == (theirs.open, theirs.sealed, theirs.probe)
    made = improve(small(), fast_path / "i", QUIET, slices=[frozen])
    assert made.generations[0].key == whole.generations[0].key
    assert read_slice(fast_path / "i" / "benchmark" / "B1").open == ours.open
    improve(small(), fast_path / "i", QUIET, slices=[frozen])
    with pytest.raises(StoreError, match="slices"):
        improve(small(), fast_path / "i", QUIET, slices=[base / "benchmark" / "B2"])


def test_discover_hands_on_the_frozen_slices(world: World, base: Path, fast_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    class Asked(fake.RandomProposer):
        def propose(self, request: Any) -> Any:
            asked.append(request.task.frozen)
            return super().propose(request)

    world.proposer = lambda kind, seed: Asked(kind, seed)
    known = base / "benchmark" / "B1"
    discover(small(), fast_path / "d", QUIET, frozen=[known])
    assert set(asked) == {(read_slice(known).probe.source,)}


def test_the_candidate_of_a_program_is_kept_in_the_run(base: Path) -> None:
    with RunStore.open(base) as store:
        events = [e["payload"] for e in store.events("candidate")]
        probes = [e for e in events if "source" in e]
        assert probes
        for event in probes:
            source = store.get_object(event["source"]).decode()
            assert Candidate("probe", {"probe.py": source}).key == event["key"]


def test_a_run_is_light(fast_path: Path) -> None:
    """The loop itself must not need torch: a domain without a model runs without it."""
    code = fake.CHILD + "import sys\nassert not {'torch', 'transformers'} & set(sys.modules)\n"
    arguments = [str(Path(__file__).parent), str(fast_path / "r"), str(fast_path / "log"),
                 repr({**SMALL, "loop__rounds": 1})]  # fmt: skip
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    assert time.monotonic() - began < 120
