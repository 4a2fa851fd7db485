"""GEPA in our seat: what it is told, when it ends, and what it must never swallow."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine_tools import AXES, TASK, Climber, Judge, Same, Trader, value
from fake_programs import artifact, artifact_spec
from galoop.errors import InfrastructureError
from galoop.proposers.protocol import Evaluated, Proposal, Request
from galoop.search.gepa import GepaSearch
from galoop.search.protocol import Problem, StopSearch
from galoop.search.seat import pareto_front
from galoop.types import Candidate, Feedback, State


def search(
    judge: Any, proposer: Any, start: Sequence[Candidate] = (), seed: int = 0, fresh: int = 0
) -> str:
    return GepaSearch().run(Problem(TASK, proposer, judge, AXES, seed, start, fresh))


def test_gepas_seed_decides_which_of_a_front_it_changes() -> None:
    def parents(seed: int) -> list[str]:
        proposer = Trader(0)
        search(Judge(15), proposer, [artifact(0.3, 0.3, 0.0)], seed)
        return [r.parent.candidate.key for r in proposer.requests if r.parent]

    assert parents(3) == parents(3)
    assert any(parents(3) != parents(other) for other in (4, 5, 6))


def test_a_search_improves() -> None:
    judge = Judge(60)
    search(judge, Climber(5), [artifact(0.2, 0.2, 0.0)], 5)
    best = max(sum(value(c)) / 2 for c in judge.seen)
    assert best > 0.6, "selection of parents must beat a walk around 0.2"


def test_the_proposer_sees_our_feedback_and_all_of_the_history() -> None:
    judge, proposer = Judge(15, lambda n: n % 4 == 0), Climber(3)
    search(judge, proposer, [artifact(0.5, 0.5, 0.0)])
    assert [r.index for r in proposer.requests] == list(range(len(proposer.requests)))
    for request in proposer.requests:
        shown = [e.candidate.key for e in request.history]
        assert shown == [c.key for c in judge.seen[: len(shown)]], "oldest first, none left out"
        assert request.parent in request.history
        assert request.task is TASK
    last = proposer.requests[-1].history
    assert [e.feedback.state for e in last].count(State.INVALID) == 3
    assert {e.feedback.reason for e in last if e.feedback.state is State.INVALID} == {"over budget"}
    assert [e.feedback.details["number"] for e in last if e.feedback.details] == [
        n for n in range(1, len(last) + 1) if n % 4
    ]


def test_candidates_that_do_not_improve_stay_in_the_history_and_are_no_parents() -> None:
    judge, proposer = Judge(12), Same(0.1, salted=True)
    start = artifact(0.5, 0.5, 0.0)
    search(judge, proposer, [start])
    assert len(proposer.requests[-1].history) == 12
    assert {r.parent.candidate.key for r in proposer.requests if r.parent} == {start.key}


def test_nothing_is_evaluated_after_the_stop() -> None:
    judge, proposer = Judge(9), Climber(1)
    assert search(judge, proposer, [artifact(0.5, 0.5, 0.0)]) == "candidates: 9 tried"
    assert len(judge.seen) == 9
    assert judge.stopped == 1, "asked once more, told to stop, and not asked again"
    assert len(proposer.requests) == 9


@pytest.mark.parametrize("cap", [0, 1])
@pytest.mark.parametrize("start", [[], [artifact(0.5, 0.5, 0.0)]], ids=["seedless", "seeded"])
def test_a_stop_at_the_very_first_candidates(cap: int, start: list[Candidate]) -> None:
    judge = Judge(cap)
    assert search(judge, Climber(1), start) == f"candidates: {cap} tried"
    assert len(judge.seen) == cap


def test_several_start_candidates_are_all_evaluated_and_the_best_begins() -> None:
    start = [artifact(0.1, 0.1, 0.0), artifact(0.6, 0.6, 0.0), artifact(0.2, 0.2, 0.0)]
    judge, proposer = Judge(4), Climber(1)
    search(judge, proposer, start)
    assert [c.key for c in judge.seen[:3]] == [c.key for c in start]
    assert proposer.requests[0].parent is not None
    assert proposer.requests[0].parent.candidate.key == start[1].key


@pytest.mark.parametrize("start", [[], [artifact(0.05, 0.05, 0.0)]], ids=["seedless", "seeded"])
def test_some_candidates_are_written_from_nothing_before_any_is_changed(
    start: list[Candidate],
) -> None:
    judge, proposer = Judge(12), Climber(1)
    search(judge, proposer, start, fresh=5)
    parents = [r.parent for r in proposer.requests]
    assert parents[:5] == [None] * 5
    assert None not in parents[5:]
    best = max(judge.seen[: 5 + len(start)], key=lambda c: sum(value(c)))
    assert parents[5] is not None
    assert parents[5].candidate.key == best.key, "the best of them is changed first"
    assert len(proposer.requests[5].history) == 5 + len(start)
    stopped = Judge(3)
    assert search(stopped, Climber(1), start, fresh=5) == "candidates: 3 tried"


@pytest.mark.parametrize("at", [1, 2, 7])
def test_errors_of_evaluation_propagate(at: int) -> None:
    class Broken(Judge):
        def __call__(self, candidate: Candidate) -> Feedback:
            if len(self.seen) + 1 == at:
                raise InfrastructureError("the model server died")
            return super().__call__(candidate)

    judge = Broken(20)
    with pytest.raises(InfrastructureError, match="the model server died"):
        search(judge, Climber(1), [artifact(0.5, 0.5, 0.0)])
    assert len(judge.seen) == at - 1


@pytest.mark.parametrize("at", [1, 2, 7])
@pytest.mark.parametrize("start", [[], [artifact(0.5, 0.5, 0.0)]], ids=["seedless", "seeded"])
def test_errors_of_the_proposer_propagate(at: int, start: list[Candidate]) -> None:
    # GEPA alone swallows them and tries again for ever.
    proposer = Climber(1, at, InfrastructureError("no answer from the API"))
    with pytest.raises(InfrastructureError, match="no answer from the API"):
        search(Judge(50), proposer, start)
    assert len(proposer.requests) == at, "asked no second time"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_goes_through(interrupt: type[BaseException]) -> None:
    class Interrupted(Judge):
        def __call__(self, candidate: Candidate) -> Feedback:
            if len(self.seen) == 4:
                raise interrupt
            return super().__call__(candidate)

    with pytest.raises(interrupt):
        search(Interrupted(50), Climber(1), [artifact(0.5, 0.5, 0.0)])


def test_a_proposer_that_stops_ends_the_search_with_its_reason() -> None:
    judge = Judge(50)
    assert search(judge, Climber(1, 5, StopSearch("dollars: spent"))) == "dollars: spent"
    assert len(judge.seen) == 4


def test_the_best_possible_candidate_does_not_stall_the_search() -> None:
    # GEPA has a mode that skips parents of a perfect score; with it nothing would be proposed.
    judge = Judge(10)
    assert search(judge, Climber(1), [artifact(1.0, 1.0, 0.0)]) == "candidates: 10 tried"


def test_a_search_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    search(Judge(10), Climber(1))
    out = capfd.readouterr()
    assert (out.out, out.err) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_every_text_passes_through_unchanged() -> None:
    strange = Candidate("artifact", {"a/b.txt": '"\u2028\r\n\x00é\U0001f600'}, "note \u2028")

    class Strange(Climber):
        def propose(self, request: Request) -> Proposal:
            self.requests.append(request)
            return Proposal(strange if len(self.requests) == 1 else artifact(0.1, 0.1, 0.0))

    seen: list[Candidate] = []

    def judge(candidate: Candidate) -> Feedback:
        if len(seen) == 2:
            raise StopSearch("enough")
        seen.append(candidate)
        return Feedback(State.SCORED, 0.5, dict.fromkeys(AXES, 0.5))

    search(judge, Strange(1))
    assert dict(seen[0].files) == dict(strange.files)
    assert seen[0].note == strange.note


def test_the_front_is_what_no_other_beats() -> None:
    rng = random.Random(1)
    axes = ("a", "b", "c")
    found = [
        Evaluated(
            Candidate("probe", {"probe.py": str(i)}),
            Feedback(
                rng.choice([State.SCORED, State.SCORED, State.INVALID]),
                0.0,
                {axis: rng.randrange(6) / 5 for axis in axes},
            ),
        )
        for i in range(60)
    ]
    front = pareto_front(found, axes)
    points = {tuple(one.feedback.objectives[a] for a in axes) for one in front}
    scored = [one for one in found if one.feedback.state is State.SCORED]
    expected = set()
    for one in scored:
        point = tuple(one.feedback.objectives[a] for a in axes)
        others = [tuple(o.feedback.objectives[a] for a in axes) for o in scored]
        if not any(o != point and min(x - y for x, y in zip(o, point)) >= 0 for o in others):  # noqa: B905
            expected.add(point)
    assert points == expected
    assert len(front) == len(points), "equals count once"


def test_what_began_the_search_stays_a_parent() -> None:
    """Each of two start candidates is best on an axis: both are changed again and again."""
    begun = [artifact(1.0, 0.0, 0.0), artifact(0.0, 1.0, 0.0)]
    parents: Counter[str] = Counter()

    class Counts:
        name = "counts"
        replayable = True

        def propose(self, request: Request) -> Proposal:
            assert request.parent is not None
            parents[request.parent.candidate.key] += 1
            return Proposal(artifact(0.1, 0.1, 0.1, salt=request.index))

    def judge(candidate: Candidate) -> Feedback:
        if parents.total() >= 40:
            raise StopSearch("enough")
        first, second, _ = artifact_spec(candidate)["skills"]
        scores = dict(zip(AXES, (first, second), strict=True))
        return Feedback(State.SCORED, 0.6 * first + 0.3 * second, scores)

    search(judge, Counts(), begun)
    assert all(parents[one.key] >= 5 for one in begun)
