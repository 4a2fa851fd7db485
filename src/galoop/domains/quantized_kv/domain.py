"""The domain ``quantized-kv``: fewer bits for every number of a prefilled KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from galoop.domains.quantized_kv.artifact_spec import DOMAIN
from galoop.domains.quantized_kv.artifacts import materialise
from galoop.domains.text.domain_session import TextDomainSession, isolation_tier, resolve_model
from galoop.types import Candidate

if TYPE_CHECKING:
    from galoop.config import ExperimentConfig
    from galoop.domains.quantized_kv.session import QuantizedSession
    from galoop.domains.text.model_session import Options
    from galoop.proposers.protocol import Proposer, Seat


class QuantizedKV:
    """Quantized KV caches: fewer bits for every number of the cache after the prefill."""

    name: ClassVar[str] = DOMAIN
    budget_keys: ClassVar[Mapping[str, float]] = {"bits": 2.75}
    null_budget: ClassVar[Mapping[str, float]] = {"bits": 64.0}
    defaults: ClassVar[Mapping[str, Any]] = {"artifact.start": "kivi"}

    def open(self, config: ExperimentConfig, say: Callable[[str], None]) -> QuantizedDomainSession:
        """Resolve the model, choose the isolation, and check what can be checked at once."""
        return QuantizedDomainSession(config, resolve_model(config, say), isolation_tier(config))

    def artifact_grammar(self, seat: Seat) -> Proposer:
        """The codec grammar."""
        from galoop.domains.quantized_kv.grammar import CodecGrammar

        return CodecGrammar(seat.seed)


class QuantizedDomainSession(TextDomainSession):
    """The domain opened for one experiment."""

    domain = QuantizedKV()

    def open_model(self, options: Options) -> QuantizedSession:
        """The session that encodes and decodes caches."""
        from galoop.domains.quantized_kv.session import QuantizedSession

        return QuantizedSession(self.info, options)

    def materialise(self, name: str, budget: Mapping[str, float]) -> Candidate:
        """A codec by name or folder."""
        return materialise(name, budget)

    def artifact_texts(self) -> tuple[str, str, str]:
        """Objective, background and contract for whoever writes codecs."""
        from galoop.domains.quantized_kv import background

        return background.OBJECTIVE, background.BACKGROUND, background.CONTRACT
