"""What isolation promises: tiers, limits, and what can become of a candidate.

The errors here say something about the *candidate*; they are deliberately outside the
:class:`~galoop.errors.GaloopError` tree, because they are results (state ``failed``), not faults
of galoop. Faults of galoop's own machinery are :class:`~galoop.errors.IsolationError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MEBIBYTE = 2**20

#: The longest reply that the trusted side reads from a candidate, in bytes.
MAX_REPLY_BYTES = 16 * MEBIBYTE
#: How much of a candidate's printed output is kept, in bytes.
OUTPUT_TAIL_BYTES = 4096

#: Exit codes of a child that reported its error, and of one that could not.
EXIT_CRASHED, EXIT_COULD_NOT_REPORT = 1, 70


class Tier(StrEnum):
    """How candidate code is confined, strongest first."""

    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    PLAIN = "plain"


@dataclass(frozen=True)
class Limits:
    """Bounds on one candidate process.

    Attributes
    ----------
    seconds : float
        Wall-clock time of one :meth:`Child.call`, unless the call says otherwise.
    memory_mb : int
        MiB of address space on top of what the warm parent has already mapped.
    processes : int
        Processes that the candidate may start. Only 0 is supported: a candidate that could fork
        could outlive its group kill.
    output_bytes : int
        Largest file or memfd that the candidate may write, in bytes.
    """

    seconds: float = 30.0
    memory_mb: int = 2048
    processes: int = 0
    output_bytes: int = 256 * MEBIBYTE

    def __post_init__(self) -> None:
        if not self.seconds > 0 or self.memory_mb <= 0 or self.output_bytes < 0:
            raise ValueError(f"limits must be positive: {self}")
        if self.processes != 0:
            raise ValueError(f"candidates cannot start processes: processes={self.processes}")


class CandidateError(Exception):
    """The candidate did not give a usable reply.

    Parameters
    ----------
    reason : str
        What happened, in one line, without galoop's own jargon.
    output : str
        The last :data:`OUTPUT_TAIL_BYTES` that the candidate printed.
    """

    def __init__(self, reason: str, output: str = "") -> None:
        self.reason = reason
        self.output = output
        super().__init__(reason)

    def __reduce__(self) -> tuple[type[CandidateError], tuple[str, str]]:
        return type(self), (self.reason, self.output)


class CandidateTimeout(CandidateError):
    """The candidate ran over its wall-clock limit and was killed."""


class CandidateCrashed(CandidateError):
    """The candidate's process ended, or its code raised, before it replied."""


class CandidateProtocolError(CandidateError):
    """The candidate sent something that is not a reply: garbage, or too much."""
