"""Islands: diverse seeds, independent evolution in turns, several refined candidates."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from engine_tools import AXES, TASK, Climber, Judge, value
from fake_domain import LineSearch, World, config
from fake_programs import artifact
from galoop.config import load
from galoop.errors import ConfigError, InfrastructureError, UnknownNameError
from galoop.proposers.protocol import Evaluated, Proposal, Request
from galoop.search.factory import make
from galoop.search.gepa import GepaSearch
from galoop.search.islands import IslandsSearch, distance, diverse
from galoop.search.openevolve import OpenEvolveSearch
from galoop.search.protocol import Problem, Search, StopSearch
from galoop.types import Candidate, Feedback, State

START = [artifact(0.3, 0.3, 0.0)]


def search(
    judge: Any,
    proposer: Any,
    start: Sequence[Candidate] = (),
    seed: int = 0,
    fresh: int = 0,
    islands: IslandsSearch | None = None,
) -> str:
    made = islands or IslandsSearch()
    return made.run(Problem(TASK, proposer, judge, AXES, seed, start, fresh))


def scored(text: str, score: float, state: State = State.SCORED) -> Evaluated:
    return Evaluated(Candidate("artifact", {"a.txt": text}), Feedback(state, score, {}))


@pytest.fixture(autouse=True)
def no_thread_left() -> Any:
    yield
    names = [t.name for t in threading.enumerate() if t.name.startswith("island")]
    assert names == []


# -- seeds ---------------------------------------------------------------------------------


def test_distance_is_jaccards_over_words() -> None:
    one, other = scored("a b c d", 0.0), scored("c d e\nf e", 0.0)
    assert distance(one, other) == pytest.approx(1 - 2 / 6)
    assert distance(one, one) == 0.0
    assert distance(scored("", 0.0), scored("--", 0.0)) == 0.0
    assert distance(one, scored("x", 0.0)) == 1.0


def test_seeds_are_the_best_and_then_the_farthest() -> None:
    best, near, far, between = (
        scored("a b c d", 0.9),
        scored("a b c x", 0.8),
        scored("p q r s", 0.1),
        scored("a b q r", 0.3),
    )
    found = [near, far, best, between]
    assert diverse(found, 2) == [best, far]
    assert diverse(found, 3) == [best, far, between]
    assert diverse(found, 9) == [best, far, between, near]
    assert diverse(found, 2, given=1) == [near, far], "a given one first, whatever its score"
    assert diverse(found, 1, given=2) == [near], "the best of the given ones"


def test_seeds_are_chosen_as_by_a_naive_search() -> None:
    words = ["a b c", "a b d", "e f", "a e", "g", "a b c d e", "f g h"]
    found = [scored(text, 0.1 + 0.1 * i) for i, text in enumerate(words)]
    chosen = [found[-1]]
    while len(chosen) < 4:
        rest = [f for f in found if f not in chosen]
        least = {f.candidate.key: min(distance(f, c) for c in chosen) for f in rest}
        most = max(least.values())
        # Among equals the better one.
        chosen.append(max((f for f in rest if least[f.candidate.key] == most),
                          key=lambda f: f.feedback.score))  # fmt: skip
    assert diverse(found, 4) == chosen


def test_failures_are_seeds_only_where_there_is_nothing_else() -> None:
    good, zero = scored("a", 0.2), scored("b", 0.0)
    bad = scored("c", 0.0, State.INVALID)
    assert diverse([bad, zero, good], 3) == [good]
    assert diverse([bad, good], 2, given=1) == [good]
    assert diverse([bad, zero], 2) == [bad]
    assert diverse([good, good], 2) == [good], "one program counts once"


# -- evolution -----------------------------------------------------------------------------


def islands_of(requests: Sequence[Request]) -> dict[str, list[int]]:
    """Requests by the seed of their island (the first of its history), by number."""
    out: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        if request.parent is not None:
            out.setdefault(request.history[0].candidate.key, []).append(number)
    return out


@pytest.mark.parametrize("start", [[], START], ids=["seedless", "seeded"])
def test_seeds_come_first_then_the_islands_take_turns(start: list[Candidate]) -> None:
    judge, proposer = Judge(50), Climber(1)
    search(judge, proposer, start)
    first = [r.parent is None for r in proposer.requests]
    assert first == [True] * (8 - len(start)) + [False] * (len(first) - 8 + len(start))
    assert [r.index for r in proposer.requests] == list(range(len(first)))
    islands = islands_of(proposer.requests)
    assert len(islands) == 4
    if start:
        assert start[0].key in islands
    counts = [len(numbers) for numbers in islands.values()]
    assert max(counts) - min(counts) <= 1, "an equal share whenever it ends"
    for numbers in islands.values():
        assert {b - a for a, b in pairwise(numbers)} == {4}


def test_an_island_knows_only_its_own() -> None:
    judge, proposer = Judge(60), Climber(3)
    search(judge, proposer)
    islands = islands_of(proposer.requests)
    made: dict[str, str] = {}  # candidate -> island
    for root, numbers in islands.items():
        made[root] = root
        for number in numbers:
            request = proposer.requests[number]
            assert request.parent in request.history
            for entry in request.history:
                assert made.get(entry.candidate.key) == root, "no program migrates"
            if number < len(judge.seen):  # the last one was not evaluated any more
                made[judge.seen[number].key] = root


def test_more_fresh_ones_are_asked_for_when_they_are_asked_for() -> None:
    proposer = Climber(1)
    search(Judge(30), proposer, START, fresh=12)
    assert [r.parent is None for r in proposer.requests].count(True) == 12


def test_the_best_of_every_island_comes_out() -> None:
    judge, proposer, islands = Judge(60), Climber(3), IslandsSearch(islands=3)
    search(judge, proposer, islands=islands)
    roots = list(islands_of(proposer.requests))
    best = []
    for root in roots:
        numbers = islands_of(proposer.requests)[root]
        mine = [c for c in judge.seen if c.key == root or c.key in {judge.seen[n].key for n in
                numbers if n < len(judge.seen)}]  # fmt: skip
        best.append(max(sum(value(c)) / 2 for c in mine))
    assert [e.feedback.score for e in islands.refined] == sorted(best, reverse=True)
    assert len({e.candidate.key for e in islands.refined}) == 3


def test_islands_find_several_peaks_where_one_search_finds_one() -> None:
    """Two peaks, at (1, 0) and (0, 1); a child is better only up its own side."""

    class Sides(Climber):
        def propose(self, request: Request) -> Proposal:
            self.requests.append(request)
            n = len(self.requests)
            if request.parent is None:
                skills = [0.1, 0.0] if n % 2 else [0.0, 0.1]
            else:
                skills = list(value(request.parent.candidate))
                i = 0 if skills[0] > skills[1] else 1
                skills[i] = round(min(1.0, skills[i] + 0.05), 3)
            return Proposal(artifact(*skills, 0.0, salt=n))

    def judge(candidate: Candidate) -> Feedback:
        seen.append(candidate)
        if len(seen) > 40:
            raise StopSearch("enough")
        left, right = value(candidate)
        return Feedback(State.SCORED, max(left, right), {"left": left, "right": right})

    seen: list[Candidate] = []
    islands = IslandsSearch(islands=4)
    assert search(judge, Sides(1), islands=islands) == "enough"
    sides = {value(e.candidate)[0] > value(e.candidate)[1] for e in islands.refined}
    assert sides == {True, False}
    assert all(e.feedback.score > 0.3 for e in islands.refined)


def test_everything_happens_in_the_callers_thread() -> None:
    # A store in SQLite refuses any other.
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (x)")

    class Stored(Judge):
        def __call__(self, candidate: Candidate) -> Feedback:
            connection.execute("INSERT INTO t VALUES (1)")
            return super().__call__(candidate)

    class Asked(Climber):
        def propose(self, request: Request) -> Proposal:
            connection.execute("SELECT * FROM t").fetchall()
            return super().propose(request)

    assert search(Stored(20), Asked(1)) == "candidates: 20 tried"
    connection.close()


class Counting:
    """An engine that changes the last program, and notes whether it runs beside another."""

    name = "counting"
    running: list[int]

    def __init__(self, running: list[int], most: int = 10**6) -> None:
        self.running, self.most = running, most

    def run(self, problem: Problem) -> str:
        parent = Evaluated(problem.start[0], problem.evaluate(problem.start[0]))
        for index in range(self.most):
            made = problem.proposer.propose(Request(problem.task, index, parent, (parent,)))
            self.running[0] += 1
            assert self.running[0] == 1
            for _ in range(1000):
                json.dumps({})
            self.running[0] -= 1
            assert made.candidate is not None
            parent = Evaluated(made.candidate, problem.evaluate(made.candidate))
        return "no more ideas"


def test_no_two_islands_run_at_once() -> None:
    running = [0]
    islands = IslandsSearch(lambda: Counting(running), 5)
    assert search(Judge(100), Climber(1), islands=islands) == "candidates: 100 tried"


def test_an_island_that_ends_leaves_its_share_to_the_others() -> None:
    budgets = iter([2, 30, 30])
    judge, proposer = Judge(50), Climber(1)
    islands = IslandsSearch(lambda: Counting([0], next(budgets)), 3)
    assert search(judge, proposer, islands=islands) == "candidates: 50 tried"
    made = [r for r in proposer.requests if r.parent is not None]
    assert len(made) == 50 - 6 + 1
    everything = IslandsSearch(lambda: Counting([0], 2), 3)
    assert search(Judge(50), Climber(1), islands=everything) == "no more ideas"


# -- how it ends ---------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [0, 1, 5, 8, 9, 12])
@pytest.mark.parametrize("start", [[], START], ids=["seedless", "seeded"])
def test_a_stop_at_any_time(cap: int, start: list[Candidate]) -> None:
    judge, islands = Judge(cap), IslandsSearch()
    assert search(judge, Climber(1), start, islands=islands) == f"candidates: {cap} tried"
    assert (len(judge.seen), judge.stopped) == (cap, 1), "asked once more, and not again"
    assert bool(islands.refined) == bool(cap)
    if cap:
        best = max(sum(value(c)) / 2 for c in judge.seen)
        assert islands.refined[0].feedback.score == best


@pytest.mark.parametrize("at", [1, 3, 9, 10, 17])
def test_errors_propagate(at: int) -> None:
    class Broken(Judge):
        def __call__(self, candidate: Candidate) -> Feedback:
            if len(self.seen) + 1 == at:
                raise InfrastructureError("the model server died")
            return super().__call__(candidate)

    with pytest.raises(InfrastructureError, match="the model server died"):
        search(Broken(40), Climber(1), START)
    with pytest.raises(InfrastructureError, match="no answer"):
        search(Judge(40), Climber(1, at, InfrastructureError("no answer")), START)
    assert search(Judge(40), Climber(1, at, StopSearch("dollars: spent"))) == "dollars: spent"


def test_an_error_of_an_engine_propagates() -> None:
    class Failing(Counting):
        def run(self, problem: Problem) -> str:
            raise InfrastructureError("the engine broke")

    engines: list[Callable[[], Search]] = [lambda: Counting([0]), lambda: Failing([0])]
    turns = iter(engines)
    with pytest.raises(InfrastructureError, match="the engine broke"):
        search(Judge(40), Climber(1), islands=IslandsSearch(lambda: next(turns)(), 2))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_goes_through(interrupt: type[BaseException]) -> None:
    class Interrupted(Judge):
        def __call__(self, candidate: Candidate) -> Feedback:
            if len(self.seen) == 12:
                raise interrupt
            return super().__call__(candidate)

    with pytest.raises(interrupt):
        search(Interrupted(50), Climber(1), START)


def test_an_engine_that_does_not_heed_the_stop_is_left_alone() -> None:
    class Deaf(Counting):
        def run(self, problem: Problem) -> str:
            threading.current_thread().name = "deaf"
            for _ in range(1000):
                try:
                    problem.evaluate(problem.proposer.propose(Request(TASK, 0, None, ())).candidate)
                except StopSearch:
                    continue
            return ""

    judge = Judge(12)
    assert search(judge, Climber(1), islands=IslandsSearch(lambda: Deaf([0]), 2)) == (
        "candidates: 12 tried"
    )
    assert len(judge.seen) == 12


def test_islands_of_openevolve() -> None:
    pytest.importorskip("openevolve")
    runs = []
    for _ in range(2):
        judge, islands = Judge(16), IslandsSearch(OpenEvolveSearch, 2)
        assert search(judge, Climber(1), START, islands=islands) == "candidates: 16 tried"
        assert len(islands.refined) == 2
        runs.append([c.key for c in judge.seen])
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("engine", "kind"), [("gepa", GepaSearch), ("openevolve", OpenEvolveSearch), ("line", None)]
)
def test_number_and_engine_are_settings(world: World, engine: str, kind: Any) -> None:
    found = config(islands__count=3, islands__engine=engine)
    islands = make("islands", found)
    assert isinstance(islands, IslandsSearch)
    made = [islands._engine() for _ in range(2)]
    assert made[0] is not made[1], "an engine for every island"
    assert isinstance(made[0], kind or LineSearch)
    if engine == "gepa":
        judge, proposer = Judge(30), Climber(1)
        search(judge, proposer, islands=islands)
        assert len(islands_of(proposer.requests)) == len(islands.refined) == 3
    assert make("islands", config())._count == 4  # type: ignore[attr-defined]
    assert type(make("line", found)) is LineSearch, "others need no settings"


@pytest.mark.parametrize("engine", ["islands", "agent"])
def test_an_engine_that_cannot_run_on_an_island_is_refused_with_the_reason(engine: str) -> None:
    with pytest.raises(ConfigError, match=r"--islands.engine: islands.engine = .*on an island"):
        load(None, {"islands.engine": engine})
    with pytest.raises(UnknownNameError, match="did you mean gepa"):
        load(None, {"islands.engine": "gepaa"})


def test_at_least_one_island() -> None:
    with pytest.raises(ValueError, match="islands = 0"):
        IslandsSearch(islands=0)
