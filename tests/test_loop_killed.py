"""Loops against kills at random instants and against a full disk."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from fake_domain import World
from galoop.cli.main import run
from galoop.errors import ExitCode
from galoop.loop import run_loop
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from loop_tools import SMALL, plain_files, small

KILLS = 20
HERE = Path(__file__).parent


def child(run_dir: Path, log: Path, changes: dict[str, Any]) -> subprocess.Popen[str]:
    arguments = [str(HERE), str(run_dir), str(log), repr(changes)]
    return subprocess.Popen(
        [sys.executable, "-c", fake.CHILD, *arguments], stdout=subprocess.PIPE, text=True
    )


def kill_at_random(run_dir: Path, log: Path, changes: dict[str, Any], span: float) -> int:
    """Start the loop again and again, kill it each time; the number of kills of a working one.

    ``span`` is how long the whole loop takes a child once it is ready. Later kills come later:
    a resumed loop first comes to where it was.
    """
    chance, kills = random.Random(11), 0
    while kills < KILLS:
        process = child(run_dir, log, changes)
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == "ready\n"
            # From the first moment (a store that is only being made) to past the end.
            time.sleep(chance.uniform(0.0, span * 0.6))
            process.send_signal(signal.SIGKILL)
            done = "done" in output.read()
        process.wait()
        kills += 1
        if done:
            break
    return kills


@pytest.mark.slow
def test_twenty_kills_at_random_instants_end_as_an_uninterrupted_run(
    world: World, fast_path: Path
) -> None:
    process = child(fast_path / "base", fast_path / "base.log", SMALL)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "ready\n"
        began = time.monotonic()
        assert output.read() == "done\n"
    span = time.monotonic() - began
    base = plain_files(fast_path / "base")

    kills, attempt = 0, 0
    while kills < KILLS:
        path, log = fast_path / f"run{attempt}", fast_path / f"log{attempt}"
        some = kill_at_random(path, log, SMALL, span)
        kills += some
        run_loop(small(), path, NullProgress())
        assert plain_files(path) == base
        with RunStore.open(path) as store:
            rows = store.to_rows()
            assert store.total().evaluations == len(rows), "paid once for each"
        seen = Counter(log.read_text().splitlines())
        repeated = sum(seen.values()) - len(seen)
        assert repeated <= some * fake.CHUNK * 3, "a kill repeats the chunk in flight at most"
        attempt += 1
    assert kills >= KILLS


def test_kills_at_chosen_evaluations_end_as_an_uninterrupted_run(
    world: World, fast_path: Path
) -> None:
    """The same in forked children, which need no start: each dies at its n-th evaluation."""
    run_loop(small(loop__rounds=1), fast_path / "base", NullProgress())
    path, chance, kills = fast_path / "run", random.Random(5), 0
    while True:
        pid = os.fork()
        if pid == 0:
            # Not `os._exit` in a handler: nothing of this process may run after the kill.
            last = chance.randrange(1, 40)
            left = [last]

            def before(number: int, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            world.before = before
            with contextlib.suppress(BaseException):
                run_loop(small(loop__rounds=1), path, NullProgress())
                os._exit(0)
            os._exit(1)
        chance.randrange(1, 40)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            kills += 1
            continue
        assert os.WEXITSTATUS(status) == 0
        break
    assert kills >= KILLS
    assert plain_files(path) == plain_files(fast_path / "base")
    with RunStore.open(path) as store:
        assert store.total().evaluations == len(store.to_rows())


# -- a full disk ---------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of sixteen megabytes, where the machine allows to mount one."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("mounting a small disk needs root on Linux")
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-o", "size=16m", "-t", "tmpfs", "tmpfs", str(where)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user cannot mount a small disk: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=False)


@pytest.mark.parametrize("at", [60, 400])
def test_a_full_disk_in_the_middle_stops_the_loop_and_loses_nothing(
    world: World, small_disk: Path, fast_path: Path, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    path = fast_path / "experiment.toml"
    path.write_text(small(run_dir=str(small_disk / "run")).to_toml(), encoding="utf-8")
    ballast = small_disk / "ballast"

    def fill(number: int) -> None:
        if number == at:
            with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 4096)

    world.before = fill
    assert run(["loop", str(path), "--quiet"]) == ExitCode.INFRASTRUCTURE
    (line,) = capsys.readouterr().err.splitlines()
    assert "free space on that disk and run the same command again" in line
    assert "what was recorded before is kept" in line
    done = sum(world.calls.values())
    assert run(["loop", str(path), "--quiet"]) == ExitCode.INFRASTRUCTURE, "and again, while full"
    capsys.readouterr()

    ballast.unlink()
    world.before = lambda number: None
    before = sum(world.calls.values())
    with RunStore.open(small_disk / "run") as store:
        kept = len(store.to_rows())
    assert kept >= at - 2 * 3 * fake.CHUNK or kept >= done - 80
    assert run(["loop", str(path), "--quiet"]) == ExitCode.OK
    run_loop(small(), fast_path / "base", NullProgress())
    ours, theirs = plain_files(small_disk / "run"), plain_files(fast_path / "base")
    del ours["experiment.toml"], theirs["experiment.toml"]  # names its own run folder
    assert ours == theirs
    with RunStore.open(small_disk / "run") as store:
        assert store.total().evaluations == len(store.to_rows())
        assert len(store.to_rows()) >= before - 2 * 3 * fake.CHUNK
