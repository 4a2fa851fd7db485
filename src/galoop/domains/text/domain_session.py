"""A text domain opened for one experiment; a domain adds its model session and its artifacts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from galoop.domains.text.model_session import ModelSession, Options, System
from galoop.domains.text.probe import ProbeBuilder, ProbeResult
from galoop.errors import UsageError
from galoop.proposers.protocol import Proposer, Seat, Task
from galoop.types import Candidate, Example, Outcome

if TYPE_CHECKING:
    from galoop.config import ExperimentConfig
    from galoop.domains.protocol import Domain
    from galoop.isolation import Limits, Tier
    from galoop.models import ModelInfo

#: Tokens that the chat template, the question and the answer prefix may take of the window.
_PROMPT_RESERVE = 160


class Builder(Protocol):
    """Makes a probe's examples: a :class:`ProbeBuilder`, or what a domain makes of several."""

    @property
    def contract(self) -> str:
        """The contract in words."""

    def build(self, source: str, seeds: Sequence[int]) -> ProbeResult:
        """Examples, isolated and checked."""

    def close(self) -> None:
        """End the sandboxes."""


class TextDomainSession(ABC):
    """See :class:`galoop.domains.protocol.DomainSession`.

    Parameters
    ----------
    config : ExperimentConfig
    info : ModelInfo
    tier : Tier
        How candidate code is run.

    Attributes
    ----------
    domain : Domain
        Name, budget keys, null budget.
    versions : tuple of str
        Distributions whose versions are recorded with every figure.
    """

    domain: ClassVar[Domain]
    versions: ClassVar[tuple[str, ...]] = ("galoop", "gepa", "torch", "transformers")

    def __init__(self, config: ExperimentConfig, info: ModelInfo, tier: Tier) -> None:
        from galoop.isolation import Limits

        self._config = config
        self.info = info
        self.tier = tier
        self._limits: Limits = Limits(
            seconds=config.isolation.seconds, memory_mb=config.isolation.memory_mb
        )
        self._session = self.open_model(
            Options(
                device=config.model.device,
                threads=config.model.threads,
                decode_batch=config.evaluation.decode_batch,
                exact_margin=config.evaluation.exact_margin,
                capture_bytes=config.evaluation.capture_memory_mb * 2**20,
                tier=tier,
                limits=self._limits,
                agreement=True,
            )
        )
        self.check_start(self.start_artifact())

    # -- what a domain says -----------------------------------------------------------------

    @abstractmethod
    def open_model(self, options: Options) -> ModelSession:
        """The domain's model session; nothing heavy is loaded yet."""

    @abstractmethod
    def materialise(self, name: str, budget: Mapping[str, float]) -> Candidate:
        """The artifact of that name, expression or folder."""

    @abstractmethod
    def artifact_texts(self) -> tuple[str, str, str]:
        """Objective, background and contract for whoever writes artifacts."""

    def check_start(self, candidate: Candidate) -> None:  # noqa: B027 - nothing by default
        """Refuse, before anything runs, a start artifact that cannot work with the model."""

    @property
    def window(self) -> int:
        """Most tokens of a context, its question and its answer together."""
        return self.info.window

    # -- probes -----------------------------------------------------------------------------

    @cached_property
    def _builder(self) -> Builder:
        return self.probe_builder(self._config.discriminator.length, self.window)

    def probe_builder(self, length: int, window: int) -> ProbeBuilder:
        """A builder of probes with contexts of ``length`` tokens for a window."""
        answer = self._config.evaluation.max_new_tokens
        return ProbeBuilder(
            self.info.path,
            tier=self.tier,
            length=length,
            max_context_tokens=window - answer - min(_PROMPT_RESERVE, self.info.window // 4),
            max_new_tokens=answer,
        )

    def probe_task(self, frozen: Sequence[str]) -> Task:
        """What a proposer of probes is told."""
        from galoop.domains.text import background

        text = background.BACKGROUND
        if self._config.discriminator.exploration:
            text += "\n" + background.EXPLORATION
        return Task(
            kind="probe",
            domain=self.domain.name,
            objective=background.OBJECTIVE,
            background=text,
            contract=self._builder.contract,
            length=self._config.discriminator.length,
            frozen=tuple(frozen),
        )

    def build_probe(self, source: str, seeds: Sequence[int]) -> ProbeResult:
        """Examples of a probe, isolated and checked."""
        return self._builder.build(source, seeds)

    # -- systems ----------------------------------------------------------------------------

    @property
    def budget(self) -> dict[str, float]:
        """The experiment's budget."""
        return self._config.artifact.budget

    def artifact_task(self) -> Task:
        """What a proposer of artifacts is told."""
        objective, background, contract = self.artifact_texts()
        return Task(
            kind="artifact",
            domain=self.domain.name,
            objective=objective,
            background=background,
            contract=contract,
            budget=self.budget,
        )

    def reference(self) -> System:
        """The unapproximated model."""
        return self._session.reference()

    @cached_property
    def _start(self) -> Candidate:
        return self.materialise(self._config.artifact.start, self.budget)

    def start_artifact(self) -> Candidate:
        """A₀ as a folder."""
        return self._start

    def artifact(self, candidate: Candidate, name: str, *, trusted: bool = False) -> System:
        """An artifact under the experiment's budget, whatever its own file says.

        The start artifact is the user's own choice and may be evaluated in ways that a candidate
        may not.
        """
        own = candidate.key == self._start.key
        return self._session.artifact(candidate, self.budget, name=name, trusted=trusted or own)

    def named_artifact(self, name: str, budget: Mapping[str, float] | None = None) -> System:
        """An artifact by name, expression or folder, under a budget of its own (replays).

        ``identity`` approximates nothing and has the domain's null budget whatever is asked.
        """
        asked = {**self.budget, **(budget or {})}
        given = {**asked, **self.domain.null_budget} if name == "identity" else asked
        candidate = self.materialise(name, given)
        return self._session.artifact(candidate, given, name=name, trusted=True)

    def run(
        self, systems: Sequence[System], examples: Sequence[Example], repeat: int
    ) -> Iterator[list[tuple[System, Example, Outcome]]]:
        """Evaluate systems on examples, a chunk of examples at a time."""
        return self._session.run(systems, examples, repeat)

    # -- suites, proposers ------------------------------------------------------------------

    def suite_examples(self, suite: str, component: str, n: int, seed: int) -> list[Example]:
        """Examples of a suite's component at ``gate.length`` tokens."""
        from galoop.suites import with_data

        gate = self._config.gate
        if gate.length > self.window:
            raise UsageError(
                f"gate.length = {gate.length} exceeds the window of {self.info.name} "
                f"({self.window} tokens)",
                "lower gate.length",
            )
        built = with_data(suite, self._config.data).build(
            component, n, seed, gate.length, self._session.count_tokens
        )
        cap = gate.max_new_tokens
        examples = [replace(e, max_new_tokens=min(cap, e.max_new_tokens)) for e in built]
        for example in examples:
            self._session.tokenise(example)  # refuses what does not fit the window with its answer
        return examples

    def proposer(self, name: str, seat: Seat) -> Proposer:
        """A proposer for one search."""
        from galoop.plugins import load

        made: Proposer = load("proposers", name)(seat)
        return made

    # -- what figures depend on -------------------------------------------------------------

    def describe(self) -> Mapping[str, Any]:
        """Model, dtype, fingerprint, versions, isolation."""
        from importlib.metadata import version

        return {
            "model": self.info.name,
            "dtype": self.info.dtype,
            "fingerprint": self.info.fingerprint,
            "isolation": str(self.tier),
            "versions": {name: version(name) for name in self.versions},
        }

    @property
    def model_seconds(self) -> float:
        """Seconds spent on evaluating so far."""
        return self._session.model_seconds

    def close(self) -> None:
        """End the isolated servers."""
        if "_builder" in self.__dict__:
            self._builder.close()
        self._session.close()


def isolation_tier(config: ExperimentConfig) -> Tier:
    """The tier that candidate code will run in.

    Raises
    ------
    IsolationError
        When the experiment requires isolation and there is none, or asks for a tier that does not
        work here.
    """
    from galoop.errors import IsolationError
    from galoop.isolation import Tier, available_tiers

    wanted = config.isolation.tier
    tiers = available_tiers()
    if wanted != "auto" and Tier(wanted) not in tiers:
        raise IsolationError(
            f"isolation.tier = {wanted!r} does not work on this machine",
            "`gal doctor` says why and how to get it",
        )
    tier = tiers[0] if wanted == "auto" else Tier(wanted)
    if tier is Tier.PLAIN and config.isolation.require:
        raise IsolationError(
            "isolation is required, and neither bubblewrap nor Landlock works on this machine",
            "install bubblewrap, or run without --isolation.require; see `gal doctor`",
        )
    return tier


def resolve_model(config: ExperimentConfig, say: Callable[[str], None]) -> ModelInfo:
    """The experiment's model, fetched where it has to be."""
    from galoop.models import resolve

    return resolve(
        config.model.name, dtype=config.model.dtype, device=config.model.device, progress=say
    )
