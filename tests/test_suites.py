"""Passkey, needle, perplexity, L-Eval and RULER's tasks on a user's data; their scores by hand."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from galoop.config import ExperimentConfig
from galoop.domains.text.choices import chosen, letters_score, truth_score
from galoop.domains.text.scoring import score
from galoop.errors import UnknownNameError, UsageError
from galoop.gate import component_names
from galoop.suites import Suite
from galoop.suites.leval import LEval
from galoop.suites.needle import Needle
from galoop.suites.passkey import Passkey
from galoop.suites.perplexity import Perplexity
from galoop.suites.prose import generated_sentences
from galoop.suites.ruler import Ruler
from galoop.types import Example
from suite_data import COURSERA, ESSAY, HOTPOT, SCI_FI, SQUAD, write_all


def count(text: str) -> int:
    """Rather like a subword tokenizer."""
    return len(re.findall(r"\w{1,4}|[^\w\s]", text))


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    return write_all(tmp_path)


# -- scores, worked by hand ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "gold", "expected"),
    [
        ("ABD", "ABD", 1.0),
        (" DBA", "ABD", 1.0),  # a set: order does not matter
        ("AB", "ABD", 0.25),  # a strict subset
        ("A", "ABD", 0.25),
        ("ABC", "ABD", 0.0),  # C is wrong
        ("ABCD", "ABD", 0.0),  # more than the gold options
        ("A. one\nB. two\nD. four", "ABD", 1.0),
        ("B) because it is so", "B", 1.0),
        ("A.\nQuestion: which? C. D.", "A", 1.0),  # what it asks itself is not its answer
        ("none of them", "A", 1.0),  # the original guesses A
        ("none of them", "B", 0.0),
        ("", "AB", 0.25),
        ("C.", "ABD", 0.0),
    ],
)
def test_coursera_letters(response: str, gold: str, expected: float) -> None:
    example = Example("c", "q", (gold,), scoring="letters")
    assert score(response, example) == letters_score(response, gold) == expected


def test_letters_read_from_words() -> None:
    assert chosen("The options are A. and C.") == {"A", "C"}
    assert chosen("ABD are right") == {"A", "B", "D"}
    with pytest.raises(ValueError, match="none of the options"):
        letters_score("A", "E")


@pytest.mark.parametrize(
    ("response", "gold", "expected"),
    [
        ("True", "True [fact: False]", 1.0),
        ("False", "True [fact: False]", 0.0),  # what holds in the world is not asked
        ("false [fact: True]", "False [fact: True]", 1.0),
        ("[fact: True]", "True [fact: True]", 0.0),  # only the first counts
        ("It is true, not false.", "True [fact: False]", 1.0),
        ("I cannot say.", "True [fact: True]", 0.0),
        ("", "False [fact: True]", 0.0),
        ("True", "True", 1.0),
    ],
)
def test_sci_fi_truth(response: str, gold: str, expected: float) -> None:
    example = Example("c", "q", (gold,), scoring="truth")
    assert score(response, example) == truth_score(response, gold) == expected


def test_a_likelihood_is_no_matter_of_a_text() -> None:
    with pytest.raises(ValueError, match="likelihood"):
        score("anything", Example("c", "q", ("a",), scoring="likelihood"))


# -- what every suite keeps ----------------------------------------------------------------


def suites(data: dict[str, Path]) -> list[tuple[Suite, str]]:
    ruler = Ruler(essays=data["essays"], squad=data["squad"], hotpotqa=data["hotpotqa"])
    made: list[Suite] = [
        Passkey(),
        Needle(),
        Needle(data["essays"]),
        Perplexity(),
        Perplexity(data["text"]),
        ruler,
    ]
    return [(suite, name) for suite in made for name in suite.components()]


def test_lengths_seeds_and_prefixes(data: dict[str, Path]) -> None:
    for suite, component in suites(data):
        length = 300
        found = suite.build(component, 6, 3, length, count)
        assert found == suite.build(component, 6, 3, length, count), component
        assert found[:2] == suite.build(component, 2, 3, length, count), component
        assert len({e.key for e in found}) == 6, component
        other = suite.build(component, 6, 4, length, count)
        if not isinstance(suite, Perplexity):  # a text has few windows: another order of them
            assert {e.key for e in found} != {e.key for e in other}
        for example in found:
            assert count(example.context) <= length, component
            assert example.seed >= 0
        parameters = suite.parameters(component, length, count)
        assert json.dumps(dict(parameters))
        assert parameters["form"]


@pytest.mark.parametrize("suite", [Passkey(), Needle(), Perplexity(), LEval(), Ruler()])
def test_a_suite_is_a_suite_and_refuses_what_it_has_not(suite: Suite) -> None:
    assert isinstance(suite, Suite)
    with pytest.raises(UnknownNameError, match="no component 'nothing'"):
        suite.build("nothing", 1, 0, 300, count)


@pytest.mark.parametrize("suite", [Passkey(), Needle(), Perplexity()])
def test_too_short_a_length_says_what_would_do(suite: Suite) -> None:
    component = suite.components()[-1]
    with pytest.raises(UsageError, match=r"smallest workable length is (about )?\d+") as caught:
        suite.build(component, 1, 0, 12, count)
    least = int(re.search(r"is (?:about )?(\d+)", str(caught.value))[1])  # type: ignore[index]
    assert suite.build(component, 1, 0, least + 20, count)
    with pytest.raises(UsageError, match="asked for"):
        suite.build(component, 0, 0, 300, count)


MODULES = ("leval", "needle", "passkey", "perplexity", "prose", "ruler", "registry")


@pytest.mark.parametrize("module", MODULES)
def test_each_module_can_be_the_first_to_be_imported(module: str) -> None:
    code = f"import galoop.suites.{module}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


# -- each suite ----------------------------------------------------------------------------


def test_passkey_is_said_twice_at_any_place() -> None:
    found = Passkey().build("passkey", 30, 0, 400, count)
    for example in found:
        (key,) = example.answers
        assert re.fullmatch(r"\d{5}", key)
        assert example.context.count(key) == 2
        assert example.context.count(example.evidence[0]) == 1
        assert count(example.context) > 400 - 35
        assert score(f" {key}. Remember", example) == 1.0
        assert score(" 12", example) == 0.0
    places = [e.context.index(e.evidence[0]) / len(e.context) for e in found]
    assert min(places) < 0.25
    assert max(places) > 0.75


@pytest.mark.parametrize("essays", [False, True])
def test_needle_stands_where_the_component_says(essays: bool, data: dict[str, Path]) -> None:
    suite = Needle(data["essays"] if essays else None)
    by_depth = {}
    for component in suite.components():
        depth, percent = map(int, re.findall(r"\d+", component))
        for example in suite.build(component, 8, 0, 600, count):
            place = example.context.index(example.evidence[0])
            rest = len(example.context) - len(example.evidence[0])
            longest = max(map(len, re.split(r"(?<=[.?]) ", example.context))) + 2
            # At the depth, or back at the end of the sentence before it.
            assert depth / 100 * rest - longest <= place <= depth / 100 * rest + 1
            assert 600 * percent / 100 - 40 < count(example.context) <= 600 * percent / 100
            assert example.answers[0] in example.evidence[0]
            assert example.answers[0] not in example.question + example.answer_prefix
            by_depth.setdefault((percent, example.seed), set()).add(example.answers)
            if essays:
                assert "Essay sentence number" in example.context
    assert all(len(answers) == 1 for answers in by_depth.values())  # only the depth differs
    assert suite.parameters("depth25_length50", 600, count)["form"] == (
        "essays" if essays else "generated haystack"
    )


def test_perplexity_windows_are_the_text_itself(data: dict[str, Path]) -> None:
    suite = Perplexity(data["text"])
    assert suite.components() == ("text",)
    texts = [file.read_text() for file in sorted(data["text"].glob("*.txt"))]
    found = suite.build("text", 8, 0, 256, count)
    for example in found:
        whole = example.context + example.question + example.answers[0]
        (book,) = [text for text in texts if whole in text]  # a stretch of one book, unchanged
        assert 256 - 12 < count(whole) <= 256
        assert 64 - 4 <= count(example.answers[0]) <= 64
        assert 4 <= count(example.question) <= 16
        # A window begins every 256 tokens of its book.
        assert count(book[: book.index(whole)]) % 256 <= 4 or book.index(whole) == 0
        assert example.scoring == "likelihood"
        assert example.max_new_tokens > count(example.answers[0])
    assert all(sum(book in e.context for e in found) == 4 for book in ("one", "two"))
    everything = suite.build("text", 10_000, 0, 256, count)
    assert 8 < len(everything) < 40
    assert everything[:8] == found


def test_a_generated_corpus_says_that_it_is_one() -> None:
    suite = Perplexity()
    assert suite.components() == ("generated",)
    assert suite.parameters("generated", 256, count)["form"] == "generated corpus"
    assert len(suite.build("generated", 96, 0, 256, count)) == 96
    with pytest.raises(UnknownNameError, match=r"set data\.text"):
        suite.build("text", 1, 0, 256, count)
    assert len(set(generated_sentences(random.Random(1), 200))) > 100


def test_leval_reads_a_users_files(data: dict[str, Path]) -> None:
    suite = LEval(data["leval"])
    found = suite.build("coursera", 50, 0, 2000, count)
    assert len(found) == 4  # all there are
    golds = sorted(e.answers[0] for e in found)
    assert golds == ["ABD", "ABD", "B", "B"]
    for example in found:
        assert example.scoring == "letters"
        assert example.question.removeprefix("\n\nQuestion: ") in COURSERA["instructions"]
        assert example.context.rstrip().endswith("text.")
    (story,) = suite.build("sci_fi", 1, 0, 2000, count)
    assert story.answers == (SCI_FI["outputs"][0],)
    assert (story.scoring, story.evidence) == ("truth", ())
    assert suite.parameters("sci_fi", 2000, count)["form"] == "original"


def test_a_long_document_loses_its_end(data: dict[str, Path]) -> None:
    suite = LEval(data["leval"])
    (story,) = suite.build("sci_fi", 1, 0, 100, count)
    assert 90 < count(story.context) <= 100
    kept = story.context[story.context.index("On this moon") :]
    assert SCI_FI["input"].startswith(kept)
    assert suite.parameters("sci_fi", 100, count)["documents_cut"] == 1
    with pytest.raises(UsageError, match="does not fit"):
        suite.build("sci_fi", 1, 0, 8, count)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ('{"input": "x"}', "has no instructions, outputs"),
        ('["x"]', "has no input"),
        ('{"input": "x", "instructions": ["a"], "outputs": []}', "lists of one length"),
        ('{"input": "x", "instructions": ["a"], "outputs": ["E"]}', "none of the options"),
        ("", "holds no question"),
    ],
)
def test_a_wrong_leval_file_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "coursera.jsonl").write_text(line + "\n")
    with pytest.raises(UsageError, match=message):
        LEval(tmp_path).build("coursera", 1, 0, 300, count)


def test_leval_without_a_path_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.leval is not set.*--data\.leval FOLDER"):
        LEval().build("coursera", 1, 0, 300, count)
    with pytest.raises(UsageError, match=r"has no sci_fi\.jsonl"):
        LEval(tmp_path).build("sci_fi", 1, 0, 300, count)


# -- RULER with data -----------------------------------------------------------------------

ALL = ("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2",
       "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1",
       "qa_2")  # fmt: skip


def ruler(data: dict[str, Path]) -> Ruler:
    return Ruler(essays=data["essays"], squad=data["squad"], hotpotqa=data["hotpotqa"])


def test_all_thirteen_with_data_and_six_without(data: dict[str, Path]) -> None:
    assert ruler(data).components() == ALL
    assert Ruler(essays=data["essays"]).components() == ALL[:-2]
    assert len(Ruler().components()) == 6
    with pytest.raises(UnknownNameError, match=r"qa_1 cannot be built: .* data\.squad"):
        Ruler().build("qa_1", 1, 0, 400, count)


@pytest.mark.parametrize(
    ("component", "keys", "values", "asked"),
    [
        ("niah_single_2", 1, 1, 1),
        ("niah_single_3", 1, 1, 1),
        ("niah_multikey_1", 4, 1, 1),
        ("niah_multivalue", 1, 4, 4),
        ("niah_multiquery", 4, 1, 4),
    ],
)
def test_needles_in_essays_by_regex(
    component: str, keys: int, values: int, asked: int, data: dict[str, Path]
) -> None:
    for example in ruler(data).build(component, 8, 0, 500, count):
        told: dict[str, list[str]] = {}
        pattern = r"The registered (?:number|code) of (\S+) is (\S+)\."
        for key, value in re.findall(pattern, example.context):
            told.setdefault(key, []).append(value)
        assert len(told) == keys
        assert all(len(v) == values for v in told.values())
        wanted = [k for k in told if re.search(rf"\b{k}\b", example.question)]
        expected = {v for k in wanted for v in told[k]}
        assert expected == set(example.answers)
        assert len(example.answers) == asked
        assert "Essay sentence number" in example.context
        assert 500 - 30 < count(example.context) <= 500
        assert score(" and ".join(example.answers), example) == 1.0
        assert score(example.answers[0], example) == 1 / asked


def test_squad_questions_stand_with_their_paragraph(data: dict[str, Path]) -> None:
    whole = [p["context"] for article in SQUAD["data"] for p in article["paragraphs"]]
    for example in ruler(data).build("qa_1", 8, 0, 150, count):
        article, paragraph = example.answers[0].removeprefix("Person")
        assert example.context.count(f"Person{article}{paragraph}.") == 1
        assert re.findall(r"Document (\d+):", example.context)[:3] == ["1", "2", "3"]
        shown = [text for text in whole if text in example.context]
        assert len(shown) == example.context.count("Document ")
        # Paragraphs of the same article come before those of others.
        same = [text for text in shown if f"of article {article} " in text]
        assert len(same) == 4
        assert score(f"mayor person{article}{paragraph}", example) == 1.0  # any answer, any case
        assert score("nobody", example) == 0.0


def test_hotpot_questions_keep_their_paragraphs(data: dict[str, Path]) -> None:
    for example in ruler(data).build("qa_2", 8, 0, 200, count):
        (item,) = [h for h in HOTPOT if h["question"] in example.question]
        for title, sentences in item["context"]:
            assert f"{title}\n{''.join(sentences)}" in example.context
        assert example.answers == (item["answer"],)
        assert example.context.count("Document ") > 2


@pytest.mark.parametrize("content", ["{", "[]", '{"data": [{"x": 1}]}', '{"data": []}'])
def test_a_wrong_file_of_questions_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "squad.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"data\.squad"):
        Ruler(squad=path).build("qa_1", 1, 0, 300, count)


def test_essays_as_rulers_json_and_wrong_ones(tmp_path: Path) -> None:
    good = tmp_path / "essays.json"
    good.write_text(json.dumps({"text": ESSAY}))
    (example,) = Ruler(essays=good).build("niah_single_2", 1, 0, 300, count)
    assert "Essay sentence" in example.context
    for name, text in (("a.json", "[]"), ("b.txt", "One sentence."), ("c.txt", "  ")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=r"data\.essays"):
            Ruler(essays=tmp_path / name).build("niah_single_2", 1, 0, 300, count)
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="UTF-8"):
        Ruler(essays=tmp_path / "d.txt").build("niah_single_2", 1, 0, 300, count)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds none"):
        Perplexity(tmp_path / "empty").build("text", 1, 0, 256, count)


# -- through the experiment file -----------------------------------------------------------


def experiment(**parts: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate(parts)


def test_the_gate_gives_suites_their_data(data: dict[str, Path]) -> None:
    named = {"suites": ("ruler",), "components": ("qa_1", "niah_multivalue")}
    paths = {"squad": str(data["squad"]), "essays": str(data["essays"])}
    names = component_names(experiment(gate=named, data=paths))
    assert names == [("ruler", "qa_1"), ("ruler", "niah_multivalue")]
    with pytest.raises(UsageError, match=r"ruler/qa_1: it reads your own data: set data\.squad"):
        component_names(experiment(gate=named))
    with pytest.raises(UsageError, match="no component 'qa_3'"):
        component_names(experiment(gate={"suites": ("ruler",), "components": ("qa_3",)}))
