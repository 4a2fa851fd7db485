"""The example of the page on coding agents works as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from agent_tools import B1, PARENT, seated
from fake_domain import World, config
from galoop.config import AgentConfig, load
from galoop.proposers.agents.factory import adapter
from galoop.search.agent import AgentSearch
from galoop.types import Candidate
from search_tools import improved

PAGE = (Path(__file__).parent.parent / "docs" / "coding-agents.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.S | re.M)
    assert found is not None
    return found[1]


def test_the_example(tmp_path: Path, world: World) -> None:
    toml, script = block("toml"), block("sh")
    assert len(toml.splitlines()) + len(script.splitlines()) < 30
    program = tmp_path / "agent.sh"
    program.write_text(script)
    (tmp_path / "experiment.toml").write_text(toml.replace("/home/me/agent.sh", str(program)))
    given = load(tmp_path / "experiment.toml")
    assert given.generator.search == given.generator.proposer == "agent"
    parent = Candidate("artifact", {**PARENT.files, "press.py": "WINDOW = 4\n"})
    found = config(generator__search="agent", agent=given.agent.model_dump())
    made = improved(
        (), (B1,), parent, found, search=AgentSearch(), proposer=seated(found, tmp_path)
    )
    notes = [e["payload"]["note"] for e in made.store.events("candidate")]
    assert notes[1:] == ["WINDOW = 8", "WINDOW = 16", "WINDOW = 32"]
    assert made.store.total("round-1/generator").dollars == pytest.approx(0.01)


def test_the_table_names_every_credential() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and "adapter" not in line]
    named = {row.split("`")[1]: row for row in rows}
    assert set(named) == set(get_args(AgentConfig.model_fields["adapter"].annotation))
    for name, row in named.items():
        if name != "mini-swe-agent":
            assert re.findall(r"`([A-Z_]+)`", row) == list(adapter(name).keys)
