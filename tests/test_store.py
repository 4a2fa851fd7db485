"""The run store in one process: records, events, stages, ledger, files, versions, locks."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from galoop.errors import ExitCode, StoreError
from galoop.store.database import Database
from galoop.store.run import OutcomeRow, RunStore, Spend, Totals
from galoop.types import Outcome, State

MANIFEST = {"config": "abc", "versions": {"galoop": "0.1.0", "torch": "2.13"}, "dtype": "bfloat16"}
RIGHT = Outcome(State.SCORED, "the answer", 1.0, measured={"kept_fraction": 0.25})
WRONG = Outcome(State.SCORED, "no", 0.0)
BROKEN = Outcome(State.FAILED, reason="ran out of time")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.create_or_open(tmp_path / "run", MANIFEST) as store:
        yield store


def snapshot(root: Path) -> dict[str, bytes]:
    """Every plain file below a run folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith("run.sqlite")
    }


# Outcomes


def test_outcomes_come_back_as_they_were(run: RunStore) -> None:
    run.record([("phi", "e1", 0, RIGHT), ("phi", "e2", 0, WRONG), ("a0", "e1", 3, BROKEN)])
    assert run.outcome("phi", "e1", 0) == RIGHT
    assert run.outcome("a0", "e1", 3) == BROKEN
    assert run.outcome("a0", "e1", 0) is None
    wanted = [("e1", 0), ("e2", 0), ("e3", 0), ("e1", 1)]
    assert run.outcomes("phi", wanted) == {("e1", 0): RIGHT, ("e2", 0): WRONG}
    assert run.outcomes("phi", []) == {}


def test_many_outcomes_are_looked_up_and_paged(run: RunStore) -> None:
    run.record(("s", f"e{i:04}", r, WRONG) for i in range(1300) for r in range(2))
    wanted = [(f"e{i:04}", r) for i in range(0, 2600, 2) for r in range(2)]
    assert set(run.outcomes("s", wanted)) == {pair for pair in wanted if pair[0] < "e1300"}
    rows = list(run.iter_outcomes())
    assert [(row.example, row.repeat) for row in rows] == [
        (f"e{i:04}", r) for i in range(1300) for r in range(2)
    ]
    assert list(run.iter_outcomes("other")) == []


def test_rows_are_flat_for_a_data_frame(run: RunStore) -> None:
    run.record([("phi", "e1", 0, RIGHT)], stage="round1")
    (row,) = run.to_rows()
    assert row.pop("at") > 1.7e9
    assert row == {
        "system": "phi",
        "example": "e1",
        "repeat": 0,
        "stage": "round1",
        "state": "scored",
        "answer": "the answer",
        "score": 1.0,
        "reason": "",
        "measured.kept_fraction": 0.25,
    }
    (typed,) = run.iter_outcomes("phi")
    assert isinstance(typed, OutcomeRow)
    assert typed.outcome == RIGHT


