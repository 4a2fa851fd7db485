"""Every engine in the same place: same start, same budget, same store, same resume."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from engine_tools import AXES, TASK, Climber, Front, Judge, Same
from fake_domain import FakeSession, LineSearch, ListProposer, MemoryStore, RandomProposer, World
from fake_programs import artifact, probe
from galoop import plugins
from galoop.discriminator import Discriminator
from galoop.errors import InfrastructureError
from galoop.evaluation.paired import PairedEvaluator
from galoop.loop import discover, run_loop
from galoop.proposers.protocol import Evaluated, Request
from galoop.report.progress import NullProgress
from galoop.search.protocol import Problem, StopSearch
from galoop.search.seat import EngineSeat
from galoop.store.run import RunStore
from loop_tools import plain_files, small
from search_tools import BROKEN, PARENT, improved

QUIET = NullProgress()
ENGINES = [
    "gepa",
    "islands",
    pytest.param(
        "openevolve",
        marks=pytest.mark.skipif(find_spec("openevolve") is None, reason="extra openevolve"),
    ),
]
every_engine = pytest.mark.parametrize("engine", ENGINES)


def engine_of(name: str) -> Any:
    return plugins.load("searches", name)()


def both(engine: str, **changes: Any) -> Any:
    return small(discriminator__search=engine, generator__search=engine, **changes)


# -- seeded and seedless, either half ------------------------------------------------------


@every_engine
@pytest.mark.parametrize("seeded", [False, True], ids=["seedless", "seeded"])
def test_probes_from_a_seed_and_from_nothing(
    world: World, fast_path: Path, engine: str, seeded: bool
) -> None:
    given = probe(1, 0.0, 77)
    file = fast_path / "seed.py"
    file.write_text(given.source)
    asked: list[Request] = []

    class Asked(RandomProposer):
        def propose(self, request: Request) -> Any:
            asked.append(request)
            return super().propose(request)

    world.proposer = lambda kind, seed: Asked(kind, seed)
    config = both(
        engine,
        artifact__start="identity",
        discriminator__max_candidates=18,
        discriminator__fresh=2,
        discriminator__seed_probe=str(file) if seeded else "",
    )
    found = discover(config, fast_path / "run", QUIET)
    assert found.searches[0].candidates == 18, "the whole budget and no more"
    assert found.searches[0].engine == engine
    with RunStore.open(fast_path / "run") as store:
        keys = [e["payload"]["key"] for e in store.events("candidate")]
    assert len(set(keys)) == len(keys)
    assert (given.key in keys) == seeded
    if seeded:
        assert keys[0] == given.key
    assert sum(r.parent is None for r in asked) >= 2
    assert asked[-1].parent is not None


@every_engine
@pytest.mark.usefixtures("world")
def test_artifacts_from_the_given_one(engine: str) -> None:
    config = fake.config(generator__max_candidates=20, generator__fresh=3)
    proposer = RandomProposer("artifact", 3)
    made = improved([], config=config, search=engine_of(engine), proposer=proposer)
    events = [e["payload"]["key"] for e in made.store.events("candidate")]
    assert events[0] == PARENT.key
    assert made.result.accepted is not None or made.result.candidates == 20
    assert made.result.best > made.result.parent, "every engine climbs here"


# -- one budget ----------------------------------------------------------------------------


@every_engine
def test_a_cap_of_evaluations_holds(world: World, fast_path: Path, engine: str) -> None:
    config = both(engine, artifact__start="identity", discriminator__max_evaluations=300)
    config = config.model_copy(
        update={"discriminator": config.discriminator.model_copy(update={"max_candidates": 999})}
    )
    found = discover(config, fast_path / "run", QUIET)
    assert "evaluations" in found.searches[0].stopped_by
    assert 240 <= found.searches[0].evaluations <= 300


@every_engine
def test_nothing_is_admitted_where_nothing_is_to_be_found(
    world: World, fast_path: Path, engine: str
) -> None:
    config = both(engine, artifact__start="identity", discriminator__max_candidates=80)
    found = discover(config, fast_path / "run", QUIET)
    (search,) = found.searches
    assert (search.candidates, search.best, search.admitted) == (80, 0.0, False)
    assert search.attempts == ()


# -- alike everywhere ----------------------------------------------------------------------

START = [artifact(0.3, 0.3, 0.0)]
seedless_and_seeded = pytest.mark.parametrize("start", [[], START], ids=["seedless", "seeded"])


def ran(engine: str, judge: Judge, proposer: Climber, start: Sequence[Any], seed: int = 0) -> str:
    reason: str = engine_of(engine).run(Problem(TASK, proposer, judge, AXES, seed, start))
    return reason


@every_engine
@seedless_and_seeded
def test_the_seed_decides_everything(engine: str, start: list[Any]) -> None:
    runs = []
    for seed in (1, 1, 2):
        # A front of several programs, so that there are parents to choose from.
        judge, proposer = Judge(40), Front(1)
        assert ran(engine, judge, proposer, start, seed) == "candidates: 40 tried"
        runs.append([r.parent.candidate.key if r.parent else "" for r in proposer.requests])
        assert len({c.key for c in judge.seen}) == 40, "a known program is not evaluated again"
    assert runs[0] == runs[1]
    assert runs[0] != runs[2], "the same proposer, and other parents"


@every_engine
@seedless_and_seeded
def test_a_search_goes_on_when_everything_is_invalid(engine: str, start: list[Any]) -> None:
    judge, proposer = Judge(30, lambda n: True), Climber(1)
    assert ran(engine, judge, proposer, start) == "candidates: 30 tried"
    assert all(r.parent is None or r.parent.candidate in judge.seen for r in proposer.requests)


@every_engine
def test_a_proposer_that_only_repeats_itself_ends_the_search(engine: str) -> None:
    proposer, judge = Same(0.5, salted=False), Judge(50)
    assert "nothing new" in ran(engine, judge, proposer, [])
    assert len(judge.seen) == 1
    assert len(proposer.requests) < 100


# -- reproducible, resumed -----------------------------------------------------------------


@every_engine
def test_a_loop_is_reproducible_and_resumed_from_anywhere(
    world: World, fast_path: Path, engine: str
) -> None:
    config = both(engine, loop__rounds=1)
    result = run_loop(config, fast_path / "base", QUIET)
    assert [s.name for s in result.slices] == ["B1"], "or there is little to compare"
    assert max(world.calls.values()) == 1, "nothing is evaluated twice"
    total = sum(world.calls.values())
    world.calls.clear()
    left, errors = [total // 3], 0

    def fail(number: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise InfrastructureError("the model server died")

    world.before = fail
    while True:
        left[0] = total // 3
        try:
            run_loop(config, fast_path / "again", QUIET)
            break
        except InfrastructureError:
            errors += 1
    assert errors >= 2
    assert plain_files(fast_path / "again") == plain_files(fast_path / "base")


# -- refined candidates --------------------------------------------------------------------


class Ends:
    """An engine that takes what is proposed and ends with candidates of its own choice."""

    name = "ends"

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.refined: list[Evaluated] = []

    def run(self, problem: Problem) -> str:
        seat = EngineSeat(problem)
        try:
            while True:
                seat.evaluate(seat.propose(None))
        except StopSearch as stop:
            self.refined = [seat.evaluate(PROBES[n]) for n in self.numbers]
            return stop.reason


def refined_search(search: Any, probes: Any, **changes: Any) -> Any:
    config = fake.config(**changes)
    world = World(proposer=lambda kind, seed: ListProposer(probes))
    session, store = FakeSession(config, world), MemoryStore()
    evaluator = PairedEvaluator(session, store, 1, QUIET)  # type: ignore[arg-type]
    made = Discriminator(config, session, evaluator, store, QUIET, 1)  # type: ignore[arg-type]
    return made.run(search, session.artifact(BROKEN, "A0"), []), store


#: On the broken artifact: gaps of about 0.5, 0 and 0.5.
PROBES = [probe(1, 0.0, 1), probe(2, 0.0, 2), probe(1, 0.0, 3)]


def test_refined_candidates_are_tried_one_at_a_time_without_the_margin() -> None:
    # With the margin asked for, nothing is tried during the search.
    changes = {"admission__screen_margin": 0.6, "criterion__tau": 0.2}
    found, store = refined_search(Ends(1, 0, 2), [], **changes)
    assert [a.candidate.key for a in found.attempts] == [PROBES[0].key], (
        "the first admitted ends it"
    )
    assert found.found is not None
    assert found.found.candidate.key == PROBES[0].key
    assert found.stopped_by == "a slice was admitted"
    (event,) = store.events("refined")
    assert event["payload"]["keys"] == [PROBES[n].key for n in (1, 0, 2)]


def test_refined_candidates_use_the_attempts_that_are_left() -> None:
    changes = {"admission__screen_margin": 0.6, "criterion__tau": 0.45}
    for attempts in (1, 2):
        found, _ = refined_search(Ends(0, 2), [], **changes, admission__attempts=attempts)
        assert len(found.attempts) == attempts


def test_a_search_without_refined_candidates_tries_none() -> None:
    found, store = refined_search(LineSearch(), PROBES[:1], admission__screen_margin=0.6)
    assert found.attempts == []
    assert store.events("refined") == []


def test_what_was_tried_is_not_tried_again() -> None:
    # The true gap is 0.5: the screen may look like more, the fresh seeds do not.
    changes = {"admission__screen_margin": 0.0, "criterion__tau": 0.49}
    found, _ = refined_search(Ends(0), PROBES[:1], **changes)
    assert [a.candidate.key for a in found.attempts] == [PROBES[0].key]
    assert found.found is None


@pytest.mark.usefixtures("world")
def test_islands_hand_their_candidates_to_the_generators_trials() -> None:
    config = fake.config(generator__max_candidates=30)
    search = engine_of("islands")
    made = improved(
        [], config=config, search=search, proposer=RandomProposer("artifact", 1),
        parent=artifact(0.2, 1.0, 0.4),
    )  # fmt: skip
    assert len(search.refined) >= 2
    scores = made.scores()
    assert search.refined[0].feedback.score == max(scores.values())


ACROSS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import engine_tools as t
from fake_programs import artifact
from galoop import plugins
from galoop.search.protocol import Problem

for name in sys.argv[2:]:
    judge = t.Judge(24)
    problem = Problem(t.TASK, t.Climber(4), judge, t.AXES, 4, [artifact(0.3, 0.3, 0.0)])
    plugins.load("searches", name)().run(problem)
    print(json.dumps([name, [c.key for c in judge.seen]]))
"""


def test_the_order_of_hashes_decides_nothing() -> None:
    names = ["gepa", "islands", *(["openevolve"] if find_spec("openevolve") else [])]
    printed = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", ACROSS, str(Path(__file__).parent), *names],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        printed.add(done.stdout)
    assert len(printed) == 1
    assert len(printed.pop().splitlines()) == len(names)
