"""The confined processes of one artifact: ask, check, measure.

Whatever the artifact does here ends in an outcome with a reason, never in an exception.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from galoop.domains.kv_compression import audit
from galoop.domains.kv_compression.capture import Prefill
from galoop.domains.kv_compression.packed import CompressedCache
from galoop.domains.kv_compression.tensors import unpack
from galoop.errors import IsolationError
from galoop.hashing import derive_seed
from galoop.types import Candidate, Example, Outcome, State

if TYPE_CHECKING:
    from galoop.isolation import Child

#: Why an artifact is not evaluated further when the warm parent ended twice while it ran.
_SERVER_ENDED = "the process that serves the model ended twice while this artifact ran"


class Forks(Protocol):
    """What gives a runner its processes (the session)."""

    def fork(self, files: Mapping[str, str], budget: Mapping[str, float]) -> Child: ...

    @property
    def server_alive(self) -> bool: ...


@dataclass
class Made:
    """What an artifact made of one context: a cache, or (pipeline) an answer, or a failure."""

    cache: CompressedCache | None = None
    tokens: list[int] | None = None
    outcome: Outcome | None = None
    measured: dict[str, float] = field(default_factory=dict)
    eager: bool = False


def _bad(state: State, reason: str) -> Made:
    return Made(outcome=Outcome(state, reason=reason))


class Runner:
    """The confined processes of one artifact during one call of :meth:`Session.run`."""

    def __init__(
        self,
        forks: Forks,
        candidate: Candidate,
        budget: Mapping[str, float],
        *,
        trusted: bool,
        vocabulary: int,
    ) -> None:
        self._forks = forks
        self._candidate = candidate
        self._budget = dict(budget)
        self._trusted = trusted
        self._vocabulary = vocabulary
        self._idle: deque[tuple[Child, dict[str, Any]]] = deque()
        self._failed: Made | None = None
        self._proof: dict[tuple[str, int], Made] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        for child, _ in self._idle:
            child.close()

    def prove(
        self,
        captured: Prefill,
        prompt: tuple[list[int], list[int]],
        example: Example,
        repeat: int,
    ) -> None:
        """Compress the first example of the call alone; a failure here ends the artifact."""
        if not self._proof:
            made = self.compress(captured, prompt, example, repeat)
            self._proof[example.key, repeat] = made
            if made.outcome is not None:
                self._failed = made

    def compress(
        self,
        captured: Prefill,
        prompt: tuple[list[int], list[int]],
        example: Example,
        repeat: int,
    ) -> Made:
        """Let the artifact compress one context; never raises for what the artifact does."""
        from galoop.isolation import CandidateError

        if self._failed is not None:
            return self._failed
        if (example.key, repeat) in self._proof:
            return self._proof[example.key, repeat]
        for _attempt in (1, 2):
            try:
                return self._try(captured, prompt, example, repeat)
            except CandidateError as error:
                if self._forks.server_alive:
                    return _bad(State.FAILED, _reason(error))
            except IsolationError:
                pass
            # The warm parent is gone, and with it this process, whoever's fault it is.
        return _bad(State.FAILED, _SERVER_ENDED)

    def _try(
        self,
        captured: Prefill,
        prompt: tuple[list[int], list[int]],
        example: Example,
        repeat: int,
    ) -> Made:
        try:
            child, spec = self._idle.pop()
        except IndexError:  # two threads may see the same last one
            child, spec = None, None
        try:
            if child is None or spec is None:
                child = self._forks.fork(self._candidate.files, self._budget)
                spec = self._load(child)
            made = self._ask(child, spec, captured, prompt, example, repeat)
        except _Refused as error:
            made = _bad(error.state, str(error))
        except BaseException:
            if child is not None:
                child.close()
            raise
        if made.outcome is None and child is not None and spec is not None:
            self._idle.append((child, spec))
        elif child is not None:
            child.close()
        return made

    def _load(self, child: Child) -> dict[str, Any]:
        spec = _checked(child.call({"op": "load"}))
        mode = spec.get("mode")
        if mode not in ("replay", "prefill", "pipeline"):
            raise _Refused(State.INVALID, f"unknown execution mode {mode!r}"[:200])
        if mode == "pipeline" and not self._trusted:
            raise _Refused(
                State.INVALID,
                "the artifact acts while decoding or changes positions, so its cache cannot be "
                "measured from outside; compress at prefill time",
            )
        return spec

    def _ask(
        self,
        child: Child,
        spec: Mapping[str, Any],
        captured: Prefill,
        prompt: tuple[list[int], list[int]],
        example: Example,
        repeat: int,
    ) -> Made:
        seed = derive_seed("artifact", self._candidate.key, example.key, repeat)
        began = time.perf_counter()
        if spec["mode"] == "pipeline":
            return self._pipeline(child, spec, captured, prompt, example, seed)
        from galoop.isolation import new_output_memfd, read_output

        out = new_output_memfd("cache")
        try:
            if spec["mode"] == "replay":
                request = {"op": "replay", "seed": seed, "layout": captured.shared.layout}
                reply = child.call(request, [captured.shared.fd, out])
            else:
                request = {
                    "op": "prefill",
                    "seed": seed,
                    "context_ids": prompt[0],
                    "eager": bool(spec.get("eager")),
                }
                reply = child.call(request, [out])
            seconds = time.perf_counter() - began
            _checked(reply)
            data = read_output(out, 4 * captured.nbytes + 2**20)
        except ValueError as error:
            return _bad(State.INVALID, str(error))
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
            return _bad(State.INVALID, str(error))
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
            kept, captured, self._budget, extra_forward_passes=extra, added_latency=added
        )
        if reason:
            return Made(outcome=Outcome(State.INVALID, reason=reason, measured=measured))
        return Made(cache=cache, measured=measured)

    def _pipeline(
        self,
        child: Child,
        spec: Mapping[str, Any],
        captured: Prefill,
        prompt: tuple[list[int], list[int]],
        example: Example,
        seed: int,
    ) -> Made:
        reply = _checked(
            child.call(
                {
                    "op": "pipeline",
                    "seed": seed,
                    "context_ids": prompt[0],
                    "question_ids": prompt[1],
                    "max_new_tokens": example.max_new_tokens,
                    "eager": bool(spec.get("eager")),
                }
            )
        )
        tokens, kept = reply.get("tokens"), reply.get("kept")
        layers, heads = captured.keys.shape[:2]
        sizes = 0 < len(tokens or ()) <= example.max_new_tokens and len(kept or ()) == layers
        if not (_numbers(tokens, self._vocabulary) and _numbers(kept, 2**31) and sizes):
            return _bad(State.INVALID, "the reply of kvpress's pipeline is not an answer")
        assert tokens is not None
        assert kept is not None
        # The cache holds question and answer as well when the pipeline is through.
        own = len(prompt[1]) + len(tokens) - 1
        entries = heads * sum(max(0, n - own) for n in kept)
        full = layers * heads * captured.length
        measured = {"kept_fraction": entries / full}
        ratio = self._budget.get("compression_ratio", 0.0)
        allowed = audit.allowed_entries((layers, heads, captured.length), ratio)
        if entries > allowed:
            reason = audit.too_many(entries, full, allowed, ratio)
            return Made(outcome=Outcome(State.INVALID, reason=reason, measured=measured))
        return Made(tokens=tokens, measured=measured)


class _Refused(Exception):
    """The artifact reported an error, or may not be evaluated."""

    def __init__(self, state: State, reason: str) -> None:
        self.state = state
        super().__init__(reason)


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    if "error" in reply:
        state = State.INVALID if reply.get("state") == "invalid" else State.FAILED
        raise _Refused(state, str(reply["error"])[:600])
    return reply


def _reason(error: Any) -> str:
    tail = error.output.strip().splitlines()[-1:] if error.output else []
    return error.reason + (f" (last output: {tail[0][:200]})" if tail else "")


def _numbers(value: Any, below: int) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < below for v in value)
