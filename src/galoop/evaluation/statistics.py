"""Intervals and tests for paired scores in [0, 1]: small samples, honest at the edges.

Binary scores (0 or 1) use closed forms and score intervals; graded scores (fractions, or the means
over the repeats of a stochastic system) use the bootstrap over examples. The unit of sampling is
always the *example*: repeats of one example are first averaged with :func:`cluster_means`, because
they share the example and are not independent evidence.

All functions are pure; those that resample take a seed.

References
----------
Wilson (1927), JASA 22; Clopper and Pearson (1934), Biometrika 26; McNemar (1947), Psychometrika 12;
Tango (1998), Statistics in Medicine 17, 891-908; Efron (1987), JASA 82 (BCa bootstrap).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from galoop.errors import InfrastructureError, NothingEvaluatedError, UsageError
from galoop.evaluation.eprocess import GapEProcess

__all__ = [
    "GapEProcess",
    "Interval",
    "alpha_at_attempt",
    "cluster_means",
    "mcnemar_p",
    "mean_interval",
    "mean_lower_bound",
    "paired_gap_interval",
    "paired_gap_lower_bound",
    "proportion_interval",
    "proportion_lower_bound",
    "tango_bounds",
    "tango_statistic",
]

_RESAMPLES = 9_999
_MAX_RESAMPLES = 100_000
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    Attributes
    ----------
    estimate, low, high : float
        ``low <= estimate <= high``.
    n : int
        Number of examples (not of repeats).
    confidence : float
        Two-sided coverage; each side leaves out ``(1 - confidence) / 2``.
    method : str
        Name of the method, for reports.
    """

    estimate: float
    low: float
    high: float
    n: int
    confidence: float
    method: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the inverse of ``Interval(**data)``."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.estimate:.2f} [{self.low:.2f}, {self.high:.2f}] (n={self.n})"


def proportion_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion.

    Parameters
    ----------
    successes, n : int
    confidence : float
        Two-sided.

    Returns
    -------
    Interval

    Raises
    ------
    NothingEvaluatedError
        If ``n`` is 0.
    """
    _check_count(successes, n)
    z = _z(_tail(confidence))
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At the edges the closed form is exact only up to rounding.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(p, low, high, n, confidence, "Wilson")


def proportion_lower_bound(successes: int, n: int, alpha: float) -> float:
    """Clopper and Pearson's exact one-sided lower bound of a proportion.

    The bound exceeds the true proportion with probability at most ``alpha``, whatever it is.
    """
    from scipy.stats import beta

    _check_count(successes, n)
    _check_alpha(alpha)
    return 0.0 if successes == 0 else float(beta.ppf(alpha, successes, n - successes + 1))


def mean_interval(scores: Sequence[float], confidence: float = 0.95, seed: int = 0) -> Interval:
    """Interval of the mean of scores in [0, 1], one score an example.

    Wilson's where every score is 0 or 1; else the bootstrap, widened as
    :func:`paired_gap_interval` says, so that a constant sample has no interval of zero width.
    """
    values = _scores(scores)
    if _is_binary(values):
        return proportion_interval(round(float(values.sum())), len(values), confidence)
    low, high = _graded_bounds(values, _tail(confidence), seed, floor=0.0)
    return Interval(_mean(values), low, high, len(values), confidence, "bootstrap (BCa), widened")


def mean_lower_bound(scores: Sequence[float], alpha: float, seed: int = 0) -> float:
    """One-sided lower bound of a mean: Clopper-Pearson for 0/1 scores, else the bootstrap."""
    values = _scores(scores)
    if _is_binary(values):
        return proportion_lower_bound(round(float(values.sum())), len(values), alpha)
    _check_alpha(alpha)
    return _graded_bounds(values, alpha, seed, floor=0.0)[0]


def paired_gap_interval(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Interval of mean(first) - mean(second), scored on the same examples.

    For 0/1 scores Tango's score interval. For graded scores the BCa bootstrap over examples,
    widened to the Student interval and to a half-width of z²/(n + z²): what Tango's interval
    gives when no pair differs, and Wilson's when all scores are 1. The bootstrap knows only the
    values that it saw, and would otherwise call a constant sample certain.

    Parameters
    ----------
    first, second : sequence of float in [0, 1]
        One score an example, in the same order.
    confidence : float
        Two-sided.
    seed : int
        Of the bootstrap.

    Returns
    -------
    Interval
    """
    a, b = _pairs(first, second)
    tail = _tail(confidence)
    if _is_binary(a) and _is_binary(b):
        lost, won = _discordant(a, b)
        low, high = tango_bounds(lost, won, len(a), tail)
        return Interval((lost - won) / len(a), low, high, len(a), confidence, "Tango")
    low, high = _graded_bounds(a - b, tail, seed, floor=-1.0)
    return Interval(_mean(a - b), low, high, len(a), confidence, "paired bootstrap (BCa), widened")