def test_a_second_evaluation_is_an_error_unless_identical(run: RunStore) -> None:
    run.record([("phi", "e1", 0, RIGHT)])
    run.record([("phi", "e1", 0, RIGHT)])
    spend = Spend("s", "phi", "evaluation", evaluations=2)
    with pytest.raises(StoreError, match="evaluated twice on example e1"):
        run.record([("phi", "e9", 0, WRONG), ("phi", "e1", 0, WRONG)], [spend])
    assert run.outcome("phi", "e1", 0) == RIGHT
    assert run.outcome("phi", "e9", 0) is None  # all or nothing
    assert run.total() == Totals()


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(State.INFRASTRUCTURE, reason="worker died"), "never recorded"),
        (Outcome(State.SCORED), "is scored None"),
        (Outcome(State.SCORED, score=1.5), "not in"),
        (Outcome(State.SCORED, score=float("nan")), "not in"),
        (Outcome(State.INVALID, score=0.0), "has a score"),
        (Outcome(State.SCORED, score=1.0, measured={"bytes": float("inf")}), "bytes"),
    ],
)
def test_what_is_no_result_is_not_recorded(run: RunStore, outcome: Outcome, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        run.record([("phi", "e1", 0, RIGHT), ("phi", "e2", 0, outcome)])
    assert run.to_rows() == []


def test_text_that_utf8_cannot_hold_survives(run: RunStore) -> None:
    odd = Outcome(State.SCORED, "a\ud800b\x00\n…", 0.0)
    run.record([("phi", "e1", 0, odd)])
    assert run.outcome("phi", "e1", 0) == odd


# Events and stages


def test_events_keep_their_order_and_kind(run: RunStore) -> None:
    run.event("candidate", {"key": "k1", "gap": 0.4})
    run.event("rejected", {"reason": "too long"})
    run.event("candidate", {"key": "k2", "gap": 0.5})
    assert [event["payload"].get("key") for event in run.events()] == ["k1", None, "k2"]
    assert [event["payload"]["key"] for event in run.events("candidate")] == ["k1", "k2"]
    last = run.events()[-2]["id"]
    assert [event["payload"]["key"] for event in run.events(after=last)] == ["k2"]


def test_an_event_with_a_key_is_logged_once(run: RunStore) -> None:
    assert run.event("started", {"round": 1}, key="round1/started")
    assert not run.event("started", {"round": 1}, key="round1/started")
    assert run.event("note", {})
    assert run.event("note", {})
    assert [event["kind"] for event in run.events()] == ["started", "note", "note"]


def test_stages_finish_once(run: RunStore) -> None:
    assert run.stage("round1/discriminator") is None
    run.finish_stage("round1/discriminator", {"probe": "k1", "counts": {10: 1, 9: 2}})
    run.finish_stage("round1/discriminator", {"probe": "k1", "counts": {10: 1, 9: 2}})
    assert run.stage("round1/discriminator") == {"probe": "k1", "counts": {"10": 1, "9": 2}}
    with pytest.raises(StoreError, match="finished before with another result"):
        run.finish_stage("round1/discriminator", {"probe": "k2"})
    run.finish_stage("a later one", {})
    assert list(run.stages()) == ["round1/discriminator", "a later one"]


def test_a_transaction_is_one(run: RunStore) -> None:
    def interrupted() -> None:
        with run.transaction():
            run.record([("phi", "e1", 0, RIGHT)], [Spend("s", "w", "evaluation")])
            run.event("e", {})
            run.finish_stage("s", {})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (run.to_rows(), run.events(), run.stages(), run.spends()) == ([], [], {}, [])
    with run.transaction():
        run.event("outer", {})
        with pytest.raises(StoreError):  # the inner one fails alone
            run.record([("phi", "e1", 0, RIGHT), ("phi", "e1", 0, WRONG)])
        run.finish_stage("s", {})
    assert run.to_rows() == []
    assert len(run.events()) == len(run.stages()) == 1


def test_what_json_cannot_hold_is_refused(run: RunStore) -> None:
    for payload in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(StoreError, match="cannot store"):
            run.event("e", payload)


# Ledger


def test_ledger_totals(run: RunStore) -> None:
    entries = [
        Spend("r1/disc", "model-a", "proposal", 0.25, 100, 20, 0.0, 0, 3.5, "reported"),
        Spend("r1/disc", "compactor", "evaluation", 0.0, 0, 0, 2.5, 12, 3.0, "none"),
        Spend("r1/gen", "model-a", "proposal", None, 50, 10, 0.0, 0, 1.0, "unknown"),
        Spend("r1/gen", "model-b", "proposal", 0.5, 7, 3, 0.0, 0, 1.0, "estimated"),
    ]
    run.spend(*entries[:2])
    run.record([("phi", "e1", 0, RIGHT)], entries[2:])
    assert run.spends() == entries
    assert run.total() == Totals(
        4, 0.75, 1, 157, 33, 2.5, 12, 8.5, ("estimated", "none", "reported", "unknown")
    )
    by_who = run.totals("who")
    assert list(by_who) == ["compactor", "model-a", "model-b"]
    assert (by_who["model-a"].dollars, by_who["model-a"].unpriced) == (0.25, 1)
    assert run.totals("kind")["evaluation"].evaluations == 12
    assert run.totals("stage")["r1/gen"].input_tokens == 57
    assert run.total("r1/disc").wall_seconds == 6.5


@pytest.mark.parametrize(
    "change",
    [
        {"dollars": -1.0},
        {"dollars": float("nan")},
        {"evaluations": -1},
        {"dollars": None, "source": "reported"},
        {"source": "guessed"},
    ],
)
def test_a_spend_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(StoreError, match="ledger"):
        dataclasses.replace(Spend("s", "w", "k"), **change)  # type: ignore[arg-type]


# Files


def test_text_files_are_written_as_given(run: RunStore) -> None:
    path = run.write_text("benchmark/B1/probe.py", "x = 1\r\ny = 'ü'\n")
    assert path == run.path / "benchmark" / "B1" / "probe.py"
    assert path.read_bytes() == "x = 1\r\ny = 'ü'\n".encode()
    run.write_text("benchmark/B1/probe.py", "x = 2\n")
    assert run.read_text("benchmark/B1/probe.py") == "x = 2\n"


def test_a_file_is_replaced_and_not_overwritten(run: RunStore) -> None:
    path = run.write_text("report.txt", "old\n" * 1000)
    with path.open() as opened_before:
        run.write_text("report.txt", "new\n")
        assert opened_before.read() == "old\n" * 1000
    assert path.read_text() == "new\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "/etc/x",
        "../x",
        "a/../../x",
        "run.sqlite",
        "run.lock",
        "objects/ab",
        ".tmp/1",
        "a\0b",
    ],
)
def test_names_that_lead_elsewhere_are_refused(run: RunStore, name: str) -> None:
    with pytest.raises(StoreError, match="not one inside the run folder"):
        run.write_text(name, "text")


