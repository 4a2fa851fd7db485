"""The discriminator: screening, admission on fresh seeds, caps, records. Truth in closed form."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

import fake_domain as fake
from fake_domain import FakeSession, MemoryStore, World
from fake_programs import artifact, probe
from galoop.discriminator import Discriminator, screening_score
from galoop.evaluation.admission import AdmissionRule, Criterion, judge
from galoop.evaluation.paired import PairedEvaluator
from galoop.evaluation.statistics import alpha_at_attempt
from galoop.report.progress import NullProgress
from galoop.types import Candidate, Outcome, State
from search_tools import (
    BROKEN,
    Searched,
    searched,
)

# -- the screening score -------------------------------------------------------------------


@pytest.mark.parametrize("tau0", [0.0, 0.5, 0.8, 0.99])
def test_the_screening_score_is_monotone(tau0: float) -> None:
    grid = [i / 40 for i in range(41)]
    for accuracy, gap in itertools.product(grid, grid):
        score = screening_score(accuracy, gap, tau0)
        assert 0.0 <= score <= 1.0
        if accuracy < tau0:
            assert score < 0.5
            assert score == screening_score(accuracy, 0.0, tau0), "the gap counts for nothing"
        else:
            assert score == pytest.approx(0.5 + gap / 2)
        if accuracy + 0.025 <= 1:
            assert screening_score(accuracy + 0.025, gap, tau0) >= score
        if gap + 0.025 <= 1:
            assert screening_score(accuracy, gap + 0.025, tau0) >= score
    assert screening_score(1.0, -0.5, tau0) == 0.5, "a negative gap is no gap"


def screened(found: Searched, candidate: Candidate, skills: Sequence[float], n: int) -> float:
    """The gap of a probe that the reference solves wholly, on the first n screening seeds."""
    spec = fake.probe_spec(candidate.source)
    seeds = found.world.built[0][1][:n]
    examples = [fake.draw(spec["topic"], 0.0, spec["salt"], s) for s in seeds]
    return 1.0 - sum(fake.solves(skills, e) for e in examples) / n


def test_feedback_is_the_truth_of_the_screen() -> None:
    probes = [probe(2, salt=i) for i in range(4)] + [probe(1, salt=i) for i in range(20)]
    config = fake.config(admission__attempts=100, criterion__tau=0.5, admission__screen_margin=0.0)
    found = searched(probes, BROKEN, config)
    twice = 0
    events = found.store.events("candidate")
    assert len(events) > 12
    for candidate, event in zip(probes, events, strict=False):
        gap = screened(found, candidate, (0.0, 0.5, 1.0), 10)
        if gap >= 0.5 - 0.1 - 1e-9:  # looks like a break within one example: looked at twice
            gap = screened(found, candidate, (0.0, 0.5, 1.0), 20)
            twice += 1
        assert event["payload"]["objectives"] == pytest.approx(
            {"reference_accuracy": 1.0, "gap": gap}
        )
        assert event["payload"]["score"] == pytest.approx(0.5 + gap / 2)
    assert 0 < twice < len(events) - 4


def test_only_a_second_look_spends_an_attempt() -> None:
    """Lucky on the first ten and not on the next: no fresh seeds are spent on it."""
    probes = [probe(0, salt=i) for i in range(60)]
    config = fake.config(discriminator__max_candidates=100, admission__attempts=100)
    found = searched(probes, artifact(0.65, 1, 1), config)
    tried = {e["payload"]["key"] for e in found.store.events("admission")}
    lucky = 0
    for candidate in probes[: found.result.candidates]:
        first = screened(found, candidate, (0.65, 1, 1), 10)
        both = screened(found, candidate, (0.65, 1, 1), 20)
        looks = first >= 0.35 - 1e-9
        assert (candidate.key in tried) == (looks and both >= 0.45 - 1e-9)
        lucky += looks and both < 0.45 - 1e-9
    assert lucky
    assert tried


def test_every_probe_is_screened_on_the_same_seeds_and_another_round_has_others() -> None:
    found = searched([probe(2), probe(2, salt=1), probe(2, salt=2)])
    assert len({seeds for _, seeds in found.world.built}) == 1
    other = searched([probe(2)], config=fake.config(seed=1))
    assert not set(other.world.built[0][1]) & set(found.world.built[0][1])
    assert len(found.world.built[0][1]) == 20, "the first look and the second"


def test_the_first_look_saves_evaluations_where_the_reference_fails() -> None:
    found = searched([probe(0, 0.95)])
    assert found.result.evaluations == 4, "the reference on four examples, the artifact on none"
    assert {system for system, _, _ in found.world.calls} == {"reference"}
    (event,) = found.store.events("candidate")
    assert event["payload"]["objectives"]["gap"] == 0.0
    assert event["payload"]["score"] < 0.5
    assert searched([probe(2)]).result.evaluations == 4 + 20, "counted as asked for"


@pytest.mark.parametrize("seed", range(12))
def test_the_first_look_turns_nothing_valid_away(seed: int) -> None:
    # Where the reference reaches tau0 on the whole screen, the first look must have let it pass.
    found = searched([probe(0, 0.2, salt=i) for i in range(12)], config=fake.config(seed=seed))
    seeds = found.world.built[0][1]
    events = found.store.events("candidate")
    shown = {e["payload"]["key"]: e["payload"]["objectives"] for e in events}
    for i in range(len(events)):
        candidate = probe(0, 0.2, salt=i)
        right = [fake.solves(None, fake.draw(0, 0.2, i, s)) for s in seeds[:10]]
        if sum(right) / 10 >= 0.8 and sum(right[:4]) >= 2:
            assert shown[candidate.key]["gap"] >= 0.5, "the artifact was really asked"


# -- admission -----------------------------------------------------------------------------


def test_a_true_break_is_admitted_on_seeds_that_no_search_has_seen() -> None:
    found = searched([probe(2), probe(0), probe(0, salt=1)])
    got = found.result.found
    assert got is not None
    assert got.candidate.key == probe(0).key
    assert found.result.candidates == 2, "the first admission ends the search"
    assert found.result.stopped_by == "a slice was admitted"
    screened = set(found.world.built[0][1])
    fresh = [e.seed for e in (*got.open, *got.sealed)]
    assert len(set(fresh)) == 80
    assert not screened & set(fresh)
    assert (len(got.open), len(got.sealed)) == (40, 40)
    assert got.screening_gap == 1.0
    assert got.verdict.gap.estimate == 1.0
    assert got.verdict.n == 40


def test_the_sealed_examples_are_shown_to_nobody() -> None:
    found = searched([probe(0)])
    assert found.result.found is not None
    sealed = {e.key for e in found.result.found.sealed}
    assert not sealed & {example for _, example, _ in found.world.calls}


def test_fresh_seeds_depend_on_the_program_and_on_the_run() -> None:
    def fresh(candidate: Candidate, seed: int) -> set[int]:
        got = searched([candidate], config=fake.config(seed=seed)).result.found
        assert got is not None
        return {e.seed for e in got.open}

    base = fresh(probe(0), 0)
    assert fresh(probe(0), 0) == base
    assert not fresh(probe(0, salt=1), 0) & base
    assert not fresh(probe(0), 1) & base


def test_luck_on_the_screen_is_not_admitted() -> None:
    # A gap of exactly tau: some of fifty screens look far better.
    lucky = [probe(0, salt=i) for i in range(50)]
    config = fake.config(
        discriminator__max_candidates=200, admission__attempts=100, admission__screen_margin=0.05
    )
    found = searched(lucky, artifact(0.7, 1.0, 1.0), config)
    assert found.result.best >= 0.4
    assert found.result.found is None
    assert len(found.result.attempts) > 5
    for number, attempt in enumerate(found.result.attempts, start=1):
        assert attempt.verdict.attempt == number
        assert attempt.verdict.alpha_spent == alpha_at_attempt(0.05, number)
        assert not attempt.verdict.admitted


def test_attempts_are_capped() -> None:
    lucky = [probe(0, salt=i) for i in range(40)]
    config = fake.config(
        discriminator__max_candidates=200, admission__attempts=3, admission__screen_margin=0.05
    )
    found = searched(lucky, artifact(0.7, 1.0, 1.0), config)
    assert len(found.result.attempts) == 3
    assert found.result.candidates == 40, "the search itself goes on"
    assert len(found.store.events("admission")) == 3


def test_a_probe_that_is_rejected_on_fresh_seeds_is_counted_and_spends_nothing() -> None:
    found = searched([probe(0, does="stale"), probe(0, salt=5)])
    assert found.result.rejected == {"fresh-seeds": 1}
    assert found.result.found is not None
    assert found.result.found.verdict.attempt == 1


# -- giving up early -----------------------------------------------------------------------


class Fixed:
    """A system whose scores are given."""

    def __init__(self, key: str, candidate: Candidate | None) -> None:
        self.key = self.name = key
        self.candidate = candidate


def admitted_by_all(reference: Sequence[int], mine: Sequence[int], rule: AdmissionRule, k: int):  # type: ignore[no-untyped-def]
    return judge([float(x) for x in reference], [float(x) for x in mine], rule, k)


@pytest.mark.parametrize("seed", range(3))
def test_giving_up_early_changes_no_verdict(seed: int) -> None:
    rng = random.Random(seed)
    early = kept = 0
    for _ in range(25):
        # Around the border of what is admitted, where a wrong shortcut would show.
        p, q, k = rng.uniform(0.85, 1.0), rng.uniform(0.15, 0.6), rng.choice([1, 1, 2, 4])
        reference = [int(rng.random() < p) for _ in range(40)]
        mine = [int(r and rng.random() < q) for r in reference]
        if rng.random() < 0.3:  # bad examples first
            order = sorted(range(40), key=lambda i: reference[i] - mine[i])
            reference, mine = [reference[i] for i in order], [mine[i] for i in order]
        world, config = World(), fake.config()

        class Session(FakeSession):
            def run(self, systems: Any, examples: Any, repeat: int) -> Any:
                rows = []
                for s, e in itertools.product(systems, examples):
                    score = (reference if s.candidate is None else mine)[e.seed]  # noqa: B023
                    rows.append((s, e, Outcome(State.SCORED, "", float(score))))
                yield rows

        session = Session(config, world)
        evaluator = PairedEvaluator(session, MemoryStore(), 1, NullProgress())  # type: ignore[arg-type]
        made = Discriminator(config, session, evaluator, MemoryStore(), NullProgress(), 1)  # type: ignore[arg-type]
        made._artifact = Fixed("A", BROKEN)
        rule = AdmissionRule(Criterion(0.8, 0.3), 40, 0.05)
        fresh = [fake.draw(0, 0.0, i) for i in range(40)]
        ours, theirs = made._answer_fresh(fresh, rule, k)
        whole = admitted_by_all(reference, mine, rule, k)
        got = judge(ours.means, theirs.means, rule, k)
        assert got.admitted == whole.admitted
        if len(ours.outcomes) < 40:
            early += 1
            assert not whole.admitted
        kept += whole.admitted
        if got.admitted:
            assert got == whole, "an admission's figures are those of all examples"
    assert early >= 3, "something was saved"
    assert kept >= 3, "something was admitted"


def test_the_best_case_of_the_rest_is_an_upper_bound_for_every_completion() -> None:
    """What giving up rests on: a pair (1, 0) more is never worse for the verdict than another."""
    rule = AdmissionRule(Criterion(0.8, 0.3), 20, 0.05)
    ranks: dict[tuple[int, int, int], tuple[float, float]] = {}
    for lost, both in itertools.product(range(21), repeat=2):
        for won in range(0, 21 - lost - both, 3):
            neither = 20 - lost - both - won
            ours = [1.0] * (lost + both) + [0.0] * (won + neither)
            mine = [0.0] * lost + [1.0] * both + [1.0] * won + [0.0] * neither
            verdict = judge(ours, mine, rule, 1)
            ranks[lost, both, won] = (verdict.reference_lower, verdict.gap_lower)
    for (lost, both, won), (reference, gap) in ranks.items():
        for worse in ((lost - 1, both + 1, won), (lost - 1, both, won)):  # (1,1) or (0,0) instead
            if worse in ranks:
                assert ranks[worse][0] <= reference + 1e-12
                assert ranks[worse][1] <= gap + 1e-9


def test_an_attempt_that_is_given_up_says_so() -> None:
    lucky = [probe(0, salt=i) for i in range(30)]
    config = fake.config(
        discriminator__max_candidates=60, admission__attempts=60, admission__screen_margin=0.05
    )
    found = searched(lucky, artifact(0.7, 1.0, 1.0), config)
    short = [a.verdict for a in found.result.attempts if a.verdict.n < 40]
    assert short
    for verdict in short:
        assert verdict.reason.startswith(f"given up after {verdict.n} of 40 fresh examples: the ")
        assert "could be scored" not in verdict.reason


# -- what is kept --------------------------------------------------------------------------


def test_rejections_are_counted_with_their_reasons() -> None:
    wrong = Candidate("probe", {"probe.py": "nonsense"}, "nonsense")
    probes = [probe(2, does="invalid"), probe(2, does="invalid", salt=1), probe(2, does="failed")]
    found = searched([*probes, wrong, probe(2)])
    assert found.result.rejected == {"answer-missing": 2, "timeout": 1, "syntax": 1}
    assert found.result.candidates == 5
    floor = [e["payload"] for e in found.store.events("candidate")][:4]
    for payload in floor:
        assert payload["score"] == 0.0
        assert payload["objectives"] == {"reference_accuracy": 0.0, "gap": 0.0}
        assert payload["reason"]
    assert found.result.evaluations == 24, "only the valid one was evaluated"


def test_candidates_and_verdicts_are_events() -> None:
    found = searched([probe(2), probe(0)])
    events = found.store.events("candidate")
    assert [e["payload"]["number"] for e in events] == [1, 2]
    for candidate, event in zip([probe(2), probe(0)], events, strict=True):
        assert event["payload"]["key"] == candidate.key
        assert found.store.objects[event["payload"]["source"]].decode() == candidate.source
        assert event["payload"]["note"] == candidate.note
    (verdict,) = found.store.events("admission")
    assert found.result.found is not None
    assert verdict["payload"]["verdict"] == found.result.found.verdict.to_json()


def test_the_frozen_programs_are_handed_on() -> None:
    found = searched([probe(2)], frozen=["one", "two"])
    assert found.proposer.requests[0].task.frozen == ("one", "two")


def test_an_artifact_that_fails_is_said_and_is_no_gap() -> None:
    for does, state in (("failed", "failed"), ("invalid", "invalid"), ("late", "failed")):
        found = searched([probe(0, salt=i) for i in range(8)], artifact(0, 0, 0, does=does))
        assert found.result.found is None
        assert found.result.best == 0.0
        assert sum(found.result.rejected.values()) >= 1
        bad = [e["payload"] for e in found.store.events("candidate")
               if e["payload"]["state"] != "scored"]  # fmt: skip
        assert {p["state"] for p in bad} == {state}
        assert {p["score"] for p in bad} == {0.0}
        assert any("artifact failed" in str(getattr(e, "text", "")) for e in found.progress.events)


def test_repeats_are_asked_of_the_artifact_only_and_their_mean_counts() -> None:
    config = fake.config(evaluation__repeats=4)
    found = searched([probe(2)], artifact(1.0, 1.0, 1.0, does="noisy"), config)
    per = {s: {r for t, _, r in found.world.calls if t == s} for s, _, _ in found.world.calls}
    assert per.pop("reference") == {0}
    assert list(per.values()) == [{0, 1, 2, 3}]
    gap = found.store.events("candidate")[0]["payload"]["objectives"]["gap"]
    scores = [o.score for (s, _, _), o in found.store.rows.items() if s != "reference"]
    assert len(scores) == 40
    assert gap == pytest.approx(1.0 - sum(s or 0.0 for s in scores) / 40)
    assert 0.0 < gap < 0.5
