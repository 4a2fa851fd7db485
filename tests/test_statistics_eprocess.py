"""The betting e-process: fair under the null, quick under the alternative."""

from __future__ import annotations

import math

import numpy as np
import pytest

from galoop.errors import InfrastructureError, UsageError
from galoop.evaluation.statistics import GapEProcess

TAU = 0.3


def stops(
    gap: float, second_only: float, examples: int, runs: int, seed: int, alpha: float = 0.05
) -> list[int | None]:
    """The number of examples at which each run rejects; None for never."""
    draws = np.random.default_rng(seed).random((runs, examples))
    result: list[int | None] = []
    for row in draws:
        process = GapEProcess(TAU, alpha)
        for u in row:
            if u < gap + second_only:
                process.update(1.0, 0.0)
            elif u < gap + 2 * second_only:
                process.update(0.0, 1.0)
            else:
                process.update(1.0, 1.0)
            if process.rejected:
                break
        result.append(process.n if process.rejected else None)
    return result


@pytest.mark.parametrize("second_only", [0.0, 0.1, 0.3])
def test_type_one_error_over_all_looks_is_below_alpha(second_only: float) -> None:
    runs = 600
    found = sum(stop is not None for stop in stops(TAU, second_only, 200, runs, seed=1))
    assert found / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_a_clear_gap_stops_early() -> None:
    found = stops(0.58, 0.02, 200, 300, seed=2)
    assert all(stop is not None for stop in found)
    assert 25 <= np.median([stop for stop in found if stop is not None]) <= 42


def test_the_expected_capital_is_one_under_the_null() -> None:
    # Exactly, over all sequences of six examples: two outcomes whose mean gap is tau.
    total = 0.0
    for code in range(2**6):
        process, chance = GapEProcess(TAU, 0.05), 1.0
        for bit in range(6):
            lost = bool(code >> bit & 1)
            chance *= TAU if lost else 1 - TAU
            process.update(1.0, 0.0 if lost else 1.0)
        total += chance * process.e_value
    assert total == pytest.approx(1.0, abs=1e-12)


def test_the_capital_can_be_recomputed_by_hand() -> None:
    process = GapEProcess(TAU, 0.05)
    process.update(1.0, 0.0)  # the first bet knows nothing, and stakes nothing on a prior below m
    assert process.e_value == 1.0
    mean, m = (0.5 + 1.0) / 2, 0.65
    variance = (0.25 + (1.0 - 0.75) ** 2) / 2
    bet = min((mean - m) / (variance + (mean - m) ** 2), 0.75 / m)
    process.update(1.0, 0.0)
    assert process.e_value == pytest.approx(1 + bet * (1 - m))


def test_rejection_stays() -> None:
    process = GapEProcess(TAU, 0.05)
    while not process.rejected:
        process.update(1.0, 0.0)
    for _ in range(50):
        process.update(0.0, 1.0)
    assert process.e_value < 20
    assert process.rejected


def test_bad_input_is_refused() -> None:
    with pytest.raises(UsageError):
        GapEProcess(1.0, 0.05)
    with pytest.raises(UsageError):
        GapEProcess(0.3, 0.0)
    with pytest.raises(InfrastructureError):
        GapEProcess(0.3, 0.05).update(math.nan, 0.0)
