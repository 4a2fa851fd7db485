"""The examples of the page "Bring your own proposer" work as they stand."""

from __future__ import annotations

import io
import json
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
from fake_programs import probe
from galoop.config import load
from galoop.plugins import names
from galoop.proposers.files import FilesProposer
from galoop.proposers.protocol import Proposer, Request, Seat, Task

PAGE = (Path(__file__).parent.parent / "docs" / "bring-your-own.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(toml|python)\n(.*?)^```", PAGE, re.S | re.M)
TASK = Task("probe", "fake", "", "", "")


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def test_no_example_is_longer_than_thirty_lines() -> None:
    assert len(BLOCKS) == 5
    assert all(len(text.splitlines()) < 30 for _, text in BLOCKS)


def test_every_proposer_is_in_the_table() -> None:
    named = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.M))
    assert named == set(names("proposers"))


def test_the_experiment_files_load(tmp_path: Path) -> None:
    provider, server, _ = blocks("toml")
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
    point = tomllib.loads(blocks("toml")[2])["project"]["entry-points"]["galoop.proposers"]
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
