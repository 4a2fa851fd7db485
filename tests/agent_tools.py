"""Scripted agents: small Python programs in an agent's place, on the fake domain."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from fake_programs import artifact
from galoop.config import ExperimentConfig
from galoop.isolation import bubblewrap
from galoop.proposers.agents.factory import agent
from galoop.proposers.protocol import Proposer, Seat
from galoop.search.agent import AgentSearch
from galoop.types import Kind
from search_tools import B1, GOOD, PARENT, Improved, improved

__all__ = ["B1", "GOOD", "PARENT", "artifact"]

#: What every scripted agent begins with.
PRELUDE = '''
import json, os, pathlib, subprocess, sys, time

TREE = pathlib.Path.cwd()


def write(*skills, does="", salt=0):
    """Put an artifact of the fake domain into the tree."""
    spec = {"skills": list(skills), "does": does, "salt": salt}
    text = json.dumps(spec, indent=1, sort_keys=True) + "\\n"
    (TREE / "artifact" / "params.json").write_text(text)


def evaluate(*arguments):
    """Call the evaluation command; its answer."""
    done = subprocess.run(["gal-evaluate", *arguments], capture_output=True, text=True)
    return {"exit": done.returncode, **json.loads(done.stdout)}


def say(**data):
    """One line of output for the test to read."""
    print(json.dumps(data), flush=True)
'''

BWRAP = bubblewrap.working_base()[0] is not None
TIERS = [
    pytest.param("bubblewrap", marks=pytest.mark.skipif(not BWRAP, reason="no bubblewrap")),
    "plain",
]


def settings(folder: Path, body: str, tier: str = "auto", **changes: Any) -> ExperimentConfig:
    """An experiment whose agent is a Python program with ``body``."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "agent.py"
    program.write_text(PRELUDE + textwrap.dedent(body))
    given: dict[str, Any] = {
        "isolation__tier": tier,
        "agent__command": (sys.executable, "-I", str(program)),
        "agent__readable": (str(program),),
        "agent__network": False,
        "agent__seconds": 60.0,
        "agent__grace": 5.0,
        "generator__search": "agent",
        "discriminator__search": "agent",
        **changes,
    }
    return fake.config(**given)


def seated(config: ExperimentConfig, folder: Path, kind: Kind = "artifact") -> Proposer:
    """The proposer ``agent`` in its seat."""
    return agent(Seat("fake", kind, 0, config, folder / "run" / "proposers" / "stage", "stage"))


@dataclass
class Worked:
    """One search by an agent, with all that it left."""

    improved: Improved
    folder: Path

    @property
    def reason(self) -> str:
        return self.improved.result.stopped_by

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The events of evaluated candidates, without the parent's."""
        events = [e["payload"] for e in self.improved.store.events("candidate")]
        return [e for e in events if e["number"]]

    @property
    def proposals(self) -> list[dict[str, Any]]:
        return [e["payload"] for e in self.improved.store.events("proposal")]

    def session(self, number: int = 1) -> Path:
        return self.folder / "run" / "proposers" / "stage" / f"session-{number}"

    def said(self, number: int = 1) -> list[dict[str, Any]]:
        """What the scripted agent said."""
        return rows(self.session(number) / "transcript.jsonl")

    def submissions(self, number: int = 1) -> list[dict[str, Any]]:
        return rows(self.session(number) / "submissions.jsonl")

    def ended(self, number: int = 1) -> dict[str, Any]:
        return dict(json.loads((self.session(number) / "session.json").read_text()))


def rows(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    found = []
    for line in path.read_text().splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def work(
    folder: Path,
    body: str,
    tier: str = "auto",
    slices: Sequence[Any] = (B1,),
    store: Any = None,
    search: Any = None,
    **changes: Any,
) -> Worked:
    """A generator's search by a scripted agent."""
    config = settings(folder, body, tier, **changes)
    made = improved(
        (),
        slices,
        config=config,
        search=search or AgentSearch(),
        proposer=seated(config, folder),
        store=store,
    )
    return Worked(made, folder)
