"""A loop with an agent in it, killed in the middle: nothing is paid or evaluated twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from agent_tools import TIERS, rows, settings
from fake_domain import World
from galoop.loop import run_loop
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from loop_tools import SMALL

BODY = """
    told = (TREE / "TASK.md").read_text()
    say(type="usage", input_tokens=100, output_tokens=10, dollars=0.5)
    if os.fork() == 0:
        while True:  # a child that must not outlive the loop
            (TREE / ".git" / "beat").write_text(str(time.time()))
            time.sleep(0.02)
    start = json.loads((TREE / "artifact" / "params.json").read_text())["skills"]
    for step in range(1, 40):
        write(*[round(min(1.0, skill + 0.02 * step), 2) for skill in start])
        answer = evaluate("-m", f"step {step}")
        say(**answer)
        if answer["state"] == "not evaluated":
            break
    os.kill(0, 15)
"""


@pytest.mark.parametrize("tier", TIERS)
def test_killed_and_gone_on_with(world: World, fast_path: Path, tier: str) -> None:
    changes = {**SMALL, "loop__rounds": 1, "discriminator__search": "gepa"}
    changes |= {"generator__proposer": "agent", "generator__fresh": 0}
    config = settings(fast_path / "agent", BODY, tier, **changes)
    path = fast_path / "run"
    sessions = path / "proposers" / "round-1" / "generator"

    def kill(number: int) -> None:
        # Once the agent has had some candidates evaluated.
        done = sessions / "session-1" / "submissions.jsonl"
        if done.exists() and sum("score" in row for row in rows(done)) >= 3:
            os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        world.before = kill
        run_loop(config, path, NullProgress())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    # The agent went with it, and so did what the agent had started.
    beat = sessions / "session-1" / "worktree" / ".git" / "beat"
    time.sleep(1.0)
    before = beat.read_text()
    time.sleep(0.2)
    assert beat.read_text() == before
    run_loop(config, path, NullProgress())
    first, second = (
        json.loads((sessions / f"session-{n}" / "session.json").read_text()) for n in (1, 2)
    )
    assert first["status"] == "killed"
    assert second["status"] in ("stopped", "failed", "finished")
    with RunStore.open(path) as store:
        assert store.total().evaluations == len(store.to_rows()), "paid once for each"
        notes = [e["payload"]["note"] for e in store.events("candidate")]
        spent = store.total("round-1/generator")
        keys = Counter(e["payload"]["key"] for e in store.events("candidate"))
    # What the first session had found was told to the second, and was free.
    told = (sessions / "session-2" / "worktree" / "TASK.md").read_text()
    assert "step 3" in told
    assert [n for n in notes if n.startswith("step")][:3] == ["step 1", "step 2", "step 3"]
    assert max(keys.values()) == 1
    # Both sessions are in the ledger, the killed one too.
    assert (spent.dollars, spent.input_tokens) == (1.0, 200)
