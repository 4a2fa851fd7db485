"""The trusted side of the domain: codecs run confined, restored caches are decoded here."""

from __future__ import annotations

import threading

from galoop.domains.quantized_kv.artifact_spec import DOMAIN
from galoop.domains.quantized_kv.runner import CodecRunner
from galoop.domains.text.cache_session import CacheSession
from galoop.domains.text.decoding.tensors import SharedTensors
from galoop.domains.text.model_session import Options, System
from galoop.models import ModelInfo

#: Lengths whose rotary tables are kept.
_TABLES = 256


class QuantizedSession(CacheSession):
    """One loaded model and the codecs that are evaluated on its caches."""

    domain = DOMAIN
    worker = "galoop.domains.quantized_kv.worker"

    def __init__(self, info: ModelInfo, options: Options | None = None) -> None:
        super().__init__(info, options)
        self._tables: dict[int, SharedTensors] = {}
        self._filling = threading.Lock()

    def runner(self, system: System) -> CodecRunner:
        """The confined processes of a codec."""
        assert system.candidate is not None
        return CodecRunner(
            self, system.candidate, system.budget, trusted=system.trusted, tables=self.tables
        )

    def tables(self, length: int) -> SharedTensors:
        """The model's rotary tables, ``cos`` and ``sin``, (length, channels), float32."""
        import torch

        with self._filling:
            if length not in self._tables:
                if len(self._tables) >= _TABLES:
                    self._tables.pop(next(iter(self._tables)))
                positions = torch.arange(length, device=self.model.device)[None]
                with torch.inference_mode():
                    sample = torch.zeros(1, dtype=torch.float32, device=self.model.device)
                    cos, sin = self.model.model.rotary_emb(sample, positions)
                self._tables[length] = SharedTensors({"cos": cos[0], "sin": sin[0]})
            return self._tables[length]
