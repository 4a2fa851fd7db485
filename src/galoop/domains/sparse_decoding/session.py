"""The trusted side of the domain: selectors run confined, the model and its attention run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from galoop.domains.sparse_decoding.artifact_spec import DOMAIN
from galoop.domains.sparse_decoding.artifacts import is_packaged
from galoop.domains.sparse_decoding.decode import Decoder
from galoop.domains.sparse_decoding.local import InProcess
from galoop.domains.sparse_decoding.runner import SelectorRunner
from galoop.domains.text.decoding.capture import Prefill, PrefillCache, prefill
from galoop.domains.text.model_session import ModelSession, Options, Prompts, System
from galoop.domains.text.runner import Runner, Work
from galoop.types import Example, Outcome

if TYPE_CHECKING:
    from galoop.models import ModelInfo


class Session(ModelSession):
    """One loaded model and the selectors that are evaluated on it."""

    domain = DOMAIN
    worker = "galoop.domains.sparse_decoding.worker"
    worker_reads_model = False

    def __init__(self, info: ModelInfo, options: Options | None = None) -> None:
        super().__init__(info, options)
        self._captures = PrefillCache(self.options.capture_bytes)

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self.model)

    def runner(self, system: System) -> SelectorRunner:
        """The confined processes of a selector; galoop's own code runs in this one."""
        from galoop.isolation import Limits

        assert system.candidate is not None
        return SelectorRunner(
            InProcess() if is_packaged(system.candidate) else self,
            system.candidate,
            system.budget,
            decoder=self._decoder,
            drafts=self.draft if self.options.agreement else None,
            seconds=(self.options.limits or Limits()).seconds,
            trusted=system.trusted,
        )

    def run_chunk(
        self,
        systems: Sequence[System],
        runners: Mapping[str, Runner],
        examples: Sequence[Example],
        prompts: Prompts,
        repeat: int,
    ) -> dict[tuple[str, str], Outcome]:
        """One prefill an example; then every answer by itself.

        A selector that fails at all mostly fails at once: its first example ends it.
        """
        results: dict[tuple[str, str], Outcome] = {}
        for number, example in enumerate(examples):
            context, question = prompts[example.key]
            work = Work(example, context, question, repeat, self._capture(context))
            for system in systems:
                if system.candidate is None:
                    results[system.key, example.key] = self._reference(work)
                    continue
                runner = runners[system.key]
                if number == 0:
                    runner.prove(work)
                made = runner.make(work)
                if made.outcome is not None:
                    results[system.key, example.key] = made.outcome
                else:
                    assert made.tokens is not None
                    outcome = self.scored(example, made.tokens, made.measured)
                    results[system.key, example.key] = outcome
        return results

    def _reference(self, work: Work) -> Outcome:
        example = work.example
        answered = self._decoder.answer(
            work.prefill,
            work.question_ids,
            example.max_new_tokens,
            draft=self.draft(example) if self.options.agreement else (),
        )
        agreement = answered.agreement
        measured = {} if agreement is None else {"gold_agreement": agreement}
        return self.scored(example, answered.tokens, measured)

    def _capture(self, context_ids: list[int]) -> Prefill:
        return self._captures.get(context_ids, lambda ids: prefill(self.model, ids))
