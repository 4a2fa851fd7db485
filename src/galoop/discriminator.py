"""The discriminator: a search over programs that build examples, and the admission of a find.

A candidate is screened on a few examples; screening figures steer the search and are never
reported as results. One that meets the criterion on the screen is tested at once on fresh seeds,
and the first that is admitted ends the search: what the search cost up to there is what the break
cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from galoop.config import ExperimentConfig
from galoop.domains.protocol import DomainSession
from galoop.evaluation.admission import (
    AdmissionRule,
    AdmissionVerdict,
    Criterion,
    admission_seeds,
    judge,
)
from galoop.evaluation.metered import seated
from galoop.evaluation.paired import Meter, PairedEvaluator, Scores
from galoop.excerpts import excerpts_of
from galoop.hashing import content_hash, derive_seed
from galoop.proposers.protocol import Evaluated, Task
from galoop.report.progress import CandidateFinished, CandidateStarted, Message, Progress
from galoop.search.protocol import Problem, Search, StopSearch, refined
from galoop.store.run import RunStore
from galoop.types import Candidate, Example, Feedback, State

OBJECTIVES = ("reference_accuracy", "gap")
_FIRST_LOOK = 4
#: Fresh examples of an admission that are answered before asking whether it can still succeed.
_BLOCK = 10


@dataclass(frozen=True)
class Attempt:
    """One admission attempt."""

    candidate: Candidate
    verdict: AdmissionVerdict
    screening_gap: float


@dataclass(frozen=True)
class Found:
    """An admitted probe with its open examples (the admission's own) and its sealed ones."""

    candidate: Candidate
    verdict: AdmissionVerdict
    screening_gap: float
    open: tuple[Example, ...]
    sealed: tuple[Example, ...]


@dataclass
class Discovery:
    """How a search for a break went."""

    found: Found | None = None
    attempts: list[Attempt] = field(default_factory=list)
    candidates: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    evaluations: int = 0
    best: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)
    stopped_by: str = ""


