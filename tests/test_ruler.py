"""RULER's tasks: every gold answer is derived again from the text alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

import galoop
from galoop.domains.text.scoring import score
from galoop.domains.text.tokens import TokenCounter
from galoop.errors import UnknownNameError, UsageError
from galoop.suites import Suite, list_suites, load
from galoop.suites.ruler import Ruler
from galoop.suites.ruler.task import words
from galoop.types import Example

COMPONENTS = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")


def by_words(text: str) -> int:
    return len(text.split())


def by_pieces(text: str) -> int:
    """Rather like a subword tokenizer: words in pieces of four, every other sign by itself."""
    return len(re.findall(r"\w{1,4}|[^\w\s]", text))


@lru_cache(maxsize=1)
def fast_counter() -> TokenCounter | None:
    """The tokenizer of the package's own small model, where it is there."""
    folder = Path(galoop.__file__).parent / "models" / "fast"
    return TokenCounter(folder) if (folder / "tokenizer.json").is_file() else None


def by_fast_model(text: str) -> int:
    counter = fast_counter()
    if counter is None:
        pytest.skip("the fast model is not there")
    return counter(text)


COUNTERS = [by_words, by_pieces, by_fast_model]


def examples(component: str, n: int = 12, seed: int = 3, length: int = 500) -> list[Example]:
    return Ruler().build(component, n, seed, length, by_pieces)


def asked_part(example: Example, preamble: str) -> str:
    """The context without the worked example."""
    assert example.context.count(preamble) in (1, 2)
    return example.context.rpartition(preamble)[2]


def test_the_suite_is_found_by_name() -> None:
    suite = load("ruler", max_new_tokens=20)
    assert isinstance(suite, Suite)
    assert suite.components() == COMPONENTS
    assert "ruler" in list_suites()
    with pytest.raises(UnknownNameError, match="ruler"):
        load("rulr")
    with pytest.raises(UsageError, match="options"):
        load("ruler", colour="red")


@pytest.mark.parametrize("component", COMPONENTS[:3])
def test_needles_by_regex(component: str) -> None:
    for example in examples(component):
        found = re.findall(r"^The registered (?:number|code) of (\S+) is (\S+)\.$",
                           example.context, re.MULTILINE)  # fmt: skip
        assert len({key for key, _ in found}) == len(found)
        key = re.search(r"(?:number|code) of (\S+) in the text", example.question)
        assert key is not None
        assert dict(found)[key[1]] == example.answers[0]
        assert example.answer_prefix.endswith(f"of {key[1]} is")
        assert example.answers[0] in example.evidence[0]
        assert example.evidence[0] in example.context
        pattern = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
        if component == "niah_multikey_3":
            assert re.fullmatch(pattern, key[1])
            assert re.fullmatch(pattern, example.answers[0])
        else:
            assert re.fullmatch(r"[1-9]\d{6}", example.answers[0])
        if component == "niah_single_1":
            assert len(found) == 1
            assert example.context.count("There and back again.") > 10
        else:
            assert len(found) > 2
            assert "The grass is green" not in example.context


def test_needles_stand_at_many_places() -> None:
    places = [
        e.context.index(e.evidence[0]) / len(e.context) for e in examples("niah_single_1", 40)
    ]
    assert min(places) < 0.3
    assert max(places) > 0.7
    assert len(set(places)) > 8


def test_variables_by_following_the_assignments() -> None:
    for example in examples("vt"):
        text = asked_part(example, "The text below assigns values")
        values: dict[str, str] = {}
        for name, source in re.findall(r"^VAR (\w+) = (.+)$", text, re.MULTILINE):
            assert name not in values
            # Every assignment comes after the one that it refers to.
            values[name] = values[source[4:]] if source.startswith("VAR ") else source
        asked = re.search(r"hold the value (\d+)", example.question)
        assert asked is not None
        assert tuple(n for n, v in values.items() if v == asked[1]) == example.answers
        assert len(example.answers) == 5
        assert all(re.fullmatch("[A-Z]{5}", name) for name in example.answers)
        assert asked[1] in example.answer_prefix
        assert all(line in text for line in example.evidence)


def test_the_worked_example_is_right_and_foreign() -> None:
    for example in examples("vt", length=1000):
        worked, answer = re.split(r", namely: ", example.context)[:2]
        shown = answer.split("\n")[0].split()
        assert re.findall(r"^VAR (\w+) =", worked, re.MULTILINE) == shown
        assert len(shown) == 5
        assert not any(name in example.context[len(worked) + 100 :] for name in shown)
        assert not any(a in s or s in a for a in example.answers for s in shown)


def listed(text: str) -> list[str]:
    items = re.findall(r"(\d+)\. (\w+)", text)
    assert [int(number) for number, _ in items] == list(range(1, len(items) + 1))
    return [word for _, word in items]


@pytest.mark.parametrize(("length", "common", "rare"), [(900, 6, 1), (5000, 30, 3)])
def test_common_words_by_counting(length: int, common: int, rare: int) -> None:
    for example in examples("cwe", n=4, length=length):
        counts = Counter(listed(asked_part(example, "take note of those.\n")))
        asked = int(re.search(r"Which (\d+) words", example.question)[1])  # type: ignore[index]
        top = counts.most_common(asked)
        assert {word for word, _ in top} == set(example.answers)
        assert {times for _, times in top} == {common}
        assert set(counts.values()) == {common, rare}
        assert asked == len(example.answers) == 10
        assert len(counts) >= 20
        # An answer is found in no other word of the list: the score asks for substrings.
        assert all(a == w or a not in w for a in example.answers for w in counts)


