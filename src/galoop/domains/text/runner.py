"""The confined processes of one artifact: ask, check, measure.

Whatever the artifact does here ends in an outcome with a reason, never in an exception.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from galoop.errors import IsolationError
from galoop.hashing import derive_seed
from galoop.types import Candidate, Example, Outcome, State

if TYPE_CHECKING:
    from galoop.domains.text.decoding.capture import Prefill
    from galoop.domains.text.decoding.packed import CompressedCache
    from galoop.isolation import Child

#: Why an artifact is not evaluated further when the warm parent ended twice while it ran.
_SERVER_ENDED = "the process that serves the model ended twice while this artifact ran"


class Forks(Protocol):
    """What gives a runner its processes (the session)."""

    def fork(self, files: Mapping[str, str], budget: Mapping[str, float]) -> Child: ...

    @property
    def server_alive(self) -> bool: ...


@dataclass(frozen=True)
class Work:
    """One example for one artifact.

    Attributes
    ----------
    example : Example
        The trusted side's own: nothing of it goes to a candidate but what a runner sends.
    context_ids, question_ids : list of int
    repeat : int
    captured : Prefill or None
        Where the session captures prefills.
    """

    example: Example
    context_ids: list[int]
    question_ids: list[int]
    repeat: int = 0
    captured: Prefill | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Example and repeat."""
        return self.example.key, self.repeat

    @property
    def prefill(self) -> Prefill:
        """The captured prefill, in sessions that capture."""
        assert self.captured is not None
        return self.captured


@dataclass
class Made:
    """What an artifact made of one example: a cache, or an answer, or a failure."""

    cache: CompressedCache | None = None
    tokens: list[int] | None = None
    outcome: Outcome | None = None
    measured: dict[str, float] = field(default_factory=dict)
    eager: bool = False


def bad(state: State, reason: str) -> Made:
    """A failure with its reason."""
    return Made(outcome=Outcome(state, reason=reason))


class Refused(Exception):
    """The artifact reported an error, or may not be evaluated."""

    def __init__(self, state: State, reason: str) -> None:
        self.state = state
        super().__init__(reason)


def checked(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply without an error.

    Raises
    ------
    Refused
        With the error that it reports.
    """
    if "error" in reply:
        state = State.INVALID if reply.get("state") == "invalid" else State.FAILED
        raise Refused(state, str(reply["error"])[:600])
    return reply


class Runner(ABC):
    """The confined processes of one artifact during one call of ``ModelSession.run``.

    A domain says what is asked of them (:meth:`load`, :meth:`ask`). Processes are kept between
    examples and ended where anything went wrong in them.

    Parameters
    ----------
    forks : Forks
    candidate : Candidate
    budget : mapping
    trusted : bool
        Whether the code is an installed package's and not a candidate's.
    """

    def __init__(
        self,
        forks: Forks,
        candidate: Candidate,
        budget: Mapping[str, float],
        *,
        trusted: bool = False,
    ) -> None:
        self._forks = forks
        self._candidate = candidate
        self.budget = dict(budget)
        self.trusted = trusted
        self._idle: deque[tuple[Child, dict[str, Any]]] = deque()
        self._failed: Made | None = None
        self._proof: dict[tuple[str, int], Made] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        for child, _ in self._idle:
            child.close()

    # -- what a domain says -----------------------------------------------------------------

    def load(self, child: Child) -> dict[str, Any]:
        """First words with a new process; what comes back is handed to every :meth:`ask`.

        Raises
        ------
        Refused
            The artifact cannot be evaluated.
        """
        return checked(child.call({"op": "load"}))

    @abstractmethod
    def ask(self, child: Child, spec: Mapping[str, Any], work: Work, seed: int) -> Made:
        """Let the artifact work on one example and check what it made.

        Raises
        ------
        Refused
        CandidateError
            Of :mod:`galoop.isolation`: it crashed or ran over its limits.
        """

    # -- processes --------------------------------------------------------------------------

    def prove(self, work: Work) -> None:
        """Make the first example of the call alone; a failure here ends the artifact."""
        if not self._proof:
            made = self.make(work)
            self._proof[work.key] = made
            if made.outcome is not None:
                self._failed = made

    def make(self, work: Work) -> Made:
        """Let the artifact work on one example; never raises for what the artifact does."""
        from galoop.isolation import CandidateError

        if self._failed is not None:
            return self._failed
        if work.key in self._proof:
            return self._proof[work.key]
        for _attempt in (1, 2):
            try:
                return self._try(work)
            except CandidateError as error:
                if self._forks.server_alive:
                    return bad(State.FAILED, _reason(error))
            except IsolationError:
                pass
            # The warm parent is gone, and with it this process, whoever's fault it is.
        return bad(State.FAILED, _SERVER_ENDED)

    def _try(self, work: Work) -> Made:
        try:
            child, spec = self._idle.pop()
        except IndexError:  # two threads may see the same last one
            child, spec = None, None
        seed = derive_seed("artifact", self._candidate.key, *work.key)
        try:
            if child is None or spec is None:
                child = self._forks.fork(self._candidate.files, self.budget)
                spec = self.load(child)
            made = self.ask(child, spec, work, seed)
        except Refused as error:
            made = bad(error.state, str(error))
        except BaseException:
            if child is not None:
                child.close()
            raise
        if made.outcome is None and child is not None and spec is not None:
            self._idle.append((child, spec))
        elif child is not None:
            child.close()
        return made


def _reason(error: Any) -> str:
    tail = error.output.strip().splitlines()[-1:] if error.output else []
    return error.reason + (f" (last output: {tail[0][:200]})" if tail else "")
