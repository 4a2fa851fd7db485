"""The real programs of Claude Code and Codex against a fake API on loopback, without a key.

Run by ``make test-agents``, which installs them; each takes about 370 MB.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import press_loop
from agent_tools import B1, BWRAP, TIERS, Worked, seated
from fake_agent_api import INPUT_TOKENS, LAST, OUTPUT_TOKENS, FakeApi, serving
from fake_domain import World, config
from fake_programs import artifact
from galoop.errors import UsageError
from galoop.proposers.agents.factory import adapter
from galoop.proposers.agents.sandbox import find_program
from galoop.search.agent import AgentSearch
from galoop.search.gepa import GepaSearch
from search_tools import improved, truth

pytestmark = pytest.mark.agents
KEY = "sk-this-is-no-key-of-anybody"
NAMES = ("claude-code", "claude-agent-sdk", "codex")


def edit(skill: float) -> str:
    text = artifact(skill, 1.0, 0.4).files["params.json"]
    return f"cat > artifact/params.json <<'EOF'\n{text}EOF"


def evaluate(note: str) -> str:
    """By the path that the task file names, as an agent does: a login shell resets PATH."""
    return f"$(grep -o '/[^ `]*gal-evaluate' TASK.md | head -1) -m {note}"


@pytest.fixture
def api(name: str, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    if name == "claude-agent-sdk":
        pytest.importorskip("claude_agent_sdk")
    try:
        find_program((), adapter(name))
    except UsageError as error:
        pytest.skip(str(error))
    with serving(steps) as served:
        monkeypatch.setenv("CODEX_API_KEY" if name == "codex" else "ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", served.url)
        yield served


def work(folder: Path, name: str, api: FakeApi, search: Any, **changes: Any) -> Worked:
    given = {**adapted(name, api), **changes}
    found = config(generator__search=search.name, **given)
    made = improved((), config=found, search=search, proposer=seated(found, folder))
    return Worked(made, folder)


def adapted(name: str, api: FakeApi) -> dict[str, Any]:
    """The settings of an agent that finds the fake API."""
    given: dict[str, Any] = {"agent__adapter": name, "agent__seconds": 90.0}
    if name == "codex":
        provider = f'{{name="fake",base_url="{api.url}/v1",env_key="CODEX_API_KEY"}}'
        given["agent__arguments"] = (
            "-c",
            'model_provider="fake"',
            "-c",
            f"model_providers.fake={provider}",
        )
        given["agent__model"] = "a-model"
    return given


def no_key_in(run: Path) -> None:
    for path in run.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


LOOP = ["cat TASK.md", f"{edit(0.3)}\n{evaluate('first')}", f"{edit(0.5)}\n{evaluate('second')}"]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("steps", [LOOP], ids=[""])
@pytest.mark.parametrize("name", NAMES)
def test_its_own_loop(tmp_path: Path, world: World, name: str, api: FakeApi, tier: str) -> None:
    worked = work(tmp_path, name, api, AgentSearch(), isolation__tier=tier)
    assert [c["note"] for c in worked.candidates] == ["first", "second"]
    assert [c["score"] for c in worked.candidates] == pytest.approx(
        [truth(artifact(s, 1.0, 0.4), B1.primary) for s in (0.3, 0.5)]
    )
    ended = worked.ended()
    assert (ended["status"], ended["text"]) == ("finished", LAST)
    calls = len(LOOP) + 1
    assert len(api.requests) == calls
    spent = worked.improved.store.total("round-1/generator")
    assert spent.input_tokens == calls * INPUT_TOKENS
    assert spent.output_tokens == calls * OUTPUT_TOKENS
    if name != "codex":
        assert spent.dollars > 0
        assert spent.unpriced == 0
    else:
        assert spent.unpriced == 1
    # The key went to the API and nowhere else.
    assert KEY in json.dumps(api.requests[0][1])
    no_key_in(tmp_path / "run")


@press_loop.needs_fast
@pytest.mark.parametrize("steps", [[]], ids=[""])
@pytest.mark.parametrize("name", NAMES)
def test_a_real_press_from_end_to_end(fast_path: Path, name: str, api: FakeApi) -> None:
    """Compactor's installed source edited in the agent's session, measured on the fast model."""
    command = evaluate("").removesuffix(" -m ")
    api.commands += press_loop.commands(command, fast_path / "run")
    made = press_loop.improved(fast_path, **adapted(name, api), evaluation__max_new_tokens=16)
    true = press_loop.check(made)
    # The agent was told what was measured, in its session, by its evaluation command.
    told = json.dumps(api.requests[-1][2])
    for event in made.events("candidate")[1:3]:
        assert f'\\"score\\": {round(event["score"], 4)}' in told.replace("\\\\", "\\")
    assert "over" in told
    assert max(true.values()) == made.result.searches[0].best
    calls = len(api.commands) + 1
    assert len(api.requests) == calls
    rows = [row for row in made.result.ledger if row.who == f"agent:{name}"]
    assert sum(row.input_tokens for row in rows) == calls * INPUT_TOKENS
    assert sum(row.output_tokens for row in rows) == calls * OUTPUT_TOKENS
    (sentence,) = made.result.agents
    assert f"{name}, in a sandbox" in sentence or not BWRAP
    assert f"Its last words, which count nothing: “{LAST}”" in sentence
    assert KEY in json.dumps(api.requests[0][1])
    no_key_in(made.run)


@pytest.mark.parametrize("steps", [[edit(1.0)]], ids=[""])
@pytest.mark.parametrize("name", NAMES)
def test_a_session_a_proposal(tmp_path: Path, world: World, name: str, api: FakeApi) -> None:
    worked = work(tmp_path, name, api, GepaSearch(), generator__fresh=0)
    accepted = worked.improved.result.accepted
    assert accepted is not None
    assert accepted.candidate.files == artifact(1.0, 1.0, 0.4).files


@pytest.mark.parametrize("steps", [["echo x > notes.md; " + evaluate("x")]], ids=[""])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_told_why_it_was_refused(
    tmp_path: Path, world: World, name: str, api: FakeApi
) -> None:
    worked = work(tmp_path, name, api, AgentSearch())
    assert "'notes.md'" in worked.proposals[0]["rejected"]
    assert "notes.md" in json.dumps(api.requests[-1][2])
    assert worked.candidates == []


@pytest.mark.parametrize("steps", [LOOP], ids=[""])
@pytest.mark.parametrize("name", ["claude-code"])
def test_a_subscription_instead_of_a_key(
    tmp_path: Path, world: World, name: str, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat01-this-is-no-token")
    worked = work(tmp_path, name, api, AgentSearch())
    assert [c["note"] for c in worked.candidates] == ["first", "second"]
    assert api.requests[0][1]["Authorization"] == "Bearer sk-ant-oat01-this-is-no-token"
