"""The examples of the page "Bring your own proposer" work as they stand."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from agent_tools import seated
from fake_domain import World
from fake_programs import artifact, probe
from galoop import plugins
from galoop.config import load
from galoop.loop import run_loop
from galoop.plugins import names
from galoop.proposers.files import FilesProposer
from galoop.proposers.protocol import Proposer, Request, Seat, Task
from galoop.report.progress import NullProgress
from galoop.search.agent import AgentSearch
from galoop.types import Kind
from loop_tools import small
from search_tools import improved

PAGE = (Path(__file__).parent.parent / "docs" / "bring-your-own.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(toml|python)\n(.*?)^```", PAGE, re.S | re.M)
TASK = Task("probe", "fake", "", "", "")


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def test_no_example_is_longer_than_thirty_lines() -> None:
    assert len(BLOCKS) == 8
    assert all(len(text.splitlines()) < 30 for _, text in BLOCKS)


def test_every_proposer_is_in_the_table() -> None:
    named = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.M))
    assert named == set(names("proposers"))


def test_the_experiment_files_load(tmp_path: Path) -> None:
    _, provider, server, *_ = blocks("toml")
    (tmp_path / "a.toml").write_text(provider)
    found = load(tmp_path / "a.toml")
    assert found.generator.proposer == "language-model"
    assert found.generator.max_dollars == 5.0
    (tmp_path / "b.toml").write_text(server)
    assert load(tmp_path / "b.toml").language_model.input_price == 0.0


def test_the_function_sits_in_the_seat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    function, _ = blocks("python")
    asked: list[Any] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        assert isinstance(request.data, bytes)
        asked.append(json.loads(request.data))
        text = f"```python\n{probe(1).source}```"
        said = {"message": {"content": text}, "prompt_eval_count": 70, "eval_count": 8}
        return io.BytesIO(json.dumps({**said, "done_reason": "stop"}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    scope: dict[str, Any] = {}
    exec(compile(function, "example", "exec"), scope)
    point = tomllib.loads(blocks("toml")[3])["project"]["entry-points"]["galoop.proposers"]
    ((_, target),) = point.items()
    made = scope[target.partition(":")[2]](Seat("fake", "probe", 0, fake.config(), tmp_path, "s"))
    assert isinstance(made, Proposer)
    found = made.propose(Request(TASK, 0, None, ()))
    assert found.candidate is not None
    assert found.candidate.key == probe(1).key
    assert (found.cost.dollars, found.cost.input_tokens, found.cost.output_tokens) == (0.0, 70, 8)
    assert [m["role"] for m in asked[0]["messages"]] == ["system", "user"]


def test_the_program_answers_files(tmp_path: Path) -> None:
    _, program = blocks("python")
    (tmp_path / "answer.py").write_text(program)
    folder = tmp_path / "requests"
    folder.mkdir()
    running = subprocess.Popen([sys.executable, str(tmp_path / "answer.py"), str(folder)])
    try:
        config = fake.config(files__folder=str(folder), files__poll=0.05, files__timeout=30.0)
        seat = FilesProposer(Seat("fake", "probe", 0, config, tmp_path, "round-1/discriminator"))
        began = time.monotonic()
        made = seat.propose(Request(TASK, 0, None, ()))
    finally:
        running.kill()
        running.wait()
    assert time.monotonic() - began < 30
    assert made.candidate is not None
    assert made.candidate.note == "a first try"


def settings(text: str) -> dict[str, Any]:
    """An example's keys as overrides of the small experiment on the fake domain."""
    data = tomllib.loads(text)
    flat = {k: v for k, v in data.items() if not isinstance(v, dict)}
    tables = {k: v for k, v in data.items() if isinstance(v, dict)}
    return flat | {f"{t}__{k}": v for t, keys in tables.items() for k, v in keys.items()}


def test_the_grammar_writes_probes_and_presses(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(blocks("toml")[0])
    config = load(tmp_path / "a.toml")
    kinds: tuple[Kind, ...] = ("probe", "artifact")
    for kind, table in zip(kinds, (config.discriminator, config.generator), strict=True):
        made = plugins.load("proposers", table.proposer)(
            Seat(config.domain, kind, config.seed, config, tmp_path, "s")
        )
        budget = {"compression_ratio": 0.75}
        task = Task(kind, config.domain, "", "", "", 256, budget)
        found = made.propose(Request(task, 0, None, ())).candidate
        assert found is not None
        assert found.kind == kind


def test_an_agent_sits_in_the_seat(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example with a program of ours in the place of Claude Code's, which writes its events."""
    program = tmp_path / "bin" / "claude"
    program.parent.mkdir()
    text = artifact(1.0, 1.0, 0.4).files["params.json"]
    usage = {"input_tokens": 70, "output_tokens": 8}
    end = {"type": "result", "subtype": "success", "total_cost_usd": 0.5, "usage": usage}
    program.write_text(
        f"#!/bin/sh\ncat > artifact/params.json <<'EOF'\n{text}EOF\n"
        f"gal-evaluate -m 'repaired' >&2\necho '{json.dumps(end)}'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    config = fake.config(**settings(blocks("toml")[4]), gate__suites=())
    made = improved((), config=config, search=AgentSearch(), proposer=seated(config, tmp_path))
    assert made.result.accepted is not None
    assert made.result.accepted.candidate.note == "repaired"
    total = made.store.total("round-1/generator")
    assert (total.dollars, total.input_tokens, total.output_tokens) == (0.5, 70, 8)


def test_a_recorded_run_is_reproduced(
    world: World, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fast_path)
    first = run_loop(small(loop__rounds=1), Path("runs/first"), NullProgress())
    config = small(loop__rounds=1, **settings(blocks("toml")[5]))
    again = run_loop(config, config.run_path, NullProgress())
    assert (fast_path / "runs" / "again" / "result.json").is_file()
    assert [s.probe_key for s in again.slices] == [s.probe_key for s in first.slices] != []
    assert again.table == first.table
