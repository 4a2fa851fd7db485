"""The domain ``context-extension``: the model within its window, and stretched beyond it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from galoop.domains.context_extension.artifact_spec import DOMAIN
from galoop.domains.context_extension.artifacts import materialise
from galoop.domains.context_extension.twins import TwinBuilder, twin
from galoop.domains.text.domain_session import TextDomainSession, isolation_tier, resolve_model
from galoop.errors import UsageError
from galoop.types import Candidate, Example

if TYPE_CHECKING:
    from galoop.config import ExperimentConfig
    from galoop.domains.context_extension.session import Session
    from galoop.domains.text.model_session import Options
    from galoop.proposers.protocol import Proposer, Seat


class ContextExtension:
    """Context extension: positions laid out so that a model reads beyond its native window."""

    name: ClassVar[str] = DOMAIN
    budget_keys: ClassVar[Mapping[str, float]] = {"extension": 4.0}
    null_budget: ClassVar[Mapping[str, float]] = {"extension": 1.0}
    defaults: ClassVar[Mapping[str, Any]] = {
        "artifact.start": "dca",
        "model.name": "fast",
        "discriminator.length": 150,
        "gate.length": 150,
        "evaluation.max_new_tokens": 10,
    }

    def open(self, config: ExperimentConfig, say: Callable[[str], None]) -> ExtensionSession:
        """Resolve the model, choose the isolation, and check what can be checked at once."""
        return ExtensionSession(config, resolve_model(config, say), isolation_tier(config))

    def artifact_grammar(self, seat: Seat) -> Proposer:
        """The plan grammar."""
        from galoop.domains.context_extension.grammar import PlanGrammar

        return PlanGrammar(seat.seed)


class ExtensionSession(TextDomainSession):
    """The domain opened for one experiment. All lengths of the experiment file are native ones."""

    domain = ContextExtension()
    _session: Session

    def open_model(self, options: Options) -> Session:
        """The session that computes attention under plans."""
        from galoop.domains.context_extension.session import Session

        return Session(self.info, options)

    def materialise(self, name: str, budget: Mapping[str, float]) -> Candidate:
        """A plan by name or folder."""
        return materialise(name, budget)

    def artifact_texts(self) -> tuple[str, str, str]:
        """Objective, background and contract for whoever writes plans."""
        from galoop.domains.context_extension import background

        return background.OBJECTIVE, background.BACKGROUND, background.CONTRACT

    @property
    def extension(self) -> float:
        """How many native windows the experiment's artifacts have to reach."""
        return self.budget["extension"]

    @property
    def window(self) -> int:
        """The stretched window."""
        return int(self.extension * self.info.window)

    # -- probes -----------------------------------------------------------------------------

    @cached_property
    def _builder(self) -> TwinBuilder:
        length = self._config.discriminator.length
        return TwinBuilder(
            self.probe_builder(length, self.info.window),
            self.probe_builder(int(self.extension * length), self.window),
        )

    # -- suites -----------------------------------------------------------------------------

    def suite_examples(self, suite: str, component: str, n: int, seed: int) -> list[Example]:
        """A component at ``gate.length`` tokens and at that times the extension, as twins."""
        gate = self._config.gate
        if gate.length > self.info.window:
            raise UsageError(
                f"gate.length = {gate.length} exceeds the window of {self.info.name} "
                f"({self.info.window} tokens)",
                "lower gate.length: it is the native length, and is extended",
            )
        natives = self._suite_at(gate.length, suite, component, n, seed)
        for example in natives:
            self._session.tokenise_native(example)  # refuses what does not fit with its answer
        fars = self._suite_at(int(self.extension * gate.length), suite, component, n, seed)
        # A suite with a fixed stock may have more of one length than of the other.
        return [twin(far, native) for far, native in zip(fars, natives, strict=False)]

    def _suite_at(
        self, length: int, suite: str, component: str, n: int, seed: int
    ) -> list[Example]:
        """What any text domain's gate asks, at another length."""
        other = copy.copy(self)
        gate = self._config.gate.model_copy(update={"length": length})
        other._config = self._config.model_copy(update={"gate": gate})
        return super(ExtensionSession, other).suite_examples(suite, component, n, seed)
