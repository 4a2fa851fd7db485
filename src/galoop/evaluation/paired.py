"""Paired evaluation through the store: the same examples for φ and A, nothing paid twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from galoop._sections import DiscriminatorConfig, GeneratorConfig
from galoop.domains.protocol import DomainSession
from galoop.evaluation.statistics import cluster_means
from galoop.proposers.protocol import Cost
from galoop.report.progress import EvaluationsDone, Progress
from galoop.search.protocol import StopSearch
from galoop.store.ledger import Spend
from galoop.store.run import RunStore
from galoop.types import Example, Outcome, State

SearchKnobs = DiscriminatorConfig | GeneratorConfig


@dataclass
class Meter:
    """Hard caps of one search, checked before anything is spent.

    Evaluations are counted as asked for, cached or not, so that a resumed search stops at the
    same candidate as an uninterrupted one. The price of a proposal is known only afterwards: the
    last one may pass the caps in dollars and tokens.
    """

    max_evaluations: int | None = None
    max_seconds: float | None = None
    max_dollars: float | None = None
    evaluations: int = 0
    dollars: float = 0.0
    unpriced: int = 0
    max_candidates: int | None = None
    patience: int = 0
    max_tokens: int | None = None
    max_proposals: int | None = None
    max_failures: int | None = None
    tried: int = 0
    tokens: int = 0
    proposals: int = 0
    failures: int = 0
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, knobs: SearchKnobs) -> Meter:
        """The caps of a search's table of the experiment file."""
        return cls(
            knobs.max_evaluations,
            knobs.max_seconds,
            knobs.max_dollars,
            max_candidates=knobs.max_candidates,
            patience=knobs.patience,
            max_tokens=knobs.max_tokens,
            max_proposals=knobs.max_proposals,
            max_failures=knobs.max_failures,
        )

    @property
    def elapsed(self) -> float:
        """Seconds that count against the cap of time."""
        return time.monotonic() - self.began

    @elapsed.setter
    def elapsed(self, seconds: float) -> None:
        self.began = time.monotonic() - seconds

    def check_candidate(self, tried: int, since_best: int) -> None:
        """Raise StopSearch when no further candidate may be evaluated.

        Parameters
        ----------
        tried : int
            Candidates evaluated so far.
        since_best : int
            How many of them since the last one that was better.
        """
        if self.max_candidates is not None and tried >= self.max_candidates:
            raise StopSearch(f"candidates: {self.max_candidates} tried")
        if self.patience and since_best >= self.patience:
            raise StopSearch(f"patience: no better one in {self.patience} candidates")
        self.check()
        self.tried = tried + 1

    def check(self, evaluations: int = 0) -> None:
        """Raise StopSearch when ``evaluations`` more would pass a cap."""
        if (
            self.max_evaluations is not None
            and self.evaluations + evaluations > self.max_evaluations
        ):
            raise StopSearch(f"evaluations: {self.evaluations} of {self.max_evaluations} used")
        if self.max_seconds is not None and self.elapsed > self.max_seconds:
            raise StopSearch(f"time: {self.max_seconds:g} s are over")

    def check_proposal(self) -> None:
        """Raise StopSearch when no further proposal may be paid; what was paid is still used."""
        if self.max_candidates is not None and self.tried >= self.max_candidates:
            raise StopSearch(f"candidates: {self.max_candidates} tried")  # it could not be used
        if self.max_proposals is not None and self.proposals >= self.max_proposals:
            raise StopSearch(f"proposals: {self.max_proposals} asked for")
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            raise StopSearch(f"tokens: {self.tokens} of {self.max_tokens} used")
        if self.max_dollars is None:
            return
        if self.unpriced:
            raise StopSearch("dollars: the price of a proposal is not known, and there is a cap")
        # What costs nothing may go on under a cap of 0.
        if self.dollars and self.dollars >= self.max_dollars:
            raise StopSearch(f"dollars: {self.dollars:.2f} of {self.max_dollars:g} spent")

    @property
    def dollars_left(self) -> float | None:
        """What is left of the cap in dollars; None without a cap."""
        return None if self.max_dollars is None else max(0.0, self.max_dollars - self.dollars)

    def charge(self, cost: Cost) -> None:
        """Count what was spent, whether or not for a proposal."""
        self.tokens += cost.input_tokens + cost.output_tokens
        if cost.dollars is None:
            self.unpriced += 1
        else:
            self.dollars += cost.dollars

    def pay(self, cost: Cost, rejected: str = "") -> None:
        """Count a proposal; ``rejected`` says why it held no candidate.

        Raises
        ------
        StopSearch
            When too many in a row held none.
        """
        self.proposals += 1
        self.charge(cost)
        self.failures = self.failures + 1 if rejected else 0
        if self.max_failures is not None and self.failures >= self.max_failures:
            raise StopSearch(
                f"proposer: {self.failures} proposals in a row held no candidate; the last: "
                f"{rejected}"
            )