def test_links_out_of_the_folder_are_refused(run: RunStore, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (run.path / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match="leads out"):
        run.write_text("link/x", "text")
    target = tmp_path / "outside" / "victim"
    target.write_text("untouched")
    (run.path / "file").symlink_to(target)
    run.write_text("file", "text")  # the link is replaced, not followed
    assert target.read_text() == "untouched"
    assert not (run.path / "file").is_symlink()


def test_text_that_cannot_be_encoded_is_refused(run: RunStore) -> None:
    with pytest.raises(StoreError, match="surrogates not allowed"):
        run.write_text("x", "\ud800")


def test_objects_are_addressed_by_content(run: RunStore) -> None:
    digest = run.put_object(b"hello")
    # sha256sum of "hello"
    assert digest == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    path = run.path / "objects" / digest[:2] / digest[2:]
    assert path.read_bytes() == b"hello"
    assert run.put_object(b"hello") == digest
    assert run.get_object(digest) == b"hello"
    assert run.has_object(digest)
    assert not run.has_object("0" * 64)
    path.write_bytes(b"hel")
    with pytest.raises(StoreError, match="damaged"):
        run.get_object(digest)
    run.put_object(b"hello")  # mends it
    assert run.get_object(digest) == b"hello"
    with pytest.raises(StoreError, match="cannot read object"):
        run.get_object("0" * 64)
    with pytest.raises(StoreError, match="not a SHA-256"):
        run.get_object("../../etc/passwd")


def test_the_plain_files_of_two_runs_are_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with RunStore.create_or_open(tmp_path / name, MANIFEST) as run:
            run.write_text("benchmark/B1/evidence.json", json.dumps({"gap": 0.5}))
            run.put_object(b"weights")
            run.record([("phi", "e1", 0, RIGHT)])
    one, two = snapshot(tmp_path / "one"), snapshot(tmp_path / "two")
    assert one == two
    assert len(one) == 3  # the evidence, the object, and the (empty) lock
    assert one["run.lock"] == b""


# Opening


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    with RunStore.create_or_open(tmp_path / "deep" / "run", MANIFEST) as run:
        run.record([("phi", "e1", 0, RIGHT)])
    with RunStore.create_or_open(tmp_path / "deep" / "run", MANIFEST) as run:
        assert run.outcome("phi", "e1", 0) == RIGHT
        assert run.manifest == MANIFEST


def test_another_manifest_is_refused_by_key(tmp_path: Path) -> None:
    RunStore.create_or_open(tmp_path / "run", MANIFEST).close()
    other = {"config": "abc", "versions": {"galoop": "0.2.0", "torch": "2.13"}, "seed": 3}
    with pytest.raises(StoreError) as caught:
        RunStore.create_or_open(tmp_path / "run", other)
    message = str(caught.value)
    assert 'versions.galoop: "0.1.0" there, "0.2.0" now' in message
    assert 'dtype: "bfloat16" there, absent now' in message
    assert "seed: absent there, 3 now" in message
    assert "torch" not in message
    assert caught.value.exit_code == ExitCode.INFRASTRUCTURE
    RunStore.create_or_open(tmp_path / "run", MANIFEST).close()  # unharmed, unlocked


def test_another_store_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    RunStore.create_or_open(tmp_path / "run", MANIFEST).close()
    database = tmp_path / "run" / "run.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    before = database.read_bytes()
    for opening in (
        lambda: RunStore.create_or_open(tmp_path / "run", MANIFEST),
        lambda: RunStore.open(tmp_path / "run"),
    ):
        with pytest.raises(StoreError, match=r"store version 99, .* reads version 1"):
            opening()
    assert database.read_bytes() == before


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="not empty and not a run folder"):
        RunStore.create_or_open(tmp_path, MANIFEST)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(StoreError, match="not a run folder"):
        RunStore.open(tmp_path)
    with pytest.raises(StoreError, match="not a run folder"):
        RunStore.open(tmp_path / "absent")


