"""The domain ``kv-compression``: kvpress's compression of a prefilled KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from galoop.domains.kv_compression.artifact_spec import DOMAIN
from galoop.domains.kv_compression.artifacts import check_model, materialise
from galoop.domains.text.domain_session import TextDomainSession, isolation_tier, resolve_model
from galoop.types import Candidate

if TYPE_CHECKING:
    from galoop.config import ExperimentConfig
    from galoop.domains.kv_compression.session import Session
    from galoop.domains.text.model_session import Options
    from galoop.proposers.protocol import Proposer, Seat


class KVCompression:
    """KV-cache compression on kvpress: fewer cache entries after the prefill."""

    name: ClassVar[str] = DOMAIN
    budget_keys: ClassVar[Mapping[str, float]] = {"compression_ratio": 0.75}
    null_budget: ClassVar[Mapping[str, float]] = {"compression_ratio": 0.0}
    defaults: ClassVar[Mapping[str, Any]] = {"artifact.start": "compactor"}

    def open(self, config: ExperimentConfig, say: Callable[[str], None]) -> KVSession:
        """Resolve the model, choose the isolation, and check what can be checked at once."""
        return KVSession(config, resolve_model(config, say), isolation_tier(config))

    def artifact_grammar(self, seat: Seat) -> Proposer:
        """The press grammar."""
        from galoop.domains.kv_compression.grammar import PressGrammar

        return PressGrammar(seat.seed)


class KVSession(TextDomainSession):
    """The domain opened for one experiment."""

    domain = KVCompression()
    versions = ("galoop", "gepa", "kvpress", "torch", "transformers")

    def open_model(self, options: Options) -> Session:
        """The session that replays presses."""
        from galoop.domains.kv_compression.session import Session

        return Session(self.info, options)

    def materialise(self, name: str, budget: Mapping[str, float]) -> Candidate:
        """A press by name, expression or folder."""
        return materialise(name, budget)

    def check_start(self, candidate: Candidate) -> None:
        """Trained parts of a press have to exist for the model."""
        check_model(candidate.files, str(self.info.path))

    def artifact_texts(self) -> tuple[str, str, str]:
        """Objective, background and contract for whoever writes presses."""
        from galoop.domains.kv_compression import background

        return background.OBJECTIVE, background.BACKGROUND, background.CONTRACT
