"""`gal loop` and its halves on the fake domain: exit codes, interrupts, going on."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from fake_domain import World
from galoop.cli.main import run
from galoop.errors import ExitCode
from loop_tools import plain_files, small


def experiment(folder: Path, **changes: Any) -> Path:
    path = folder / "experiment.toml"
    path.write_text(small(run_dir=str(folder / "run"), **changes).to_toml(), encoding="utf-8")
    return path


def test_ctrl_c_says_how_to_go_on_and_the_command_goes_on(
    world: World,
    base: Path,
    fast_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    # A shell starts its background jobs with SIGINT ignored; then there is no Ctrl-C to test.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def interrupt(number: int) -> None:
        if number == 150:
            signal.raise_signal(signal.SIGINT)

    world.before = interrupt
    path = experiment(fast_path)
    assert run(["loop", str(path), "--quiet"]) == ExitCode.INTERRUPTED
    (line,) = capsys.readouterr().err.splitlines()
    assert "run the same command to go on" in line
    world.before = lambda number: None
    assert run(["loop", str(path), "--json", "--quiet"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert json.loads(out)["status"] == "complete"
    assert max(world.calls.values()) <= 2
    ours, theirs = plain_files(fast_path / "run"), plain_files(base)
    del ours["experiment.toml"], theirs["experiment.toml"]  # names its own run folder
    assert ours == theirs


def test_a_second_process_on_a_run_folder_is_told_so(
    world: World, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(fast_path)
    refused: list[int] = []

    def again(number: int) -> None:
        if number == 50:
            world.before = lambda number: None
            refused.append(run(["loop", str(path), "--quiet"]))

    world.before = again
    assert run(["loop", str(path), "--quiet"]) == ExitCode.OK
    assert refused == [ExitCode.INFRASTRUCTURE]
    assert "is in use by process" in capsys.readouterr().err


def test_show_reads_while_the_run_goes_on_and_after(
    world: World, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(fast_path)
    assert run(["loop", str(path), "--quiet"]) == 0
    capsys.readouterr()
    assert run(["show", str(fast_path / "run")]) == 0
    assert "B₁" in capsys.readouterr().out


def test_the_halves_say_by_their_exit_code_whether_they_found(
    world: World, base: Path, fast_path: Path
) -> None:
    path = experiment(fast_path)
    run_dir = ["--run-dir", str(fast_path / "d"), "--quiet"]
    assert run(["discover", str(path), *run_dir]) == ExitCode.OK
    assert run(
        ["discover", str(path), "--artifact.start", "identity", "--run-dir",
         str(fast_path / "n"), "--quiet"]
    ) == ExitCode.FAILED  # fmt: skip
    one = str(base / "benchmark" / "B1")
    assert run(["improve", str(path), "--slice", one, "--run-dir", str(fast_path / "i"),
                "--quiet"]) == ExitCode.OK  # fmt: skip
    assert run(["improve", str(path), "--slice", one, "--run-dir", str(fast_path / "j"), "--quiet",
                "--generator.max-candidates", "1"]) == ExitCode.FAILED  # fmt: skip
