"""The run store against kills, full disks and read-only media."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from galoop.errors import ExitCode, StoreError
from galoop.store.run import RunStore, Spend
from galoop.types import Outcome, State

MANIFEST = {"config": "abc"}
RIGHT = Outcome(State.SCORED, "yes", 1.0)
KILLS = 20

# Goes on from what is there; acknowledges each outcome, then the files that follow it.
WRITER = """
import itertools, pathlib, sys
from galoop.store.run import RunStore, Spend
from galoop.types import Outcome, State

store = RunStore.create_or_open(pathlib.Path(sys.argv[1]), {"config": "abc"})
print("open", flush=True)
for i in itertools.count():
    if store.outcome("phi", f"e{i}", 0) is not None:
        continue
    outcome = Outcome(State.SCORED, f"answer {i}", 1.0, measured={"kept": i / 2})
    with store.transaction():
        spend = Spend("s", "phi", "evaluation", evaluations=1)
        store.record([("phi", f"e{i}", 0, outcome)], [spend])
        store.event("evaluated", {"i": i})
    print("outcome", i, flush=True)
    store.write_text("state.txt", f"{i}\\n" * 2000)
    digest = store.put_object(f"object {i}".encode() * 500)
    print("files", i, digest, flush=True)
"""


def killed_writer(root: Path, attempt: int, chance: random.Random) -> list[list[str]]:
    """Start the writer, kill it at a random instant, and return what it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout as output:
        if attempt % 4:
            assert output.readline() == "open\n"
            time.sleep(chance.uniform(0.0, 0.1))
        else:  # about when the store is made or opened
            time.sleep(chance.uniform(0.05, 0.25))
        child.send_signal(signal.SIGKILL)
        text = output.read()
    child.wait()
    # The last line may be cut short.
    return [line.split() for line in text.split("\n")[:-1]]


def test_kills_at_random_instants_lose_and_double_nothing(tmp_path: Path) -> None:
    chance, root = random.Random(7), tmp_path / "run"
    outcomes: set[int] = set()
    files: dict[int, str] = {}
    for attempt in range(KILLS):
        for line in killed_writer(root, attempt, chance):
            if line[0] == "outcome":
                assert int(line[1]) not in outcomes, "never evaluated twice"
                outcomes.add(int(line[1]))
            elif line[0] == "files":
                files[int(line[1])] = line[2]
        if not outcomes:
            continue
        with RunStore.open(root) as store:
            rows = list(store.iter_outcomes("phi"))
            found = {int(row.example[1:]): row.outcome for row in rows}
            assert sorted(found) == list(range(len(found)))
            assert outcomes <= set(found), "everything acknowledged is there"
            assert len(found) - len(outcomes) <= attempt + 1, "one in flight a kill"
            for i, outcome in found.items():
                assert outcome.answer == f"answer {i}"
                assert outcome.measured == {"kept": i / 2}
            # The ledger and the log moved with the outcomes, in one transaction.
            assert store.total().evaluations == len(found)
            assert [event["payload"]["i"] for event in store.events()] == sorted(found)
            for i, digest in files.items():
                assert store.get_object(digest) == f"object {i}".encode() * 500
            if files:
                lines = store.read_text("state.txt").splitlines()
                assert len(lines) == 2000
                assert len(set(lines)) == 1, "the old text or the new one, never both"
                assert int(lines[0]) >= max(files)
    assert len(outcomes) >= 3  # a slow disk may leave time for few
    with RunStore.create_or_open(root, MANIFEST) as store:
        assert not (root / ".tmp").exists(), "halves are swept away"
        assert store.get_object(files[max(files)])


def mount(where: Path, *options: str) -> None:
    where.mkdir(exist_ok=True)
    command = ["mount", *options, "-t", "tmpfs", "tmpfs", str(where)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user cannot mount a small disk: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, where the machine allows to mount one."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting a small disk needs root on Linux")
    where = tmp_path / "disk"
    mount(where, "-o", "size=1m")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=False)


def fill(folder: Path) -> Path:
    """Take the last byte of a disk."""
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return ballast


