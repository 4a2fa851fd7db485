"""An agent's own loop: scripted agents on the fake domain, honest and otherwise."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

import agent_tools
from agent_tools import B1, GOOD, TIERS, seated, settings, work
from fake_domain import MemoryStore, World
from fake_programs import artifact, probe
from galoop.config import ExperimentConfig, load
from galoop.errors import UsageError
from galoop.evaluation.metered import MeteredProposer
from galoop.evaluation.paired import Meter
from galoop.proposers.protocol import Task
from galoop.search.agent import AgentSearch
from galoop.search.protocol import Problem, StopSearch
from galoop.types import Candidate, Feedback, State
from search_tools import ListProposer, truth

IMPROVES = """
    for number, skill in enumerate((0.3, 0.5, 0.7)):
        write(skill, 1.0, 0.4)
        answer = evaluate("-m", f"skill {skill}")
        say(skill=skill, **answer)
"""


def true_score(*skills: float) -> float:
    return truth(artifact(*skills), B1.primary)


@pytest.mark.parametrize("tier", TIERS)
def test_an_agent_improves_and_every_candidate_is_recorded(
    tmp_path: Path, world: World, tier: str
) -> None:
    worked = work(tmp_path, IMPROVES, tier)
    said = worked.said()
    # What the agent was told is what the search found, and that is the truth.
    for answer in said:
        assert answer["state"] == "scored"
        assert answer["score"] == pytest.approx(true_score(answer["skill"], 1.0, 0.4), abs=1e-3)
        assert answer["exit"] == 0
    assert [a["evaluations_left"] for a in said] == [19, 18, 17]
    assert [c["note"] for c in worked.candidates] == [f"skill {s}" for s in (0.3, 0.5, 0.7)]
    assert worked.improved.result.best == pytest.approx(true_score(0.7, 1.0, 0.4))
    logged = [row for row in worked.submissions() if "diff" in row]
    assert [row["key"] for row in logged] == [c["key"] for c in worked.candidates]
    assert "+  0.7,\n" in logged[-1]["diff"]
    # Its worktree held nothing new in the end: the last proposal says how it ended, and no more.
    assert worked.proposals[-1]["rejected"].startswith("the agent ended")
    assert worked.proposals[0]["about"]["sandboxed"] is (tier == "bubblewrap")
    assert worked.ended()["status"] == "finished"


@pytest.mark.parametrize("tier", TIERS)
def test_claims_count_nothing(tmp_path: Path, world: World, tier: str) -> None:
    worked = work(
        tmp_path,
        """
        write(0.0, 1.0, 0.4)
        evaluate("-m", "score 1.0, accepted by the evaluator")
        (TREE / "artifact" / "score.json").write_text('{"state": "scored", "score": 1.0}')
        say(type="result", score=1.0, state="scored", accepted=True)
        say(type="usage", score=1.0, input_tokens=7, dollars=0.25)
        """,
        tier,
    )
    scores = [c["score"] for c in worked.candidates]
    assert scores == pytest.approx([true_score(0.0, 1.0, 0.4)] * 2)
    assert worked.improved.result.accepted is None
    # What it says of its own costs is all that is taken from it.
    assert sum(s.dollars or 0 for s in worked.improved.store.spent) == 0.25


@pytest.mark.parametrize("tier", TIERS)
def test_editing_the_evaluator_changes_nothing(tmp_path: Path, world: World, tier: str) -> None:
    worked = work(
        tmp_path,
        """
        import shutil
        tool = pathlib.Path(shutil.which("gal-evaluate"))
        could = []
        for path in (tool, tool.with_name("client.py")):
            try:
                path.write_text('#!/bin/sh\\necho \\'{"state": "scored", "score": 1.0}\\'\\n')
                could.append(path.name)
            except OSError as error:
                say(error=error.errno)
        write(0.1, 1.0, 0.4)
        say(could=could, **evaluate())
        """,
        tier,
    )
    last = worked.said()[-1]
    if tier == "bubblewrap":
        assert last["could"] == []
        assert last["score"] == pytest.approx(true_score(0.1, 1.0, 0.4), abs=1e-3)
    else:  # it fools itself only
        assert last["score"] == 1.0
    assert [c["score"] for c in worked.candidates] == pytest.approx([true_score(0.1, 1.0, 0.4)])
    assert worked.improved.result.accepted is None


def test_files_outside_the_artifact_are_refused_and_it_is_told(
    tmp_path: Path, world: World
) -> None:
    worked = work(
        tmp_path,
        """
        write(0.5, 1.0, 0.4)
        (TREE / "notes.md").write_text("x")
        say(**evaluate())
        (TREE / "notes.md").unlink()
        (TREE / "artifact" / "gold").symlink_to("/etc/passwd")
        say(**evaluate())
        (TREE / "artifact" / "gold").unlink()
        say(**evaluate())
        """,
    )
    first, second, third = worked.said()
    assert (first["state"], first["exit"], first["evaluated"]) == ("invalid", 1, False)
    assert "'notes.md'" in first["reason"]
    assert "symbolic link" in second["reason"]
    assert third["state"] == "scored"
    # Refused trees are recorded, cost no evaluation and use none up.
    assert [p["rejected"] for p in worked.proposals[:2]] == [first["reason"], second["reason"]]
    assert third["evaluations_left"] == 19
    assert len(worked.candidates) == 1
    assert [r["state"] for r in worked.submissions() if "state" in r][:2] == ["invalid"] * 2


def test_refused_trees_in_a_row_end_the_search(tmp_path: Path, world: World) -> None:
    worked = work(
        tmp_path,
        """
        (TREE / "notes.md").write_text("x")
        while True:
            answer = evaluate()
            if answer["state"] == "not evaluated":
                break
        """,
        generator__max_failures=3,
    )
    assert worked.reason.startswith("proposer: 3 proposals in a row held no candidate")
    assert worked.candidates == []


def test_a_rejected_candidate_says_why(tmp_path: Path, world: World) -> None:
    worked = work(tmp_path, 'write(1, 1, 1, does="invalid"); say(**evaluate())')
    (answer,) = worked.said()
    assert (answer["state"], answer["exit"]) == ("invalid", 1)
    assert "over budget" in answer["reason"]
    assert answer["score"] == 0.0


def test_evaluations_end_at_max_candidates(tmp_path: Path, world: World) -> None:
    worked = work(
        tmp_path,
        """
        for i in range(6):
            write(0.1 * i, 1.0, 0.4, salt=i)
            say(i=i, **evaluate())
        """,
        agent__max_candidates=3,
    )
    said = worked.said()
    assert [a["state"] for a in said] == ["scored"] * 3 + ["not evaluated"] * 3
    assert [a["exit"] for a in said] == [0] * 3 + [3] * 3
    assert "all 3 evaluations are used" in said[-1]["reason"]
    assert len(worked.candidates) == 3  # and the last state of its tree was not evaluated either
    over = [r for r in worked.submissions() if r.get("state") == "not evaluated"]
    assert len(over) == 3


def test_the_caps_of_the_search_hold_for_an_agent(tmp_path: Path, world: World) -> None:
    worked = work(
        tmp_path,
        """
        say(type="usage", input_tokens=100, output_tokens=10, dollars=0.5)
        for i in range(20):
            write(0.1, 1.0, 0.4, salt=i)
            answer = evaluate()
            say(type="usage", input_tokens=100 + i, output_tokens=10, dollars=0.5)
            if answer["state"] == "not evaluated":
                say(told=answer["reason"])
                break
        """,
        generator__max_candidates=2,
    )
    assert worked.reason == "candidates: 2 tried"
    assert len(worked.candidates) == 2
    assert "the search is over" in worked.said()[-1]["told"]
    assert worked.ended()["status"] == "stopped"
    # What it spent after its last proposal is in the ledger, too.
    spent = worked.improved.store.total("round-1/generator")
    assert spent.dollars == 0.5
    assert spent.input_tokens == max(row.get("input_tokens", 0) for row in worked.said()) > 100
    assert spent.unpriced == 0


def test_an_unchanged_tree_is_not_evaluated_twice(tmp_path: Path, world: World) -> None:
    worked = work(
        tmp_path,
        """
        say(**evaluate())  # the parent
        write(0.3, 1.0, 0.4)
        say(**evaluate())
        say(**evaluate("-m", "again"))
        say(**evaluate("--list"))
        """,
    )
    parent, first, again, listed = worked.said()
    assert parent["score"] == pytest.approx(true_score(0.2, 1.0, 0.4), abs=1e-3)
    assert parent["note"] == again["note"] == "evaluated before"
    assert first["evaluations_left"] == again["evaluations_left"] == 19
    assert [c["score"] for c in listed["candidates"]] == [parent["score"], first["score"]]
    assert len(worked.candidates) == 1


def test_calls_at_the_same_time_are_taken_one_by_one(tmp_path: Path, world: World) -> None:
    worked = work(
        tmp_path,
        """
        write(0.3, 1.0, 0.4)
        import shlex, shutil, socket
        words = shlex.split(pathlib.Path(shutil.which("gal-evaluate")).read_text())
        path = words[words.index("--socket") + 1]
        idle = []
        for _ in range(100):  # connections that ask for nothing hold no more than a few places
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(1)
            try:
                one.connect(path)
            except OSError:
                continue
            idle.append(one)
        for one in idle:
            one.close()
        running = [subprocess.Popen(["gal-evaluate", "-m", "x"], stdout=-1) for _ in range(5)]
        for one in running:
            say(**json.loads(one.communicate()[0]))
        """,
    )
    assert len(worked.candidates) == 1
    answers = worked.said()
    assert [a["score"] for a in answers] == [answers[0]["score"]] * 5
    assert sum("note" in a for a in answers) == 4  # evaluated once, told five times


def test_an_agent_that_does_not_stop_is_stopped(tmp_path: Path, world: World) -> None:
    began = time.monotonic()
    worked = work(
        tmp_path,
        """
        for i in range(100):
            write(0.1, 1.0, 0.4, salt=i)
            try:
                evaluate()
            except ValueError:
                pass
            say(type="usage", dollars=0.01 * (i + 1))
            time.sleep(0.05)
        time.sleep(60)
        """,
        agent__grace=0.5,
        generator__max_candidates=2,
    )
    assert time.monotonic() - began < 20
    assert worked.reason == "candidates: 2 tried"
    assert worked.ended()["status"] == "stopped"
    assert worked.improved.store.total("round-1/generator").dollars >= 0.03


def test_suites_on_demand(tmp_path: Path, world: World) -> None:
    worked = work(
        tmp_path,
        """
        write(0.3, 0.2, 0.4)  # the fake suites ask about the second skill
        say(**evaluate())
        say(**evaluate("--suites"))
        say(**evaluate("--suites"))
        """,
        gate__look=12,
    )
    first, second, third = worked.said()
    assert "suites" not in first["details"]
    losses = second["details"]["suites"]
    # A0 keeps all of topic 1, this one a fifth of it.
    assert losses["fake/easy"] > 0.5
    assert third["details"]["suites"] == losses
    assert third["note"] == "evaluated before"
    assert len(worked.candidates) == 1


@pytest.mark.parametrize("tier", TIERS)
def test_an_agent_that_never_ends_is_ended_with_all_its_children(
    tmp_path: Path, world: World, tier: str
) -> None:
    worked = work(
        tmp_path,
        """
        write(0.5, 1.0, 0.4)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    (TREE / ".git" / "beat").write_text(str(time.time()))
                    time.sleep(0.02)
        while True:
            time.sleep(0.02)
        """,
        tier,
        agent__seconds=1.5,
    )
    ended = worked.ended()
    assert ended["status"] == "timeout"
    assert 1.5 <= ended["seconds"] < 5
    path = worked.session() / "worktree" / ".git" / "beat"
    before = path.read_text()
    time.sleep(0.2)
    assert path.read_text() == before
    # What it left is a candidate all the same.
    assert [c["score"] for c in worked.candidates] == pytest.approx([true_score(0.5, 1.0, 0.4)])


def test_a_flood_ends_the_session(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from galoop.proposers.agents import process

    monkeypatch.setattr(process, "MAX_OUTPUT", 3_000_000)
    monkeypatch.setattr(process, "MAX_TRANSCRIPT", 100_000)
    worked = work(
        tmp_path,
        """
        sys.stderr.write("e" * 2_000_000)
        while True:
            sys.stdout.write("x" * 999 + "\\n")
        """,
    )
    assert worked.ended()["status"] == "flooded"
    assert (worked.session() / "transcript.jsonl").stat().st_size <= 100_000
    assert len(worked.ended()["stderr"]) <= 4000
    assert worked.candidates == []


@pytest.mark.parametrize("tier", TIERS)
def test_an_agent_that_dies(tmp_path: Path, world: World, tier: str) -> None:
    worked = work(
        tmp_path,
        """
        sys.stderr.write("no credits left\\n")
        sys.stderr.flush()
        os.kill(os.getpid(), 9)
        """,
        tier,
    )
    assert worked.ended()["status"] == "failed"
    assert "no credits left" in worked.reason
    assert worked.proposals[-1]["rejected"].endswith("holds nothing new")
    assert worked.candidates == []


class Interrupted(AgentSearch):
    """Breaks off, as Ctrl-C does, at evaluation ``at``."""

    def __init__(self, at: int) -> None:
        self.at = at

    def run(self, problem: Problem) -> str:
        seen = []

        def evaluate(candidate: Candidate) -> Feedback:
            seen.append(candidate)
            if len(seen) == self.at:
                raise KeyboardInterrupt
            return problem.evaluate(candidate)

        return super().run(replace(problem, evaluate=evaluate))


def test_an_interrupted_search_goes_on_with_a_new_session(tmp_path: Path, world: World) -> None:
    store = MemoryStore()
    body = """
        told = (TREE / "TASK.md").read_text()
        say(type="usage", dollars=0.25, input_tokens=10)
        first = int("skill 0.3" in told) + int("skill 0.5" in told)
        for skill in (0.3, 0.5, 0.7)[first:]:
            write(skill, 1.0, 0.4)
            say(skill=skill, **evaluate("-m", f"skill {skill}"))
        say(told=told, holds=(TREE / "artifact" / "params.json").read_text())
    """
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, body, store=store, search=Interrupted(3))  # parent, 0.3, (0.5)
    worked = work(tmp_path, body, store=store)
    # The store refuses a second evaluation of the same: what was recorded was free.
    assert [c["note"] for c in worked.candidates] == [f"skill {s}" for s in (0.3, 0.5, 0.7)]
    assert worked.ended(1)["status"] == "stopped"
    assert worked.ended(2)["status"] == "finished"
    # The interrupted evaluation's proposal was recorded, so it was not the agent's to make again.
    assert [a["skill"] for a in worked.said(2) if "skill" in a] == [0.7]
    assert "MAX_CANDIDATES = 18" in worked.said(2)[-1]["told"]
    spent = store.total("round-1/generator")
    assert spent.dollars == 0.5
    assert spent.input_tokens == 20


def test_caps_and_ledger_are_exact_over_sessions(tmp_path: Path, world: World) -> None:
    """What a session spent after its last proposal counts when the search goes on."""
    store = MemoryStore()
    body = """
        say(type="usage", dollars=0.1, input_tokens=10)
        write(0.3, 1.0, 0.4)
        evaluate("-m", "first")
        say(type="usage", dollars=0.7, input_tokens=70)
        write(0.5, 1.0, 0.4)
        evaluate("-m", "second")
        say(type="usage", dollars=0.8, input_tokens=80)
    """
    cap = {"generator__max_dollars": 0.5}
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, body, store=store, search=Interrupted(2), **cap)  # parent, (0.3)
    spent = store.total("round-1/generator")
    assert spent.input_tokens == 10
    facts = tmp_path / "run" / "proposers" / "stage" / "session-1" / "session.json"
    # As if it had been killed a little later, before its end was written down.
    transcript = facts.with_name("transcript.jsonl")
    with open(transcript, "a") as file:
        file.write('{"type": "usage", "dollars": 0.55, "input_tokens": 60}\n')
    known = json.loads(facts.read_text())
    for name in ("cost", "status", "reason"):
        known.pop(name)
    facts.write_text(json.dumps(known))
    worked = work(tmp_path, body, store=store, **cap)
    assert worked.reason == "dollars: 0.55 of 0.5 spent"
    assert not worked.session(2).exists(), "no session is started beyond the cap"
    assert worked.ended(1)["status"] == "killed"
    spent = store.total("round-1/generator")
    assert (spent.dollars, spent.input_tokens) == (pytest.approx(0.55), 60)
    # A higher cap: the next session is told of what is left, and all of both is in the ledger.
    worked = work(tmp_path, body, store=store, generator__max_dollars=5.0)
    assert worked.ended(2)["status"] == "finished"
    spent = store.total("round-1/generator")
    assert (spent.dollars, spent.input_tokens) == (pytest.approx(0.55 + 0.8), 140)
    assert [c["note"] for c in worked.candidates] == ["first", "second"]


def test_after_the_end_nothing_is_asked_again(tmp_path: Path, world: World) -> None:
    store = MemoryStore()
    first = work(tmp_path, IMPROVES, store=store)
    spent = list(store.spent)
    again = work(tmp_path, IMPROVES, store=store)
    assert again.reason == first.reason
    assert not again.session(2).exists()
    assert store.spent == spent


def test_no_agent_no_loop(tmp_path: Path) -> None:
    problem = Problem(None, ListProposer([]), lambda c: None, (), 0)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs an agent in the seat"):
        AgentSearch().run(problem)


def test_a_probe_is_searched_from_nothing(tmp_path: Path, world: World) -> None:
    config = settings(
        tmp_path,
        f"""
        say(task=(TREE / "TASK.md").read_text(), ls=os.listdir(TREE / "probe"))
        (TREE / "probe" / "probe.py").write_text({probe(2, 0.0, 5).source!r})
        say(**evaluate("-m", "topic 2"))
        """,
    )
    proposer = seated(config, tmp_path, "probe")
    meter, store = Meter(), MemoryStore()
    seen: list[Candidate] = []

    def look(candidate: Candidate) -> Feedback:
        seen.append(candidate)
        return Feedback(State.SCORED, 0.75, {"gap": 0.5})

    task = Task("probe", "fake", "break it", "facts", "rules", 256, {}, ("OLD = 1",))
    metered = MeteredProposer(proposer, meter, store, "s")  # type: ignore[arg-type]
    reason = AgentSearch().run(Problem(task, metered, look, ("gap",), 0))
    assert reason == "agent: the agent ended"
    assert [(c.kind, c.source, c.note) for c in seen] == [
        ("probe", probe(2, 0.0, 5).source, "topic 2")
    ]
    folder = tmp_path / "run" / "proposers" / "stage" / "session-1"
    said = agent_tools.rows(folder / "transcript.jsonl")
    assert said[0]["ls"] == []
    for words in ("break it", "facts", "rules", "OLD = 1", "at most 256 tokens"):
        assert words in said[0]["task"]
    assert said[1]["score"] == 0.75


def test_a_stop_of_the_search_is_its_reason(tmp_path: Path, world: World) -> None:
    config = settings(tmp_path, "while evaluate()['state'] == 'scored': write(0.9, 1, 1)")
    proposer = seated(config, tmp_path)

    def stop(candidate: Candidate) -> Feedback:
        raise StopSearch("enough")

    task = Task("artifact", "fake", "", "", "")
    found = AgentSearch().run(Problem(task, proposer, stop, ("B1",), 0, [GOOD]))
    assert found == "enough"
    assert not (tmp_path / "run").exists()  # before any agent was started


def test_settings_survive_the_experiment_file(tmp_path: Path) -> None:
    agent = {"command": ("a", "b c"), "adapter": "codex", "model": "m", "network": False}
    config = ExperimentConfig.model_validate({"agent": agent})
    (tmp_path / "experiment.toml").write_text(config.to_toml())
    assert load(tmp_path / "experiment.toml") == config
    assert config.manifest()["agent.command"] == ["a", "b c"]
