"""The generator: primary set, confirmation, gate, caps. Truth in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from fake_domain import (
    FakeSession,
    LineSearch,
    ListProposer,
    MemoryStore,
    World,
    artifact,
    artifact_spec,
)
from galoop.config import ExperimentConfig
from galoop.errors import UsageError
from galoop.evaluation.paired import PairedEvaluator
from galoop.evaluation.statistics import mcnemar_p
from galoop.gate import check_confirmation, check_gate, component_names, suite_components
from galoop.generator import Generator
from galoop.proposers.protocol import Cost, Proposal
from galoop.report.progress import NullProgress
from galoop.trial import Improvement, OpenSlice
from galoop.types import Candidate, Example

#: Solves a fifth of topic 0, all of topic 1 (the suites'), two fifths of topic 2.
PARENT = artifact(0.2, 1.0, 0.4)
GOOD = artifact(1.0, 1.0, 1.0)


def open_slice(name: str, topic: int, primary: int = 20, confirmation: int = 20) -> OpenSlice:
    examples = [fake.draw(topic, 0.0, name, i) for i in range(primary + confirmation)]
    return OpenSlice(name, tuple(examples[:primary]), tuple(examples[primary:]))


B1, B2 = open_slice("B1", 0), open_slice("B2", 2)


@dataclass
class Improved:
    """One search over given artifacts, with all that it left."""

    result: Improvement
    world: World
    store: MemoryStore
    proposer: ListProposer
    session: FakeSession

    def key(self, candidate: Candidate) -> str:
        return self.session.artifact(candidate, "").key

    def asked(self, candidate: Candidate, examples: Sequence[Example]) -> int:
        """On how many of the examples a candidate was evaluated."""
        keys = {e.key for e in examples}
        return sum(s == self.key(candidate) and e in keys for s, e, _ in self.world.calls)

    def scores(self) -> dict[str, float]:
        events = self.store.events("candidate")
        return {e["payload"]["key"]: e["payload"]["score"] for e in events}


def improved(
    candidates: Sequence[Candidate],
    slices: Sequence[OpenSlice] = (B1,),
    parent: Candidate = PARENT,
    config: ExperimentConfig | None = None,
    *,
    start: Candidate | None = None,
    cost: Cost | None = None,
    search: Any = None,
    proposer: Any = None,
    store: MemoryStore | None = None,
) -> Improved:
    config = config or fake.config()
    world, store = World(), store or MemoryStore()
    proposer = proposer or ListProposer(candidates, cost)
    world.proposer = lambda kind, seed: proposer
    session = FakeSession(config, world)
    evaluator = PairedEvaluator(session, store, 1, NullProgress())
    made = Generator(config, session, evaluator, store, NullProgress(), 1, slices)
    result = made.run(search or LineSearch(), parent, start or parent)
    return Improved(result, world, store, proposer, session)


def truth(candidate: Candidate, examples: Sequence[Example]) -> float:
    skills = artifact_spec(candidate)["skills"]
    return sum(fake.solves(skills, e) for e in examples) / len(examples)


def weak(n: int) -> list[Candidate]:
    """Artifacts no better than the parent."""
    return [artifact(0.2, 1.0, 0.4, salt=i + 1) for i in range(n)]


# -- the primary set -----------------------------------------------------------------------


def test_the_parent_is_evaluated_first_and_is_not_counted() -> None:
    found = improved(weak(3), config=fake.config(generator__max_candidates=3))
    events = [e["payload"] for e in found.store.events("candidate")]
    assert [e["number"] for e in events] == [0, 1, 2, 3]
    assert events[0]["key"] == PARENT.key
    assert found.result.candidates == 3
    assert found.result.parent == pytest.approx(truth(PARENT, B1.primary))
    assert next(iter(found.world.calls))[0] == found.key(PARENT)


def test_the_score_is_the_mean_over_slices_of_the_accuracy_on_the_primary_set() -> None:
    middling = artifact(0.5, 1.0, 0.6)
    found = improved([middling], (B1, B2))
    expected = {"B1": truth(middling, B1.primary), "B2": truth(middling, B2.primary)}
    event = found.store.events("candidate")[1]["payload"]
    assert event["objectives"] == pytest.approx(expected)
    assert event["score"] == pytest.approx(sum(expected.values()) / 2)


def test_what_is_far_behind_is_left_after_a_first_look_and_never_beats_a_full_one() -> None:
    config = fake.config(generator__target=1.0, generator__attempts=1, gate__delta=0.5)
    great = artifact(0.9, 0.0, 0.4)  # fails the gate, so that the search goes on
    hopeless = artifact(0.1, 1.0, 0.4, salt=1)
    found = improved([great, hopeless], config=config)
    assert found.asked(great, B1.primary) == 20
    assert found.asked(hopeless, B1.primary) == 6
    assert found.scores()[hopeless.key] < found.scores()[great.key]


def handmade(*draws: float) -> tuple[Example, ...]:
    """Examples of topic 0 with given draws: an artifact solves those below its skill."""
    return tuple(Example(f"0 0.0 0.0 {u!r}", f"number {i}?", ("yes",)) for i, u in enumerate(draws))


def test_an_artifact_seen_on_a_few_examples_is_tried_after_those_seen_in_full() -> None:
    primary = handmade(0.1, 0.2, 0.3, 0.35, 0.65, 0.9, *[0.45] * 7, *[0.95] * 7)
    part = OpenSlice("B1", primary, B1.confirmation)
    first = artifact(1.0, 0.0, 0.4)  # sets the best, is tried at once, and fails the gate
    lucky = artifact(0.4, 1.0, 0.4)  # 4 of the first 6, and 4 of 20
    full = artifact(0.7, 1.0, 0.4)  # 5 of the first 6, and 12 of 20
    config = fake.config(generator__target=1.0, generator__promising=0.0, generator__attempts=2)
    found = improved([first, lucky, full], (part,), artifact(0.0, 1.0, 0.4), config)
    assert found.asked(lucky, primary) == 6
    assert found.asked(full, primary) == 20
    assert found.scores()[lucky.key] > found.scores()[full.key], "or the test shows nothing"
    assert [t.candidate.key for t in found.result.trials] == [first.key, full.key]


def test_invalid_and_failed_artifacts_are_the_floor() -> None:
    bad = [artifact(1, 1, 1, does=d) for d in ("invalid", "failed", "late")]
    found = improved([*bad, artifact(0.3, 1.0, 0.4)], (B1, B2))
    for candidate in bad:
        payload = next(
            e["payload"] for e in found.store.events("candidate")
            if e["payload"]["key"] == candidate.key
        )  # fmt: skip
        assert payload["score"] == 0.0
        assert payload["objectives"] == {"B1": 0.0, "B2": 0.0}
        assert payload["state"] in ("invalid", "failed")
    assert found.result.rejected == {"over budget": 1, "crashed": 2}
    assert found.result.accepted is None
    assert not found.result.trials


def test_a_parent_that_fails_is_said_and_nothing_is_accepted() -> None:
    # The candidate cannot be compared with it; once this was an IndexError.
    parent = artifact(0.2, 1.0, 0.4, does="late")
    found = improved([GOOD], parent=parent, start=PARENT)
    assert found.result.parent == 0.0
    assert found.result.accepted is None
    (trial,) = found.result.trials
    assert trial.reason.startswith("the parent failed: crashed")


# -- confirmation --------------------------------------------------------------------------


def test_a_true_repair_is_accepted() -> None:
    found = improved([*weak(2), GOOD, artifact(0.9, 1, 1)])
    trial = found.result.accepted
    assert trial is not None
    assert trial.candidate.key == GOOD.key
    assert found.result.stopped_by == "a generation was accepted"
    assert found.result.candidates == 3
    (change,) = trial.changes
    assert change.old.estimate == pytest.approx(truth(PARENT, B1.confirmation))
    assert change.new.estimate == 1.0
    assert (change.gained, change.lost) == (20 - round(20 * change.old.estimate), 0)
    before = [float(fake.solves((0.2, 1, 0.4), e)) for e in B1.confirmation]
    assert change.p_value == mcnemar_p(before, [1.0] * 20)
    assert trial.measured == {"kept_fraction": 0.25, "kept_bytes": 100.0}


def test_the_confirmation_set_is_not_shown_to_the_search() -> None:
    found = improved(weak(10), (B1, B2))
    confirmation = {e.key for s in (B1, B2) for e in s.confirmation}
    assert not confirmation & {e for _, e, _ in found.world.calls}


def test_a_repair_of_the_primary_set_alone_is_refused() -> None:
    """An artifact that memorised the primary set: perfect there, nothing elsewhere."""
    known = {e.key for e in B1.primary}

    class Session(FakeSession):
        def _answer(self, system: Any, example: Example, repeat: int) -> Any:
            if system.candidate is not None and system.candidate.key == GOOD.key:
                system = self.artifact(GOOD if example.key in known else PARENT, "")
            return super()._answer(system, example, repeat)

    config, world, store = fake.config(), World(), MemoryStore()
    world.proposer = lambda kind, seed: ListProposer([GOOD])
    session = Session(config, world)
    evaluator = PairedEvaluator(session, store, 1, NullProgress())  # type: ignore[arg-type]
    made = Generator(config, session, evaluator, store, NullProgress(), 1, (B1,))  # type: ignore[arg-type]
    result = made.run(LineSearch(), PARENT, PARENT)
    assert result.best == 1.0
    assert result.accepted is None
    (trial,) = result.trials
    assert "no improvement on the confirmation set" in trial.reason
    assert trial.components == (), "the gate is not asked"


def test_losing_an_earlier_slice_is_refused() -> None:
    parent = artifact(1.0, 1.0, 0.0)  # holds B1, loses B2 wholly
    swap = artifact(0.4, 1.0, 1.0)  # wins all of B2 and loses more than half of B1
    config = fake.config(generator__promising=0.0)
    found = improved([swap], (B1, B2), parent, config)
    assert found.result.accepted is None
    (trial,) = found.result.trials
    assert mcnemar_improves(trial)
    assert trial.reason.startswith("B1 would be lost: ")
    kept = improved([artifact(1.0, 1.0, 1.0)], (B1, B2), parent, config)
    assert kept.result.accepted is not None


def test_a_gain_on_an_earlier_slice_does_not_hide_a_loss_on_the_newest() -> None:
    parent = artifact(0.0, 1.0, 0.5)
    swap = artifact(1.0, 1.0, 0.2)
    found = improved([swap], (B1, B2), parent, fake.config(generator__promising=0.0))
    assert found.result.accepted is None
    (trial,) = found.result.trials
    assert mcnemar_improves(trial)
    assert trial.reason.startswith("B2 would be lost: ")


def mcnemar_improves(trial: Any) -> bool:
    gained, lost = sum(c.gained for c in trial.changes), sum(c.lost for c in trial.changes)
    return mcnemar_p([0.0] * gained + [1.0] * lost, [1.0] * gained + [0.0] * lost) <= 0.05


def test_trials_are_capped() -> None:
    gated = [artifact(1.0, 0.0, 0.4, salt=i) for i in range(10)]  # each fails the gate
    found = improved(gated, config=fake.config(generator__attempts=2))
    assert len(found.result.trials) == 2
    assert len(found.store.events("trial")) == 2
    assert found.result.candidates == 10, "the search itself goes on"
    assert found.result.accepted is None


def test_the_best_of_a_search_is_tried_when_none_reached_the_target() -> None:
    config = fake.config(generator__target=1.0, generator__promising=0.1)
    better, best = artifact(0.7, 1.0, 0.4), artifact(0.9, 1.0, 0.4)
    assert truth(PARENT, B1.primary) + 0.1 < truth(better, B1.primary) < truth(best, B1.primary) < 1
    found = improved([best, better, *weak(2)], config=config)
    assert found.result.accepted is not None
    assert found.result.accepted.candidate.key == best.key
    assert [t.candidate.key for t in found.result.trials] == [best.key]
    assert found.result.stopped_by == "a generation was accepted"


def test_no_trial_is_made_twice_of_one_artifact() -> None:
    gated = artifact(1.0, 0.0, 0.4)
    found = improved([gated, gated, gated], config=fake.config(generator__attempts=5))
    assert len(found.result.trials) == 1


@pytest.mark.parametrize("seed", range(20))
def test_of_two_equal_artifacts_neither_is_an_improvement(seed: int) -> None:
    """Equal in truth, and lucky or not on the primary set: as many winners as chance makes."""
    examples = [fake.draw(0, 0.0, "null", seed, i) for i in range(40)]
    part = OpenSlice("B1", tuple(examples[:20]), tuple(examples[20:]))
    same = [artifact(0.5, 1.0, 0.4, salt=i) for i in range(1, 6)]
    config = fake.config(generator__promising=0.0, generator__target=0.0)
    found = improved(same, (part,), artifact(0.5, 1.0, 0.4), config)
    assert found.result.accepted is None, "their answers are the same, example by example"


def test_equal_artifacts_with_independent_luck_are_accepted_no_more_often_than_alpha() -> None:
    """Every answer is an independent coin: the level of the confirmation is what protects."""
    import random

    from galoop.hashing import derive_seed
    from galoop.types import Outcome, State

    class Coins(FakeSession):
        def _answer(self, system: Any, example: Example, repeat: int) -> Outcome:
            coin = random.Random(derive_seed(system.key, example.key)).random() < 0.5
            return Outcome(State.SCORED, "yes", float(coin))

    accepted = trials = 0
    for seed in range(80):
        examples = [fake.draw(0, 0.0, "coins", seed, i) for i in range(40)]
        part = OpenSlice("B1", tuple(examples[:20]), tuple(examples[20:]))
        config = fake.config(
            generator__promising=0.05, generator__attempts=1, gate__suites=(), seed=seed
        )
        world, store = World(), MemoryStore()
        proposer = ListProposer([artifact(0.5, 1, 1, salt=seed * 100 + i) for i in range(5)])
        world.proposer = lambda kind, seed, p=proposer: p  # type: ignore[misc]
        session = Coins(config, world)
        evaluator = PairedEvaluator(session, store, 1, NullProgress())  # type: ignore[arg-type]
        made = Generator(config, session, evaluator, store, NullProgress(), 1, (part,))  # type: ignore[arg-type]
        result = made.run(LineSearch(), artifact(0.5, 1, 1, salt=seed * 100 + 99), PARENT)
        accepted += result.accepted is not None
        trials += len(result.trials)
    assert trials >= 50, "the primary set alone would have accepted these"
    # Exact test at 0.05, 80 runs: 12 or more have probability below 0.1 %.
    assert accepted <= 11


# -- the gate ------------------------------------------------------------------------------


def test_a_loss_on_a_suite_is_refused() -> None:
    found = improved([artifact(1.0, 0.5, 0.4)])
    assert found.result.accepted is None
    (trial,) = found.result.trials
    assert trial.reason.startswith("gate: fake/easy fail: ")
    assert [v.status for v in trial.components] == ["fail"], "the first that fails ends it"


def test_an_inconclusive_component_is_refused() -> None:
    # A small true loss that n examples cannot tell from more than delta.
    config = fake.config(gate__delta=0.12, gate__examples=30)
    lost = artifact(1.0, 0.93, 0.4)
    examples = dict(suite_components(config, FakeSession(config, World())))["fake/easy"]
    assert 0.88 < truth(lost, examples) < 1.0
    found = improved([lost], config=config)
    assert found.result.accepted is None
    assert found.result.trials[0].reason.startswith("gate: fake/easy inconclusive: ")


def test_components_that_the_reference_fails_are_shown_and_do_not_gate() -> None:
    found = improved([GOOD])
    assert found.result.accepted is not None
    verdicts = {v.component: v.status for v in found.result.accepted.components}
    assert verdicts == {"fake/easy": "pass", "fake/mid": "pass", "fake/hopeless": "not gating"}


def test_a_gate_of_which_nothing_gates_is_not_passed() -> None:
    found = improved([GOOD], config=fake.config(gate__components=("hopeless",)))
    assert found.result.accepted is None
    assert "inconclusive" in found.result.trials[0].reason
    none = improved([GOOD], config=fake.config(gate__suites=()))
    assert none.result.accepted is not None
    assert "no suite was asked for" in none.result.accepted.reason


def test_the_gate_compares_with_the_start_artifact_and_not_with_the_parent() -> None:
    # Gains of an earlier generation on the suites may be given back, losses against A0 may not.
    start, parent = artifact(0.2, 0.6, 0.4), artifact(0.2, 1.0, 0.4)
    assert improved([artifact(1.0, 0.6, 0.4)], parent=parent, start=start).result.accepted
    assert not improved([artifact(1.0, 0.6, 0.4)], parent=parent).result.accepted


def test_a_candidate_that_is_the_start_artifact_itself_is_evaluated_once() -> None:
    # The second round may come back to A0's very files: two names, one system.
    start, parent = artifact(1.0, 1.0, 1.0), artifact(0.2, 1.0, 0.4)
    found = improved([start], parent=parent, start=start)
    assert found.result.accepted is not None
    assert max(found.world.calls.values()) == 1
    gate = [s for s in found.store.spent if s.stage.endswith("/gate")]
    assert sum(s.evaluations for s in gate) == 40 * 3 * 2


# -- caps ----------------------------------------------------------------------------------


def test_caps_of_candidates_and_dollars() -> None:
    found = improved(weak(9), config=fake.config(generator__max_candidates=4))
    assert (found.result.candidates, found.result.stopped_by) == (4, "candidates: 4 tried")
    config = fake.config(generator__max_dollars=1.0)
    paid = improved(weak(9), config=config, cost=Cost(0.5))
    assert paid.result.candidates == 2
    assert paid.result.stopped_by == "dollars: 1.00 of 1 spent"


@pytest.mark.parametrize("cap", [1, 6, 30, 60, 1000])
def test_the_cap_of_evaluations_bounds_the_search(cap: int) -> None:
    found = improved(weak(9), config=fake.config(generator__max_evaluations=cap))
    assert found.result.evaluations <= cap
    assert sum(found.world.calls.values()) <= cap


def test_with_gepa_the_parent_in_the_request_is_the_artifact_to_change() -> None:
    from galoop.search.gepa import GepaSearch

    proposer = fake.RandomProposer("artifact", 3)
    found = improved([], search=GepaSearch(), proposer=proposer, config=fake.config(
        generator__max_candidates=25, generator__target=1.0, generator__attempts=1))  # fmt: skip
    assert found.result.candidates == 25
    assert proposer.requests[0].parent is not None
    assert proposer.requests[0].parent.candidate.key == PARENT.key
    assert found.result.best > found.result.parent


# -- what could never pass is refused at once ----------------------------------------------


def test_components_of_the_gate() -> None:
    def names(**changes: Any) -> list[str]:
        return [c for _, c in component_names(fake.config(**changes))]

    install = pytest.MonkeyPatch()
    with install.context() as patch:
        fake.install(World(), patch.setattr)
        assert names() == ["easy", "mid", "hopeless"]
        assert names(gate__components=("mid", "easy")) == ["mid", "easy"]
        with pytest.raises(UsageError, match=r"no component 'eazy' in fake; did you mean easy\?"):
            names(gate__components=("mid", "eazy"))
        with pytest.raises(UsageError, match="there are: easy, mid, hopeless"):
            names(gate__components=("something",))
        two = component_names(fake.config(gate__suites=("fake", "ruler"), gate__components=("vt",)))
        assert ("ruler", "vt") in two
        assert len(two) == 4, "a suite of which no component is named takes part with all"


def test_a_gate_that_nothing_could_pass_is_refused(world: World) -> None:
    def check(**changes: Any) -> None:
        config = fake.config(**changes)
        check_gate(config, FakeSession(config, world))  # type: ignore[arg-type]

    check(gate__examples=25, gate__delta=0.1)
    with pytest.raises(UsageError, match=r"gate.examples = 24: .*fewer than 25 .*raise gate.ex"):
        check(gate__examples=24, gate__delta=0.1)
    with pytest.raises(UsageError, match=r"gate.delta = 0 must lie strictly"):
        check(gate__delta=0.0)
    check(gate__delta=0.0, gate__suites=())


def test_a_confirmation_set_that_is_too_small_is_refused() -> None:
    check_confirmation(fake.config(), [5])
    check_confirmation(fake.config(), [11, 1])
    with pytest.raises(UsageError, match=r"leaves 4 .*fewer than 5 can never show one"):
        check_confirmation(fake.config(), [4])
    with pytest.raises(UsageError, match=r"leaves 0 "):
        check_confirmation(fake.config(), [-20])
    with pytest.raises(UsageError, match=r"leaves 10 .*fewer than 11 .*earlier slice"):
        check_confirmation(fake.config(), [10, 20])
    # The figures are those of the tests themselves.
    assert mcnemar_p([0.0] * 4, [1.0] * 4) > 0.05 >= mcnemar_p([0.0] * 5, [1.0] * 5)


@pytest.fixture(autouse=True)
def _fake_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "world" not in request.fixturenames:
        fake.install(World(), monkeypatch.setattr)


def test_files_of_a_candidate_are_kept(tmp_path: Path) -> None:
    import json

    found = improved([GOOD])
    events = found.store.events("candidate")
    kept = [json.loads(found.store.objects[e["payload"]["files"]]) for e in events]
    assert kept == [dict(PARENT.files), dict(GOOD.files)]
    assert isinstance(ListProposer([GOOD]).propose(found.proposer.requests[0]), Proposal)
