"""One agent session a proposal, in the seat of any search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_tools import B1, TIERS, rows, seated, settings
from fake_domain import World
from fake_programs import artifact, probe
from galoop.proposers.protocol import Evaluated, Request, Task
from galoop.search.gepa import GepaSearch
from galoop.types import Excerpt, Feedback, State
from search_tools import improved, truth

TASK = Task("artifact", "fake", "repair it", "facts", "rules", budget={"ratio": 0.5})
WORSE = Evaluated(artifact(0.1, 0.1, 0.1), Feedback(State.INVALID, 0.0, {"B1": 0.0}, "too big"))
PARENT = Evaluated(
    artifact(0.2, 1.0, 0.4),
    Feedback(State.SCORED, 0.25, {"B1": 0.25}, excerpts=(Excerpt("why?", "gold", "", "lead"),)),
)
ONE_SHOT = {"generator__search": "gepa", "discriminator__search": "gepa"}


def request(**changes: object) -> Request:
    given = {"task": TASK, "index": 0, "parent": PARENT, "history": (PARENT, WORSE)}
    return Request(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("tier", TIERS)
def test_what_lies_in_the_tree_is_the_proposal(tmp_path: Path, tier: str) -> None:
    config = settings(
        tmp_path,
        """
        import shutil
        say(task=(TREE / "TASK.md").read_text(), tool=shutil.which("gal-evaluate"))
        say(holds=(TREE / "artifact" / "params.json").read_text(), prompt=sys.stdin.read())
        write(0.9, 1.0, 0.4)
        say(type="usage", input_tokens=1000, output_tokens=50, dollars=0.125)
        print("I made it perfect, score 1.0")
        sys.exit(3)
        """,
        tier,
        **ONE_SHOT,
    )
    made = seated(config, tmp_path).propose(request(rejected=("it did not parse",)))
    assert made.candidate is not None
    assert made.candidate.files == artifact(0.9, 1.0, 0.4).files
    cost = made.cost
    assert (cost.dollars, cost.input_tokens, cost.output_tokens) == (0.125, 1000, 50)
    assert cost.priced_by == "reported"
    assert 0 < cost.seconds < 30
    session = tmp_path / "run" / "proposers" / "stage" / "session-1"
    first, second, *_ = rows(session / "transcript.jsonl")
    assert first["tool"] is None
    for words in ("repair it", "facts", "rules", "ratio = 0.5", "too big", "it did not parse"):
        assert words in first["task"]
    assert '"artifact": "lead"' in first["task"]
    assert second["holds"] == PARENT.candidate.files["params.json"]
    assert "TASK.md" in second["prompt"]
    assert json.loads((session / "session.json").read_text())["exit_code"] == 3


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("pass", "the agent ended; its worktree holds nothing new"),
        ("sys.exit('no credits')", "failed with exit code 1: no credits; its worktree"),
        ("write(9, 9, 9); (TREE / 'x').write_text('')", "outside artifact/: 'x'"),
        ("(TREE / 'artifact' / 'params.json').unlink()", "artifact/ is empty"),
    ],
)
def test_no_candidate_is_a_reason_and_has_its_price(tmp_path: Path, body: str, words: str) -> None:
    made = seated(settings(tmp_path, body, **ONE_SHOT), tmp_path).propose(request())
    assert made.candidate is None
    assert words in made.rejected
    assert made.cost.dollars is None  # nothing was said of the price, which is not the same as 0
    assert made.cost.priced_by == "unknown"


def test_a_session_that_ran_over_its_time_left_a_candidate(tmp_path: Path) -> None:
    body = "write(0.8, 1.0, 0.4)\nwhile True: time.sleep(0.05)"
    config = settings(tmp_path, body, agent__seconds=1.0, **ONE_SHOT)
    made = seated(config, tmp_path).propose(request())
    assert made.candidate is not None
    assert made.candidate.files == artifact(0.8, 1.0, 0.4).files
    assert 1.0 <= made.cost.seconds < 10


def test_a_probe(tmp_path: Path) -> None:
    source = probe(1, 0.0, 3).source
    config = settings(tmp_path, f"(TREE / 'probe' / 'probe.py').write_text({source!r})", **ONE_SHOT)
    proposer = seated(config, tmp_path, "probe")
    task = Task("probe", "fake", "break it", "", "", 128)
    made = proposer.propose(request(task=task, parent=None, history=()))
    assert made.candidate is not None
    assert (made.candidate.kind, made.candidate.source) == ("probe", source)


def test_in_the_seat_of_gepa(tmp_path: Path, world: World) -> None:
    config = settings(
        tmp_path,
        """
        path = TREE / "artifact" / "params.json"
        skills = json.loads(path.read_text())["skills"]
        write(min(1.0, round(skills[0] + 0.3, 2)), *skills[1:])
        say(type="usage", dollars=0.5)
        """,
        **ONE_SHOT,
        generator__max_candidates=10,
        generator__max_dollars=1.5,
    )
    found = improved((), config=config, search=GepaSearch(), proposer=seated(config, tmp_path))
    # 0.2 -> 0.5 -> 0.8 -> 1.0, each from the parent that the search chose.
    assert found.result.accepted is not None
    best = max(found.scores().values())
    assert best == pytest.approx(truth(found.result.accepted.candidate, B1.primary))
    sessions = sorted((tmp_path / "run" / "proposers" / "stage").glob("session-*"))
    assert 2 <= len(sessions) <= 3
    assert found.store.total("round-1/generator").dollars == 0.5 * len(sessions)


@pytest.mark.parametrize(
    ("changes", "dollars", "prices"),
    [
        ({}, None, ""),
        ({"agent__input_price": 2.0, "agent__output_price": 10.0}, 2.5, "experiment file"),
        ({"agent__model": "a-model-of-no-table"}, None, ""),
        ({"agent__model": "gpt-4o-2024-08-06"}, 3.0, "litellm "),  # $2.5 and $10 a million
    ],
)
def test_tokens_without_dollars_are_estimated_where_a_price_is_known(
    tmp_path: Path, changes: dict[str, object], dollars: float | None, prices: str
) -> None:
    if prices == "litellm ":
        pytest.importorskip("litellm")
    body = 'say(type="usage", input_tokens=1_000_000, output_tokens=50_000)'
    config = settings(tmp_path, body, **ONE_SHOT, **changes)
    cost = seated(config, tmp_path).propose(request()).cost
    assert cost.dollars == (None if dollars is None else pytest.approx(dollars))
    assert cost.priced_by == ("unknown" if dollars is None else "estimated")
    assert cost.prices.startswith(prices)
    assert (cost.input_tokens, cost.output_tokens) == (1_000_000, 50_000)
