"""A judge is any callable: what it is asked, how it is read, how it fails."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from galoop.diversity.judge import judged, load_judge, prompt, read_answer
from galoop.errors import InfrastructureError, UsageError


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("DIFFERENCE: 7", 0.7),
        ("I think 3.\n\nDIFFERENCE: **10**", 1.0),
        ("DIFFERENCE: 2\nno, wait\nDIFFERENCE: 0", 0.0),
        ("difference: 7", None),
        ("DIFFERENCE: 11", None),
        ("DIFFERENCE: 7.5", None),
        ("DIFFERENCE: -1", None),
        ("they differ", None),
        ("", None),
    ],
)
def test_reading_of_answers(answer: str, value: float | None) -> None:
    assert read_answer(answer) == value


def test_every_pair_is_asked_in_both_orders() -> None:
    asked: list[tuple[str, str]] = []
    told = {("a", "b"): 2, ("b", "a"): 4, ("a", "c"): 10, ("c", "a"): 10, ("b", "c"): 5}

    def judge(text: str) -> str:
        first, second = re.findall(r"program:\n\n(\w)\n", text)
        asked.append((first, second))
        return f"DIFFERENCE: {told.get((first, second), 'none')}"

    found = judged(judge, ["x", "y", "z"], ["a", "b", "c"])
    assert sorted(asked) == [(i, j) for i in "abc" for j in "abc" if i != j]
    assert found.names == ("x", "y", "z")
    assert found.rows[0] == (0.0, pytest.approx(0.3), 1.0)
    assert found.rows[1] == (pytest.approx(0.3), 0.0, None), "one of two answers is not enough"
    assert found.mean == pytest.approx((0.3 + 1.0) / 2)


def test_long_programs_are_cut() -> None:
    assert len(prompt("x" * 10**6, "y" * 10**6)) < 15000


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("judges")
    monkeypatch.setitem(sys.modules, "judges", made)
    return made


def test_a_judge_is_named_by_module_and_function(module: ModuleType) -> None:
    module.same = lambda text: "DIFFERENCE: 0"  # type: ignore[attr-defined]
    assert judged(load_judge("judges:same"), ["x", "y"], ["a", "b"]).rows == ((0.0, 0.0),) * 2


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("judges", "not of the form MODULE:FUNCTION"),
        (":f", "not of the form"),
        ("judges:", "not of the form"),
        ("no_such_module_at_all:f", "cannot be imported: ModuleNotFoundError"),
        ("judges:missing", "cannot be imported: AttributeError"),
        ("judges:number", "is no callable but a int"),
    ],
)
def test_what_is_no_judge(module: ModuleType, where: str, message: str) -> None:
    module.number = 3  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=re.escape(message)):
        load_judge(where)


def test_a_judge_that_fails_is_infrastructure(module: ModuleType) -> None:
    def fail(text: str) -> str:
        raise ConnectionError("no route")

    module.fail = fail  # type: ignore[attr-defined]
    with pytest.raises(InfrastructureError, match="the judge judges:fail failed: ConnectionError"):
        load_judge("judges:fail")("text")
