"""The search for a smaller program, and the test of what it ends with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from galoop.domains.protocol import DomainSession
from galoop.errors import UsageError
from galoop.evaluation.admission import (
    AdmissionRule,
    AdmissionVerdict,
    Criterion,
    admission_seeds,
    judge,
)
from galoop.evaluation.paired import Meter, PairedEvaluator, Scores
from galoop.hashing import content_hash, derive_seed
from galoop.report.progress import CandidateFinished, CandidateStarted, Message, Progress
from galoop.search.protocol import StopSearch
from galoop.shrink.edits import PASSES
from galoop.shrink.size import size
from galoop.shrink.text import Source, tidy
from galoop.store.run import RunStore
from galoop.types import Candidate, Example, State

#: Examples on which a candidate is first compared with the program it came from.
_SAME = 4
_FIRST_LOOK = 4
PROBE = "probe.py"


@dataclass(frozen=True)
class Knobs:
    """What a shrink may spend, and how sure it has to be.

    Attributes
    ----------
    examples : int
        Of a candidate's own seeds.
    margin : float
        By which estimates on them have to exceed τ₀ and τ: the criterion is met for certain only
        on the fresh seeds at the end, and a program that only just meets it would not pass.
    fresh, sealed : int
        Examples of the last test, and further ones for the slice.
    attempts : int
        Programs that may be taken to that test; attempt k spends 6α/(π²k²) of ``alpha``.
    """

    examples: int = 12
    margin: float = 0.15
    fresh: int = 40
    sealed: int = 40
    attempts: int = 3
    alpha: float = 0.05
    seed: int = 0
    max_candidates: int | None = 400
    max_evaluations: int | None = None
    max_seconds: float | None = None


@dataclass(frozen=True)
class Step:
    """A program that was kept, with what was done to come to it."""

    source: str
    edit: str
    number: int


@dataclass
class Shrunk:
    """How a shrink went."""

    steps: list[Step] = field(default_factory=list)
    verdicts: list[AdmissionVerdict] = field(default_factory=list)
    confirmed: Step | None = None
    open: tuple[Example, ...] = ()
    sealed: tuple[Example, ...] = ()
    tried: int = 0
    evaluations: int = 0
    stopped_by: str = ""


class Shrinker:
    """Shrinks one probe against one artifact.

    Parameters
    ----------
    session : DomainSession
    evaluator : PairedEvaluator
    store : RunStore
    progress : Progress
    artifact : System
    criterion : Criterion
    knobs : Knobs
    """

    def __init__(
        self,
        session: DomainSession,
        evaluator: PairedEvaluator,
        store: RunStore,
        progress: Progress,
        artifact: Any,
        criterion: Criterion,
        knobs: Knobs,
    ) -> None:
        self._session = session
        self._evaluator = evaluator
        self._store = store
        self._progress = progress
        self._systems = [session.reference(), artifact]
        self._criterion = criterion
        self._knobs = knobs
        self._secret = content_hash(["shrink", knobs.seed, artifact.key])
        self._same = [derive_seed("shrink same", knobs.seed, i) for i in range(_SAME)]
        self._meter = Meter(
            knobs.max_evaluations, knobs.max_seconds, max_candidates=knobs.max_candidates
        )
        self._seen: set[str] = set()
        self._first = ""
        self.result = Shrunk()

    def run(self, source: str) -> Shrunk:
        """Shrink until no edit helps or a cap is reached; then test what was kept.

        Raises
        ------
        UsageError
            When the program itself does not meet the criterion here.
        """
        self._first = source
        try:
            kept = self._keys(source)
            if not kept or not self._meets(_candidate(source)):
                raise UsageError(
                    "the probe does not meet its criterion here, on seeds of this command's own",
                    "shrink it against what it was found against, on its own model and budget",
                )
            self._descend(source, kept)
            self.result.stopped_by = "no edit helps any more"
        except StopSearch as stop:
            self.result.stopped_by = stop.reason
        self._confirm(source)
        self.result.evaluations = self._meter.evaluations
        return self.result

    # -- down -------------------------------------------------------------------------------

    def _descend(self, source: str, keys: Sequence[str]) -> None:
        improved = True
        while improved:
            improved = False
            for edits in PASSES:
                index = 0
                while True:
                    found = self._next(source, edits(Source(source)), index)
                    if found is None:
                        break
                    index, candidate = found
                    kept = self._try(candidate, keys, edits.__name__)
                    if kept is None:
                        index += 1
                        continue
                    # The same place of the smaller program is the next one.
                    source, keys, improved = candidate, kept, True

    def _next(self, source: str, edits: Iterator[str], index: int) -> tuple[int, str] | None:
        """The next edit from ``index`` on that makes the program smaller and is new."""
        now = size(source)
        for i, text in enumerate(edits):
            if i < index or text in self._seen:
                continue
            self._seen.add(text)
            try:
                smaller = size(text) < now
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            if smaller:
                return i, text
        return None

    def _try(self, text: str, keys: Sequence[str], edit: str) -> Sequence[str] | None:
        """Keys of the candidate's first examples if it is kept, else None."""
        self._meter.check_candidate(self.result.tried, 0)
        self.result.tried += 1
        number = self.result.tried
        words = edit.replace("_", " ")
        self._progress.emit(CandidateStarted(number, words))
        made = self._keys(text)
        same = made == keys
        kept = bool(made) and (same or self._meets(_candidate(text)))
        if kept:
            self.result.steps.append(Step(text, words, number))
            digest = self._store.put_object(text.encode("utf-8"))
            self._store.event(
                "shrink",
                {"number": number, "edit": edit, "source": digest, "size": list(size(text)),
                 "same_examples": same},
                key=f"shrink/{number}",
            )  # fmt: skip
        reason = "" if kept else "the gap is gone" if made else "breaks the probe contract"
        state = State.SCORED if made else State.INVALID
        # Shown as the share of the program that is gone, which is better the larger it is.
        now = self.result.steps[-1].source if self.result.steps else self._first
        gone, best = (1.0 - size(t)[0] / size(self._first)[0] for t in (text, now))
        self._progress.emit(CandidateFinished(number, str(state), gone, best, reason, words))
        return made if kept else None

    def _keys(self, text: str) -> list[str]:
        """Keys of the examples on seeds that all candidates share; none where it is rejected.

        A program that builds the very same examples needs no answers.
        """
        built = self._session.build_probe(text, self._same)
        return [e.key for e in built.examples] if built.state is State.SCORED else []

    def _meets(self, candidate: Candidate) -> bool:
        """Whether estimates on seeds of the candidate's own exceed the criterion by the margin.

        Some examples at a time, until it cannot any more.
        """
        n, margin = self._knobs.examples, self._knobs.margin
        seeds = [derive_seed(self._secret, candidate.key, i) for i in range(n)]
        built = self._session.build_probe(candidate.source, seeds)
        if built.state is not State.SCORED:
            return False
        reference, artifact = Scores(self._systems[0]), Scores(self._systems[1])
        for start in range(0, n, _FIRST_LOOK):
            part = built.examples[start : start + _FIRST_LOOK]
            more = self._evaluator.evaluate(self._systems, part, stage="shrink", meter=self._meter)
            for scores, other in zip((reference, artifact), more, strict=True):
                if other.state is not State.SCORED:
                    return False
                scores.outcomes += other.outcomes
            left = n - len(reference.outcomes)
            whole = (sum(reference.means) + left) / n
            lost = sum(a - b for a, b in zip(reference.means, artifact.means, strict=True))
            if not self._criterion.looks_met(whole, (lost + left) / n, margin - 1e-9):
                return False
        return self._varied(candidate)

    def _varied(self, candidate: Candidate) -> bool:
        """Whether twice as many examples as the last test takes can be built; it costs no answer.

        With fewer and fewer words in it a program repeats itself, which only shows over many seeds.
        """
        n = 2 * (self._knobs.fresh + self._knobs.sealed)
        seeds = [derive_seed(self._secret, candidate.key, "varied", i) for i in range(n)]
        return self._session.build_probe(candidate.source, seeds).state is State.SCORED

    # -- the last word ----------------------------------------------------------------------

    def _confirm(self, source: str) -> None:
        """Test the smallest program on fresh seeds; where it fails, one of those before it."""
        steps = self.result.steps
        if not steps:
            return
        last, attempt = len(steps) - 1, 1
        while attempt <= self._knobs.attempts:
            step = steps[last]
            tidied = tidy(step.source)
            same = self._keys(tidied) == self._keys(step.source)
            step = Step(tidied if same else step.source, step.edit, step.number)
            verdict = self._admit(step, attempt)
            if last == 0 or (verdict is not None and verdict.admitted):
                return
            if verdict is None:  # nothing was answered: no attempt was spent
                last -= 1
            else:
                last, attempt = last * 3 // 4, attempt + 1

    def _admit(self, step: Step, attempt: int) -> AdmissionVerdict | None:
        """The verdict on fresh seeds; None where there is nothing to judge."""
        knobs = self._knobs
        candidate = _candidate(step.source)
        seeds = admission_seeds(self._secret, candidate.key, attempt, knobs.fresh + knobs.sealed)
        built = self._session.build_probe(candidate.source, seeds)
        if built.state is not State.SCORED:
            self._progress.emit(Message(f"step {step.number} is rejected: {built.rejected}"))
            return None
        fresh = built.examples[: knobs.fresh]
        # The test belongs to the promise and not to the search: no cap of the search ends it.
        reference, artifact = self._evaluator.evaluate(self._systems, fresh, stage="confirmation")
        bad = next((s for s in (reference, artifact) if s.state is not State.SCORED), None)
        if bad is not None:
            self._progress.emit(Message(f"not confirmed: {bad.state}: {bad.reason}"))
            return None
        rule = AdmissionRule(self._criterion, knobs.fresh, knobs.alpha)
        verdict = judge(reference.means, artifact.means, rule, attempt)
        self.result.verdicts.append(verdict)
        self._store.event(
            "admission",
            {"stage": "confirmation", "key": candidate.key, "verdict": verdict.to_json()},
            key=f"confirmation/{attempt}",
        )
        words = "confirmed" if verdict.admitted else "not confirmed"
        self._progress.emit(Message(f"attempt {attempt}: {words}: {verdict.reason}"))
        if verdict.admitted:
            self.result.confirmed = step
            self.result.open = tuple(fresh)
            self.result.sealed = tuple(built.examples[knobs.fresh :])
        return verdict


def _candidate(source: str) -> Candidate:
    return Candidate("probe", {PROBE: source}, "shrunk")
