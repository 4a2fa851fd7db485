"""Agents in both seats of a whole loop: found, repaired, resumed, reproduced without an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_tools import settings
from fake_domain import World
from galoop.loop import run_loop
from galoop.report.model import LoopResult
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from loop_tools import SMALL, plain_files

#: Asks about one topic after another; raises one skill after another. Both learn from answers.
BODY = """
    def probe(topic, salt):
        spec = {"topic": topic, "hardness": 0.0, "salt": salt, "does": ""}
        (TREE / "probe" / "probe.py").write_text(f'"Topic {topic}."\\n\\nSPEC = {spec!r}\\n')
        return evaluate("-m", f"topic {topic}")

    told = (TREE / "TASK.md").read_text()
    if (TREE / "probe").exists():
        for salt in range(20):
            answer = probe(salt % 3, 1000 + salt + len(told))
            if answer["state"] == "not evaluated":
                break
    else:
        skills = json.loads((TREE / "artifact" / "params.json").read_text())["skills"]
        best = 0.0
        for step in range(20):
            tried = list(skills)
            tried[step % 3] = round(min(1.0, tried[step % 3] + 0.5), 2)
            write(*tried)
            answer = evaluate("-m", f"skills {tried}")
            if answer["state"] == "not evaluated":
                break
            if answer["score"] > best:
                best, skills = answer["score"], tried
    say(type="usage", input_tokens=1000, output_tokens=100, dollars=0.25)
"""
BOTH: dict[str, Any] = {
    **SMALL,
    "discriminator__proposer": "agent",
    "generator__proposer": "agent",
    "generator__fresh": 0,
}


def breaks(result: LoopResult) -> list[str]:
    return [item.probe_key for item in result.slices]


def test_both_halves(world: World, fast_path: Path) -> None:
    config = settings(fast_path / "agent", BODY, **BOTH)
    path = fast_path / "run"
    result = run_loop(config, path, NullProgress())
    assert len(breaks(result)) == 2
    assert any(item.accepted for item in result.generations)
    stages = sorted(p.parent.relative_to(path).as_posix() for p in path.rglob("session-1"))
    assert stages[:2] == ["proposers/round-1/discriminator", "proposers/round-1/generator"]
    # The generator's tree never held a probe, nor the discriminator's an artifact.
    for session in path.rglob("session-1"):
        kind = "probe" if session.parent.name == "discriminator" else "artifact"
        folders = {p.name for p in (session / "worktree").iterdir() if p.is_dir()}
        assert folders - {".git"} == {kind}
    with RunStore.open(path) as store:
        assert store.total().dollars == 0.25 * len(stages)
        assert store.total().unpriced == 0

    before, calls = plain_files(path), sum(world.calls.values())
    run_loop(config, path, NullProgress())
    assert plain_files(path) == before
    assert sum(world.calls.values()) == calls

    # The same loop without an agent.
    again = settings(
        fast_path / "agent",
        "raise SystemExit('nobody should call this')",
        **{
            **BOTH,
            "discriminator__proposer": "recorded",
            "generator__proposer": "recorded",
            "recorded__run": str(path),
        },
    )
    replayed = run_loop(again, fast_path / "again", NullProgress())
    assert breaks(replayed) == breaks(result)
    assert [g.files for g in replayed.generations] == [g.files for g in result.generations]
    with RunStore.open(fast_path / "again") as store:
        assert store.total().dollars == 0.0
