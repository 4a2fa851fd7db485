"""The trusted side of the domain: presses run confined, their caches are decoded here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from galoop.domains.kv_compression.artifact_spec import DOMAIN
from galoop.domains.kv_compression.runner import PressRunner
from galoop.domains.text.cache_session import CacheSession
from galoop.domains.text.model_session import System


class Session(CacheSession):
    """One loaded model and the presses that are evaluated on it."""

    domain = DOMAIN
    packages = ("torch", "transformers", "kvpress")
    worker = "galoop.domains.kv_compression.worker"

    def runner(self, system: System) -> PressRunner:
        """The confined processes of a press."""
        assert system.candidate is not None
        return PressRunner(
            self,
            system.candidate,
            system.budget,
            trusted=system.trusted,
            vocabulary=self.model.config.vocab_size,
        )

    def serve_init(self, files: Mapping[str, str], budget: Mapping[str, float]) -> dict[str, Any]:
        """The press's files and the ratio to keep."""
        return {"files": dict(files), "compression_ratio": budget.get("compression_ratio", 0.0)}

    def identity_parts(self) -> dict[str, Any]:
        """Nothing: runs that were begun before there were other domains keep their keys."""
        return {}