def paired_gap_lower_bound(
    first: Sequence[float], second: Sequence[float], alpha: float, seed: int = 0
) -> float:
    """One-sided lower bound of mean(first) - mean(second); see :func:`paired_gap_interval`."""
    _check_alpha(alpha)
    return paired_gap_interval(first, second, 1 - 2 * alpha, seed).low


def tango_statistic(b: int, c: int, n: int, gap: float) -> float:
    """Tango's score statistic of the hypothesis p(1, 0) - p(0, 1) = ``gap``.

    Parameters
    ----------
    b, c : int
        Pairs (1, 0) and pairs (0, 1).
    n : int
        All pairs.
    gap : float
        In (-1, 1).

    Returns
    -------
    float
        Asymptotically standard normal under the hypothesis; decreasing in ``gap``.
    """
    # The restricted maximum-likelihood estimate of p(0, 1), the larger root of
    # A q² + B q + C = 0, written without the cancellation of B against the root.
    big_a = 2.0 * n
    big_b = -b - c + (2.0 * n - b + c) * gap
    big_c = -c * gap * (1.0 - gap)
    root = math.sqrt(max(0.0, big_b * big_b - 4.0 * big_a * big_c))
    if big_b <= 0.0:
        q = (root - big_b) / (2.0 * big_a)
    else:
        q = -2.0 * big_c / (root + big_b)
    q = max(q, 0.0, -gap)
    variance = n * (2.0 * q + gap * (1.0 - gap))
    difference = b - c - n * gap
    if variance <= 0.0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / math.sqrt(variance)


def tango_bounds(b: int, c: int, n: int, tail: float) -> tuple[float, float]:
    """Tango's score bounds of p(1, 0) - p(0, 1), leaving out ``tail`` on each side."""
    from scipy.optimize import brentq

    if n <= 0:
        raise _nothing()
    _check_alpha(tail)
    z = _z(tail)
    estimate = (b - c) / n
    if b == c == 0:
        reach = z * z / (n + z * z)
        return -reach, reach

    def bound(sign: float) -> float:
        # T falls from +inf at gap = -1 to -inf at +1, and is 0 at the estimate.
        edge = sign * (1.0 - 1e-15)
        if sign * (estimate - edge) >= 0.0 or sign * tango_statistic(b, c, n, edge) > -z:
            return sign
        low, high = sorted((edge, estimate))
        return float(
            brentq(lambda gap: sign * tango_statistic(b, c, n, gap) + z, low, high, xtol=1e-12)
        )

    return bound(-1.0), bound(1.0)


