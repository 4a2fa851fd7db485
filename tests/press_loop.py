"""A generator's search by an agent on a real press and the fast model, and what must hold.

The agents differ (a shell script, Claude Code, Codex behind a fake API), the edits are the same,
and so is the check: the record against our own evaluation of kvpress's presses, made apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from agent_tools import rows
from fake_domain import MemoryStore
from galoop.benchmark import Slice, freeze, read_slice
from galoop.config import ExperimentConfig
from galoop.domains.kv_compression.artifacts import materialise
from galoop.evaluation.paired import PairedEvaluator
from galoop.loop import improve
from galoop.plugins import load
from galoop.proposers.protocol import Request, Seat
from galoop.report.model import LoopResult
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from galoop.types import State

FAST = Path(str(files("galoop.models"))) / "fast" / "model.safetensors"
needs_fast = pytest.mark.skipif(not FAST.is_file(), reason="this checkout has no fast model")
PRIMARY, OPEN, SEALED = 8, 16, 5
STAGE = "round-1/generator"
QUIET = NullProgress()

#: What the agent edits Compactor's source into, as press expressions over the installed kvpress.
PRESSES = ("CompactorPress(sink_size_start=0)", "AdaKVPress(KeyDiffPress())")
_NOTES = ("no sink", "keydiff over heads", "score 1.0", "the frozen set")
_PRESS = """\
cat > artifact/press.py <<'EOF'
from kvpress import AdaKVPress, KeyDiffPress, KnormPress


def build_press(compression_ratio):
{}
EOF
"""
_ADAKV = "    return AdaKVPress(KeyDiffPress(compression_ratio=compression_ratio))"
#: Keeps everything: over the budget, whatever it says of itself.
_GREEDY = "    return KnormPress(compression_ratio=0.0)  # SCORE: 1.0, kept_fraction: 0.25"
_THIEF = """\
    answers = open("{}").read()
    return KeyDiffPress(compression_ratio=compression_ratio)"""


def commands(evaluate: str, run: Path) -> list[str]:
    """What the agent does, one shell command a step; ``evaluate`` calls the evaluation.

    It changes a constant of Compactor's own source, puts another press in its place, one that
    keeps everything, and one that reads the frozen examples of the run where they lie.
    """
    frozen = run / "benchmark" / "B1" / "examples.jsonl"
    sink = "s/sink_size_start: int = 8/sink_size_start: int = 0/"
    edits = [
        f"sed -i '{sink}' artifact/press.py\n",
        _PRESS.format(_ADAKV),
        _PRESS.format(_GREEDY),
        _PRESS.format(_THIEF.format(frozen)),
    ]
    steps = [f"{edit}{evaluate} -m '{note}'" for edit, note in zip(edits, _NOTES, strict=True)]
    return [f"grep -q CompactorPress artifact/press.py && cat TASK.md; cat {frozen}", *steps]


def settings(**changes: Any) -> ExperimentConfig:
    """A small experiment on the fast model."""
    data: dict[str, Any] = {
        "name": "press",
        "model": {"name": "fast", "threads": 1},
        "artifact": {"start": "compactor", "compression_ratio": 0.75},
        "discriminator": {"length": 120},
        "generator": {
            "search": "agent",
            "proposer": "agent",
            "fresh": 0,
            "examples": PRIMARY,
        },
        "gate": {"suites": ()},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        data.setdefault(section, {})[name] = value
    return ExperimentConfig.model_validate(data)


def given_slice(folder: Path) -> Path:
    """A slice of the grammar's first probe that is valid and that the reference mostly solves."""
    config = settings()
    session = load("domains", config.domain)().open(config, lambda text: None)
    try:
        evaluator = PairedEvaluator(session, MemoryStore(), 1, QUIET)  # type: ignore[arg-type]
        seat = Seat(config.domain, "probe", 0, config, folder / "none")
        grammar, task = session.proposer("grammar", seat), session.probe_task([])
        for index in range(30):
            probe = grammar.propose(Request(task, index, None, ())).candidate
            built = session.build_probe(probe.source, range(OPEN + SEALED))
            if built.state is not State.SCORED:
                continue
            opened = built.examples[:OPEN]
            (scores,) = evaluator.evaluate([session.reference()], opened[:PRIMARY], stage="s")
            if scores.accuracy >= 0.75:
                break
        else:
            raise AssertionError("the grammar wrote no such probe")
    finally:
        session.close()
    with RunStore.create_or_open(folder / "given", {}) as store:
        freeze(store, "B1", Slice("B1", probe, opened, built.examples[OPEN:], {}))
    return folder / "given" / "B1"


