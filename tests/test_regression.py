"""The suites: a look that steers the search, sizes by A₀'s spread, and the order of the gate."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

import fake_domain as fake
from fake_domain import FakeSession, MemoryStore, World
from fake_programs import artifact
from galoop.evaluation.noninferiority import examples_for_power, examples_needed, judge_component
from galoop.evaluation.paired import Meter, PairedEvaluator, Scores
from galoop.gate import suite_components
from galoop.regression import Look, Regression, comparable
from galoop.report.progress import NullProgress
from galoop.results import perplexities
from galoop.search.protocol import StopSearch
from galoop.types import Example, Outcome, State
from search_tools import PARENT, improved

pytestmark = pytest.mark.usefixtures("world")  # the suite `fake` is known

#: Solves slice B1, and half of what the parent solves of the suites' topic.
LOSING = artifact(1.0, 0.5, 0.4)
KEEPING = artifact(1.0, 1.0, 0.4)


@pytest.fixture
def looking() -> dict[str, int]:
    return {"gate__look": 12}


def made(start: object = PARENT, **changes: object) -> tuple[Regression, FakeSession, World]:
    config = fake.config(**changes)
    world = World()
    session = FakeSession(config, world)
    evaluator = PairedEvaluator(session, MemoryStore(), 1, NullProgress())
    system = session.artifact(start, "A0")  # type: ignore[arg-type]
    return Regression(config, session, evaluator, system, "round-1/gate"), session, world


# -- how many examples ---------------------------------------------------------------------


def test_the_planned_size_gives_the_power_that_was_asked_for() -> None:
    # Old and new solve each example independently with probability 0.6: the assumed case.
    rng = random.Random(7)
    delta, power, p = 0.15, 0.8, 0.6
    pilot = [1.0] * 60 + [0.0] * 40
    n = examples_for_power(pilot, delta, 0.05, power)
    assert n == math.ceil(2 * (0.24 * 100 / 99) * ((1.6449 + 0.8416) / delta) ** 2)
    passed = 0
    for _ in range(400):
        old, new = ([float(rng.random() < p) for _ in range(n)] for _ in range(2))
        passed += judge_component("c", [1.0] * n, old, new, delta).status == "pass"
    assert 0.74 < passed / 400 < 0.86, "four standard errors around 0.8 are 0.08"


def test_scores_that_do_not_vary_need_no_more_than_any() -> None:
    assert examples_for_power([0.0] * 30, 0.1) == examples_needed(0.1) == 25
    assert examples_for_power([1.0], 0.1) == 25
    assert examples_for_power([0.0, 1.0] * 15, 0.1) > examples_for_power([0.0, 1.0] * 15, 0.2)


def test_a_component_is_sized_by_the_start_artifact_and_by_nothing_else() -> None:
    start = artifact(0.2, 0.5, 0.4)
    few = {"gate__examples": 30, "gate__most_examples": 50}
    regression, _, world = made(start, **few)
    sizes = {c.name: len(c.examples) for c in regression.components}
    # Half of `easy` is solved: as many as are allowed. `hopeless` does not gate: the least.
    assert sizes == {"fake/easy": 50, "fake/mid": 50, "fake/hopeless": 30}
    assert {system for system, _, _ in world.calls} <= {"reference", regression._start.key}
    certain, _, _ = made(artifact(0.2, 0.0, 0.4), **few)
    assert {len(c.examples) for c in certain.components} == {30}, "nothing varies at 0"


def test_fewer_examples_of_a_component_are_the_first_ones_of_more() -> None:
    config = fake.config()
    session = FakeSession(config, World())
    few, more = (dict(suite_components(config, session, n)) for n in (30, 50))
    assert all(more[name][:30] == examples for name, examples in few.items())


# -- the look ------------------------------------------------------------------------------


def test_the_look_shares_no_example_with_the_gate() -> None:
    config = fake.config()
    session = FakeSession(config, World())
    gate = {e.key for _, part in suite_components(config, session, 60) for e in part}
    look = {
        e.key for _, part in suite_components(config, session, 60, purpose="look") for e in part
    }
    assert not gate & look


def test_a_candidate_that_loses_a_suite_is_not_taken_to_the_gate(looking: dict[str, int]) -> None:
    blind = improved([LOSING, KEEPING])
    assert [t.accepted for t in blind.result.trials] == [False, True], "without a look: a trial"
    found = improved([LOSING, KEEPING], config=fake.config(**looking))
    assert [t.accepted for t in found.result.trials] == [True]
    scores = found.scores()
    assert scores[LOSING.key] < scores[KEEPING.key], "both solve the slice"
    events = {e["payload"]["key"]: e["payload"] for e in found.store.events("candidate")}
    assert events[LOSING.key]["reason"].startswith("loses on suites: fake/")
    assert events[LOSING.key]["objectives"]["suites"] < 0.75
    assert events[KEEPING.key]["objectives"]["suites"] == 1.0
    assert events[PARENT.key]["objectives"]["suites"] == 1.0, "the start artifact loses nothing"


def test_when_all_lose_one_still_shows_at_the_gate_where_the_search_stood(
    looking: dict[str, int],
) -> None:
    worse = artifact(1.0, 0.2, 0.4)
    found = improved([worse, LOSING], config=fake.config(**looking))
    (trial,) = found.result.trials
    assert trial.candidate.key == LOSING.key, "the better of the two, once"
    assert not trial.accepted
    assert trial.reason.startswith("gate: fake/")


def test_what_the_start_artifact_hardly_solves_is_not_looked_at(looking: dict[str, int]) -> None:
    regression, session, world = made(artifact(0.2, 0.05, 0.4), **looking)
    system = session.artifact(LOSING, "candidate")
    assert regression.look(system, "s", Meter()) == Look({})
    assert not any(key == system.key for key, _, _ in world.calls)


def test_the_look_compares_component_by_component(looking: dict[str, int]) -> None:
    wide = {**looking, "gate__delta": 0.5}
    regression, session, world = made(KEEPING, **wide)
    nothing = session.artifact(artifact(1.0, 0.0, 0.4), "candidate")
    look = regression.look(nothing, "s", Meter())
    # `easy` is solved wholly, of `mid` four in five; `hopeless` does not gate.
    assert look.losses["fake/easy"] == 1.0
    assert 0.4 < look.losses["fake/mid"] < 1.0
    assert look.loss == 1.0
    assert look.words.startswith("fake/easy -1.00, fake/mid -0.")
    assert Counter(key for key, _, _ in world.calls)[nothing.key] == 24


def test_a_great_loss_on_the_component_with_most_to_lose_ends_the_look(
    looking: dict[str, int],
) -> None:
    regression, session, world = made(KEEPING, **looking)
    nothing = session.artifact(artifact(1.0, 0.0, 0.4), "candidate")
    assert regression.look(nothing, "s", Meter()).losses == {"fake/easy": 1.0}
    assert Counter(key for key, _, _ in world.calls)[nothing.key] == 12


def test_what_seems_to_lose_nothing_is_looked_at_again(looking: dict[str, int]) -> None:
    regression, session, world = made(KEEPING, **looking)
    same = session.artifact(artifact(1.0, 1.0, 0.9), "candidate")
    assert regression.look(same, "s", Meter()).losses == {"fake/easy": 0.0, "fake/mid": 0.0}
    assert Counter(key for key, _, _ in world.calls)[same.key] == 2 * 36
    assert max(world.calls.values()) == 1, "what the first look saw is not evaluated again"


def test_the_look_is_paid_from_the_search_s_cap(looking: dict[str, int]) -> None:
    found = improved([KEEPING], config=fake.config(generator__max_evaluations=45, **looking))
    # Parent and candidate on 20 examples each leave 5, and the look wants two systems on 24.
    assert found.result.stopped_by.startswith("evaluations: ")
    assert found.result.accepted is None
    regression, session, _ = made(KEEPING, **looking)
    with pytest.raises(StopSearch, match="evaluations"):
        regression.look(session.artifact(LOSING, "x"), "s", Meter(max_evaluations=23))


# -- the gate ------------------------------------------------------------------------------


def test_a_component_that_looks_failed_early_is_not_finished() -> None:
    start = artifact(0.2, 0.6, 0.4)
    sizes = {"gate__examples": 30, "gate__most_examples": 90}
    regression, session, world = made(start, **sizes)
    lost = session.artifact(artifact(1.0, 0.1, 0.4), "candidate")
    said: list[str] = []
    verdicts = regression.gate(lost, lambda v: said.append(f"{v.component} {v.status}"))
    (word,) = said
    assert word in ("fake/easy fail", "fake/mid fail"), "whichever has more to lose"
    assert [v.n for v in verdicts] == [30]
    assert Counter(key for key, _, _ in world.calls)[lost.key] == 30
    kept = session.artifact(artifact(1.0, 0.9, 0.4), "candidate")
    verdicts = regression.gate(kept, lambda v: None)
    assert [(v.component, v.status) for v in verdicts] == [
        ("fake/easy", "pass"), ("fake/mid", "pass"), ("fake/hopeless", "not gating"),
    ]  # fmt: skip
    assert [v.n for v in verdicts] == [90, 90, 30]


def test_a_finer_look_is_for_what_could_lead(looking: dict[str, int]) -> None:
    regression, session, world = made(KEEPING, **looking)
    same = session.artifact(artifact(1.0, 1.0, 0.9), "candidate")
    regression.look(same, "s", Meter(), lambda first: first.loss > 0)
    assert Counter(key for key, _, _ in world.calls)[same.key] == 24, "it loses nothing: no more"


# -- likelihoods ---------------------------------------------------------------------------


def _likelihoods(*values: float) -> Scores:
    rows = [[Outcome(State.SCORED, "", v, "", {"nll": -math.log(v), "scored_tokens": 10.0})]
            for v in values]  # fmt: skip
    return Scores(fake.FakeSystem("k", "A0"), State.SCORED, "", rows)


def test_likelihoods_are_compared_as_shares_of_the_references() -> None:
    examples = [Example("c", "q", (str(i),), scoring="likelihood") for i in range(3)]
    reference, other = _likelihoods(0.05, 0.2, 0.1), _likelihoods(0.045, 0.1, 0.2)
    shares = comparable(examples, reference, other)
    assert shares.means == pytest.approx([0.9, 0.5, 1.0])  # better than the reference is 1
    assert comparable(examples, reference, reference).means == [1.0, 1.0, 1.0]
    assert shares.outcomes[0][0].measured == other.outcomes[0][0].measured
    # A loss of a fifth of a small likelihood fails the gate; as it stands it could not be seen.
    many = [examples[0]] * 60
    whole, worse = _likelihoods(*[0.05] * 60), _likelihoods(*[0.04] * 60)
    verdict = judge_component(
        "perplexity/text",
        comparable(many, whole, whole).means,
        comparable(many, whole, whole).means,
        comparable(many, whole, worse).means,
        0.1,
    )
    assert verdict.status == "fail"
    assert judge_component("c", whole.means, whole.means, worse.means, 0.1).status != "fail"


def test_ordinary_scores_and_failures_are_compared_as_they_are() -> None:
    example = Example("c", "q", ("a",))
    scores = _likelihoods(0.5)
    assert comparable([example], scores, scores) is scores
    failed = Scores(fake.FakeSystem("k", "A1"), State.FAILED, "crashed")
    assert comparable([Example("c", "q", ("a",), scoring="likelihood")], scores, failed) is failed


def test_perplexity_of_the_table_is_that_of_all_tokens_together() -> None:
    rows = [
        [Outcome(State.SCORED, "", 1 / ppl, "", {"nll": math.log(ppl), "scored_tokens": tokens})]
        for ppl, tokens in ((2, 30.0), (10, 10.0))
    ]
    scores = Scores(fake.FakeSystem("k", "A0"), State.SCORED, "", rows)
    expected = (2**30 * 10**10) ** (1 / 40)
    assert perplexities([scores]) == f"perplexity: A0 {expected:.4g}"
    assert perplexities([Scores(None, State.SCORED, "", [[Outcome(State.SCORED, "", 1.0)]])]) == ""


def test_a_component_with_a_fixed_stock_is_looked_at_as_far_as_it_goes(
    looking: dict[str, int],
) -> None:
    # A wide margin: else a great loss on the first component would end the look there.
    regression, session, _ = made(PARENT, **looking, gate__delta=0.5)
    whole = FakeSession.suite_examples
    session.suite_examples = (
        lambda suite, component, n, seed: (  # type: ignore[method-assign]
            whole(session, suite, component, n, seed)[: 5 if component == "easy" else n]
        )
    )
    system = session.artifact(LOSING, "A1")
    first = regression.look(system, "s", Meter())
    assert set(first.losses) == {"fake/easy", "fake/mid"}
    for name, part in regression._looked_at:
        part = part[: 12 if first.loss > 0.5 else 36]
        ours = [fake.solves([1.0, 0.5, 0.4], e) for e in part]
        old = [fake.solves(fake.artifact_spec(PARENT)["skills"], e) for e in part]
        assert first.losses[name] == pytest.approx((sum(old) - sum(ours)) / len(part))
