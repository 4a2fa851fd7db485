"""The trusted side of a probe program: calls it isolated, and survives whatever it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from galoop.errors import IsolationError, UsageError
from galoop.probing.static import Rejection
from galoop.types import State

if TYPE_CHECKING:
    from galoop.isolation import CandidateError, ForkServer, Limits

MOST_MESSAGE = 600

R = TypeVar("R")


class IsolatedBuilder(ABC, Generic[R]):
    """Owns a fork server in which probes run; ``R`` is what becomes of a probe.

    Attributes
    ----------
    canary : str
        The source of a harmless probe.
    serve : str
        What a fork runs, as ``module:function``.
    """

    canary: ClassVar[str]
    serve: ClassVar[str]
    _server: ForkServer | None = None

    @abstractmethod
    def _started(self) -> tuple[ForkServer, Limits]:
        """The server, started where it is not, and the limits of a fork."""

    @abstractmethod
    def _refused(self, fault: Rejection, state: State) -> R:
        """What becomes of a rejected probe."""

    def close(self) -> None:
        """End the sandbox; may be called more than once."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, request: Mapping[str, Any]) -> Mapping[str, Any] | R:
        """Call a fork; survive a probe that takes the warm parent down with it."""
        try:
            return self._call_once(request)
        except IsolationError:
            self.close()
        # A fork can kill its parent. Is it the probe that does, or is it us? A harmless probe
        # tells: if that fails too, the error is ours and goes up.
        try:
            return self._call_once(request)
        except IsolationError:
            self.close()
            self._call_once({**request, "source": self.canary})
        return self._refused(
            Rejection("killed-sandbox", "the sandbox died twice while this probe ran"),
            State.FAILED,
        )

    def _call_once(self, request: Mapping[str, Any]) -> Mapping[str, Any] | R:
        from galoop.isolation import CandidateError, CandidateProtocolError

        server, limits = self._started()
        try:
            with server.fork(self.serve, {}, limits) as child:
                return child.call(request)
        except CandidateProtocolError as error:
            return self._refused(
                Rejection(
                    "forged-reply", f"the probe's process sent no valid reply: {error.reason}"
                ),
                State.INVALID,
            )
        except CandidateError as error:
            return self._refused(_unfinished(error), State.FAILED)


def distinct(seeds: Sequence[int]) -> list[int]:
    """The seeds of a call.

    Raises
    ------
    UsageError
        None, or one of them twice.
    """
    wanted = [int(seed) for seed in seeds]
    if not wanted or len(set(wanted)) < len(wanted):
        raise UsageError("a probe is built for at least one seed, all of them different")
    return wanted


def clip(text: str) -> str:
    """Text that is safe to show: some of it was written by the probe."""
    clean = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    clean = clean.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= MOST_MESSAGE else clean[: MOST_MESSAGE - 1] + "…"


def _unfinished(error: CandidateError) -> Rejection:
    from galoop.isolation import CandidateTimeout

    if isinstance(error, CandidateTimeout):
        return Rejection(
            "timeout",
            f"the probe did not finish: {error.reason}: do less work for each example, and end "
            "every loop",
        )
    return Rejection(
        "crash",
        f"the probe did not finish: {error.reason}: use less memory and plain Python alone",
    )
