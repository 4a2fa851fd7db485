"""What is asked of a press's confined process, and how its cache is checked and measured."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from galoop.domains.kv_compression import audit
from galoop.domains.text.decoding.capture import Prefill
from galoop.domains.text.decoding.tensors import unpack
from galoop.domains.text.runner import Forks, Made, Refused, Runner, Work, bad, checked
from galoop.types import Candidate, Outcome, State

if TYPE_CHECKING:
    from galoop.isolation import Child


class PressRunner(Runner):
    """The confined processes of one press.

    Parameters
    ----------
    vocabulary : int
        Token ids are below it.
    """

    def __init__(
        self,
        forks: Forks,
        candidate: Candidate,
        budget: Mapping[str, float],
        *,
        trusted: bool,
        vocabulary: int,
    ) -> None:
        super().__init__(forks, candidate, budget, trusted=trusted)
        self._vocabulary = vocabulary

    def load(self, child: Child) -> dict[str, Any]:
        """How the press is run; a candidate may not need kvpress's own pipeline."""
        spec = super().load(child)
        mode = spec.get("mode")
        if mode not in ("replay", "prefill", "pipeline"):
            raise Refused(State.INVALID, f"unknown execution mode {mode!r}"[:200])
        if mode == "pipeline" and not self.trusted:
            raise Refused(
                State.INVALID,
                "the artifact acts while decoding or changes positions, so its cache cannot be "
                "measured from outside; compress at prefill time",
            )
        return spec

    def ask(self, child: Child, spec: Mapping[str, Any], work: Work, seed: int) -> Made:
        """Let the press compress one context."""
        began = time.perf_counter()
        if spec["mode"] == "pipeline":
            return self._pipeline(child, spec, work, seed)
        from galoop.isolation import new_output_memfd, read_output

        captured = work.prefill
        out = new_output_memfd("cache")
        try:
            if spec["mode"] == "replay":
                request = {"op": "replay", "seed": seed, "layout": captured.shared.layout}
                reply = child.call(request, [captured.shared.fd, out])
            else:
                request = {
                    "op": "prefill",
                    "seed": seed,
                    "context_ids": work.context_ids,
                    "eager": bool(spec.get("eager")),
                }
                reply = child.call(request, [out])
            seconds = time.perf_counter() - began
            checked(reply)
            data = read_output(out, 4 * captured.nbytes + 2**20)
        except ValueError as error:
            return bad(State.INVALID, str(error))
        finally:
            os.close(out)
        made = self._audited(data, captured, reply, seconds)
        made.eager = spec["mode"] == "prefill" and bool(spec.get("eager"))
        return made

    def _audited(
        self, data: bytes, captured: Prefill, reply: Mapping[str, Any], seconds: float
    ) -> Made:
        try:
            cache = audit.rebuild(unpack(data), captured)
        except (ValueError, audit.ContractError) as error:
            return bad(State.INVALID, str(error))
        kept = audit.measure(cache, captured)
        fed = reply.get("forward_tokens")
        tokens = fed if isinstance(fed, int) and fed >= 0 else 0
        extra = max(0.0, tokens / captured.length - 1.0)
        # In the mode with its own prefill, the prefill is part of the measured time.
        added = max(0.0, seconds - (captured.seconds if tokens else 0.0)) / captured.seconds
        flat = [n for heads in kept.per_head for n in heads]
        measured = {
            "kept_fraction": kept.fraction,
            "kept_bytes": float(kept.bytes),
            "kept_least_per_head": float(min(flat)),
            "kept_most_per_head": float(max(flat)),
            "extra_forward_passes": extra,
            "added_latency": added,
        }
        reason = audit.over_budget(
            kept, captured, self.budget, extra_forward_passes=extra, added_latency=added
        )
        if reason:
            return Made(outcome=Outcome(State.INVALID, reason=reason, measured=measured))
        return Made(cache=cache, measured=measured)

    def _pipeline(self, child: Child, spec: Mapping[str, Any], work: Work, seed: int) -> Made:
        reply = checked(
            child.call(
                {
                    "op": "pipeline",
                    "seed": seed,
                    "context_ids": work.context_ids,
                    "question_ids": work.question_ids,
                    "max_new_tokens": work.example.max_new_tokens,
                    "eager": bool(spec.get("eager")),
                }
            )
        )
        tokens, kept = reply.get("tokens"), reply.get("kept")
        captured = work.prefill
        layers, heads = captured.keys.shape[:2]
        sizes = 0 < len(tokens or ()) <= work.example.max_new_tokens and len(kept or ()) == layers
        if not (_numbers(tokens, self._vocabulary) and _numbers(kept, 2**31) and sizes):
            return bad(State.INVALID, "the reply of kvpress's pipeline is not an answer")
        assert tokens is not None
        assert kept is not None
        # The cache holds question and answer as well when the pipeline is through.
        own = len(work.question_ids) + len(tokens) - 1
        entries = heads * sum(max(0, n - own) for n in kept)
        full = layers * heads * captured.length
        measured = {"kept_fraction": entries / full}
        ratio = self.budget.get("compression_ratio", 0.0)
        allowed = audit.allowed_entries((layers, heads, captured.length), ratio)
        if entries > allowed:
            reason = audit.too_many(entries, full, allowed, ratio)
            return Made(outcome=Outcome(State.INVALID, reason=reason, measured=measured))
        return Made(tokens=tokens, measured=measured)


def _numbers(value: Any, below: int) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < below for v in value)
