"""Examples shortened for a prompt or a reader: some that were solved and some that were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from galoop.domains.protocol import DomainSession
from galoop.evaluation.paired import PairedEvaluator, Scores
from galoop.types import Example, Excerpt, Outcome, Verdict

_EXCERPT_CHARACTERS = 700
_ANSWER_CHARACTERS = 200
#: Examples of an artifact that it did not solve; one that it solved stands beside them.
_MISSED = 2


def excerpts_of(
    examples: Sequence[Example], reference: Scores, artifact: Scores | None
) -> tuple[Excerpt, ...]:
    """The first example that the artifact lost, that it solved, and that the reference missed.

    Parameters
    ----------
    artifact : Scores or None
        None where it was not asked: then the first that the reference solved and that it missed.
    """
    chosen: dict[object, Excerpt] = {}
    for i, row in enumerate(reference.outcomes):
        other = artifact.outcomes[i][0] if artifact is not None else None
        found = _excerpt(examples[i], row[0], other)
        chosen.setdefault(found.verdict or _solved(row[0]), found)
    order = {"lost": 0, "solved": 1, "missed": 2}
    return tuple(sorted(chosen.values(), key=lambda one: order.get(one.verdict, 0)))


def solved_and_missed(
    parts: Sequence[Sequence[Example]],
    outcomes: Sequence[Sequence[Outcome]],
    answers: Callable[[Sequence[Example]], Sequence[Outcome]],
) -> tuple[Excerpt, ...]:
    """Examples that an artifact did not solve, those of the later parts first, and one it solved.

    Parameters
    ----------
    parts : sequence of sequence of Example
        The examples of each slice, oldest slice first.
    outcomes : sequence of sequence of Outcome
        The artifact's, in the same shape.
    answers : callable
        Examples -> the reference's outcomes on them. It is asked once, for what is shown.
    """
    missed: list[tuple[int, int, int]] = []  # turn of its part, part from the end, place in it
    solved: list[tuple[int, int, int]] = []
    turns: Counter[tuple[bool, int]] = Counter()
    for number, row in enumerate(outcomes):
        for place, outcome in enumerate(row):
            kind = _solved(outcome)
            (solved if kind else missed).append((turns[kind, number], -number, place))
            turns[kind, number] += 1
    chosen = [(-n, p) for _, n, p in sorted(missed)[:_MISSED] + sorted(solved)[:1]]
    examples = [parts[number][place] for number, place in chosen]
    theirs = answers(examples) if examples else []
    return tuple(
        _excerpt(example, reference, outcomes[number][place])
        for example, reference, (number, place) in zip(examples, theirs, chosen, strict=True)
    )


class ReferenceAnswers:
    """What φ answers on examples that are shown beside an artifact's answers; asked for once.

    In a loop they are known from the admission. They are no part of what a candidate is charged:
    which examples are shown must not move the caps.
    """

    def __init__(self, session: DomainSession, evaluator: PairedEvaluator, stage: str) -> None:
        self._session = session
        self._evaluator = evaluator
        self._stage = stage
        self._known: dict[str, Outcome] = {}

    def __call__(self, examples: Sequence[Example]) -> list[Outcome]:
        """One outcome an example."""
        new = [e for e in examples if e.key not in self._known]
        if new:
            phi = self._session.reference()
            (scores,) = self._evaluator.evaluate([phi], new, stage=self._stage)
            outcomes = (row[0] for row in scores.outcomes)
            self._known.update(zip((e.key for e in new), outcomes, strict=True))
        return [self._known[e.key] for e in examples]


def _solved(outcome: Outcome) -> bool:
    return (outcome.score or 0.0) >= 1.0


def _excerpt(example: Example, reference: Outcome, artifact: Outcome | None) -> Excerpt:
    verdict: Verdict = ""
    if artifact is not None:
        missed: Verdict = "lost" if _solved(reference) else "missed"
        verdict = "solved" if _solved(artifact) else missed
    return Excerpt(
        prompt=shorten(example.context) + "\n" + example.question,
        gold=", ".join(example.answers),
        reference=reference.answer[:_ANSWER_CHARACTERS],
        artifact=artifact.answer[:_ANSWER_CHARACTERS] if artifact is not None else "",
        verdict=verdict,
    )


def shorten(text: str, limit: int = _EXCERPT_CHARACTERS) -> str:
    """Head and tail of a long text."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} […] {text[-half:]}"