def test_a_foreign_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="database of another program"):
        RunStore.create_or_open(tmp_path, MANIFEST)
    assert path.read_bytes() == before
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError, match="not a database"):
        RunStore.create_or_open(tmp_path, MANIFEST)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(StoreError, match="cannot create run folder"):
        RunStore.create_or_open(tmp_path / "run", MANIFEST)


def test_what_an_interrupted_creation_leaves_is_taken_up(tmp_path: Path) -> None:
    for index, leave in enumerate(("run.lock", "run.sqlite")):
        root = tmp_path / str(index)
        root.mkdir()
        (root / leave).touch()
        (root / ".tmp").mkdir()
        (root / ".tmp" / "7").write_text("half a file")
        if leave == "run.sqlite":
            with pytest.raises(StoreError, match="holds no run yet"):
                RunStore.open(root)
        with RunStore.create_or_open(root, MANIFEST) as run:
            assert not (root / ".tmp").exists()
            run.record([("phi", "e1", 0, RIGHT)])


def test_a_reader_may_not_write_and_a_closed_store_says_so(tmp_path: Path) -> None:
    run = RunStore.create_or_open(tmp_path / "run", MANIFEST)
    run.record([("phi", "e1", 0, RIGHT)])
    run.close()
    with pytest.raises(StoreError, match="was closed"):
        run.outcome("phi", "e1", 0)
    with RunStore.open(tmp_path / "run") as reader:
        assert reader.outcome("phi", "e1", 0) == RIGHT
        writes: list[Callable[[], object]] = [
            lambda: reader.record([("phi", "e2", 0, RIGHT)]),
            lambda: reader.event("e", {}),
            lambda: reader.finish_stage("s", {}),
            lambda: reader.spend(Spend("s", "w", "k")),
            lambda: reader.write_text("x", ""),
            lambda: reader.put_object(b""),
        ]
        for write in writes:
            with pytest.raises(StoreError, match="opened to be read"):
                write()
    database = Database(tmp_path / "run", writable=False)
    with pytest.raises(StoreError, match="cannot write"):  # SQLite itself forbids it, too
        database.execute("DELETE FROM outcomes")
    database.close()
    with RunStore.open(tmp_path / "run", writable=True) as writer:
        writer.record([("phi", "e2", 0, RIGHT)])
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["run.lock", "run.sqlite"]


def test_a_reader_sees_what_a_living_writer_commits(run: RunStore) -> None:
    with RunStore.open(run.path) as reader:
        assert reader.to_rows() == []
        run.record([("phi", "e1", 0, RIGHT)])
        assert reader.outcome("phi", "e1", 0) == RIGHT
        with run.transaction():
            run.record([("phi", "e2", 0, RIGHT)])
            assert reader.outcome("phi", "e2", 0) is None  # and does not wait
        assert reader.outcome("phi", "e2", 0) == RIGHT


# Locks, threads and forks


def test_a_second_store_is_refused_in_this_process_and_in_another(run: RunStore) -> None:
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        RunStore.create_or_open(run.path, MANIFEST)
    code = (
        "import sys, pathlib\n"
        "from galoop.store.run import RunStore\n"
        "RunStore.create_or_open(pathlib.Path(sys.argv[1]), {})\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=False
    )
    assert other.returncode != 0
    assert f"in use by process {os.getpid()}" in other.stderr
    run.record([("phi", "e1", 0, RIGHT)])  # the refusals took nothing away


def test_threads_share_a_store(run: RunStore) -> None:
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for i in range(40):
                with run.transaction():
                    run.record([(name, f"e{i}", 0, RIGHT)], [Spend("s", name, "evaluation")])
                    run.event(name, {"i": i})
                run.write_text(f"{name}/{i}", name)
                run.write_text("shared", name * 1000)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"t{k}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(run.to_rows()) == len(run.spends()) == 160
    assert {total.entries for total in run.totals("who").values()} == {40}
    assert run.read_text("shared") in {f"t{k}" * 1000 for k in range(4)}


@pytest.mark.parametrize("closes", [True, False])
def test_a_forked_child_can_neither_use_nor_keep_the_store(run: RunStore, closes: bool) -> None:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    finish = context.Event()

    def child() -> None:
        try:
            run.outcome("phi", "e1", 0)
        except StoreError as error:
            message = str(error)
        if closes:
            run.close()
        results.put(message)
        finish.wait(60)

    process = context.Process(target=child)
    process.start()
    try:
        assert "forked child" in results.get()
        run.record([("phi", "e1", 0, RIGHT)])  # its closing was none of ours
        with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
            RunStore.create_or_open(run.path, MANIFEST)
        run.close()
        assert process.is_alive()
        RunStore.create_or_open(run.path, MANIFEST).close()  # the child holds no lock
    finally:
        finish.set()
        process.join()