@dataclass
class Scores:
    """What one system scored on a list of examples.

    Attributes
    ----------
    state : State
        ``scored`` when every example was answered.
    reason : str
        Why the system is invalid or failed.
    outcomes : list of list of Outcome
        One list of repeats an example; shorter than the examples when the system broke off.
    """

    system: Any
    state: State = State.SCORED
    reason: str = ""
    outcomes: list[list[Outcome]] = field(default_factory=list)

    @property
    def means(self) -> list[float]:
        """Mean score of each example over its repeats."""
        return cluster_means([[o.score or 0.0 for o in row] for row in self.outcomes])

    @property
    def accuracy(self) -> float:
        """Mean over examples."""
        means = self.means
        return sum(means) / len(means) if means else 0.0

    @property
    def graded(self) -> list[float]:
        """Mean of score and agreement with the gold answer, for each example.

        For a search to climb by, where the domain measures ``gold_agreement``; else the score.
        """
        return cluster_means(
            [
                [
                    0.5 * ((o.score or 0.0) + o.measured.get("gold_agreement", o.score or 0.0))
                    for o in row
                ]
                for row in self.outcomes
            ]
        )


class PairedEvaluator:
    """Asks the store first, the domain second, and records what it paid for.

    Parameters
    ----------
    session : DomainSession
    store : RunStore
    repeats : int
        Answers of an artifact per example (the paper's Bernoulli form). The reference is greedy
        and deterministic: it answers each example once.
    """

    def __init__(
        self, session: DomainSession, store: RunStore, repeats: int, progress: Progress
    ) -> None:
        self._session = session
        self._store = store
        self._repeats = repeats
        self._progress = progress

    def evaluate(
        self,
        systems: Sequence[Any],
        examples: Sequence[Example],
        *,
        stage: str,
        meter: Meter | None = None,
    ) -> list[Scores]:
        """Scores of every system on the same examples.

        Parameters
        ----------
        systems : sequence
            Systems of the domain's session.
        examples : sequence of Example
        stage : str
            For the ledger.
        meter : Meter, optional
            Caps to keep.

        Raises
        ------
        StopSearch
            Before anything is evaluated, when it would pass a cap.
        """
        asked = sum(self._repeats_of(s) for s in systems) * len(examples)
        if meter is not None:
            meter.check(asked)
            meter.evaluations += asked
        keys = [e.key for e in examples]
        known = {
            s.key: self._store.outcomes(
                s.key, [(k, r) for k in keys for r in range(self._repeats_of(s))]
            )
            for s in systems
        }
        cached = sum(map(len, known.values()))
        if cached:
            self._progress.emit(EvaluationsDone(cached, cached=True))
        for repeat in range(max(map(self._repeats_of, systems))):
            self._fill(systems, examples, repeat, known, stage)
        return [self._collect(s, keys, known[s.key]) for s in systems]

    def _repeats_of(self, system: Any) -> int:
        return 1 if system.candidate is None else self._repeats

    def _fill(
        self,
        systems: Sequence[Any],
        examples: Sequence[Example],
        repeat: int,
        known: dict[str, dict[tuple[str, int], Outcome]],
        stage: str,
    ) -> None:
        """Compute what is missing; systems that miss the same examples share their prefills."""
        missing: dict[tuple[str, ...], list[Any]] = {}
        for system in {s.key: s for s in systems}.values():  # two names may be one system
            have = known[system.key]
            if repeat >= self._repeats_of(system) or _broken(have):
                continue
            lacks = tuple(dict.fromkeys(e.key for e in examples if (e.key, repeat) not in have))
            if lacks:
                missing.setdefault(lacks, []).append(system)
        by_key = {e.key: e for e in examples}
        for lacks, group in missing.items():
            before = self._session.model_seconds
            began = time.monotonic()
            for rows in self._session.run(group, [by_key[k] for k in lacks], repeat):
                now, spent = time.monotonic(), self._session.model_seconds - before
                self._store.record(
                    [(s.key, e.key, repeat, o) for s, e, o in rows],
                    [
                        Spend(
                            stage=stage,
                            who=s.name,
                            kind="evaluation",
                            evaluations=sum(1 for t, _, _ in rows if t.key == s.key),
                            model_seconds=spent / len(group),
                            wall_seconds=(now - began) / len(group),
                        )
                        for s in group
                    ],
                )
                before, began = self._session.model_seconds, now
                for s, e, o in rows:
                    known[s.key][e.key, repeat] = o
                self._progress.emit(EvaluationsDone(len(rows)))

    def _collect(
        self, system: Any, keys: Sequence[str], have: dict[tuple[str, int], Outcome]
    ) -> Scores:
        scores = Scores(system)
        for key in keys:
            row = [have[key, r] for r in range(self._repeats_of(system)) if (key, r) in have]
            bad = next((o for o in row if o.state is not State.SCORED), None)
            if bad is not None:
                scores.state, scores.reason = bad.state, bad.reason
                break
            if len(row) < self._repeats_of(system):
                break  # not reached: the system broke off on another example
            scores.outcomes.append(row)
        if scores.state is State.SCORED and len(scores.outcomes) < len(keys):
            bad = _broken(have)
            assert bad is not None, "an example without an outcome and without a reason"
            scores.state, scores.reason = bad.state, bad.reason
        return scores


def _broken(have: dict[tuple[str, int], Outcome]) -> Outcome | None:
    """The outcome that ended a system's evaluation, if one did."""
    return next((o for o in have.values() if o.state is not State.SCORED), None)
