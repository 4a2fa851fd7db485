"""The regression gate: is a new algorithm no worse than the old one, component by component?

"Not significantly worse" is no pass: a small sample is never significant. A component passes only
if a confidence bound *rules out* a loss of more than the margin delta. A mean over components is
never judged; a gain on one does not pay for a loss on another. All gating components must pass, so
that each may be tested at the full alpha (an intersection-union test needs no correction).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from galoop.errors import InfrastructureError, UsageError
from galoop.evaluation.statistics import Interval, mean_interval, paired_gap_interval

Status = Literal["pass", "fail", "inconclusive", "not gating"]


@dataclass(frozen=True)
class ComponentVerdict:
    """Old against new on one component of a suite.

    Attributes
    ----------
    component : str
    status : {"pass", "fail", "inconclusive", "not gating"}
        ``pass``: the lower bound of new - old is at least -delta. ``fail``: the estimate itself
        lies below -delta. ``inconclusive``: in between; more examples decide. ``not gating``: the
        reference fails on this component, which then says nothing about an approximation.
    reference, old, new : Interval
        Scores with two-sided 95 % intervals.
    difference : Interval
        new - old on the same examples; ``low`` and ``high`` are each a one-sided bound at alpha.
    delta : float
        The tolerated loss.
    n : int
        Examples.
    reason : str
    """

    component: str
    status: Status
    reference: Interval
    old: Interval
    new: Interval
    difference: Interval
    delta: float
    n: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the inverse of :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ComponentVerdict:
        """Rebuild a verdict that :meth:`to_json` wrote."""
        known = dict(data)
        for name in ("reference", "old", "new", "difference"):
            known[name] = Interval(**known[name])
        return cls(**known)


def judge_component(
    component: str,
    reference: Sequence[float],
    old: Sequence[float],
    new: Sequence[float],
    delta: float,
    alpha: float = 0.05,
    reference_floor: float = 0.5,
    seed: int = 0,
) -> ComponentVerdict:
    """Judge one component by the scores on its examples.

    Parameters
    ----------
    component : str
    reference, old, new : sequence of float in [0, 1]
        Scores of the unapproximated system, of the algorithm before and of the one after, on the
        same examples in the same order; repeats averaged first.
    delta : float
        The tolerated loss, in (0, 1).
    alpha : float
        Probability of passing a component whose true loss is delta or more.
    reference_floor : float
        A component gates only if the reference's mean score is at least this.
    seed : int
        Of the bootstrap, for graded scores.
    """
    if not 0.0 < delta < 1.0:
        raise UsageError(f"delta must lie strictly between 0 and 1, got {delta}")
    if not len(reference) == len(old) == len(new):
        raise InfrastructureError(
            f"component {component}: {len(reference)}, {len(old)} and {len(new)} scores of"
            " reference, old and new",
            "evaluate all three on every example",
        )
    whole = mean_interval(reference, seed=seed)
    difference = paired_gap_interval(new, old, 1.0 - 2.0 * alpha, seed)
    status, reason = _decide(whole, difference, delta, alpha, reference_floor)
    return ComponentVerdict(
        component=component,
        status=status,
        reference=whole,
        old=mean_interval(old, seed=seed),
        new=mean_interval(new, seed=seed),
        difference=difference,
        delta=delta,
        n=len(reference),
        reason=reason,
    )


def _decide(
    reference: Interval, difference: Interval, delta: float, alpha: float, floor: float
) -> tuple[Status, str]:
    figures = (
        f"change {difference.estimate:+.3f}, one-sided {1 - alpha:.0%} bounds"
        f" [{difference.low:+.3f}, {difference.high:+.3f}], margin -{delta:g}, n = {difference.n}"
    )
    if reference.estimate < floor:
        return "not gating", (
            f"the reference itself scores {reference.estimate:.3f}, below {floor:g}; {figures}"
        )
    if difference.low >= -delta:
        return "pass", f"a loss of more than {delta:g} is ruled out: {figures}"
    if difference.high < -delta:
        return "fail", f"a loss of more than {delta:g} is shown: {figures}"
    if difference.estimate < -delta:
        return "fail", f"the estimated loss exceeds {delta:g}: {figures}"
    least = examples_needed(delta, alpha)
    hint = f"; no fewer than {least} examples can pass" if difference.n < least else ""
    return "inconclusive", f"a loss of more than {delta:g} is not ruled out: {figures}{hint}"


def examples_needed(delta: float, alpha: float = 0.05) -> int:
    """The least n at which two systems that agree on every example pass the margin ``delta``.

    With no pair that differs, the lower bound of the difference is -z² / (n + z²).
    """
    from scipy.special import ndtri

    square = float(ndtri(alpha)) ** 2
    return math.ceil(square * (1.0 - delta) / delta - 1e-9)


def examples_for_power(
    old: Sequence[float], delta: float, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Examples with which an artifact that loses nothing passes with probability ``power``.

    Planned from the old artifact's scores alone, so that the test's level is not touched. The new
    scores are taken to spread as the old ones and, on the same example, to be independent of them:
    n = 2 ((z_alpha + z_power) s / delta)², the usual size of a paired non-inferiority test.

    Parameters
    ----------
    old : sequence of float in [0, 1]
        The old artifact's scores on some examples.
    delta, alpha : float
        As for :func:`judge_component`.
    power : float
        In (0, 1).
    """
    from statistics import variance

    from scipy.special import ndtri

    if len(old) < 2:
        return examples_needed(delta, alpha)
    z = float(ndtri(1.0 - alpha)) + float(ndtri(power))
    wanted = math.ceil(2.0 * variance(old) * (z / delta) ** 2 - 1e-9)
    return max(wanted, examples_needed(delta, alpha))


def gate_status(verdicts: Iterable[ComponentVerdict]) -> Literal["pass", "fail", "inconclusive"]:
    """The gate over all components: one failure fails, and one doubt leaves it open.

    With no component that gates nothing was tested: ``inconclusive``.
    """
    statuses = [verdict.status for verdict in verdicts]
    if "fail" in statuses:
        return "fail"
    if "inconclusive" in statuses or "pass" not in statuses:
        return "inconclusive"
    return "pass"
