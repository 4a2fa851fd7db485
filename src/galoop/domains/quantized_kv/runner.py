"""Ask one process to encode, measure what it stored, and ask another one to decode."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from galoop.domains.quantized_kv import audit
from galoop.domains.text.decoding.tensors import SharedTensors, unpack
from galoop.domains.text.runner import Forks, Made, Runner, Work, bad, checked
from galoop.types import Candidate, Outcome, State

if TYPE_CHECKING:
    import torch

    from galoop.isolation import Child

#: What a file of tensors may add to the numbers in it, in bytes.
_FILE_HEADER = 2**20


class CodecRunner(Runner):
    """The confined processes of one codec; each serves one call and ends.

    Parameters
    ----------
    tables : callable
        Length of a context -> the model's rotary tables.
    """

    reuse = False

    def __init__(
        self,
        forks: Forks,
        candidate: Candidate,
        budget: Mapping[str, float],
        *,
        trusted: bool,
        tables: Callable[[int], SharedTensors],
    ) -> None:
        super().__init__(forks, candidate, budget, trusted=trusted)
        self._tables = tables

    def load(self, child: Child) -> dict[str, Any]:
        """Nothing is asked ahead: a process answers one request."""
        return {}

    def ask(self, child: Child, spec: Mapping[str, Any], work: Work, seed: int) -> Made:
        """Encode in ``child``, measure, decode in a process that saw nothing else."""
        captured = work.prefill
        own = [entry for entry in captured.shared.layout if entry[0] in ("keys", "values")]
        numbers = captured.keys.numel() + captured.values.numel()
        began = time.perf_counter()
        try:
            data = self._call(
                child,
                {"op": "encode", "seed": seed, "layout": own},
                captured.shared.fd,
                captured.length,
                8 * numbers,
            )
            child.close()  # what saw the cache is gone before the other half begins
            encoded = unpack(data)
            audit.check_encoded(encoded)
            measured = audit.measure(encoded, captured)
            if reason := audit.over_budget(measured, self.budget):
                return Made(outcome=Outcome(State.INVALID, reason=reason, measured=measured))
            restored = self._decode(encoded, list(captured.keys.shape), captured.length, seed)
            seconds = time.perf_counter() - began
            cache = audit.rebuild(restored, captured)
        except (ValueError, audit.ContractError) as error:
            return bad(State.INVALID, str(error))
        measured |= audit.errors(cache, captured)
        measured["added_latency"] = seconds / captured.seconds
        if reason := audit.over_budget(measured, self.budget):
            return Made(outcome=Outcome(State.INVALID, reason=reason, measured=measured))
        return Made(cache=cache, measured=measured)

    def _decode(
        self, encoded: Mapping[str, torch.Tensor], size: Sequence[int], length: int, seed: int
    ) -> dict[str, torch.Tensor]:
        stored = SharedTensors(encoded)
        request = {"op": "decode", "seed": seed, "layout": stored.layout, "size": list(size)}
        most = 2 * 8 * size[0] * size[1] * size[2] * size[3]
        with self.fork() as child:
            return unpack(self._call(child, request, stored.fd, length, most))

    def _call(
        self, child: Child, request: Mapping[str, Any], given: int, length: int, most: int
    ) -> bytes:
        """One request with a file of tensors each way; ``most`` bytes of tensors come back."""
        from galoop.isolation import new_output_memfd, read_output

        tables = self._tables(length)
        out = new_output_memfd("tensors")
        try:
            reply = child.call({**request, "tables": tables.layout}, [given, tables.fd, out])
            checked(reply)
            return read_output(out, most + _FILE_HEADER)
        finally:
            os.close(out)