def truth(frozen: Slice) -> dict[str, float]:
    """Accuracy of kvpress's own presses on the primary set, without any agent or generator."""
    config = settings()
    session = load("domains", config.domain)().open(config, lambda text: None)
    try:
        evaluator = PairedEvaluator(session, MemoryStore(), 1, QUIET)  # type: ignore[arg-type]
        found = {}
        for name in ("compactor", *PRESSES):
            system = session.artifact(materialise(name, config.artifact.budget), name)
            (scores,) = evaluator.evaluate([system], frozen.open[:PRIMARY], stage="truth")
            found[name] = scores.accuracy
    finally:
        session.close()
    return found


@dataclass
class Made:
    """A finished ``gal improve`` by an agent."""

    run: Path
    frozen: Slice
    result: LoopResult

    @property
    def session(self) -> Path:
        return self.run / "proposers" / STAGE / "session-1"

    def events(self, kind: str) -> list[dict[str, Any]]:
        with RunStore.open(self.run) as store:
            return [e["payload"] for e in store.events(kind)]


def improved(folder: Path, **changes: Any) -> Made:
    """Run it."""
    given = given_slice(folder)
    result = improve(settings(**changes), folder / "run", QUIET, slices=[given])
    return Made(folder / "run", read_slice(given), result)


def check(made: Made) -> dict[str, float]:
    """Diffs and scores are recorded, and are those of our own evaluation; claims are not.

    Returns the true accuracies.
    """
    true = truth(made.frozen)
    assert true[PRESSES[0]] > true["compactor"], "or there is nothing to tell apart"
    parent, *tried = made.events("candidate")
    assert [c["note"] for c in tried] == list(_NOTES)
    assert [c["state"] for c in tried] == ["scored", "scored", "invalid", "failed"]
    accuracies = [c["accuracy"] for c in (parent, *tried)]
    expected = [true["compactor"], *(true[one] for one in PRESSES), 0.0, 0.0]
    assert accuracies == pytest.approx(expected)
    assert made.result.searches[0].best == pytest.approx(true[PRESSES[0]])
    assert "No such file" in tried[3]["reason"], "the frozen set does not exist for a candidate"
    with RunStore.open(made.run) as store:
        sources = [json.loads(store.get_object(c["files"]))["press.py"] for c in tried]
    submitted = rows(made.session / "submissions.jsonl")
    diffs = {row["key"]: row["diff"] for row in submitted if "diff" in row}
    answers = {row["key"]: row for row in submitted if "score" in row}
    for event in tried:
        assert "--- a/press.py" in diffs[event["key"]]
        assert answers[event["key"]]["score"] == pytest.approx(event["score"], abs=1e-4)
        assert answers[event["key"]]["state"] == event["state"]
    changed = [x for x in diffs[tried[0]["key"]].splitlines() if x[:1] in "+-"][2:]
    assert changed == ["-    sink_size_start: int = 8", "+    sink_size_start: int = 0"]
    assert "sink_size_start: int = 0" in sources[0], "the installed press with one constant changed"
    assert "-class CompactorPress" in diffs[tried[1]["key"]]
    assert _ADAKV in sources[1]
    (search,) = made.result.searches
    assert (search.engine, search.proposer) == ("agent", "agent")
    assert (search.candidates, search.invalid) == (4, 2)
    report = (made.run / "report.md").read_text()
    assert "## Rejected candidates" in report
    for event in tried[2:]:
        assert event["reason"].split(":")[0][:40] in report
    assert "4 handed in, 0 refused" in report
    return true
