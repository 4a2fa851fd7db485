"""Scoring rules, against cases worked out by hand."""

from __future__ import annotations

import pytest

from galoop.domains.text.scoring import occurs, score
from galoop.types import Example


def example(*answers: str, scoring: str = "all") -> Example:
    return Example(context="", question="?", answers=answers, scoring=scoring)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("phrase", "text", "expected"),
    [
        ("4821", "The code is 4821.", True),
        ("4821", "4821", True),
        ("4821", "48215", False),
        ("4821", "14821", False),
        ("4821", "code4821", False),
        ("4821", "_4821", False),
        ("4821", "(4821)", True),
        ("4821", "4821, then nothing", True),
        ("4821", "14821 but also 4821", True),
        ("3.5", "3.5", True),
        ("3.5", "13.5", False),
        ("3.5", "3.52", False),
        ("3.5", "3x5", False),  # the dot is a dot, not a pattern
        ("3", "3.5", False),
        ("5", "3.5", False),
        ("3", "It is 3.", True),
        ("3", "3, 5 and 7", True),
        ("4", "4,821", False),
        ("821", "4,821", False),
        ("north pier", "It is at the North  Pier.", True),
        ("north pier", "north\npier", True),
        ("north pier", "north piers", False),
        ("north pier", "northpier", False),
        ("Zoë", "ZOË", True),
        ("straße", "STRASSE", True),
        ("cat", "concatenate", False),
        ("C++", "in C++", True),
        ("$5", "costs $5", True),
        ("$5", "costs $55", False),
        ("", "anything", False),
        ("  ", "any thing", False),
    ],
)
def test_occurs(phrase: str, text: str, expected: bool) -> None:
    assert occurs(phrase, text) is expected


def test_all_needs_every_answer() -> None:
    both = example("red", "blue")
    assert score("Red and blue", both) == 1.0
    assert score("red", both) == 0.0
    assert score("bluered", both) == 0.0
    assert score("", both) == 0.0


def test_fraction_is_rulers_mean_of_substrings() -> None:
    three = example("ABCDE", "FGHIJ", "KLMNO", scoring="fraction")
    assert score("abcde fghij", three) == pytest.approx(2 / 3)
    assert score("xABCDEx", three) == pytest.approx(1 / 3)  # substring, as RULER counts
    assert score("", three) == 0.0
    assert score("KLMNO ABCDE FGHIJ", three) == 1.0


def test_any_is_satisfied_by_one() -> None:
    two = example("yes", "yeah", scoring="any")
    assert score("Yeah.", two) == 1.0
    assert score("no", two) == 0.0


def test_no_gold_answer_is_no_score() -> None:
    with pytest.raises(ValueError, match="without gold"):
        score("x", example())