def mcnemar_p(old: Sequence[float], new: Sequence[float], seed: int = 0) -> float:
    """One-sided p-value of "new is no better than old" on the same examples.

    For 0/1 scores McNemar's exact test: of the pairs that differ, how many did ``new`` win. For
    graded scores the sign-flip permutation test of the mean difference, of which McNemar's exact
    test is the binary case.

    Returns
    -------
    float
        1.0 where no pair differs.
    """
    from scipy.stats import binomtest, permutation_test

    before, after = _pairs(old, new)
    if _is_binary(before) and _is_binary(after):
        won, lost = _discordant(after, before)
        if won + lost == 0:
            return 1.0
        return float(binomtest(won, won + lost, alternative="greater").pvalue)
    differences = after - before
    differences = differences[np.abs(differences) > 1e-12]
    if differences.size == 0:
        return 1.0
    if differences.size == 1:  # SciPy wants two; the test then has the values 1/2 and 1
        return 0.5 if differences[0] > 0 else 1.0
    result = permutation_test(
        (differences,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=_RESAMPLES,
        random_state=np.random.default_rng(seed),
    )
    return min(1.0, float(result.pvalue))


def alpha_at_attempt(alpha: float, k: int) -> float:
    """The part of ``alpha`` that the k-th attempt (from 1) may spend: 6 alpha / (pi² k²).

    Over endlessly many attempts the parts add up to ``alpha``.
    """
    _check_alpha(alpha)
    if k < 1:
        raise UsageError(f"attempts count from 1, got {k}")
    return 6.0 * alpha / (math.pi * math.pi * k * k)


def cluster_means(scores: Sequence[Sequence[float]]) -> list[float]:
    """The mean over the repeats of each example: the graded score that statistics may use."""
    if any(len(repeats) == 0 for repeats in scores):
        raise InfrastructureError("an example has no repeat", "evaluate every example first")
    return [_mean(_scores(repeats)) for repeats in scores]


def _graded_bounds(values: _Array, tail: float, seed: int, *, floor: float) -> tuple[float, float]:
    """Bounds of the mean of values in [floor, 1], leaving out ``tail`` on each side."""
    from scipy.stats import bootstrap
    from scipy.stats import t as student

    n, mean, z = len(values), _mean(values), _z(tail)
    reach = z * z / (n + z * z)
    low, high = mean - reach, mean + reach
    if n > 1 and float(np.ptp(values)) > 1e-12:
        half = float(student.isf(tail, n - 1) * values.std(ddof=1) / math.sqrt(n))
        resampled = bootstrap(
            (values,),
            np.mean,
            confidence_level=1 - 2 * tail,
            n_resamples=min(_MAX_RESAMPLES, max(_RESAMPLES, math.ceil(50 / tail))),
            method="BCa",
            batch=1000,
            random_state=np.random.default_rng(seed),
        ).confidence_interval
        low = min([low, mean - half, *_finite(resampled.low)])
        high = max([high, mean + half, *_finite(resampled.high)])
    return max(floor, low), min(1.0, high)


def _finite(value: float) -> list[float]:
    """BCa gives NaN where the jackknife is degenerate; the other bounds then stand alone."""
    return [float(value)] if math.isfinite(value) else []


def _scores(scores: Sequence[float]) -> _Array:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1:
        raise InfrastructureError(
            f"scores must be one number an example, got an array of shape {values.shape}",
            "average repeats with cluster_means first",
        )
    if values.size == 0:
        raise _nothing()
    if not bool(np.all((values >= 0.0) & (values <= 1.0))):
        raise InfrastructureError(
            "a score lies outside [0, 1] or is not a number", "correct the scoring of the suite"
        )
    return values


def _pairs(first: Sequence[float], second: Sequence[float]) -> tuple[_Array, _Array]:
    a, b = _scores(first), _scores(second)
    if len(a) != len(b):
        raise InfrastructureError(
            f"paired scores must come from the same examples, got {len(a)} and {len(b)}",
            "evaluate both systems on every example",
        )
    return a, b


def _discordant(a: _Array, b: _Array) -> tuple[int, int]:
    return int(np.sum(a > b)), int(np.sum(b > a))


def _is_binary(values: _Array) -> bool:
    return bool(np.all((values == 0.0) | (values == 1.0)))


def _mean(values: _Array) -> float:
    return math.fsum(values.tolist()) / len(values)


def _z(tail: float) -> float:
    from scipy.special import ndtri

    return float(-ndtri(tail))


def _tail(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise UsageError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    return (1.0 - confidence) / 2.0


def _check_alpha(alpha: float) -> None:
    if not 0.0 < alpha < 0.5:
        raise UsageError(f"alpha must lie strictly between 0 and 0.5, got {alpha}")


def _check_count(successes: int, n: int) -> None:
    if n <= 0:
        raise _nothing()
    if not 0 <= successes <= n:
        raise InfrastructureError(f"{successes} successes of {n} cannot be")


def _nothing() -> NothingEvaluatedError:
    return NothingEvaluatedError("no example was evaluated", "evaluate at least one example")
