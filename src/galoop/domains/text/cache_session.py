"""Sessions of domains that change nothing but the cache of a context.

One prefill serves the reference and every artifact; the isolated side only turns the captured
prefill into another cache, which is checked, measured and decoded on the trusted side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from galoop.domains.text.decoding.capture import Prefill, PrefillCache, prefill
from galoop.domains.text.decoding.decode import CompressedCache, Decoder, DecodeStats, Row
from galoop.domains.text.likelihood import gold_ids, likelihood_outcome, mean_nll
from galoop.domains.text.model_session import ModelSession, Options, Prompts, System
from galoop.domains.text.runner import Made, Runner, Work
from galoop.types import Example, Outcome

if TYPE_CHECKING:
    from galoop.models import ModelInfo


class CacheSession(ModelSession):
    """A model session whose artifacts turn a captured prefill into a cache, or into an answer.

    A domain's :class:`~galoop.domains.text.runner.Runner` gives for each example a
    :class:`~galoop.domains.text.runner.Made` with a cache (decoded here), tokens (scored here) or
    an outcome (a failure).
    """

    def __init__(self, info: ModelInfo, options: Options | None = None) -> None:
        super().__init__(info, options)
        self._captures = PrefillCache(self.options.capture_bytes)

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(
            self.model,
            margin=self.options.exact_margin,
            batch=self.options.decode_batch,
            always_draft=self.options.agreement,
        )

    @property
    def decode_stats(self) -> DecodeStats:
        """How much the decoder did so far."""
        return self._decoder.stats

    def run_chunk(
        self,
        systems: Sequence[System],
        runners: Mapping[str, Runner],
        examples: Sequence[Example],
        prompts: Prompts,
        repeat: int,
    ) -> dict[tuple[str, str], Outcome]:
        """One prefill an example, a cache for each artifact, and all the answers together."""
        works = {
            e.key: Work(e, *prompts[e.key], repeat, self._capture(prompts[e.key][0]))
            for e in examples
        }
        results: dict[tuple[str, str], Outcome] = {}
        rows: dict[tuple[str, str], tuple[Row, dict[str, float]]] = {}
        with ThreadPoolExecutor(self.worker_count) as pool:
            pending = self._start(pool, systems, runners, list(works.values()))
            for e in examples:
                for s in systems:
                    made = (
                        pending[s.key, e.key].result()
                        if s.candidate
                        else Made(cache=full_cache(works[e.key].prefill))
                    )
                    if made.outcome is not None:
                        results[s.key, e.key] = made.outcome
                    elif made.tokens is not None:
                        results[s.key, e.key] = self.scored(e, made.tokens, made.measured)
                    elif e.scoring == "likelihood":
                        assert made.cache is not None
                        results[s.key, e.key] = self._likelihood(e, made, prompts[e.key][1])
                    else:
                        assert made.cache is not None
                        question, draft = prompts[e.key][1], self.draft(e)
                        row = Row(made.cache, question, draft, e.max_new_tokens, eager=made.eager)
                        rows[s.key, e.key] = (row, made.measured)
        self._decoder.decode([row for row, _ in rows.values()])
        by_key = {e.key: e for e in examples}
        for (system, example), (row, measured) in rows.items():
            if self.options.agreement and row.agreement is not None:
                measured = {**measured, "gold_agreement": row.agreement}
            results[system, example] = self.scored(by_key[example], row.tokens, measured)
        return results

    def _likelihood(self, example: Example, made: Made, question: list[int]) -> Outcome:
        gold = gold_ids(self.tokenizer, example)
        assert made.cache is not None
        nll = mean_nll(self.model, made.cache, question, gold)
        return likelihood_outcome(nll, len(gold), made.measured)

    @staticmethod
    def _start(
        pool: ThreadPoolExecutor,
        systems: Sequence[System],
        runners: Mapping[str, Runner],
        works: Sequence[Work],
    ) -> dict[tuple[str, str], Future[Made]]:
        """Set the artifacts to work.

        One that fails at all mostly fails at once: its first example goes alone, so that one that
        hangs costs its time limit once, and which outcomes exist is no race.
        """
        artifacts = [s for s in systems if s.candidate]
        proofs = [pool.submit(runners[s.key].prove, works[0]) for s in artifacts]
        for proof in proofs:
            proof.result()
        return {
            (s.key, work.example.key): pool.submit(runners[s.key].make, work)
            for work in works
            for s in artifacts
        }

    def _capture(self, context_ids: list[int]) -> Prefill:
        def compute(ids: list[int]) -> Prefill:
            with self._decoder.products(len(ids)):
                return prefill(self.model, ids)

        return self._captures.get(context_ids, compute)


def full_cache(captured: Prefill) -> CompressedCache:
    """The reference's cache: everything is kept."""
    layers = captured.keys.shape[0]
    return CompressedCache(
        list(captured.keys), list(captured.values), [None] * layers, captured.length
    )
