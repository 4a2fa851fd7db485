"""The generator: a search over algorithms that repair the benchmark at the same budget.

Three hurdles stand between a candidate and a generation, each on examples that the one before did
not show: the primary set, and for promising candidates a look at the suites, steer the search; the
confirmation set (open examples of the slices that no search has seen) must show an improvement and
no loss of an earlier slice; the gate holds every component of the established suites against the
start artifact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from galoop.config import ExperimentConfig
from galoop.domains.protocol import DomainSession
from galoop.evaluation.metered import seated
from galoop.evaluation.paired import Meter, PairedEvaluator, Scores
from galoop.excerpts import ReferenceAnswers, solved_and_missed
from galoop.hashing import canonical_json, derive_seed
from galoop.regression import Look, Regression
from galoop.report.progress import CandidateFinished, CandidateStarted, Message, Progress
from galoop.search.protocol import Problem, Search, StopSearch
from galoop.store.run import RunStore
from galoop.trial import Improvement, OpenSlice, Trials
from galoop.types import Candidate, Example, Excerpt, Feedback, State

_FIRST_LOOK = 6
#: A candidate whose first look lies this far below the best, or below its parent's own first look,
#: is not evaluated further.
_BEHIND = 0.25
#: The Pareto axis of what an artifact keeps of the suites: 1 minus its largest loss.
_SUITES = "suites"


class Generator:
    """Searches for an artifact that solves the benchmark and loses nothing elsewhere.

    Parameters
    ----------
    config, session, evaluator, store, progress, round
        As for :class:`galoop.discriminator.Discriminator`.
    slices : sequence of OpenSlice
        B₁ … Bᵢ.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        session: DomainSession,
        evaluator: PairedEvaluator,
        store: RunStore,
        progress: Progress,
        round: int,
        slices: Sequence[OpenSlice],
    ) -> None:
        self._config = config
        self._session = session
        self._evaluator = evaluator
        self._store = store
        self._progress = progress
        self._round = round
        self._slices = slices
        self._stage = f"round-{round}/generator"
        knobs = config.generator
        self._meter = Meter.of(knobs)
        self.result = Improvement()
        self._since_best = 0
        self._parent_look = 0.0
        self._best_score = 0.0
        self._looks = bool(config.gate.suites) and config.gate.look > 0
        self._ranked: dict[str, tuple[bool, float, float, Candidate]] = {}
        self._tried: set[str] = set()
        self._reference = ReferenceAnswers(session, evaluator, self._stage)

    def run(self, search: Search, parent: Candidate, start: Candidate) -> Improvement:
        """Search until a candidate passes every hurdle or a cap is reached."""
        self._parent = self._session.artifact(parent, "parent")
        self._start = self._session.artifact(start, "A0")
        self._regression = Regression(
            self._config,
            self._session,
            self._evaluator,
            self._start,
            f"round-{self._round}/gate",
            lambda text: self._progress.emit(Message(text)),
        )
        self._trials = Trials(
            self._config,
            self._session,
            self._evaluator,
            self._regression,
            self._progress,
            self._round,
            self._parent,
            self._slices,
        )
        task = self._session.artifact_task()
        seed = derive_seed("generator", self._config.seed, self._round)
        proposer = seated(
            self._config,
            self._session,
            self._store,
            self._meter,
            self._config.generator.proposer,
            task,
            seed,
            self._stage,
        )
        problem = Problem(
            task=task,
            proposer=proposer,
            evaluate=self._evaluate,
            objectives=[*(s.name for s in self._slices), *([_SUITES] if self._looks else [])],
            seed=seed,
            fresh=self._config.generator.fresh,
            start=[parent],
            suites=self._losses if self._looks else None,
        )
        try:
            self.result.stopped_by = search.run(problem)
        finally:
            proposer.finish(interrupted=True)  # of a search that ended, nothing runs any more
        self._try_the_rest()
        self.result.evaluations = self._meter.evaluations
        return self.result

    # -- one candidate ----------------------------------------------------------------------

    def _evaluate(self, candidate: Candidate) -> Feedback:
        knobs = self._config.generator
        # The parent is evaluated first and is not one of the candidates.
        is_parent = candidate.key == self._parent.candidate.key
        if not is_parent:
            self._meter.check_candidate(self.result.candidates, self._since_best)
            self.result.candidates += 1
        number = self.result.candidates
        self._progress.emit(CandidateStarted(number, candidate.note))
        feedback = self._primary(candidate)
        self._note(number, candidate, feedback, is_parent)
        accuracy = _accuracy(feedback)
        promising = accuracy >= max(knobs.target, self._promising)
        if feedback.state is State.SCORED and not is_parent and promising and self._keeps(feedback):
            self._try_candidate(candidate, accuracy)
        return feedback

    def _losses(self, candidate: Candidate) -> Mapping[str, float]:
        """The look at the suites, for a search that asks for it."""
        system = self._session.artifact(candidate, "candidate")
        return self._regression.look(system, self._stage, self._meter).losses

    def _keeps(self, feedback: Feedback) -> bool:
        """Whether the look at the suites leaves hope for the gate."""
        return float(feedback.details.get("loss", 0.0)) <= self._config.gate.delta

    def _note(self, number: int, candidate: Candidate, feedback: Feedback, is_parent: bool) -> None:
        self._since_best += 1
        accuracy = _accuracy(feedback)
        if is_parent:
            self.result.parent = self.result.best = accuracy
            self._since_best = 0
        elif feedback.state is State.SCORED:
            partial = bool(feedback.details.get("partial"))
            hopeless = partial or not self._keeps(feedback)
            self._ranked[candidate.key] = (hopeless, feedback.score, accuracy, candidate)
        else:
            code = feedback.reason.split(":")[0][:60]
            self.result.rejected[code] = self.result.rejected.get(code, 0) + 1
        if feedback.score > self._best_score:
            self._best_score = feedback.score
            self._since_best = 0
        if accuracy > self.result.best:
            self.result.best = accuracy
            self.result.curve.append((number, accuracy))
        files = self._store.put_object(canonical_json(dict(candidate.files)).encode("utf-8"))
        self._store.event(
            "candidate",
            {
                "stage": self._stage,
                "number": number,
                "key": candidate.key,
                "files": files,
                "note": candidate.note,
                "state": str(feedback.state),
                "score": feedback.score,
                "accuracy": accuracy,
                "objectives": dict(feedback.objectives),
                "reason": feedback.reason,
            },
            key=f"{self._stage}/candidate/{number}",
        )
        self._progress.emit(
            CandidateFinished(
                number,
                str(feedback.state),
                accuracy,
                self.result.best,
                feedback.reason,
                candidate.note,
            )
        )

    def _primary(self, candidate: Candidate) -> Feedback:
        """Accuracy on the primary set of every slice, the newest slice first."""
        system = self._session.artifact(candidate, "candidate")
        is_parent = candidate.key == self._parent.candidate.key
        look = [e for s in reversed(self._slices) for e in s.primary[:_FIRST_LOOK]]
        (seen,) = self._evaluator.evaluate([system], look, stage=self._stage, meter=self._meter)
        if seen.state is not State.SCORED:
            return self._floor(seen)
        graded = sum(seen.graded) / len(seen.graded)
        if is_parent:
            self._parent_look = graded
        elif graded < max(self._parent_look, self._best_score - _BEHIND):
            return self._feedback(look, seen, partial=True)
        examples = [e for s in self._slices for e in s.primary]
        (scores,) = self._evaluator.evaluate(
            [system], examples, stage=self._stage, meter=self._meter
        )
        if scores.state is not State.SCORED:
            return self._floor(scores)
        accuracy = _mean(self._by_slice(examples, scores.means))
        if not self._looks or not (is_parent or accuracy >= self._promising):
            return self._feedback(examples, scores, partial=False)
        # A finer look is for what could lead the search, or go to a trial at once.
        graded = _mean(self._by_slice(examples, scores.graded))
        seen_suites = self._regression.look(
            system,
            self._stage,
            self._meter,
            lambda first: (
                accuracy >= self._config.generator.target
                or self._discounted(graded, first) > self._best_score
            ),
        )
        return self._feedback(examples, scores, partial=False, suites=seen_suites)

    def _discounted(self, graded: float, suites: Look | None) -> float:
        """The score: what a repair reaches, less what it loses, in units of the margin.

        A loss of δ halves what a repair is worth, for almost nothing with such a loss passes the
        gate, however much it repairs.
        """
        return graded / (1.0 + suites.loss / self._config.gate.delta) if suites else graded

    @property
    def _promising(self) -> float:
        return self.result.parent + self._config.generator.promising

    def _floor(self, scores: Scores) -> Feedback:
        axes = [*(s.name for s in self._slices), *([_SUITES] if self._looks else [])]
        return Feedback(scores.state, 0.0, dict.fromkeys(axes, 0.0), reason=scores.reason)

    def _feedback(
        self, examples: list[Example], scores: Scores, partial: bool, suites: Look | None = None
    ) -> Feedback:
        objectives = self._by_slice(examples, scores.graded)
        accuracies = self._by_slice(examples, scores.means)
        score, accuracy = self._discounted(_mean(objectives), suites), _mean(accuracies)
        loss = suites.loss if suites else 0.0
        if self._looks:  # what was not looked at counts as lost on this axis alone
            objectives[_SUITES] = max(0.0, 1.0 - loss) if suites else 0.0
        if partial:  # never better than a candidate that was evaluated in full
            score = min(score, self._best_score - 1e-3)
            accuracy = min(accuracy, self.result.best - 1e-3)
        return Feedback(
            State.SCORED,
            max(0.0, score),
            objectives,
            reason=f"loses on suites: {suites.words}" if suites and suites.words else "",
            excerpts=self._excerpts(examples, scores),
            details={
                "partial": partial,
                "loss": loss,
                "n": len(examples),
                "accuracy": max(0.0, accuracy),
                "accuracies": accuracies,
            },
        )

    def _excerpts(self, examples: list[Example], scores: Scores) -> tuple[Excerpt, ...]:
        known = dict(zip((e.key for e in examples), scores.outcomes, strict=True))
        parts = [[e for e in part.primary if e.key in known] for part in self._slices]
        outcomes = [[known[e.key][0] for e in part] for part in parts]
        return solved_and_missed(parts, outcomes, self._reference)

    def _by_slice(self, examples: list[Example], values: list[float]) -> dict[str, float]:
        """Mean value of each slice's examples."""
        known = dict(zip((e.key for e in examples), values, strict=True))
        out = {}
        for part in self._slices:
            own = [known[e.key] for e in part.primary if e.key in known]
            out[part.name] = sum(own) / len(own)
        return out

    # -- beyond the primary set -------------------------------------------------------------

    def _try_the_rest(self) -> None:
        """When the search ended without an acceptance: the best ones, while attempts are left."""
        if self.result.accepted is not None:
            return
        # What was seen on a few examples only, or lost on the suites, comes last; of the latter one
        # is enough to show where the search stood.
        ranked = sorted(
            self._ranked.values(), key=lambda item: (item[0], -item[1], -item[2], item[3].key)
        )
        for hopeless, _, accuracy, candidate in ranked:
            if accuracy < self._promising or (hopeless and self.result.trials):
                continue
            try:
                self._try_candidate(candidate, accuracy)
            except StopSearch as stop:
                self.result.stopped_by = stop.reason
                return

    def _try_candidate(self, candidate: Candidate, score: float) -> None:
        attempts = self._config.generator.attempts
        if candidate.key in self._tried or len(self.result.trials) >= attempts:
            return
        self._tried.add(candidate.key)
        trial = self._trials.judge(candidate, score)
        self.result.trials.append(trial)
        number = len(self.result.trials)
        self._store.event(
            "trial",
            {
                "stage": self._stage,
                "key": candidate.key,
                "accepted": trial.accepted,
                "reason": trial.reason,
                "components": [v.to_json() for v in trial.components],
            },
            key=f"{self._stage}/trial/{number}",
        )
        words = "accepted" if trial.accepted else "not accepted"
        self._progress.emit(Message(f"trial {number}: {words}: {trial.reason}"))
        if trial.accepted:
            self.result.accepted = trial
            raise StopSearch("a generation was accepted")


def _mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values)


def _accuracy(feedback: Feedback) -> float:
    """Accuracy on the primary set; the search's own score is finer and is no result."""
    return float(feedback.details.get("accuracy", 0.0))
