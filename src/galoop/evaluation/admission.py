"""Admission: whether a probe that a search found may become a slice.

The search keeps the best of many candidates, and the best of many looks better than it is. So a
candidate is judged on fresh examples, once, with a fixed number of them, and with confidence
bounds instead of estimates.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from galoop.errors import InfrastructureError, UsageError
from galoop.evaluation.statistics import (
    Interval,
    alpha_at_attempt,
    mean_interval,
    mean_lower_bound,
    paired_gap_interval,
    paired_gap_lower_bound,
)
from galoop.hashing import canonical_json


@dataclass(frozen=True)
class Criterion:
    """What a slice must show (the paper's τ₀ and τ).

    Attributes
    ----------
    tau0 : float
        Least score of the reference.
    tau : float
        Least gap, reference minus artifact on the same examples.
    """

    tau0: float = 0.8
    tau: float = 0.3

    def __post_init__(self) -> None:
        for name, value in (("tau0", self.tau0), ("tau", self.tau)):
            if not 0.0 <= value < 1.0:
                raise UsageError(f"criterion {name} must lie in [0, 1), got {value}")

    def looks_met(self, reference: float, gap: float, margin: float = 0.0) -> bool:
        """Whether point estimates pass the criterion by ``margin``, or are perfect.

        Fit for screening, not for admission.
        """
        return reference >= min(1.0, self.tau0 + margin) and gap >= min(1.0, self.tau + margin)


@dataclass(frozen=True)
class AdmissionRule:
    """The test that is fixed before the fresh examples are seen.

    Attributes
    ----------
    criterion : Criterion
    n : int
        Fresh examples an attempt. For a power of about 80 % at ``tau`` = 0.3: 40 if the true gap
        is 0.58, 60 if it is 0.50, 240 if it is 0.40. Below 16 examples nothing passes
        ``tau0`` = 0.8 at the first attempt, however good.
    alpha : float
        Probability of admitting, over all attempts of a run together, any probe whose true gap is
        below ``tau`` (or whose true reference score is below ``tau0``).
    """

    criterion: Criterion = Criterion()
    n: int = 40
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"admission needs at least 1 example, got n = {self.n}")
        if not 0.0 < self.alpha < 0.5:
            raise UsageError(f"admission alpha must lie in (0, 0.5), got {self.alpha}")


@dataclass(frozen=True)
class AdmissionVerdict:
    """What the fresh examples said.

    Attributes
    ----------
    admitted : bool
    reason : str
        One sentence with the figures that decided.
    reference, artifact, gap : Interval
        Hold-out estimates with two-sided 95 % intervals: the figures to report.
    reference_lower, gap_lower : float
        The one-sided bounds that were compared with ``tau0`` and ``tau``.
    alpha_spent : float
        The part of the rule's alpha that this attempt spent.
    attempt : int
        From 1, counted over the run.
    n : int
        Examples.
    """

    admitted: bool
    reason: str
    reference: Interval
    artifact: Interval
    gap: Interval
    reference_lower: float
    gap_lower: float
    alpha_spent: float
    attempt: int
    n: int

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the inverse of :meth:`from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AdmissionVerdict:
        """Rebuild a verdict that :meth:`to_json` wrote."""
        known = dict(data)
        for name in ("reference", "artifact", "gap"):
            known[name] = Interval(**known[name])
        return cls(**known)


def admission_seeds(secret: str, probe_key: str, attempt: int, n: int) -> list[int]:
    """Fresh seeds for one attempt at admitting one probe.

    A keyed hash (HMAC-SHA256) of the probe's content hash and the attempt: nobody who lacks the
    secret can write a probe that behaves well on exactly these seeds, and changing one character
    of the probe changes all of them.

    Returns
    -------
    list of int
        ``n`` different 63-bit seeds; the first k of them do not depend on ``n``.
    """
    if attempt < 1 or n < 1:
        raise UsageError(f"attempt and n count from 1, got attempt {attempt}, n {n}")
    seeds: dict[int, None] = {}
    counter = 0
    while len(seeds) < n:
        message = canonical_json([probe_key, attempt, counter]).encode("utf-8")
        digest = hmac.new(secret.encode("utf-8"), message, hashlib.sha256).digest()
        seeds[int.from_bytes(digest[:8], "big") >> 1] = None
        counter += 1
    return list(seeds)


def judge(
    reference: Sequence[float],
    artifact: Sequence[float],
    rule: AdmissionRule,
    attempt: int,
    seed: int = 0,
) -> AdmissionVerdict:
    """Judge a frozen probe by the scores on its fresh examples.

    Admitted if a lower confidence bound of the reference's score reaches ``tau0`` *and* one of the
    paired gap reaches ``tau``. Attempt k spends alpha_k = 6 alpha / (pi² k²). The reference's bound
    (Clopper-Pearson, exact) is taken at alpha_k; the gap's (Tango) at alpha_k / 2, because the
    score interval is approximate and exceeds its nominal level by up to a third at such n. Both
    must hold, so that the two levels do not add up.

    Parameters
    ----------
    reference, artifact : sequence of float in [0, 1]
        Scores on the same examples, one an example (average repeats with
        :func:`galoop.evaluation.statistics.cluster_means`). Invalid and failed examples of a probe
        have no score: leave them out, and the verdict says that the evidence is incomplete.
    rule : AdmissionRule
    attempt : int
        From 1, counted over all probes of the run.
    seed : int
        Of the bootstrap, for graded scores.

    Raises
    ------
    InfrastructureError
        If there are more examples than the rule fixed: adding some after a look voids the level.
    NothingEvaluatedError
        If there is no example.
    """
    n = len(reference)
    if n > rule.n:
        raise InfrastructureError(
            f"admission was fixed at {rule.n} examples and was given {n}",
            "judge exactly the examples of one attempt",
        )
    spent = alpha_at_attempt(rule.alpha, attempt)
    mean = mean_interval(reference, seed=seed)
    gap = paired_gap_interval(reference, artifact, seed=seed)
    reference_lower = min(mean.estimate, mean_lower_bound(reference, spent, seed))
    gap_lower = min(gap.estimate, paired_gap_lower_bound(reference, artifact, spent / 2.0, seed))
    faults = []
    if n < rule.n:
        faults.append(f"only {n} of the {rule.n} fresh examples could be scored")
    if not reference_lower >= rule.criterion.tau0:
        faults.append(
            _below("the reference's score", mean.estimate, reference_lower, rule.criterion.tau0)
        )
    if not gap_lower >= rule.criterion.tau:
        faults.append(_below("the gap", gap.estimate, gap_lower, rule.criterion.tau))
    passed = (
        f"on {n} fresh examples the reference scores {mean.estimate:.3f}"
        f" (lower bound {reference_lower:.3f} >= {rule.criterion.tau0:g}) and the gap is"
        f" {gap.estimate:.3f} (lower bound {gap_lower:.3f} >= {rule.criterion.tau:g})"
    )
    return AdmissionVerdict(
        admitted=not faults,
        reason="; ".join(faults) if faults else passed,
        reference=mean,
        artifact=mean_interval(artifact, seed=seed),
        gap=gap,
        reference_lower=reference_lower,
        gap_lower=gap_lower,
        alpha_spent=spent,
        attempt=attempt,
        n=n,
    )


def _below(what: str, estimate: float, lower: float, least: float) -> str:
    return f"{what} is {estimate:.3f} with lower bound {lower:.3f}, below {least:g}"
