"""Replaying a frozen slice on a model: a random one of 96 positions, with the real isolation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from galoop.benchmark import Slice, freeze
from galoop.cli.main import run
from galoop.errors import ExitCode, UsageError
from galoop.replay import replay
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from galoop.types import Candidate, Example


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from model_samples import tiny_folder

    torch.set_num_threads(1)
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def frozen(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    examples = tuple(
        Example(f"the key of {i} is {i * 7919 % 97} here", f"key {i}?", (str(i),), seed=i,
                max_new_tokens=6)
        for i in range(5)
    )  # fmt: skip
    about = {"model": str(tiny), "dtype": "float32", "budget": {"compression_ratio": 0.5}}
    probe = Candidate("probe", {"probe.py": '"""Keys."""\n'})
    folder = tmp_path_factory.mktemp("run") / "run"
    with RunStore.create_or_open(folder, {}) as store:
        freeze(store, "benchmark/B1", Slice("B1", probe, examples, examples[:1], about))
    return folder / "benchmark" / "B1"


def test_a_replay_takes_the_slices_own_model_and_budget(frozen: Path, tiny: Path) -> None:
    result = replay(frozen, ["identity", "knorm"], dtype="float32", progress=NullProgress())
    assert result.slice == "B1"
    assert result.model == str(tiny)
    assert result.probe_key == Candidate("probe", {"probe.py": '"""Keys."""\n'}).key
    same, pressed = result.rows
    assert (same.invalid, pressed.invalid) == ("", "")
    assert same.score == same.reference
    assert same.gap.estimate == 0.0
    assert same.measured["kept_fraction"] == 1.0
    assert pressed.measured["kept_fraction"] <= 0.5
    assert result.example is not None
    assert result.example.reference == result.example.artifact, "identity answers as φ does"
    assert same.gap.n == 5


@pytest.mark.slow
def test_a_replay_takes_another_budget_and_fewer_examples(frozen: Path) -> None:
    result = replay(
        frozen, ["KnormPress()"], dtype="float32", budget={"compression_ratio": 0.25}, limit=2,
        progress=NullProgress(),
    )  # fmt: skip
    (row,) = result.rows
    assert row.gap.n == 2
    assert 0.5 < row.measured["kept_fraction"] <= 0.75


@pytest.mark.slow
def test_the_command(frozen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", str(frozen), "--artifact", "identity", "--dtype", "float32", "--json",
                 "--quiet"]  # fmt: skip
    assert run(arguments) == ExitCode.OK
    first = capsys.readouterr().out
    assert json.loads(first)["rows"][0]["measured"]["kept_fraction"] == 1.0
    assert run(arguments) == ExitCode.OK
    kept = [json.loads(text) for text in (first, capsys.readouterr().out)]
    for one in kept:
        one["rows"][0]["measured"].pop("added_latency", None)  # a time
    assert kept[0] == kept[1]


def test_contexts_that_do_not_fit_the_model(frozen: Path, tiny: Path, tmp_path: Path) -> None:
    long = tuple(Example("x" * 200, "which?", ("x",), seed=i) for i in range(2))
    about = {"model": str(tiny), "budget": {"compression_ratio": 0.5}}
    with RunStore.create_or_open(tmp_path / "run", {}) as store:
        probe = Candidate("probe", {"probe.py": "X = 1\n"})
        freeze(store, "benchmark/B1", Slice("B1", probe, long, long, about))
    with pytest.raises(UsageError, match=r"the window of .* holds 96"):
        replay(tmp_path / "run/benchmark/B1", ["knorm"], dtype="float32", progress=NullProgress())
