"""Which examples a proposer is shown, against small cases worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import fake_domain as fake
from fake_programs import artifact, solves
from galoop.evaluation.paired import Scores
from galoop.excerpts import excerpts_of, shorten, solved_and_missed
from galoop.proposers.agents.task import summary
from galoop.proposers.language_model.prompts import prompt
from galoop.proposers.protocol import Evaluated, Request
from galoop.types import Example, Excerpt, Outcome, State
from search_tools import B1, B2, improved

KNOBS = fake.config().language_model
SKILLS = ((0.2, 1.0, 0.4), (0.5, 1.0, 0.4), (0.6, 1.0, 0.6))


def example(name: str) -> Example:
    return Example(f"context of {name}", f"asks {name}?", (f"gold {name}",))


def outcomes(*scores: float, who: str = "A") -> list[Outcome]:
    return [Outcome(State.SCORED, f"{who} says {s:g}", s) for s in scores]


def names(found: Sequence[Excerpt]) -> list[tuple[str, str]]:
    return [(one.gold.removeprefix("gold "), one.verdict) for one in found]


@pytest.mark.parametrize(
    ("artifact", "reference", "shown"),
    [
        # One slice: the first two that were not solved, and the first that was.
        ([[0, 1, 0, 0, 1]], {"b1-0": 1, "b1-2": 0, "b1-1": 1},
         [("b1-0", "lost"), ("b1-2", "missed"), ("b1-1", "solved")]),
        # Two slices: one of each, the later slice first.
        ([[0, 0, 1], [1, 0, 0]], {"b2-1": 1, "b1-0": 1, "b2-0": 1},
         [("b2-1", "lost"), ("b1-0", "lost"), ("b2-0", "solved")]),
        # Three: the latest two.
        ([[0], [0], [0]], {"b3-0": 0, "b2-0": 1}, [("b3-0", "missed"), ("b2-0", "lost")]),
        # An earlier slice that is solved leaves its place to the later one.
        ([[1, 1], [0, 0]], {"b2-0": 1, "b2-1": 1, "b1-0": 1},
         [("b2-0", "lost"), ("b2-1", "lost"), ("b1-0", "solved")]),
        ([[1, 1]], {"b1-0": 1}, [("b1-0", "solved")]),
        ([[0]], {"b1-0": 1}, [("b1-0", "lost")]),
        ([[0.5]], {"b1-0": 1}, [("b1-0", "lost")]),  # a part of it is not solved
        ([[]], {}, []),
    ],
)  # fmt: skip
def test_an_artifacts_examples(
    artifact: list[list[float]], reference: dict[str, float], shown: list[tuple[str, str]]
) -> None:
    parts = [
        [example(f"b{number}-{place}") for place in range(len(row))]
        for number, row in enumerate(artifact, 1)
    ]
    asked: list[str] = []

    def answers(examples: Sequence[Example]) -> list[Outcome]:
        asked.extend(e.answers[0].removeprefix("gold ") for e in examples)
        return [outcomes(reference[name], who="phi")[0] for name in asked]

    found = solved_and_missed(parts, [outcomes(*row) for row in artifact], answers)
    assert names(found) == shown
    assert sorted(asked) == sorted(reference), "asked for what is shown and no more"
    for one in found:
        name = one.gold.removeprefix("gold ")
        assert one.prompt == f"context of {name}\nasks {name}?"
        assert one.reference == f"phi says {reference[name]:g}"
        assert one.artifact.startswith("A says")


@pytest.mark.parametrize(
    ("reference", "artifact", "shown"),
    [
        ([1, 1, 1], [1, 0, 0], [("1", "lost"), ("0", "solved")]),
        ([0, 1, 1, 1], [0, 1, 0, 1], [("2", "lost"), ("1", "solved"), ("0", "missed")]),
        ([0, 0], [1, 0], [("0", "solved"), ("1", "missed")]),
        ([1, 0, 1], None, [("0", ""), ("1", "")]),
    ],
)
def test_a_probes_examples(
    reference: list[float], artifact: list[float] | None, shown: list[tuple[str, str]]
) -> None:
    examples = [example(str(i)) for i in range(len(reference))]
    phi = Scores(None, outcomes=[[o] for o in outcomes(*reference, who="phi")])
    theirs = None
    if artifact is not None:
        theirs = Scores(None, outcomes=[[o] for o in outcomes(*artifact)])
    assert names(excerpts_of(examples, phi, theirs)) == shown


def test_long_texts_are_cut_in_the_middle() -> None:
    text = shorten("a" * 400 + "b" * 10_000 + "c" * 400)
    assert text == "a" * 350 + " […] " + "c" * 350
    assert shorten("a" * 700) == "a" * 700


def test_a_repair_is_shown_what_the_model_answers_and_its_evaluations_are_not_charged() -> None:
    """The slices' truth is in closed form: verdicts and both answers must agree with it."""
    tried = [artifact(*skills) for skills in SKILLS[1:]]
    seen: list[Request] = []

    class Watching(fake.LineSearch):
        def run(self, problem: object) -> str:
            evaluate = problem.evaluate  # type: ignore[attr-defined]
            for one in [*problem.start, *tried]:  # type: ignore[attr-defined]
                made = Evaluated(one, evaluate(one))
                seen.append(Request(problem.task, 0, made, ()))  # type: ignore[attr-defined]
            return "seen"

    made = improved(tried, (B1, B2), config=fake.config(gate__suites=()), search=Watching())
    of = {shorten(e.context) + "\n" + e.question: e for s in (B1, B2) for e in s.primary}
    assert len(seen) == 3
    for request, skills in zip(seen, SKILLS, strict=True):
        assert request.parent is not None
        shown = request.parent.feedback.excerpts
        assert [one.verdict for one in shown] == ["lost", "lost", "solved"]
        assert [of[one.prompt] in B2.primary for one in shown[:2]] == [True, False]
        for one in shown:
            right = solves(list(skills), of[one.prompt])
            assert (one.verdict, one.artifact) == (("solved", "yes") if right else ("lost", "no"))
            assert (one.reference, one.gold) == ("yes", "yes")
        text = prompt(request, KNOBS)
        for words in ("Lost (the unmodified model solves it", "Solved with the approximation:",
                      "the unmodified model: 'yes'", "with the approximation: 'no'"):  # fmt: skip
            assert words in text
        told = summary(request.parent.feedback)["examples"]
        assert [(t["verdict"], t["reference"]) for t in told] == [
            ("lost", "yes"), ("lost", "yes"), ("solved", "yes")]  # fmt: skip
    shown = {one.prompt for r in seen if r.parent for one in r.parent.feedback.excerpts}
    asked = [e for system, e, _ in made.world.calls if system == "reference"]
    assert len(asked) == len(shown), "the reference answers what is shown, once"
    # The caps count candidates' evaluations alone: a look at 2 x 6, then 2 x 20, for each of three.
    assert made.result.evaluations == 3 * (12 + 40)
