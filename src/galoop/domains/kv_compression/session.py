"""The trusted side of the domain: φ, the artifacts' caches, decoding and scores.

One prefill serves the reference and every artifact; the isolated side only turns the captured
prefill into a compressed cache, which is checked, measured and decoded here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from galoop.domains.kv_compression.capture import Prefill, PrefillCache, prefill
from galoop.domains.kv_compression.decode import CompressedCache, Decoder, DecodeStats, Row
from galoop.domains.kv_compression.runner import Made, Runner
from galoop.domains.text.scoring import score
from galoop.errors import IsolationError, UsageError
from galoop.hashing import content_hash
from galoop.types import Candidate, Example, Outcome, State

if TYPE_CHECKING:
    from galoop.isolation import Child, ForkServer, Limits, Tier
    from galoop.models import ModelInfo

logger = logging.getLogger(__name__)

#: Raise when a change of the harness changes answers or scores: old outcomes then count no more.
HARNESS_VERSION = 1
#: Most examples that are prefilled, compressed and decoded together: rows that share a pass cost
#: less each, and what a killed run loses is at most this.
EXAMPLES_AT_ONCE = 32

#: Context ids and question ids by example key.
_Prompts = dict[str, tuple[list[int], list[int]]]


@dataclass(frozen=True)
class System:
    """What answers: the reference, or an artifact under its budget.

    Attributes
    ----------
    key : str
        Content hash that includes model, dtype, versions and budget.
    name : str
    candidate : Candidate or None
        None is the reference.
    budget : mapping
    trusted : bool
        Whether the code is an installed package's and not a candidate's. Only such an artifact
        may be evaluated in kvpress's own pipeline, where its cache cannot be measured from
        outside.
    """

    key: str
    name: str
    candidate: Candidate | None = None
    budget: Mapping[str, float] = field(default_factory=dict)
    trusted: bool = False


@dataclass(frozen=True)
class Options:
    """How the session computes.

    ``exact_margin`` None lets the decoder find out what this model and processor need.
    ``agreement`` measures on every answer the share of the gold answer's tokens that the system
    would have said; searches climb by it.
    """

    device: str = "cpu"
    threads: int = 0
    workers: int = 0
    decode_batch: int = 32
    exact_margin: float | None = None
    capture_bytes: int = 2 * 2**30
    tier: Tier | None = None
    limits: Limits | None = None
    agreement: bool = False


class Session:
    """One loaded model, one isolated server, and everything that is evaluated on them.

    Parameters
    ----------
    info : ModelInfo
    options : Options
    """

    def __init__(self, info: ModelInfo, options: Options | None = None) -> None:
        self.info = info
        self.options = options or Options()
        self._captures = PrefillCache(self.options.capture_bytes)
        self._server: ForkServer | None = None
        self._starting = threading.Lock()
        self.model_seconds = 0.0

    # -- identity ---------------------------------------------------------------------------

    @cached_property
    def _identity(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {
            "harness": HARNESS_VERSION,
            "model": self.info.fingerprint,
            "versions": {name: version(name) for name in ("torch", "transformers", "kvpress")},
        }

    def reference(self) -> System:
        """The unapproximated model φ."""
        return System(key=content_hash([self._identity, "reference"]), name="reference")

    def artifact(
        self, candidate: Candidate, budget: Mapping[str, float], *, name: str, trusted: bool = False
    ) -> System:
        """An artifact under a budget."""
        key = content_hash([self._identity, candidate.key, dict(budget)])
        return System(key, name, candidate, dict(budget), trusted)

    # -- model ------------------------------------------------------------------------------

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        import torch

        from galoop.models import load

        if self.options.threads:
            torch.set_num_threads(self.options.threads)
        return load(self.info, device=self.options.device)

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(
            self._loaded[0],
            margin=self.options.exact_margin,
            batch=self.options.decode_batch,
            always_draft=self.options.agreement,
        )

    @property
    def decode_stats(self) -> DecodeStats:
        """How much the decoder did so far."""
        return self._decoder.stats

    @cached_property
    def _preprocess(self) -> Callable[[Example], tuple[list[int], list[int]]]:
        """kvpress's own tokenisation: template split, question and prefix never compressed."""
        from kvpress.pipeline import KVPressTextGenerationPipeline

        pipeline = object.__new__(KVPressTextGenerationPipeline)
        pipeline.tokenizer = self._loaded[1]

        def tokenise(example: Example) -> tuple[list[int], list[int]]:
            out = pipeline.preprocess(
                example.context, [example.question], example.answer_prefix, 10**9
            )
            return out["context_ids"][0].tolist(), out["questions_ids"][0][0].tolist()

        return tokenise

    def tokenise(self, example: Example) -> tuple[list[int], list[int]]:
        """Context ids and question ids.

        Raises
        ------
        UsageError
            When the prompt does not fit the model's window.
        """
        context, question = self._preprocess(example)
        total = len(context) + len(question) + example.max_new_tokens
        if total > self.info.window:
            raise UsageError(
                f"an example needs {total} tokens ({len(context)} context, {len(question)} "
                f"question, {example.max_new_tokens} answer); the window of {self.info.name} "
                f"holds {self.info.window}",
                "use shorter contexts or another model",
            )
        return context, question

    def count_tokens(self, text: str) -> int:
        """Tokens of ``text`` alone."""
        return len(self._loaded[1].encode(text, add_special_tokens=False))

    # -- evaluation -------------------------------------------------------------------------

    def run(
        self, systems: Sequence[System], examples: Sequence[Example], repeat: int = 0
    ) -> Iterator[list[tuple[System, Example, Outcome]]]:
        """Evaluate every system on every example, some examples at a time.

        Yields
        ------
        list of (System, Example, Outcome)
            One list a chunk of examples. A system that turns out invalid or failed on an example
            is not evaluated on later ones.
        """
        out: set[str] = set()
        with ExitStack() as stack:
            runners = {s.key: stack.enter_context(self._runner(s)) for s in systems if s.candidate}
            for chunk, prompts in self._chunks(examples):
                live = [s for s in systems if s.key not in out]
                if not live:
                    return
                rows = self._run_chunk(live, runners, chunk, prompts, repeat)
                out |= {s.key for s, _, o in rows if o.state in (State.INVALID, State.FAILED)}
                yield rows

    def _chunks(self, examples: Sequence[Example]) -> Iterator[tuple[list[Example], _Prompts]]:
        """Examples that are worked on together, as many as the memory for captures holds."""
        config = self._loaded[0].config
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        token = config.hidden_size + 2 * config.num_key_value_heads * dim
        token *= config.num_hidden_layers * self._loaded[0].dtype.itemsize
        chunk: list[Example] = []
        prompts: _Prompts = {}
        used = 0
        for example in examples:
            prompt = self.tokenise(example)
            size = token * len(prompt[0])
            full = len(chunk) == EXAMPLES_AT_ONCE
            if chunk and (full or used + size > self.options.capture_bytes):
                yield chunk, prompts
                chunk, prompts, used = [], {}, 0
            chunk.append(example)
            prompts[example.key] = prompt
            used += size
        if chunk:
            yield chunk, prompts

    def _run_chunk(
        self,
        systems: Sequence[System],
        runners: Mapping[str, Runner],
        examples: Sequence[Example],
        prompts: _Prompts,
        repeat: int,
    ) -> list[tuple[System, Example, Outcome]]:
        began = time.perf_counter()
        jobs = [(s, e) for e in examples for s in systems]
        captures = {e.key: self._capture(prompts[e.key][0]) for e in examples}
        results: dict[tuple[str, str], Outcome] = {}
        rows: dict[tuple[str, str], tuple[Row, dict[str, float]]] = {}
        # An artifact that fails at all mostly fails at once: its first example goes alone, so that
        # one that hangs costs its time limit once, and which outcomes exist is no race.
        first = examples[0]
        with ThreadPoolExecutor(self._worker_count) as pool:
            proofs = [
                pool.submit(
                    runners[s.key].prove, captures[first.key], prompts[first.key], first, repeat
                )
                for s in systems
                if s.candidate
            ]
            for proof in proofs:
                proof.result()
            pending = {
                (s.key, e.key): pool.submit(
                    runners[s.key].compress, captures[e.key], prompts[e.key], e, repeat
                )
                for s, e in jobs
                if s.candidate
            }
            for s, e in jobs:
                if s.candidate is None:
                    made: Made = Made(cache=full_cache(captures[e.key]))
                else:
                    made = pending[s.key, e.key].result()
                if made.outcome is not None:
                    results[s.key, e.key] = made.outcome
                elif made.tokens is not None:
                    results[s.key, e.key] = self._scored(e, made.tokens, made.measured)
                else:
                    assert made.cache is not None
                    row = Row(
                        made.cache,
                        prompts[e.key][1],
                        self._draft(e),
                        e.max_new_tokens,
                        eager=made.eager,
                    )
                    rows[s.key, e.key] = (row, made.measured)
        self._decoder.decode([row for row, _ in rows.values()])
        by_key = {e.key: e for e in examples}
        for (system, example), (row, measured) in rows.items():
            if self.options.agreement and row.agreement is not None:
                measured = {**measured, "gold_agreement": row.agreement}
            results[system, example] = self._scored(by_key[example], row.tokens, measured)
        self.model_seconds += time.perf_counter() - began
        return [(s, e, results[s.key, e.key]) for s, e in jobs]

    @property
    def _worker_count(self) -> int:
        return self.options.workers or max(1, min(4, os.cpu_count() or 1))

    def _capture(self, context_ids: list[int]) -> Prefill:
        def compute(ids: list[int]) -> Prefill:
            with self._decoder.products(len(ids)):
                return prefill(self._loaded[0], ids)

        return self._captures.get(context_ids, compute)

    def _draft(self, example: Example) -> list[int]:
        """A guess of the answer: the gold answer and a full stop.

        The share of its tokens that the system would have said next, each after the right ones
        before it, is recorded as ``gold_agreement``: a finer measure than the answer itself for a
        search to climb by, and never a result.
        """
        tokenizer = self._loaded[1]
        space = "" if example.answer_prefix.endswith((" ", "\n")) else " "
        text = space + ", ".join(example.answers) + "."
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids[: example.max_new_tokens - 1]

    def _scored(
        self, example: Example, tokens: list[int], measured: Mapping[str, float]
    ) -> Outcome:
        text = str(self._loaded[1].decode(tokens, skip_special_tokens=True))
        return Outcome(State.SCORED, text, score(text, example), "", dict(measured))

    # -- isolation --------------------------------------------------------------------------

    def _runner(self, system: System) -> Runner:
        assert system.candidate is not None
        return Runner(
            self,
            system.candidate,
            system.budget,
            trusted=system.trusted,
            vocabulary=self._loaded[0].config.vocab_size,
        )

    @property
    def server_alive(self) -> bool:
        """Whether the warm parent of the confined processes is there."""
        return self._server is not None and self._server.alive

    def fork(self, files: Mapping[str, str], budget: Mapping[str, float]) -> Child:
        """A confined process that serves one artifact; the warm parent starts on first use."""
        from galoop.isolation import ForkServer, Limits

        init = {"files": dict(files), "compression_ratio": budget.get("compression_ratio", 0.0)}
        for attempt in (1, 2):
            with self._starting:  # several threads may find it gone at once
                if self._server is None or not self._server.alive:
                    self._server = ForkServer(
                        "galoop.domains.kv_compression.worker:warm",
                        {"path": str(self.info.path), "dtype": self.info.dtype},
                        tier=self.options.tier,
                        readable=[self.info.path],
                        name=f"model server of {self.info.name}",
                    )
                server = self._server
            try:
                return server.fork(
                    "galoop.domains.kv_compression.worker:serve",
                    init,
                    self.options.limits or Limits(),
                )
            except IsolationError as error:
                if attempt == 2:
                    raise
                logger.warning("the model server is started again: %s", error)
                server.close()
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End the isolated server."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def full_cache(captured: Prefill) -> CompressedCache:
    """The reference's cache: everything is kept."""
    layers = captured.keys.shape[0]
    return CompressedCache(
        list(captured.keys), list(captured.values), [None] * layers, captured.length
    )
