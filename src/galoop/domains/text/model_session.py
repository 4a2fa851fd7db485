"""The trusted side of a text domain: the loaded model, prompts, scores, and the isolated server.

How a chunk of examples is answered is the domain's own (:meth:`ModelSession.run_chunk`);
:mod:`.cache_session` has the way of domains that only change the cache of a context.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from galoop.domains.text.likelihood import check_beginning, plain_prompt, refused
from galoop.domains.text.runner import Runner
from galoop.domains.text.scoring import score
from galoop.errors import IsolationError, UsageError
from galoop.hashing import content_hash
from galoop.types import Candidate, Example, Outcome, State

if TYPE_CHECKING:
    from galoop.isolation import Child, ForkServer, Limits, Tier
    from galoop.models import ModelInfo

logger = logging.getLogger(__name__)

#: Most examples that are prefilled, compressed and decoded together: rows that share a pass cost
#: less each, and what a killed run loses is at most this.
EXAMPLES_AT_ONCE = 32

#: Context ids and question ids by example key.
Prompts = dict[str, tuple[list[int], list[int]]]


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
        Whether the code is an installed package's and not a candidate's. A domain may evaluate
        such an artifact in a way in which a candidate could not be measured from outside.
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


class ModelSession(ABC):
    """One loaded model, one isolated server, and everything that is evaluated on them.

    Parameters
    ----------
    info : ModelInfo
    options : Options

    Attributes
    ----------
    domain : str
        Name of the domain; part of every system's key.
    harness : int
        Raised when a change of the domain's code changes answers or scores: old outcomes then
        count no more.
    packages : tuple of str
        Distributions whose versions are part of every system's key.
    worker : str
        Module whose ``warm(init)`` the confined parent runs once, with the model's ``path`` and
        ``dtype``, and whose ``serve(warmed, init, channel)`` each confined process of an artifact
        runs, with what :meth:`serve_init` gives.
    worker_reads_model : bool
        Whether the confined processes may read the model's folder.
    """

    domain: ClassVar[str]
    harness: ClassVar[int] = 1
    packages: ClassVar[tuple[str, ...]] = ("torch", "transformers")
    worker: ClassVar[str]
    worker_reads_model: ClassVar[bool] = True

    def __init__(self, info: ModelInfo, options: Options | None = None) -> None:
        self.info = info
        self.options = options or Options()
        self._server: ForkServer | None = None
        self._starting = threading.Lock()
        self.model_seconds = 0.0

    # -- what a domain says -----------------------------------------------------------------

    @abstractmethod
    def runner(self, system: System) -> Runner:
        """The confined processes of an artifact; entered for the time of one :meth:`run`."""

    @abstractmethod
    def run_chunk(
        self,
        systems: Sequence[System],
        runners: Mapping[str, Runner],
        examples: Sequence[Example],
        prompts: Prompts,
        repeat: int,
    ) -> dict[tuple[str, str], Outcome]:
        """Outcome of every system on every example, by (system key, example key).

        ``runners`` has one entry for each artifact (by system key), none for the reference.
        """

    def serve_init(self, files: Mapping[str, str], budget: Mapping[str, float]) -> dict[str, Any]:
        """What a confined process is told of its artifact; JSON-compatible."""
        return {"files": dict(files), "budget": dict(budget)}

    def identity_parts(self) -> dict[str, Any]:
        """What else every system's key depends on."""
        return {"domain": self.domain}

    # -- identity ---------------------------------------------------------------------------

    @cached_property
    def _identity(self) -> dict[str, Any]:
        from importlib.metadata import version

        return {
            "harness": self.harness,
            "model": self.info.fingerprint,
            "versions": {name: version(name) for name in self.packages},
            **self.identity_parts(),
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

    @property
    def model(self) -> Any:
        """The loaded model, in evaluation mode."""
        return self._loaded[0]

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self._loaded[1]

    @cached_property
    def _preprocess(self) -> Callable[[Example], tuple[list[int], list[int]]]:
        """kvpress's own tokenisation: template split, question and prefix never compressed."""
        from kvpress.pipeline import KVPressTextGenerationPipeline

        pipeline = object.__new__(KVPressTextGenerationPipeline)
        pipeline.tokenizer = self.tokenizer

        def tokenise(example: Example) -> tuple[list[int], list[int]]:
            out = pipeline.preprocess(
                example.context, [example.question], example.answer_prefix, 10**9
            )
            return out["context_ids"][0].tolist(), out["questions_ids"][0][0].tolist()

        def choose(example: Example) -> tuple[list[int], list[int]]:
            if example.scoring == "likelihood":
                prompt = plain_prompt(self.tokenizer, example)
            else:
                prompt = tokenise(example)
            check_beginning(self.tokenizer, prompt[0])
            return prompt

        return choose

    @property
    def window(self) -> int:
        """Most tokens of context, question and answer together."""
        return self.info.window

    def tokenise(self, example: Example) -> tuple[list[int], list[int]]:
        """Context ids and question ids.

        Raises
        ------
        UsageError
            When the prompt does not fit the window.
        """
        context, question = self._preprocess(example)
        total = len(context) + len(question) + example.max_new_tokens
        if total > self.window:
            raise UsageError(
                f"an example needs {total} tokens ({len(context)} context, {len(question)} "
                f"question, {example.max_new_tokens} answer); the window of {self.info.name} "
                f"holds {self.window}",
                "use shorter contexts or another model",
            )
        return context, question

    def count_tokens(self, text: str) -> int:
        """Tokens of ``text`` alone."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))

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
            runners = {s.key: stack.enter_context(self.runner(s)) for s in systems if s.candidate}
            for chunk, prompts in self._chunks(examples):
                live = [s for s in systems if s.key not in out]
                if not live:
                    return
                began = time.perf_counter()
                found = self.run_chunk(live, runners, chunk, prompts, repeat)
                self.model_seconds += time.perf_counter() - began
                rows = [(s, e, found[s.key, e.key]) for e in chunk for s in live]
                out |= {s.key for s, _, o in rows if o.state in (State.INVALID, State.FAILED)}
                yield rows

    @cached_property
    def _capture_bytes(self) -> int:
        """Bytes that a captured token takes: hidden states, keys and values of every layer."""
        config = self.model.config
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        token = int(config.hidden_size + 2 * config.num_key_value_heads * dim)
        return token * int(config.num_hidden_layers) * int(self.model.dtype.itemsize)

    def _chunks(self, examples: Sequence[Example]) -> Iterator[tuple[list[Example], Prompts]]:
        """Examples that are worked on together, as many as the memory for captures holds."""
        chunk: list[Example] = []
        prompts: Prompts = {}
        used = 0
        for example in examples:
            prompt = self.tokenise(example)
            size = self._capture_bytes * len(prompt[0])
            full = len(chunk) == EXAMPLES_AT_ONCE
            if chunk and (full or used + size > self.options.capture_bytes):
                yield chunk, prompts
                chunk, prompts, used = [], {}, 0
            chunk.append(example)
            prompts[example.key] = prompt
            used += size
        if chunk:
            yield chunk, prompts

    @property
    def worker_count(self) -> int:
        """Threads that keep confined processes busy."""
        return self.options.workers or max(1, min(4, os.cpu_count() or 1))

    def draft(self, example: Example) -> list[int]:
        """A guess of the answer: the gold answer and a full stop.

        The share of its tokens that the system would have said next, each after the right ones
        before it, is recorded as ``gold_agreement``: a finer measure than the answer itself for a
        search to climb by, and never a result.
        """
        space = "" if example.answer_prefix.endswith((" ", "\n")) else " "
        text = space + ", ".join(example.answers) + "."
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids[: example.max_new_tokens - 1]

    def scored(self, example: Example, tokens: list[int], measured: Mapping[str, float]) -> Outcome:
        """The outcome of an answer; an example of kind ``likelihood`` has none."""
        if example.scoring == "likelihood":
            return refused()
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=True))
        return Outcome(State.SCORED, text, score(text, example), "", dict(measured))

    # -- isolation --------------------------------------------------------------------------

    @property
    def server_alive(self) -> bool:
        """Whether the warm parent of the confined processes is there."""
        return self._server is not None and self._server.alive

    def fork(self, files: Mapping[str, str], budget: Mapping[str, float]) -> Child:
        """A confined process that serves one artifact; the warm parent starts on first use."""
        from galoop.isolation import ForkServer, Limits

        init = self.serve_init(files, budget)
        for attempt in (1, 2):
            with self._starting:  # several threads may find it gone at once
                if self._server is None or not self._server.alive:
                    self._server = ForkServer(
                        f"{self.worker}:warm",
                        {"path": str(self.info.path), "dtype": self.info.dtype},
                        tier=self.options.tier,
                        readable=[self.info.path] if self.worker_reads_model else [],
                        name=f"model server of {self.info.name}",
                    )
                server = self._server
            try:
                return server.fork(f"{self.worker}:serve", init, self.options.limits or Limits())
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
