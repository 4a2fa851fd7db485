"""Admission: error rates exactly or by simulation, the winner's curse, seeds."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from galoop.errors import InfrastructureError, NothingEvaluatedError, UsageError
from galoop.evaluation.admission import (
    AdmissionRule,
    AdmissionVerdict,
    Criterion,
    admission_seeds,
    judge,
)
from galoop.evaluation.statistics import alpha_at_attempt

RULE = AdmissionRule()


def verdict_of(b: int, c: int, both: int, neither: int, attempt: int = 1) -> AdmissionVerdict:
    """Judge b pairs (1, 0), c pairs (0, 1) and the concordant ones."""
    n = b + c + both + neither
    return judge(
        [1.0] * b + [0.0] * c + [1.0] * both + [0.0] * neither,
        [0.0] * b + [1.0] * c + [1.0] * both + [0.0] * neither,
        AdmissionRule(n=n),
        attempt,
    )


def exact_admission(p_both: float, p_first: float, p_second: float, attempt: int = 1) -> float:
    """Probability that :func:`judge` admits, summed over all samples of 40 examples.

    The three probabilities are of (1, 1), (1, 0), (0, 1); the rest is (0, 0).
    """
    n, total = 40, 0.0
    for wrong in range(n + 1):  # examples that the reference misses
        p_wrong = 1 - p_both - p_first
        chance = binom.pmf(wrong, n, p_wrong)
        # Clopper-Pearson at 0.0304 needs 37 of 40: a sample with more misses cannot be admitted,
        # which test_the_least_evidence checks.
        if wrong > 3 or chance < 1e-15:
            continue
        for c in range(wrong + 1):
            among_wrong = p_second / p_wrong if p_wrong > 0 else 0.0
            chance_c = binom.pmf(c, wrong, min(1.0, among_wrong))
            if chance_c < 1e-12:
                continue
            right = n - wrong
            for b in range(right + 1):
                chance_b = binom.pmf(b, right, p_first / (p_both + p_first))
                if chance_b < 1e-12:
                    continue
                if verdict_of(b, c, right - b, wrong - c, attempt).admitted:
                    total += chance * chance_c * chance_b
    return float(total)


@pytest.mark.parametrize(
    ("p_both", "p_first", "p_second"),
    [(0.70, 0.30, 0.00), (0.66, 0.32, 0.02), (0.60, 0.35, 0.05)],
)
def test_a_probe_whose_gap_is_just_tau_is_admitted_at_most_at_the_spent_level(
    p_both: float, p_first: float, p_second: float
) -> None:
    assert exact_admission(p_both, p_first, p_second) <= alpha_at_attempt(RULE.alpha, 1)


def test_a_reference_just_at_tau0_is_admitted_at_most_at_the_spent_level() -> None:
    assert exact_admission(0.0, 0.8, 0.0) <= alpha_at_attempt(RULE.alpha, 1)


def test_power_for_the_gap_of_the_notes() -> None:
    # A reference that is always right and a true gap of 0.58: n = 40 admits mostly; at a gap of
    # 0.40, which would need 240, rarely.
    assert exact_admission(0.42, 0.58, 0.0) >= 0.9
    assert 0.7 <= exact_admission(0.40, 0.59, 0.01) <= 0.9
    assert exact_admission(0.60, 0.40, 0.0) <= 0.3


def test_all_attempts_together_stay_below_alpha() -> None:
    # The worst probe (gap exactly tau, reference perfect) is offered again and again.
    admitted = sum(exact_admission(0.70, 0.30, 0.0, attempt) for attempt in range(1, 13))
    assert admitted <= RULE.alpha
    rest = RULE.alpha - sum(alpha_at_attempt(RULE.alpha, k) for k in range(1, 13))
    assert admitted + 2 * rest <= RULE.alpha  # even if later levels were off by a factor of two


def test_equal_systems_are_never_admitted() -> None:
    rng = np.random.default_rng(0)
    for attempt in range(1, 201):
        p = rng.random()
        scores = (rng.random(40) < p).astype(float).tolist()
        assert not judge(scores, scores, RULE, attempt).admitted
        independent = (rng.random(40) < p).astype(float).tolist()
        assert not judge(scores, independent, RULE, attempt).admitted


def test_the_best_of_many_is_caught_by_fresh_examples() -> None:
    # 100 probes of true gap 0.28: on the 20 examples of the search the best one looks like 0.5.
    rng = np.random.default_rng(5)
    looks, admitted = [], 0
    for _ in range(60):
        best = max(float((rng.random(20) < 0.28).mean()) for _ in range(100))
        looks.append(best)
        lost = rng.random(40) < 0.28
        admitted += judge([1.0] * 40, (~lost).astype(float).tolist(), RULE, 1).admitted
    assert np.mean(looks) > 0.45
    assert admitted / 60 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60)


def test_the_least_evidence() -> None:
    # Clopper-Pearson, worked by hand with binom.sf: 37 of 40 pass tau0 = 0.8, 36 do not.
    alpha = alpha_at_attempt(0.05, 1)
    assert binom.sf(36, 40, 0.8) <= alpha < binom.sf(35, 40, 0.8)
    assert verdict_of(b=37, c=0, both=0, neither=3).admitted
    assert not verdict_of(b=36, c=0, both=0, neither=4).admitted
    assert verdict_of(b=16, c=0, both=0, neither=0).admitted
    assert not verdict_of(b=15, c=0, both=0, neither=0).admitted


def test_later_attempts_ask_for_more() -> None:
    assert verdict_of(b=20, c=0, both=20, neither=0, attempt=1).admitted
    late = verdict_of(b=20, c=0, both=20, neither=0, attempt=20)
    assert not late.admitted
    # Nor is a reference good enough that was at the first attempt, however large the gap.
    assert not verdict_of(b=37, c=0, both=0, neither=3, attempt=5).admitted
    assert binom.sf(39, 40, late.reference_lower) == pytest.approx(late.alpha_spent)
    assert late.alpha_spent == pytest.approx(alpha_at_attempt(0.05, 20))
    assert "the gap is 0.500" in late.reason
    assert "below 0.3" in late.reason


def test_the_verdict_reports_the_hold_out_figures() -> None:
    got = verdict_of(b=23, c=1, both=15, neither=1, attempt=2)
    assert got.reference.estimate == pytest.approx(38 / 40)
    assert got.artifact.estimate == pytest.approx(16 / 40)
    assert got.gap.estimate == pytest.approx(22 / 40)
    assert got.gap.confidence == 0.95
    assert got.gap_lower < got.gap.low < got.gap.estimate
    assert (got.n, got.attempt) == (40, 2)
    assert AdmissionVerdict.from_json(json.loads(json.dumps(got.to_json()))) == got


def test_both_faults_are_named() -> None:
    got = judge([1.0] * 20 + [0.0] * 20, [1.0] * 20 + [0.0] * 20, RULE, 1)
    assert "reference's score is 0.500" in got.reason
    assert "the gap is 0.000" in got.reason


def test_incomplete_evidence_is_not_admitted_and_excess_is_refused() -> None:
    got = judge([1.0] * 39, [0.0] * 39, RULE, 1)
    assert not got.admitted
    assert "only 39 of the 40" in got.reason
    with pytest.raises(InfrastructureError, match="40 examples and was given 41"):
        judge([1.0] * 41, [0.0] * 41, RULE, 1)
    with pytest.raises(NothingEvaluatedError):
        judge([], [], RULE, 1)


def test_graded_scores_are_judged_too() -> None:
    # Means over four repeats of a stochastic system.
    rng = np.random.default_rng(1)
    reference = (rng.binomial(4, 0.98, 40) / 4).tolist()
    artifact = (rng.binomial(4, 0.2, 40) / 4).tolist()
    got = judge(reference, artifact, RULE, 1)
    assert got.admitted
    assert got == judge(reference, artifact, RULE, 1)
    assert not judge(reference, reference, RULE, 1).admitted
    # 0.5 against 0.1 everywhere: the gap is large, the reference is not good enough.
    assert "reference" in judge([0.5] * 40, [0.1] * 40, RULE, 1).reason


def test_seeds_are_the_keyed_hash_they_say() -> None:
    seeds = admission_seeds("secret", "probe", 3, 5)
    message = b'["probe",3,0]'
    digest = hmac.new(b"secret", message, hashlib.sha256).digest()
    assert seeds[0] == int.from_bytes(digest[:8], "big") >> 1
    assert len(set(seeds)) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert admission_seeds("secret", "probe", 3, 500)[:5] == seeds


def test_seeds_differ_by_secret_probe_and_attempt() -> None:
    every = [
        tuple(admission_seeds(secret, probe, attempt, 40))
        for secret in ("a", "b")
        for probe in ("p", "q")
        for attempt in (1, 2, 11)
    ]
    assert len({seed for seeds in every for seed in seeds}) == 40 * 12


@pytest.mark.parametrize(
    "call",
    [
        lambda: Criterion(tau0=1.0),
        lambda: Criterion(tau=-0.1),
        lambda: AdmissionRule(n=0),
        lambda: AdmissionRule(alpha=0.5),
        lambda: judge([1.0], [0.0], AdmissionRule(n=1), 0),
        lambda: admission_seeds("s", "p", 0, 1),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        call()


def test_screening_uses_the_estimates() -> None:
    assert Criterion().looks_met(0.8, 0.3)
    assert not Criterion().looks_met(0.79, 0.9)
    assert not Criterion().looks_met(1.0, 0.29)
