"""Early stopping: a betting e-process for the paired gap, valid at every look.

A player starts with capital 1 and bets, before each example, that the gap exceeds ``tau``. If it
does not, no strategy makes the capital grow on average, so that it ever reaches ``1 / alpha`` with
probability at most ``alpha`` (Ville's inequality): one may look after every example and stop.

References
----------
Waudby-Smith and Ramdas (2024), Estimating means of bounded random variables by betting, JRSS B 86
(the bets are their aGRAPA).
"""

from __future__ import annotations

import math

from galoop.errors import InfrastructureError, UsageError

# A bet of at most this fraction of what the worst outcome could take keeps the capital positive.
_MOST = 0.75
_PRIOR_VARIANCE = 0.25


class GapEProcess:
    """Evidence that E[reference - artifact] > ``tau``, one example at a time.

    The examples must be exchangeable draws that the search did not see. With
    X = (reference - artifact + 1) / 2 in [0, 1] and m = (tau + 1) / 2, the capital is the product
    of 1 + lambda (X - m) with lambda >= 0 chosen from the past only.

    Parameters
    ----------
    tau : float
        In (-1, 1).
    alpha : float
        Probability of ever rejecting when the gap is at most ``tau``.
    """

    def __init__(self, tau: float, alpha: float) -> None:
        if not -1.0 < tau < 1.0:
            raise UsageError(f"tau must lie strictly between -1 and 1, got {tau}")
        if not 0.0 < alpha < 1.0:
            raise UsageError(f"alpha must lie strictly between 0 and 1, got {alpha}")
        self._mean_under_null = (tau + 1.0) / 2.0
        self._threshold = -math.log(alpha)
        self._log_capital = 0.0
        self._best = 0.0
        self._n = 0
        self._sum = 0.0
        self._squares = 0.0

    def update(self, reference: float, artifact: float) -> None:
        """Take the scores, in [0, 1], of the next example."""
        if not (0.0 <= reference <= 1.0 and 0.0 <= artifact <= 1.0):
            raise InfrastructureError(
                "a score lies outside [0, 1] or is not a number", "correct the scoring"
            )
        x = (reference - artifact + 1.0) / 2.0
        self._log_capital += math.log1p(self._bet() * (x - self._mean_under_null))
        self._best = max(self._best, self._log_capital)
        # Running mean and variance with one pseudo-observation at 1/2: the bet never divides by 0.
        self._n += 1
        self._sum += x
        self._squares += (x - (0.5 + self._sum) / (self._n + 1)) ** 2

    def _bet(self) -> float:
        mean = (0.5 + self._sum) / (self._n + 1)
        variance = (_PRIOR_VARIANCE + self._squares) / (self._n + 1)
        edge = mean - self._mean_under_null
        return min(max(edge / (variance + edge * edge), 0.0), _MOST / self._mean_under_null)

    @property
    def n(self) -> int:
        """Examples seen."""
        return self._n

    @property
    def e_value(self) -> float:
        """The capital now; its expectation is at most 1 when the gap is at most ``tau``."""
        return math.exp(min(self._log_capital, 700.0))

    @property
    def rejected(self) -> bool:
        """Whether the capital has ever reached 1 / alpha: the gap is above ``tau``."""
        return self._best >= self._threshold