class Discriminator:
    """Searches for a probe on which the artifact loses what the reference solves.

    Parameters
    ----------
    config : ExperimentConfig
    session : DomainSession
    evaluator : PairedEvaluator
    store : RunStore
        Every candidate, rejection and attempt is an event in it.
    progress : Progress
    round : int
        1, 2, …: part of every seed.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        session: DomainSession,
        evaluator: PairedEvaluator,
        store: RunStore,
        progress: Progress,
        round: int,
    ) -> None:
        self._config = config
        self._session = session
        self._evaluator = evaluator
        self._store = store
        self._progress = progress
        self._round = round
        self._stage = f"round-{round}/discriminator"
        knobs = config.discriminator
        self._meter = Meter.of(knobs)
        self._criterion = Criterion(config.criterion.tau0, config.criterion.tau)
        self._screen_seeds = [
            derive_seed("screen", config.seed, round, i) for i in range(2 * knobs.screen_examples)
        ]
        self.result = Discovery()
        self._since_best = 0

    def run(self, search: Search, artifact: Any, frozen: Sequence[str]) -> Discovery:
        """Search until something is admitted or a cap is reached."""
        self._artifact = artifact
        task: Task = self._session.probe_task(frozen)
        seed = derive_seed("discriminator", self._config.seed, self._round)
        proposer = seated(
            self._config,
            self._session,
            self._store,
            self._meter,
            self._config.discriminator.proposer,
            task,
            seed,
            self._stage,
        )
        problem = Problem(
            task=task,
            proposer=proposer,
            evaluate=self._evaluate,
            objectives=OBJECTIVES,
            seed=seed,
            fresh=self._config.discriminator.fresh,
            start=self._start(),
        )
        try:
            self.result.stopped_by = search.run(problem)
        finally:
            proposer.finish(interrupted=True)  # of a search that ended, nothing runs any more
        self._try_refined(refined(search))
        self.result.evaluations = self._meter.evaluations
        return self.result

    def _start(self) -> list[Candidate]:
        path = self._config.discriminator.seed_probe
        if not path:
            return []
        from pathlib import Path

        text = Path(path).read_text(encoding="utf-8")
        return [Candidate("probe", {"probe.py": text}, "the given probe")]

    # -- one candidate ----------------------------------------------------------------------

    def _evaluate(self, candidate: Candidate) -> Feedback:
        self._meter.check_candidate(self.result.candidates, self._since_best)
        self.result.candidates += 1
        number = self.result.candidates
        self._progress.emit(CandidateStarted(number, candidate.note))
        feedback = self._screen(candidate)
        gap = feedback.objectives["gap"] if feedback.score >= 0.5 else 0.0
        self._since_best += 1
        if gap > self.result.best:
            self.result.best = gap
            self.result.curve.append((number, gap))
            self._since_best = 0
        self._log(number, candidate, feedback)
        shown = feedback.objectives["gap"]
        self._progress.emit(
            CandidateFinished(
                number,
                str(feedback.state),
                shown,
                self.result.best,
                feedback.reason,
                candidate.note,
            )
        )
        if self._looks_met(feedback):
            self._try_to_admit(candidate, feedback)
        return feedback

    def _looks_met(self, feedback: Feedback, slack: float = 0.0) -> bool:
        margin = self._config.admission.screen_margin - slack - 1e-9
        seen = slack > 0 or feedback.details.get("n") == len(self._screen_seeds)
        return seen and self._may_attempt(feedback, margin)

    def _may_attempt(self, feedback: Feedback, margin: float) -> bool:
        objectives = feedback.objectives
        return (
            feedback.state is State.SCORED
            and len(self.result.attempts) < self._config.admission.attempts
            and self._criterion.looks_met(
                objectives["reference_accuracy"], objectives["gap"], margin
            )
        )

    def _log(self, number: int, candidate: Candidate, feedback: Feedback) -> None:
        if feedback.state is not State.SCORED:
            self._count_rejection(feedback)
        digest = self._store.put_object(candidate.source.encode("utf-8"))
        self._store.event(
            "candidate",
            {
                "stage": self._stage,
                "number": number,
                "key": candidate.key,
                "source": digest,
                "note": candidate.note,
                "state": str(feedback.state),
                "score": feedback.score,
                "objectives": dict(feedback.objectives),
                "reason": feedback.reason,
            },
            key=f"{self._stage}/candidate/{number}",
        )

    def _count_rejection(self, feedback: Feedback) -> None:
        code = str(feedback.details.get("code") or feedback.reason.split(":")[0][:60])
        self.result.rejected[code] = self.result.rejected.get(code, 0) + 1

    def _screen(self, candidate: Candidate) -> Feedback:
        built = self._session.build_probe(candidate.source, self._screen_seeds)
        if built.state is not State.SCORED:
            code = getattr(built, "code", "")
            return _floor(built.state, built.rejected, {"code": code})
        n = self._config.discriminator.screen_examples
        examples = list(built.examples[:n])
        reference, artifact = self._answers(examples)
        if artifact is None:
            accuracy = reference.accuracy
            return Feedback(
                State.SCORED,
                0.5 * accuracy * len(reference.outcomes) / len(examples),
                {"reference_accuracy": accuracy, "gap": 0.0},
                reason=f"the reference solves {accuracy:.2f} of the first examples only",
                excerpts=excerpts_of(examples, reference, None),
            )
        if artifact.state is not State.SCORED:
            return self._artifact_failed(artifact)
        feedback = self._scored(examples, reference, artifact)
        # Admission attempts are few and each makes the next one harder to pass, while screening
        # is cheap: what looks like a break is looked at twice, the first time with the slack of
        # one example.
        if not self._looks_met(feedback, slack=1.0 / n):
            return feedback
        more = self._evaluator.evaluate(
            [self._session.reference(), self._artifact],
            built.examples[n:],
            stage=self._stage,
            meter=self._meter,
        )
        examples = list(built.examples)
        _extend((reference, artifact), more)
        if artifact.state is not State.SCORED:
            return self._artifact_failed(artifact)
        return self._scored(examples, reference, artifact)

    def _artifact_failed(self, artifact: Scores) -> Feedback:
        """The artifact is the one under test: its failure on valid examples is a finding for
        people, not a gap; it is said, and never scored.
        """
        reason = f"the artifact failed: {artifact.reason}"
        self._progress.emit(Message(reason, "warning"))
        return _floor(artifact.state, reason)

    def _scored(self, examples: list[Example], reference: Scores, artifact: Scores) -> Feedback:
        accuracy = reference.accuracy
        gap = accuracy - artifact.accuracy
        return Feedback(
            State.SCORED,
            screening_score(accuracy, gap, self._criterion.tau0),
            {"reference_accuracy": accuracy, "gap": max(0.0, gap)},
            excerpts=excerpts_of(examples, reference, artifact),
            details={"n": len(reference.outcomes)},
        )

    def _answers(self, examples: list[Example]) -> tuple[Scores, Scores | None]:
        """φ on a few first: where it fails, the artifact's answers could not make a break."""
        reference = self._session.reference()
        first = examples[:_FIRST_LOOK]
        (look,) = self._evaluator.evaluate([reference], first, stage=self._stage, meter=self._meter)
        most = (sum(look.means) + len(examples) - len(first)) / len(examples)
        if most < self._criterion.tau0 or look.accuracy < 0.5:
            return look, None
        both = self._evaluator.evaluate(
            [reference, self._artifact], examples, stage=self._stage, meter=self._meter
        )
        return both[0], both[1]

    # -- admission --------------------------------------------------------------------------

    def _try_refined(self, candidates: Sequence[Evaluated]) -> None:
        """What several islands ended with, one at a time, while attempts are left.

        They need not exceed the criterion by the margin: no better ones will come.
        """
        if not candidates or self.result.found is not None:
            return
        self._store.event(
            "refined",
            {"stage": self._stage, "keys": [one.candidate.key for one in candidates]},
            key=f"{self._stage}/refined",
        )
        tried = {attempt.candidate.key for attempt in self.result.attempts}
        try:
            for one in candidates:
                if one.candidate.key not in tried and self._may_attempt(one.feedback, 0.0):
                    self._try_to_admit(one.candidate, one.feedback)
        except StopSearch as stop:
            self.result.stopped_by = stop.reason

    def _try_to_admit(self, candidate: Candidate, feedback: Feedback) -> None:
        knobs = self._config.admission
        number = len(self.result.attempts) + 1
        # The seeds depend on the program and on a secret of the run; the search cannot aim at them.
        secret = content_hash(["admission", self._config.seed, self._round])
        seeds = admission_seeds(secret, candidate.key, number, knobs.examples + knobs.sealed)
        built = self._session.build_probe(candidate.source, seeds)
        if built.state is not State.SCORED:
            self._count_rejection(_floor(built.state, built.rejected, {"code": "fresh-seeds"}))
            self._progress.emit(
                Message(f"not admitted: on fresh seeds the probe is rejected: {built.rejected}")
            )
            return
        fresh, sealed = built.examples[: knobs.examples], built.examples[knobs.examples :]
        rule = AdmissionRule(self._criterion, knobs.examples, knobs.alpha)
        reference, artifact = self._answer_fresh(fresh, rule, number)
        if artifact.state is not State.SCORED:
            self._progress.emit(Message(f"not admitted: the artifact failed: {artifact.reason}"))
            return
        verdict = judge(reference.means, artifact.means, rule, number)
        if verdict.n < rule.n:  # judge takes the rest for examples that could not be scored
            said = verdict.reason.partition("; ")[2]
            reason = f"given up after {verdict.n} of {rule.n} fresh examples: {said}"
            verdict = replace(verdict, reason=reason)
        attempt = Attempt(candidate, verdict, feedback.objectives["gap"])
        self.result.attempts.append(attempt)
        self._store.event(
            "admission",
            {"stage": self._stage, "key": candidate.key, "verdict": verdict.to_json()},
            key=f"{self._stage}/admission/{number}",
        )
        words = "admitted" if verdict.admitted else "not admitted"
        self._progress.emit(Message(f"attempt {number}: {words}: {verdict.reason}"))
        if verdict.admitted:
            self.result.found = Found(
                candidate, verdict, feedback.objectives["gap"], tuple(fresh), tuple(sealed)
            )
            raise StopSearch("a slice was admitted")

    def _answer_fresh(
        self, fresh: Sequence[Example], rule: AdmissionRule, number: int
    ) -> tuple[Scores, Scores]:
        """Answers on the fresh examples, some at a time, until they cannot be admitted any more.

        Stopping early can only turn an admission away, so the error level is untouched.
        """
        systems = [self._session.reference(), self._artifact]
        stage = f"round-{self._round}/admission"
        reference, artifact = Scores(systems[0]), Scores(systems[1])
        for end in range(_BLOCK, len(fresh) + _BLOCK, _BLOCK):
            part = fresh[end - _BLOCK : end]
            more = self._evaluator.evaluate(systems, part, stage=stage, meter=self._meter)
            _extend((reference, artifact), more)
            left = len(fresh) - len(reference.outcomes)
            if artifact.state is not State.SCORED or left <= 0:
                break
            best = judge(
                [*reference.means, *[1.0] * left], [*artifact.means, *[0.0] * left], rule, number
            )
            if not best.admitted:
                break
        return reference, artifact


def _extend(kept: Sequence[Scores], more: Sequence[Scores]) -> None:
    """Append the outcomes on further examples to those of the same systems."""
    for old, new in zip(kept, more, strict=True):
        old.outcomes += new.outcomes
        old.state, old.reason = new.state, new.reason


def screening_score(accuracy: float, gap: float, tau0: float) -> float:
    """The scalar that the search maximises, in [0, 1].

    Below τ₀ it rises with the reference's accuracy up to 0.5, whatever the gap; from τ₀ on it is
    0.5 plus half the gap, so that a gap counts only where the reference is valid.
    """
    if accuracy < tau0:
        return 0.5 * accuracy / tau0 * 0.999
    return 0.5 + 0.5 * max(0.0, gap)


def _floor(state: State, reason: str, details: dict[str, Any] | None = None) -> Feedback:
    return Feedback(state, 0.0, dict.fromkeys(OBJECTIVES, 0.0), reason, details=details or {})
