"""The proposer's seat: one small protocol for grammars, language models, agents and people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from galoop.types import Candidate, Feedback, Kind

if TYPE_CHECKING:
    from galoop.config import ExperimentConfig

PriceSource = Literal["reported", "estimated", "unknown", "none"]


@dataclass(frozen=True)
class Seat:
    """What a proposer is created with: the search it sits in, its settings and a folder.

    An entry point of the group ``galoop.proposers`` is a callable that takes a seat and returns a
    :class:`Proposer`.

    Attributes
    ----------
    domain : str
    kind : {"probe", "artifact"}
    seed : int
        Every random choice of the proposer follows from it.
    config : ExperimentConfig
    folder : Path
        ``<run>/proposers/<stage>``, where a proposer may keep files of its own. It does not exist
        before :meth:`directory` is called.
    stage : str
        The stage of the run, for example ``round-1/discriminator``.
    """

    domain: str
    kind: Kind
    seed: int
    config: ExperimentConfig
    folder: Path
    stage: str = ""

    def directory(self) -> Path:
        """The folder, made when it is first asked for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder


@dataclass(frozen=True)
class Task:
    """What stays the same over one search: what is to be written, and for what.

    Attributes
    ----------
    kind : {"probe", "artifact"}
    domain : str
    objective, background, contract : str
        Goals, facts and rules, in words. They give no hints of attack strategies.
    length : int
        Probes: the context length in tokens to build for.
    budget : mapping
        Artifacts: the fixed budget (for example ``{"compression_ratio": 0.75}``).
    frozen : tuple of str
        Sources of the probes that are already frozen slices (a new probe should differ).
    """

    kind: Kind
    domain: str
    objective: str
    background: str
    contract: str
    length: int = 0
    budget: Mapping[str, float] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evaluated:
    """A candidate together with what the harness said of it."""

    candidate: Candidate
    feedback: Feedback


@dataclass(frozen=True)
class Request:
    """One request for one new candidate.

    Attributes
    ----------
    task : Task
    index : int
        0, 1, 2, … within the search. No two requests of a search may have the same one: what was
        proposed is recorded under it.
    parent : Evaluated or None
        What to change; None asks for a candidate from nothing (seedless).
    history : sequence of Evaluated
        Everything evaluated so far in this search, oldest first.
    rejected : tuple of str
        Why the last answers to this very request held no candidate, oldest first. A search engine
        leaves it empty: :class:`galoop.evaluation.metered.MeteredProposer` asks again and fills it.
    dollars_left : float or None
        What is left of the search's cap in dollars, for a proposer that can hold to it itself; None
        where there is no cap. Filled in like ``rejected``.
    """

    task: Task
    index: int
    parent: Evaluated | None
    history: Sequence[Evaluated]
    rejected: tuple[str, ...] = ()
    dollars_left: float | None = None


@dataclass(frozen=True)
class Cost:
    """What one proposal cost.

    Attributes
    ----------
    dollars : float or None
        None when unknown.
    input_tokens, output_tokens : int
    seconds : float
        Wall time.
    source : {"reported", "estimated", "unknown", "none"}, optional
        Where the dollars come from; left out: ``unknown`` for None, ``none`` for 0, else
        ``reported``.
    prices : str
        For an estimate: the price table and its version.
    """

    dollars: float | None = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    source: PriceSource | None = None
    prices: str = ""

    @property
    def priced_by(self) -> PriceSource:
        """The source, derived from the dollars where it is not stated."""
        if self.dollars is None:
            return "unknown"
        return self.source or ("reported" if self.dollars else "none")


@dataclass(frozen=True)
class Proposal:
    """A new candidate and what it cost to write, or why there is none.

    Attributes
    ----------
    candidate : Candidate or None
        None when the answer held none (it could not be read, was refused, never came). It costs no
        evaluation.
    cost : Cost
        Paid in either case.
    rejected : str
        Why there is no candidate; it goes into the next request.
    about : mapping
        Small JSON-compatible facts for the log (the model that answered, its finish reason, …).
    """

    candidate: Candidate | None
    cost: Cost = field(default_factory=Cost)
    rejected: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Proposer(Protocol):
    """Writes the next candidate.

    A proposer is created for one search, with a :class:`Seat`. One that keeps something running
    between proposals (a session of an agent) also has ``finish(interrupted: bool)``, which ends it,
    and ``sessions()``, a mapping of the name of every session that has ended, in whatever process,
    to the :class:`Cost` of the whole of it; a proposal names its session in ``about["session"]``.
    What a session cost beyond its proposals is entered from that.

    Attributes
    ----------
    name : str
    replayable : bool
        True: ``propose`` is a deterministic function of (seed, sequence of requests so far), costs
        nothing, and is simply asked again by a search that is resumed. False (models, agents,
        people): a resumed search takes what was recorded and asks only for what is new.
    """

    name: str
    replayable: bool

    def propose(self, request: Request) -> Proposal:
        """Return a new candidate for ``request``, or the reason why there is none.

        Raises
        ------
        StopSearch
            To end the search; what was found is kept.
        """
        ...