def test_a_full_disk_keeps_what_was_recorded(small_disk: Path) -> None:
    root = small_disk / "run"
    store = RunStore.create_or_open(root, MANIFEST)
    store.record([("phi", "e0", 0, RIGHT)], [Spend("s", "phi", "evaluation", evaluations=1)])
    store.write_text("report.txt", "the old report")
    ballast = fill(small_disk)
    big = Outcome(State.SCORED, "x" * 50_000, 1.0)

    def go_on() -> None:
        for i in range(1, 50):
            store.record([("phi", f"e{i}", 0, big)], [Spend("s", "w", "evaluation", evaluations=1)])

    with pytest.raises(StoreError) as caught:
        go_on()
    assert "full" in caught.value.what
    assert "recorded before is kept" in caught.value.what
    assert "free space" in caught.value.fix
    assert caught.value.exit_code == ExitCode.INFRASTRUCTURE
    with pytest.raises(StoreError, match=r"cannot write .*No space left .*is kept .*free space"):
        store.write_text("report.txt", "y" * 100_000)
    with pytest.raises(StoreError, match="No space left"):
        store.put_object(b"z" * 100_000)
    assert store.read_text("report.txt") == "the old report"
    rows = store.to_rows()
    assert store.total().evaluations == len(rows) >= 1
    store.close()

    ballast.unlink()
    with RunStore.create_or_open(root, MANIFEST) as store:
        assert store.to_rows() == rows
        assert store.read_text("report.txt") == "the old report"
        assert not (root / "objects").exists() or not any((root / "objects").rglob("*"))
        store.record([("phi", "again", 0, RIGHT)])
        store.write_text("report.txt", "the new report")
    with RunStore.open(root) as store:
        assert len(store.to_rows()) == len(rows) + 1


def test_a_run_cannot_start_on_a_full_disk(small_disk: Path) -> None:
    (small_disk / "run").mkdir()
    ballast = fill(small_disk)
    with pytest.raises(StoreError, match="free space"):
        RunStore.create_or_open(small_disk / "run", MANIFEST)
    ballast.unlink()
    RunStore.create_or_open(small_disk / "run", MANIFEST).close()


def test_a_read_only_disk_is_read_and_not_written(small_disk: Path) -> None:
    root = small_disk / "run"
    with RunStore.create_or_open(root, MANIFEST) as store:
        store.record([("phi", "e0", 0, RIGHT)])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with RunStore.open(root) as store:
        assert store.outcome("phi", "e0", 0) == RIGHT
        assert store.manifest == MANIFEST
    with pytest.raises(StoreError, match=r"Read-only file system.*choose another"):
        RunStore.create_or_open(root, MANIFEST)
    with pytest.raises(StoreError, match="cannot create run folder"):
        RunStore.create_or_open(small_disk / "other", MANIFEST)


def test_a_limit_on_file_size_is_an_error_and_nothing_is_half_written(tmp_path: Path) -> None:
    # What a full disk does, for machines where none can be mounted.
    with RunStore.create_or_open(tmp_path / "run", MANIFEST) as store:
        store.record([("phi", "e0", 0, RIGHT)])
        store.write_text("report.txt", "the old report")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
        try:
            with pytest.raises(StoreError, match="what was recorded before is kept"):
                store.write_text("report.txt", "y" * 100_000)
            with pytest.raises(StoreError, match="what was recorded before is kept"):
                store.record([("phi", "e1", 0, Outcome(State.SCORED, "x" * 100_000, 1.0))])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert store.read_text("report.txt") == "the old report"
        assert [row["example"] for row in store.to_rows()] == ["e0"]
        store.record([("phi", "e1", 0, RIGHT)])
        assert sorted(path.name for path in (tmp_path / "run" / ".tmp").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    root.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="make the run folder writable"):
            RunStore.create_or_open(root, MANIFEST)
    finally:
        root.chmod(0o700)


def test_opening_the_store_is_light() -> None:
    # `gal show` must answer at once: reading a run needs none of the heavy packages.
    code = (
        "import sys, galoop.store.run\n"
        "heavy = {'torch', 'numpy', 'scipy', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
