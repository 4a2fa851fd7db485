"""What a domain gives to the loop. A domain is a folder that can be deleted without another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from galoop.proposers.protocol import Proposer, Seat, Task
from galoop.types import Candidate, Example, Outcome, State

if TYPE_CHECKING:
    from galoop.config import ExperimentConfig


class SystemLike(Protocol):
    """What answers examples: the reference φ or an artifact A under its budget."""

    @property
    def key(self) -> str:
        """Content hash that includes model, dtype, versions and budget."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def candidate(self) -> Candidate | None:
        """None: the reference."""
        ...


class BuiltProbe(Protocol):
    """The examples of a probe, or why there are none."""

    @property
    def examples(self) -> tuple[Example, ...]: ...
    @property
    def rejected(self) -> str: ...
    @property
    def state(self) -> State: ...


class DomainSession(Protocol):
    """A domain opened for one experiment: model loaded, isolation running."""

    def probe_task(self, frozen: Sequence[str]) -> Task:
        """What a discriminator's proposer is told."""
        ...

    def artifact_task(self) -> Task:
        """What a generator's proposer is told."""
        ...

    def build_probe(self, source: str, seeds: Sequence[int]) -> BuiltProbe:
        """Run a probe isolated and check its examples."""
        ...

    def reference(self) -> Any:
        """The system φ."""
        ...

    def start_artifact(self) -> Candidate:
        """A₀, materialised as a folder."""
        ...

    def artifact(self, candidate: Candidate, name: str, *, trusted: bool = False) -> Any:
        """An artifact as a system, under the experiment's budget."""
        ...

    def named_artifact(self, name: str, budget: Mapping[str, float] | None = None) -> Any:
        """An artifact by name, expression or folder, under a budget of its own (replays)."""
        ...

    def run(
        self, systems: Sequence[Any], examples: Sequence[Example], repeat: int
    ) -> Iterator[list[tuple[Any, Example, Outcome]]]:
        """Evaluate systems on examples, a chunk of examples at a time."""
        ...

    def suite_examples(self, suite: str, component: str, n: int, seed: int) -> list[Example]:
        """Examples of a suite's component at the experiment's length."""
        ...

    def proposer(self, name: str, seat: Seat) -> Proposer:
        """A proposer for one search."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Model, dtype, fingerprint, versions, isolation: what the figures depend on."""
        ...

    @property
    def model_seconds(self) -> float:
        """Seconds spent on evaluating so far."""
        ...

    def close(self) -> None: ...


class Domain(Protocol):
    """A domain.

    Attributes
    ----------
    name : str
        The name of its entry point.
    budget_keys : mapping of str to float
        Which keys of ``[artifact]`` state its budget, each with its default.
    null_budget : mapping of str to float
        The budget under which nothing is approximated: that of the artifact ``identity``.
    defaults : mapping of dotted key to value
        Settings of the experiment file that suit the domain where the file does not say
        (``{"artifact.start": "compactor"}``).
    """

    @property
    def name(self) -> str: ...
    @property
    def budget_keys(self) -> Mapping[str, float]: ...
    @property
    def null_budget(self) -> Mapping[str, float]: ...
    @property
    def defaults(self) -> Mapping[str, Any]: ...

    def open(self, config: ExperimentConfig, say: Callable[[str], None]) -> DomainSession:
        """Load what the experiment needs; ``say`` takes lines for the reader."""
        ...

    def artifact_grammar(self, seat: Seat) -> Proposer:
        """The built-in generator's space of programs.

        Raises
        ------
        UsageError
            The domain has none.
        """
        ...
