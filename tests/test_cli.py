"""The commands: help, exit codes, errors in one line, output for people and for programs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from galoop.cli.main import COMMANDS, gal, run
from galoop.config import ExperimentConfig, knobs, load
from galoop.errors import ExitCode, IsolationError, StoreError
from galoop.report.model import LoopResult, ReplayResult, ReplayRow
from report_sample import cell, example, sample

Capture = pytest.CaptureFixture[str]


def gal_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "galoop", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1"},
    )


def test_help_answers_in_under_half_a_second() -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        assert gal_process("--help").returncode == 0
        times.append(time.perf_counter() - began)
    assert statistics.median(times) < 0.5


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom galoop.cli.main import run\nrun(['--help'])\n"
        "heavy = {'torch', 'pydantic', 'transformers', 'numpy', 'rich', 'jinja2', 'scipy'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_documents_itself(name: str, capsys: Capture) -> None:
    import click

    command = gal.get_command(click.Context(gal), name)
    assert command is not None
    first = (command.help or "").strip().splitlines()[0]
    assert first == COMMANDS[name][1], "the list of `gal --help` must say the same"
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Exit codes:" in shown
    assert "  0  " in shown


@pytest.mark.parametrize("name", ["loop", "discover", "improve", "init"])
def test_every_knob_has_a_flag_with_its_default(name: str, capsys: Capture) -> None:
    assert run([name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for knob in knobs():
        assert f"{knob.flag} " in shown or f"{knob.flag} /" in shown, knob.key
        assert " ".join(knob.description.split()[:4]) in shown, knob.key
    assert shown.count("[default:") >= len(list(knobs()))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lopp"], "unknown command 'lopp'; did you mean loop?"),
        (["loop", "--discriminator.max-candidates", "many"], "not a valid integer"),
        (["loop", "--discriminator.length", "1"], "flag --discriminator.length"),
        (["loop", "--discriminator.lenght", "100"], "--discriminator.length"),
        (["loop", "none.toml"], "no such file"),
        (["loop", "--gate.suites", "ruler,rulr"], "unknown suite 'rulr'"),
        (["improve"], "Missing option '--slice'"),
        (["list", "colours"], "domains"),
        (["replay", "x"], "Missing option '--artifact'"),
    ],
)
def test_wrong_usage_is_one_line_and_code_4(
    arguments: list[str], words: str, capsys: Capture, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_several_config_errors_are_several_lines(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("seed = -1\nsede = 2\n")
    assert run(["loop", str(path)]) == ExitCode.USAGE
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"error: {path}: ") for line in lines)


@pytest.fixture
def fake_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, ...]]]:
    """Put a loop in the place of the real one: it returns or raises what it is given."""

    def install(outcome: LoopResult | ReplayResult | BaseException) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []

        def work(*arguments: Any, **options: Any) -> Any:
            calls.append((arguments, options))
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        module = types.ModuleType("galoop.loop")
        for name in ("run_loop", "discover", "improve", "replay"):
            setattr(module, name, work)
        monkeypatch.setitem(sys.modules, "galoop.loop", module)
        return calls

    return install


def test_loop_passes_file_and_flags_and_prints(
    fake_loop: Any, capsys: Capture, tmp_path: Path
) -> None:
    calls = fake_loop(sample())
    path = tmp_path / "e.toml"
    path.write_text("seed = 5\n[criterion]\ntau = 0.2\n")
    arguments = [
        "loop", str(path), "--criterion.tau", "0.25", "--gate.components", "vt, cwe",
        "--discriminator.exploration", "--run-dir", str(tmp_path / "r"), "--require-isolation",
        "--generator.max-dollars", "1.5",
    ]  # fmt: skip
    assert run(arguments) == 0
    (((config, run_dir, _), _),) = calls
    assert isinstance(config, ExperimentConfig)
    expected = {
        "criterion.tau": 0.25,
        "gate.components": ("vt", "cwe"),
        "discriminator.exploration": True,
        "run_dir": str(tmp_path / "r"),
        "isolation.require": True,
        "generator.max_dollars": 1.5,
    }
    assert config == load(path, expected)
    assert run_dir == tmp_path / "r"
    shown = capsys.readouterr().out
    for words in ("B₁", "Gen-2", "Account 417: 52", "+from kvpress import KeyDiffPress"):
        assert words in shown


def test_loop_json_is_the_result(fake_loop: Any, capsys: Capture) -> None:
    fake_loop(sample())
    assert run(["loop", "--json"]) == 0
    assert capsys.readouterr().out == sample().dumps()


@pytest.mark.parametrize(
    ("arguments", "result", "code"),
    [
        (["discover"], sample(), ExitCode.OK),
        (["discover"], replace(sample(), slices=()), ExitCode.FAILED),
        (["improve", "--slice", "."], sample(), ExitCode.OK),
        (["improve", "--slice", "."], replace(sample(), generations=()), ExitCode.FAILED),
        (
            ["improve", "--slice", "."],
            replace(sample(), generations=sample().generations[1:]),
            ExitCode.FAILED,
        ),
        (["loop"], replace(sample(), slices=(), generations=()), ExitCode.OK),
    ],
)
def test_the_halves_say_by_their_code_whether_they_found(
    fake_loop: Any, arguments: list[str], result: LoopResult, code: int
) -> None:
    fake_loop(result)
    assert run(arguments) == code


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "run the same command to go on"),
        (StoreError("disk full", "free some"), ExitCode.INFRASTRUCTURE, "disk full (free some)"),
        (IsolationError("no sandbox"), ExitCode.INFRASTRUCTURE, "no sandbox"),
        (ZeroDivisionError("division\nby zero"), ExitCode.INFRASTRUCTURE, "GAL_TRACEBACK=1"),
    ],
)
def test_failures_of_a_run_are_one_line_and_a_code(
    fake_loop: Any, capsys: Capture, error: BaseException, code: int, words: str
) -> None:
    fake_loop(error)
    assert run(["loop", "--quiet"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_init_writes_what_load_reads(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    assert run(["init", str(path), "--seed", "9", "--gate.suites", "ruler"]) == 0
    assert load(path) == load(None, {"seed": 9})
    assert run(["init", str(path)]) == ExitCode.USAGE
    assert "--force" in capsys.readouterr().err
    assert load(path).seed == 9
    assert run(["init", str(path), "--force"]) == 0
    assert load(path).seed == 0
    assert run(["init", str(tmp_path / "no" / "e.toml")]) == ExitCode.USAGE
    capsys.readouterr()
    assert run(["init", "-"]) == 0
    assert capsys.readouterr().out == load(None).to_toml()


def test_show(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(sample().dumps(), encoding="utf-8")
    assert run(["show", str(tmp_path), "--json"]) == 0
    assert capsys.readouterr().out == sample().dumps()
    assert run(["show", str(tmp_path), "--brief"]) == 0
    brief = capsys.readouterr().out
    assert "B₂" in brief
    assert "Account 417" not in brief
    for kind, start in (("markdown", "# sample"), ("html", "<!doctype html>")):
        target = tmp_path / f"out.{kind}"
        assert run(["show", str(tmp_path), "--format", kind, "-o", str(target)]) == 0
        assert target.read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "the run has not finished"),
        ("{", "cannot be read"),
        ("[]", "schema version None"),
        ('{"schema": 99}', "schema version 99"),
        ('{"schema": 1, "table": 3, "provenance": {}}', "not a result"),
    ],
)
def test_show_refuses_what_is_not_a_result(
    capsys: Capture, tmp_path: Path, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    assert run(["show", str(tmp_path)]) == ExitCode.INFRASTRUCTURE
    assert words in capsys.readouterr().err


def test_replay(fake_loop: Any, capsys: Capture, tmp_path: Path) -> None:
    good = ReplayRow("compactor", cell(0.95), cell(0.3), cell(0.65), {"kept_fraction": 0.25})
    bad = ReplayRow("mine", cell(0.95), cell(0.0), cell(0.0), invalid="over budget")
    result = ReplayResult("B1", "ab", "fast", "float32", (good,), example())
    calls = fake_loop(result)
    assert run(["replay", "S", "--artifact", "a", "--artifact", "b", "--limit", "3"]) == 0
    ((arguments, options),) = calls
    assert arguments == (Path("S"), ("a", "b"))
    assert options["limit"] == 3
    assert options["model"] is None
    assert "compactor" in capsys.readouterr().out
    fake_loop(replace(result, rows=(good, bad)))
    assert run(["replay", "S", "--artifact", "a", "--json"]) == ExitCode.FAILED
    assert json.loads(capsys.readouterr().out)["rows"][1]["invalid"] == "over budget"


@pytest.mark.parametrize(
    ("group", "name"),
    [("artifacts", "compactor"), ("suites", "ruler"), ("models", "smollm2-135m")],
)
def test_list(group: str, name: str, capsys: Capture) -> None:
    assert run(["list", group, "--json"]) == 0
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert found[name]["error"] == ""
    assert found[name]["summary"]
    assert run(["list", group]) == 0
    assert name in capsys.readouterr().out


def test_a_broken_plugin_is_listed_with_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from importlib.metadata import EntryPoint

    from galoop import plugins

    points = [
        EntryPoint("broken", "no_such_module_at_all:thing", "galoop.suites"),
        EntryPoint("good", "galoop.types:Example", "galoop.suites"),
    ]
    monkeypatch.setattr(plugins, "_points", lambda group: points)
    assert run(["list", "suites", "--json"]) == 0
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert "ModuleNotFoundError" in found["broken"]["error"]
    assert found["good"]["error"] == ""
    assert plugins.names("suites") == ["broken", "good"]
    with pytest.raises(plugins.UsageError, match="cannot be imported"):
        plugins.load("suites", "broken")
    with pytest.raises(plugins.UnknownNameError, match="did you mean good"):
        plugins.load("suites", "goood")


def test_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    by_name = {check["name"]: check for check in data["checks"]}
    assert data["healthy"] is True
    assert by_name["torch"]["status"] == "ok"
    assert {"python", "threads", "bfloat16", "gpu", "isolation", "memory"} <= set(by_name)
    for check in data["checks"]:
        assert check["status"] in ("ok", "warn", "missing")
        assert check["fix"] or check["status"] == "ok", check

    from galoop import doctor

    gone = doctor.Check("torch", "missing", "not installed", "pip install torch", required=True)
    monkeypatch.setattr(doctor, "examine", lambda: iter([gone]))
    assert run(["doctor"]) == ExitCode.INFRASTRUCTURE
    shown = capsys.readouterr().out
    assert "missing" in shown
    assert "pip install torch" in shown


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(sample().dumps(), encoding="utf-8")
    command = f'"{sys.executable}" -m galoop show "{tmp_path}" --json | head -c 10'
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True
    )
    assert found.stderr == ""
    assert found.returncode == 0
