"""The trial of a candidate that the generator's search brings: confirmation, then the gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from galoop.config import ExperimentConfig
from galoop.domains.protocol import DomainSession
from galoop.evaluation.noninferiority import ComponentVerdict, gate_status, judge_component
from galoop.evaluation.paired import PairedEvaluator, Scores
from galoop.evaluation.statistics import Interval, mcnemar_p, mean_interval
from galoop.regression import Regression
from galoop.report.progress import Message, Progress
from galoop.types import Candidate, Example, State


@dataclass(frozen=True)
class OpenSlice:
    """A slice as the generator may see it."""

    name: str
    primary: tuple[Example, ...]
    confirmation: tuple[Example, ...]


@dataclass(frozen=True)
class Change:
    """How a candidate does on one slice's confirmation set, against its parent."""

    slice: str
    old: Interval
    new: Interval
    gained: int
    lost: int
    p_value: float
    status: str
    reason: str


@dataclass(frozen=True)
class Trial:
    """One candidate taken beyond the primary set."""

    candidate: Candidate
    accepted: bool
    reason: str
    primary: float
    changes: tuple[Change, ...] = ()
    components: tuple[ComponentVerdict, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Improvement:
    """How a search for a repair went."""

    accepted: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    candidates: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    evaluations: int = 0
    best: float = 0.0
    parent: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)
    stopped_by: str = ""


class Trials:
    """Judges candidates on the confirmation set of every slice, then at the gate.

    Parameters
    ----------
    config, session, evaluator, progress, round
        As for :class:`galoop.discriminator.Discriminator`.
    regression : Regression
        The suites, against A₀.
    parent : System
        What the candidates are compared with on the slices.
    slices : sequence of OpenSlice
    """

    def __init__(
        self,
        config: ExperimentConfig,
        session: DomainSession,
        evaluator: PairedEvaluator,
        regression: Regression,
        progress: Progress,
        round: int,
        parent: Any,
        slices: Sequence[OpenSlice],
    ) -> None:
        self._config = config
        self._session = session
        self._evaluator = evaluator
        self._regression = regression
        self._progress = progress
        self._stage = f"round-{round}/confirmation"
        self._parent = parent
        self._slices = slices

    def judge(self, candidate: Candidate, score: float) -> Trial:
        """Put one candidate to the test; ``score`` is its accuracy on the primary set."""
        system = self._session.artifact(candidate, "candidate")
        examples = [e for s in self._slices for e in s.confirmation]
        old, new = self._evaluator.evaluate([self._parent, system], examples, stage=self._stage)
        if new.state is not State.SCORED:
            return Trial(candidate, False, f"{new.state}: {new.reason}", score)
        if old.state is not State.SCORED:
            reason = f"the parent {old.state}: {old.reason}; nothing can be compared with it"
            return Trial(candidate, False, reason, score)
        changes = tuple(self._change(s, old, new, examples) for s in self._slices)
        alpha = self._config.generator.alpha
        p = mcnemar_p(old.means, new.means)
        measured = measured_budget(new)
        if p > alpha:
            reason = f"no improvement on the confirmation set (McNemar p = {p:.2g} > {alpha:g})"
            return Trial(candidate, False, reason, score, changes, (), measured)
        lost = lost_slice(changes)
        if lost is not None:
            reason = f"{lost.slice} would be lost: {lost.reason}"
            return Trial(candidate, False, reason, score, changes, (), measured)
        verdicts = self._gate(system)
        bad = [v for v in verdicts if v.status in ("fail", "inconclusive")]
        accepted = not verdicts or gate_status(verdicts) == "pass"
        if bad:
            reason = f"gate: {bad[0].component} {bad[0].status}: {bad[0].reason}"
        elif not accepted:
            reason = "gate: inconclusive: the reference itself fails on every component"
        else:
            passed = "passed the gate" if verdicts else "no suite was asked for"
            reason = f"improved (McNemar p = {p:.2g}, n = {len(examples)}) and {passed}"
        return Trial(candidate, accepted, reason, score, changes, tuple(verdicts), measured)

    def _change(self, part: OpenSlice, old: Scores, new: Scores, examples: list[Example]) -> Change:
        keys = {e.key for e in part.confirmation}
        index = [i for i, e in enumerate(examples) if e.key in keys]
        before = [old.means[i] for i in index]
        after = [new.means[i] for i in index]
        verdict = judge_component(
            part.name,
            [1.0] * len(index),
            before,
            after,
            self._config.generator.slice_delta,
            self._config.generator.alpha,
            0.0,
        )
        return Change(
            part.name,
            mean_interval(before),
            mean_interval(after),
            sum(a > b for a, b in zip(after, before, strict=True)),
            sum(a < b for a, b in zip(after, before, strict=True)),
            mcnemar_p(before, after),
            verdict.status,
            verdict.reason,
        )

    def _gate(self, system: Any) -> list[ComponentVerdict]:
        if not self._config.gate.suites:
            return []

        def say(verdict: ComponentVerdict) -> None:
            self._progress.emit(Message(f"gate: {verdict.component}: {verdict.status}"))

        return self._regression.gate(system, say)


def lost_slice(changes: Sequence[Change]) -> Change | None:
    """A slice on which the candidate is not shown to hold what its parent did.

    The improvement is tested over all slices together, so that a gain on earlier ones could hide a
    loss on the newest: there the candidate must at least equal its parent.
    """
    newest = changes[-1]
    if newest.new.estimate < newest.old.estimate:
        return newest
    return next((c for c in changes[:-1] if c.status != "pass"), None)


#: Measured on every answer, and no part of a budget: wall time, and what searches climb by.
_NOT_BUDGET = ("added_latency", "gold_agreement")


def measured_budget(scores: Scores) -> dict[str, float]:
    """The measured budget over the examples: the extremes, which bind. No times."""
    rows = [o.measured for row in scores.outcomes for o in row]
    out: dict[str, float] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        if key not in _NOT_BUDGET:
            reduce = min if "_least" in key else max
            out[key] = float(reduce(row[key] for row in rows if key in row))
    return out
