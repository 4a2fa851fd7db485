"""The domain ``sparse-decoding``: a selector says which entries each row attends to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from galoop.domains.sparse_decoding.artifact_spec import DOMAIN
from galoop.domains.sparse_decoding.artifacts import materialise
from galoop.domains.text.domain_session import TextDomainSession, isolation_tier, resolve_model
from galoop.types import Candidate

if TYPE_CHECKING:
    from galoop.config import ExperimentConfig
    from galoop.domains.sparse_decoding.session import Session
    from galoop.domains.text.model_session import Options
    from galoop.proposers.protocol import Proposer, Seat


class SparseDecoding:
    """Sparse decoding: the context is read densely, question and answer attend to few entries."""

    name: ClassVar[str] = DOMAIN
    budget_keys: ClassVar[Mapping[str, float]] = {
        "density": 0.02,
        "sparse_question": True,
        "index_fraction": 2.0,
    }
    null_budget: ClassVar[Mapping[str, float]] = {"density": 1.0}
    defaults: ClassVar[Mapping[str, Any]] = {"artifact.start": "pqcache"}

    def open(self, config: ExperimentConfig, say: Callable[[str], None]) -> SparseSession:
        """Resolve the model, choose the isolation, and check what can be checked at once."""
        return SparseSession(config, resolve_model(config, say), isolation_tier(config))

    def artifact_grammar(self, seat: Seat) -> Proposer:
        """The selector grammar."""
        from galoop.domains.sparse_decoding.grammar import SelectorGrammar

        return SelectorGrammar(seat.seed)


class SparseSession(TextDomainSession):
    """The domain opened for one experiment."""

    domain = SparseDecoding()

    def open_model(self, options: Options) -> Session:
        """The session that decodes with selectors."""
        from galoop.domains.sparse_decoding.session import Session

        return Session(self.info, options)

    def materialise(self, name: str, budget: Mapping[str, float]) -> Candidate:
        """A selector by name or folder."""
        return materialise(name, budget)

    def artifact_texts(self) -> tuple[str, str, str]:
        """Objective, background and contract for whoever writes selectors."""
        from galoop.domains.sparse_decoding import background

        return background.OBJECTIVE, background.BACKGROUND, background.CONTRACT
