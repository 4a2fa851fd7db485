"""Candidate code in child processes with bounds: a fork server in a sandbox.

The trusted process starts a :class:`ForkServer`; it loads once and forks a confined
:class:`Child` per candidate. See :mod:`galoop.isolation.forkserver` for the trusted side,
:mod:`galoop.isolation.server` and :mod:`galoop.isolation.confine` for the inside.
"""

from galoop.isolation.child import Child
from galoop.isolation.contract import (
    CandidateCrashed,
    CandidateError,
    CandidateProtocolError,
    CandidateTimeout,
    Limits,
    Tier,
)
from galoop.isolation.forkserver import ForkServer
from galoop.isolation.memory import map_input, memfd_from_bytes, new_output_memfd, read_output
from galoop.isolation.tiers import TierReport, available_tiers, detect, reports

__all__ = [
    "CandidateCrashed",
    "CandidateError",
    "CandidateProtocolError",
    "CandidateTimeout",
    "Child",
    "ForkServer",
    "Limits",
    "Tier",
    "TierReport",
    "available_tiers",
    "detect",
    "map_input",
    "memfd_from_bytes",
    "new_output_memfd",
    "read_output",
    "reports",
]
