"""Which tiers work on this machine, found out by running something in each."""

from __future__ import annotations

import functools
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from galoop.errors import IsolationError
from galoop.isolation import bubblewrap, landlock, seccomp
from galoop.isolation.contract import CandidateError, Limits, Tier

_HELP = {
    Tier.BUBBLEWRAP: (
        "install bubblewrap (Debian, Ubuntu: `apt install bubblewrap`; Fedora: `dnf install "
        "bubblewrap`); unprivileged user namespaces must be allowed"
    ),
    Tier.LANDLOCK: "needs Linux 5.13 or later with `landlock` among the boot option `lsm=`",
    Tier.PLAIN: "",
}


@dataclass(frozen=True)
class TierReport:
    """What ``gal doctor`` says about one tier.

    Attributes
    ----------
    tier : Tier
    works : bool
    detail : str
        What the sandbox and a candidate in it did to confine themselves, or why it does not work.
    fix : str
        How to get it, when it does not work.
    """

    tier: Tier
    works: bool
    detail: str
    fix: str = ""


def _try(tier: Tier) -> TierReport:
    """Run the self-check in a tier and judge what it could do."""
    from galoop.isolation.forkserver import ForkServer

    with tempfile.TemporaryDirectory() as folder:
        outside = Path(folder, "outside")
        outside.write_text("untouched")
        try:
            with (
                ForkServer(
                    "galoop.isolation.selfcheck:warm", {}, tier=tier, name="self-check"
                ) as server,
                server.fork("galoop.isolation.selfcheck:serve", {}, Limits()) as child,
            ):
                could = child.call({"outside": str(outside)})
                detail = ", ".join((*server.taken, *child.taken))
        except (IsolationError, CandidateError) as error:
            return TierReport(tier, False, str(error), _HELP[tier])
        if outside.read_text() != "untouched":
            could["write"] = True
    allowed = [action for action in ("read", "write", "socket") if could.get(action) is not False]
    if tier is not Tier.PLAIN and allowed:
        return TierReport(tier, False, f"a candidate could {', '.join(allowed)}", _HELP[tier])
    return TierReport(tier, True, detail)


@functools.cache
def report(tier: Tier) -> TierReport:
    """Whether a tier works, tried once per process."""
    missing = ""
    if sys.platform != "linux" and tier is not Tier.PLAIN:
        missing = f"not on {sys.platform}"
    elif tier is Tier.BUBBLEWRAP and bubblewrap.working_base()[0] is None:
        missing = bubblewrap.working_base()[1]
    elif tier is Tier.LANDLOCK and landlock.abi() < 1:
        missing = "the kernel has no Landlock, or it is not switched on"
    elif tier is Tier.LANDLOCK and not seccomp.supported():
        # Landlock alone leaves sockets other than TCP open.
        missing = "no seccomp filter for this architecture"
    if missing:
        return TierReport(tier, False, missing, _HELP[tier])
    if tier is Tier.PLAIN:
        rest = (
            "writing, network and processes are refused" if seccomp.supported() else "limits only"
        )
        return TierReport(tier, True, f"no sandbox, every file can be read; {rest}")
    return _try(tier)


def reports() -> list[TierReport]:
    """All tiers, strongest first."""
    return [report(tier) for tier in Tier]


def available_tiers() -> list[Tier]:
    """The tiers that work on this machine, strongest first; ``plain`` always does."""
    return [tier for tier in Tier if report(tier).works]


def detect() -> Tier:
    """The strongest tier that works; weaker ones are then not even tried."""
    return next(tier for tier in Tier if report(tier).works)