def test_the_worked_list_is_right() -> None:
    for example in examples("cwe", length=900):
        worked = example.context.split("take note of those.\n")[1]
        shown, answer = re.split(r"\nQuestion: .* often are:", worked)
        top = Counter(listed(shown)).most_common(10)
        assert {word for word, _ in top} == set(listed(answer.split("\nHere")[0]))
        assert {times for _, times in top} == {3}


@pytest.mark.parametrize("length", [120, 250, 500, 2000])
def test_frequent_words_by_counting(length: int) -> None:
    for example in Ruler().build("fwe", 6, 3, length, by_words):
        text = example.context.split("\n", 1)[1].split()
        counts = Counter(word for word in text if word != "...")
        ranked = counts.most_common()
        assert {word for word, _ in ranked[:3]} == set(example.answers)
        assert ranked[2][1] > ranked[3][1] >= 1  # unique, and there is something to confuse
        assert all(re.fullmatch("[a-z]{6}", word) for word in counts)
        # Frequencies as k^-2 / zeta(2), rank 1 being the dots.
        total = text.count("...") * 3.141592653589793**2 / 6
        for rank, (_, times) in enumerate(ranked[:3], start=2):
            assert abs(times - total / 1.644934 / rank**2) <= 1.5


@pytest.mark.parametrize("count", COUNTERS)
@pytest.mark.parametrize("length", [260, 300, 512, 1000])
@pytest.mark.parametrize("component", COMPONENTS)
def test_contexts_fill_the_length_and_keep_it(
    component: str, length: int, count: Callable[[str], int]
) -> None:
    count("x")  # skips where there is no fast model
    try:
        found = Ruler().build(component, 4, 0, length, count)
    except UsageError as error:
        # A tokenizer may need more; then the message has to say a length that works.
        needed = int(re.search(r"about (\d+) tokens", str(error))[1])  # type: ignore[index]
        assert needed > length
        found, length = Ruler().build(component, 4, 0, needed + needed // 20, count), needed
        length += needed // 20
    # One more unit of the haystack would not have fitted (a UUID needle is the largest).
    unit = {"niah_single_1": 35, "niah_multikey_2": 40, "niah_multikey_3": 95}.get(component, 20)
    for example in found:
        size = count(example.context)
        assert length - unit < size <= length
        assert not example.context.endswith("#")


@pytest.mark.parametrize("component", COMPONENTS)
def test_deterministic_prefix_stable_and_varied(component: str) -> None:
    first = examples(component, n=10)
    assert first == examples(component, n=10)
    assert first[:4] == examples(component, n=4)
    assert len({example.key for example in first}) == 10
    assert len({example.context for example in first}) == 10
    assert len({example.answers for example in first}) == 10
    other = examples(component, n=10, seed=4)
    assert not {example.key for example in first} & {example.key for example in other}


@pytest.mark.parametrize("component", COMPONENTS)
def test_scored_as_ruler_scores(component: str) -> None:
    for example in examples(component, n=3):
        assert example.scoring == "fraction"
        assert score(" ".join(example.answers).upper(), example) == 1.0
        assert score(example.question + example.answer_prefix, example) == 0.0
        if len(example.answers) > 1:
            assert score(example.answers[0], example) == pytest.approx(1 / len(example.answers))


def test_answer_lengths_are_rulers_and_can_be_capped() -> None:
    lengths = {"niah_single_1": 128, "niah_multikey_2": 128, "niah_multikey_3": 128,
               "vt": 30, "cwe": 120, "fwe": 50}  # fmt: skip
    for component, new in lengths.items():
        assert examples(component, n=1)[0].max_new_tokens == new
        (capped,) = Ruler(max_new_tokens=40).build(component, 1, 0, 500, by_pieces)
        assert capped.max_new_tokens == min(40, new)


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_window_holds_everything(component: str) -> None:
    suite = Ruler(max_new_tokens=48, window=512)
    for example in suite.build(component, 4, 0, 512, by_pieces):
        parts = (example.context, example.question, example.answer_prefix)
        assert sum(by_pieces(part) for part in parts) + 48 <= 512 + 48 - example.max_new_tokens


def test_too_short_a_length_says_which_would_do() -> None:
    with pytest.raises(UsageError, match=r"niah_multikey_3 .* 30 tokens .*smallest workable"):
        Ruler().build("niah_multikey_3", 1, 0, 30, by_pieces)
    with pytest.raises(UsageError, match=r"in a window of 60"):
        Ruler(window=60).build("fwe", 1, 0, 400, by_pieces)
    with pytest.raises(UsageError, match="at least one"):
        Ruler().build("fwe", 0, 0, 400, by_pieces)
    with pytest.raises(UnknownNameError, match="qa_1"):
        Ruler().build("qa_1", 1, 0, 400, by_pieces)


def test_parameters_say_where_rulers_form_did_not_fit() -> None:
    suite = Ruler()
    assert suite.parameters("cwe", 900, by_pieces)["form"] == "ruler"
    assert suite.parameters("cwe", 900, by_pieces)["repeats"] == [6, 1]
    assert suite.parameters("cwe", 5000, by_pieces)["repeats"] == [30, 3]
    short = suite.parameters("cwe", 260, by_pieces)
    assert (short["form"], short["common_words"]) == ("reduced", 3)
    (example,) = suite.build("cwe", 1, 0, 260, by_pieces)
    assert len(example.answers) == 3
    assert suite.parameters("vt", 1500, by_pieces)["form"] == "ruler"
    assert suite.parameters("vt", 300, by_pieces)["form"] == "reduced"
    assert suite.parameters("fwe", 500, by_pieces)["vocabulary"] == 10


def test_words_are_presentable() -> None:
    found = words("noun", "adjective", "verb")
    assert len(found) > 7000
    assert all(re.fullmatch("[a-z]{2,}", word) for word in found)
    assert list(found) == sorted(set(found))
