"""Examples shortened for a prompt or a reader."""

from __future__ import annotations

from collections.abc import Sequence

from galoop.evaluation.paired import Scores
from galoop.types import Example, Excerpt

_EXCERPT_CHARACTERS = 700


def excerpts_of(
    examples: Sequence[Example], reference: Scores, artifact: Scores | None
) -> tuple[Excerpt, ...]:
    """At most one example that was lost and one that was kept, shortened."""
    chosen: dict[bool, Excerpt] = {}
    for i, row in enumerate(reference.outcomes):
        other = artifact.outcomes[i][0] if artifact is not None else None
        lost = (row[0].score or 0) > ((other.score or 0) if other else 0)
        if lost in chosen:
            continue
        chosen[lost] = _excerpt(examples[i], row[0].answer, other.answer if other else "")
    return tuple(chosen.values())


def first_missed(examples: Sequence[Example], scores: Scores) -> tuple[Excerpt, ...]:
    """The first example that was missed, shortened; nothing where all are solved."""
    for example, row in zip(examples, scores.outcomes, strict=True):
        if not row[0].score:
            return (_excerpt(example, "", row[0].answer),)
    return ()


def _excerpt(example: Example, reference: str, artifact: str) -> Excerpt:
    return Excerpt(
        prompt=shorten(example.context) + "\n" + example.question,
        gold=", ".join(example.answers),
        reference=reference[:200],
        artifact=artifact[:200],
    )


def shorten(text: str, limit: int = _EXCERPT_CHARACTERS) -> str:
    """Head and tail of a long text."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} […] {text[-half:]}"
