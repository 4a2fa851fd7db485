"""mini-swe-agent with its deterministic model: a real agent, without a language model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_tools import B1, Worked, seated
from fake_domain import World, config
from fake_programs import artifact
from galoop.search.agent import AgentSearch
from search_tools import improved, truth

pytest.importorskip("minisweagent", reason="extra 'agents' is not installed")
DETERMINISTIC = "minisweagent.models.test_models.DeterministicModel"


def step(command: str, cost: float = 0.25) -> dict[str, Any]:
    """One answer of the model: a shell command, and what it is said to cost."""
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    extra = {"actions": [{"command": command}], "cost": cost, "response": {"usage": usage}}
    return {"role": "assistant", "content": f"THOUGHT: {command}", "extra": extra}


def edit(skill: float) -> str:
    text = artifact(skill, 1.0, 0.4).files["params.json"]
    return f"cat > artifact/params.json <<'EOF'\n{text}EOF"


def run(folder: Path, steps: list[dict[str, Any]], **changes: Any) -> Worked:
    arguments = ("--class", DETERMINISTIC, "--kwargs", json.dumps({"outputs": steps}))
    given: dict[str, Any] = {
        "agent__adapter": "mini-swe-agent",
        "agent__command": (sys.executable,),
        "agent__arguments": arguments,
        "agent__network": False,
        "agent__seconds": 60.0,
        "generator__search": "agent",
        **changes,
    }
    found = config(**given)
    made = improved((), config=found, search=AgentSearch(), proposer=seated(found, folder))
    return Worked(made, folder)


def test_it_edits_evaluates_and_hands_in(tmp_path: Path, world: World) -> None:
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo 'score 1.0'"
    steps = [
        step("cat TASK.md"),
        step(edit(0.3) + "\ngal-evaluate -m first"),
        step(edit(0.5) + "\ngal-evaluate -m second > $TMPDIR/answer.json"),
        step(submit),
    ]
    worked = run(tmp_path, steps)
    assert [c["note"] for c in worked.candidates] == ["first", "second"]
    assert [c["score"] for c in worked.candidates] == pytest.approx(
        [truth(artifact(s, 1.0, 0.4), B1.primary) for s in (0.3, 0.5)]
    )
    ended = worked.ended()
    assert (ended["status"], ended["dollars"]) == ("finished", 1.0)
    assert ended["text"] == "Submitted score 1.0"
    spent = worked.improved.store.total("round-1/generator")
    assert (spent.dollars, spent.input_tokens, spent.output_tokens) == (1.0, 400, 40)
    assert worked.proposals[0]["who"] == "agent:mini-swe-agent"


def test_its_own_cost_limit_is_what_is_left(tmp_path: Path, world: World) -> None:
    worked = run(tmp_path, [step("true", 0.6)] * 10, generator__max_dollars=1.0)
    assert worked.ended()["dollars"] == pytest.approx(1.2)  # the call that passed the limit
    assert "LimitsExceeded" in worked.ended()["text"]


def test_a_failure_is_said_in_one_line(tmp_path: Path, world: World) -> None:
    worked = run(tmp_path, [step("true")])  # then the model has nothing more to say
    assert worked.ended()["status"] == "failed"
    assert "IndexError" in worked.reason
    assert worked.ended()["dollars"] == 0.25
