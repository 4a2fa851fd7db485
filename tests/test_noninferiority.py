"""The gate: what passes is ruled out to be worse; what is merely not significant does not pass."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom, norm

from galoop.errors import InfrastructureError, NothingEvaluatedError, UsageError
from galoop.evaluation.noninferiority import (
    ComponentVerdict,
    examples_needed,
    gate_status,
    judge_component,
)
from galoop.evaluation.statistics import tango_statistic


def verdict(lost: int, won: int, same: int, delta: float = 0.1) -> ComponentVerdict:
    old = [1.0] * lost + [0.0] * won + [1.0] * same
    new = [0.0] * lost + [1.0] * won + [1.0] * same
    return judge_component("niah", [1.0] * len(old), old, new, delta)


def test_a_small_sample_without_a_difference_is_no_pass() -> None:
    few = verdict(0, 0, 10)
    assert few.status == "inconclusive"
    assert "no fewer than 25 examples can pass" in few.reason
    # Nothing here is "significant" either: that is exactly what must not count.
    assert few.difference.estimate == 0.0


@pytest.mark.parametrize(("delta", "alpha"), [(0.1, 0.05), (0.05, 0.05), (0.2, 0.01), (0.03, 0.1)])
def test_the_least_number_of_examples(delta: float, alpha: float) -> None:
    n = examples_needed(delta, alpha)
    for size, expected in ((n, "pass"), (n - 1, "inconclusive")):
        same = [1.0] * size
        assert judge_component("c", same, same, same, delta, alpha).status == expected


def test_the_four_verdicts() -> None:
    assert verdict(0, 0, 40).status == "pass"
    assert verdict(4, 4, 32).status == "inconclusive"
    likely = verdict(6, 1, 33)
    assert likely.status == "fail"
    assert "estimated loss exceeds" in likely.reason
    shown = verdict(20, 0, 20)
    assert shown.status == "fail"
    assert "is shown" in shown.reason
    assert shown.difference.high < -0.1
    old, new = [1.0] * 4 + [0.0] * 36, [0.0] * 40
    floor = judge_component("cwe", [1.0] * 19 + [0.0] * 21, old, new, 0.05)
    assert floor.status == "not gating"
    assert "the reference itself scores 0.475" in floor.reason
    assert floor.old.estimate == pytest.approx(0.1)  # shown all the same
    assert judge_component("cwe", [1.0] * 20 + [0.0] * 20, old, new, 0.05).status == "fail"


def test_the_decision_is_the_score_test_at_minus_delta() -> None:
    z = float(norm.isf(0.05))
    for lost in range(0, 9):
        for won in range(0, 9):
            got = verdict(lost, won, 40 - lost - won)
            rejects = tango_statistic(won, lost, 40, -0.1) >= z
            assert (got.status == "pass") == rejects, (lost, won)


@pytest.mark.parametrize("won", [0.0, 0.05, 0.2])
def test_a_loss_of_delta_passes_at_about_alpha(won: float) -> None:
    # Exactly, over all samples of 60; Tango exceeds its nominal 5 % by up to a third.
    n, delta, total = 60, 0.1, 0.0
    p_lost = delta + won
    for lost in range(n + 1):
        chance = binom.pmf(lost, n, p_lost)
        if chance < 1e-12:
            continue
        for gained in range(n - lost + 1):
            inner = binom.pmf(gained, n - lost, won / (1 - p_lost))
            if inner > 1e-12 and tango_statistic(gained, lost, n, -delta) >= norm.isf(0.05):
                total += chance * inner
    assert total <= 0.067


def test_an_equal_algorithm_fails_rarely_and_passes_with_enough_examples() -> None:
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(60):
        old = (rng.random(300) < 0.9).astype(float)
        flip = rng.random(300) < 0.04  # a few answers change, either way
        new = np.where(flip, (rng.random(300) < 0.9).astype(float), old)
        seen.append(judge_component("vt", [1.0] * 300, old.tolist(), new.tolist(), 0.05).status)
    assert seen.count("fail") == 0
    assert seen.count("pass") >= 55


def test_graded_components() -> None:
    rng = np.random.default_rng(3)
    old = rng.choice([0.6, 0.8, 1.0], 100)
    better = np.minimum(1.0, old + 0.2)
    reference = [1.0] * 100
    assert judge_component("cwe", reference, old.tolist(), better.tolist(), 0.05).status == "pass"
    worse = old - 0.2
    assert judge_component("cwe", reference, old.tolist(), worse.tolist(), 0.05).status == "fail"
    # A constant gain would have a bootstrap interval without width.
    few = judge_component("cwe", [1.0] * 8, [0.6] * 8, [0.6] * 8, 0.05)
    assert few.status == "inconclusive"


def test_the_gate_wants_every_component() -> None:
    passed, unsure, failed = verdict(0, 0, 40), verdict(4, 4, 32), verdict(20, 0, 20)
    zeros = [0.0] * 40
    shown = judge_component("fwe", zeros, zeros, zeros, 0.1)
    assert gate_status([passed, shown, passed]) == "pass"
    assert gate_status([passed, unsure]) == "inconclusive"
    assert gate_status([passed, unsure, failed]) == "fail"
    assert gate_status([shown]) == "inconclusive"
    assert gate_status([]) == "inconclusive"


def test_the_verdict_survives_json() -> None:
    got = verdict(3, 1, 36)
    assert ComponentVerdict.from_json(json.loads(json.dumps(got.to_json()))) == got
    assert got.n == 40
    assert got.difference.confidence == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: judge_component("c", [1.0], [1.0], [1.0], 0.0), UsageError),
        (lambda: judge_component("c", [1.0], [1.0], [1.0], 1.0), UsageError),
        (lambda: judge_component("c", [1.0], [1.0], [1.0], 0.1, alpha=0.0), UsageError),
        (lambda: judge_component("c", [1.0], [1.0, 1.0], [1.0], 0.1), InfrastructureError),
        (lambda: judge_component("c", [], [], [], 0.1), NothingEvaluatedError),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
