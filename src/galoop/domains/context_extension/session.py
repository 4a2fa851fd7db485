"""The trusted side of the domain: plans come from confined processes, attention is computed here.

The reference answers an example's native twin, an artifact the example itself. An artifact whose
extension is 1 stretches nothing and answers the twin too: the null case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from galoop.domains.context_extension.answers import answer, mean_nll
from galoop.domains.context_extension.artifact_spec import DOMAIN
from galoop.domains.context_extension.runner import Laid, PlanRunner
from galoop.domains.text.decoding.stopping import stop_tokens
from galoop.domains.text.likelihood import gold_ids
from galoop.domains.text.model_session import ModelSession, Options, Prompts, System
from galoop.domains.text.runner import Runner, Work
from galoop.errors import UsageError
from galoop.types import Example, Outcome, State

if TYPE_CHECKING:
    from galoop.methods.positions import Shape
    from galoop.models import ModelInfo

#: Most examples that are answered before what was found is handed on: what a killed run loses.
EXAMPLES_AT_ONCE = 4


class Session(ModelSession):
    """One loaded model and the position plans that are evaluated on it."""

    domain = DOMAIN
    worker = "galoop.domains.context_extension.worker"

    def __init__(self, info: ModelInfo, options: Options | None = None) -> None:
        super().__init__(info, options)
        self._plans: dict[str, dict[int, Laid]] = {}
        self._unextended: dict[str, float] = {}

    # -- model ------------------------------------------------------------------------------

    def shape(self, extension: float) -> Shape:
        """The loaded model's shape, for plans that reach that many windows.

        Raises
        ------
        UsageError
            The model has no plain rotary embeddings.
        """
        from dataclasses import replace

        from galoop.methods.region_attention import shape_of

        # The window that counts is the one that the model is said to have.
        return replace(shape_of(self.model, extension), window=self.info.window)

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer, which need not warn of texts that are longer than the window."""
        found = super().tokenizer
        found.model_max_length = 2**31
        return found

    @cached_property
    def _stop(self) -> frozenset[int]:
        return stop_tokens(self.model)

    @property
    def window(self) -> int:
        """No bound: an example is as long as it is, and each system says what it reaches."""
        return 2**31

    def tokenise_native(self, example: Example) -> tuple[list[int], list[int]]:
        """The prompt of an example that the model is to read in its own window.

        Raises
        ------
        UsageError
            When it does not fit.
        """
        context, question = self.tokenise(example)
        total = len(context) + len(question) + example.max_new_tokens
        if total > self.info.window:
            raise UsageError(
                f"an example needs {total} tokens at its native length; the window of "
                f"{self.info.name} holds {self.info.window}",
                "use shorter contexts or another model",
            )
        return context, question

    # -- evaluation -------------------------------------------------------------------------

    def runner(self, system: System) -> PlanRunner:
        """The confined process that lays out positions."""
        assert system.candidate is not None
        return PlanRunner(
            self,
            system.candidate,
            system.budget,
            shape=self.shape(system.budget["extension"]),
            kept=self._plans.setdefault(system.key, {}),
            trusted=system.trusted,
        )

    def _chunks(self, examples: Sequence[Example]) -> Iterator[tuple[list[Example], Prompts]]:
        for start in range(0, len(examples), EXAMPLES_AT_ONCE):
            chunk = list(examples[start : start + EXAMPLES_AT_ONCE])
            yield chunk, {e.key: self.tokenise(e) for e in chunk}

    def run_chunk(
        self,
        systems: Sequence[System],
        runners: Mapping[str, Runner],
        examples: Sequence[Example],
        prompts: Prompts,
        repeat: int,
    ) -> dict[tuple[str, str], Outcome]:
        """One prompt at a time: prefills are long, and share nothing between plans."""
        found = {}
        for e in examples:
            for s in systems:
                if s.candidate is None or s.budget["extension"] == 1.0:
                    found[s.key, e.key] = self._native(e)
                    continue
                runner = runners[s.key]
                assert isinstance(runner, PlanRunner)
                found[s.key, e.key] = self._extended(runner, Work(e, *prompts[e.key], repeat))
        return found

    def _native(self, example: Example) -> Outcome:
        """The model as it is, on the twin (or on an example that has none and fits)."""
        twin = example.native or example
        context, question = self.tokenise_native(twin)
        return self._reply(twin, context + question, nullcontext(), {})

    def _extended(self, runner: PlanRunner, work: Work) -> Outcome:
        from galoop.methods.region_attention import positions_replaced

        example, prompt = work.example, work.context_ids + work.question_ids
        laid = runner.laid(work, len(prompt) + example.max_new_tokens)
        if not isinstance(laid, Laid):
            assert laid.outcome is not None
            return laid.outcome
        measured = dict(laid.measured)
        measured["unextended_score"] = self._without_method(example, prompt)
        method = positions_replaced(self.model, laid.rows)
        return self._reply(example, prompt, method, measured)

    def _without_method(self, example: Example, prompt: list[int]) -> float:
        """Score of the model with true positions far beyond its window; once for each example."""
        if example.key not in self._unextended:
            found = self._reply(example, prompt, nullcontext(), {})
            self._unextended[example.key] = found.score or 0.0
        return self._unextended[example.key]

    def _reply(
        self,
        example: Example,
        prompt: list[int],
        method: AbstractContextManager[Any],
        measured: Mapping[str, float],
    ) -> Outcome:
        """The outcome of one prompt under a method."""
        if example.scoring == "likelihood":
            return self._likelihood(example, prompt, method, measured)
        with method:
            found = answer(
                self.model, prompt, self.draft(example), example.max_new_tokens, self._stop
            )
        facts = dict(measured)
        if self.options.agreement and found.agreement is not None:
            facts["gold_agreement"] = found.agreement
        return self.scored(example, found.tokens, facts)

    def _likelihood(
        self,
        example: Example,
        prompt: list[int],
        method: AbstractContextManager[Any],
        measured: Mapping[str, float],
    ) -> Outcome:
        """A continuation that is fed, not generated: the score is 1 / perplexity."""
        gold = gold_ids(self.tokenizer, example)
        with method:
            nll = mean_nll(self.model, prompt, gold)
        if not math.isfinite(nll):
            return Outcome(State.INVALID, reason="its positions make the likelihood no number")
        facts = {**measured, "nll": nll, "scored_tokens": float(len(gold))}
        return Outcome(State.SCORED, "", min(1.0, math.exp(-nll)), "", facts)
