"""The trusted side's checks: each violation has its own reason, and forged data does no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from galoop.domains.text.contract import ProbeRules
from galoop.domains.text.tokens import TokenCounter
from galoop.domains.text.validation import check_example, check_variety
from galoop.probing.static import Rejection
from galoop.types import Example
from probe_tools import write_tokenizer

RULES = ProbeRules(
    length=60, max_context_tokens=80, max_new_tokens=8, max_question_tokens=40, max_answers=3
)
FILLER = " ".join(["post logged crates"] * 14)  # 42 tokens
SECRET = "The vault code is 4821."  # 9 tokens


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> TokenCounter:
    return TokenCounter(write_tokenizer(tmp_path_factory.mktemp("tok")))


def good(**changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = {
        "context": f"{FILLER} {SECRET}",
        "question": "\nWhat is it?",
        "answer": "4821",
        "answer_prefix": "The vault code is",
        "evidence": [SECRET],
    }
    value.update(changes)
    return {key: item for key, item in value.items() if item is not None}


def test_good_example(counter: TokenCounter) -> None:
    example = check_example(good(), 7, RULES, counter)
    assert isinstance(example, Example)
    assert example.answers == ("4821",)
    assert (example.seed, example.max_new_tokens, example.scoring) == (7, 8, "all")
    assert example.evidence == (SECRET,)


def test_optional_keys_may_be_absent(counter: TokenCounter) -> None:
    example = check_example(good(answer_prefix=None, evidence=None), 0, RULES, counter)
    assert isinstance(example, Example)
    assert (example.answer_prefix, example.evidence) == ("", ())


def test_several_answers(counter: TokenCounter) -> None:
    value = good(context=f"{FILLER} {SECRET} alder", answer=["4821", "alder"])
    example = check_example(value, 0, RULES, counter)
    assert isinstance(example, Example)
    assert example.answers == ("4821", "alder")


@pytest.mark.parametrize(
    ("tokens", "code"),
    [(60, None), (61, "too-long"), (30, None), (29, "too-short")],
)
def test_length_bounds_are_strict(counter: TokenCounter, tokens: int, code: str | None) -> None:
    context = " ".join([SECRET, *["post"] * (tokens - 9)])
    assert counter.count(context) == tokens
    found = check_example(good(context=context), 0, RULES, counter)
    assert (found.code if isinstance(found, Rejection) else None) == code


def test_the_window_bounds_the_context_too(counter: TokenCounter) -> None:
    narrow = ProbeRules(length=60, max_context_tokens=50, max_new_tokens=8)
    found = check_example(good(), 0, narrow, counter)
    assert isinstance(found, Rejection)
    assert "at most 50 are allowed" in found.reason


BAD: list[tuple[str, Any, str, str]] = [
    ("none", None, "not-a-dict", "NoneType"),
    ("list", [1], "not-a-dict", "list"),
    ("no answer", good(answer=None), "missing-key", "answer"),
    ("unknown key", good(hint="x"), "unknown-key", "hint"),
    ("context type", good(context=3), "wrong-type", "context is a int"),
    ("answer type", good(answer=4821), "wrong-type", "answer is a int"),
    ("answer list type", good(answer=[4821]), "wrong-type", "answer is a list"),
    ("nested answer", good(answer=[["4821"]]), "wrong-type", "list of str"),
    ("evidence type", good(evidence=SECRET), "wrong-type", "list of str"),
    ("prefix type", good(answer_prefix=[]), "wrong-type", "answer_prefix"),
    ("many answers", good(answer=["1", "2", "3", "4"]), "too-many-answers", "at most 3"),
    ("much evidence", good(evidence=["post"] * 17), "too-much-evidence", "at most 16"),
    ("huge context", good(context="x" * 5000), "too-long", "5000 characters"),
    ("huge question", good(question="x" * 5000), "too-long-question", "shorten"),
    ("huge answer", good(answer="x" * 5000), "too-long-answer", "shorten"),
    ("huge evidence", good(evidence=["x" * 5000]), "too-long-evidence", "shorten"),
    ("empty context", good(context=" \n"), "empty-context", "fill"),
    ("empty question", good(question="  "), "empty-question", "ask"),
    ("empty answer", good(answer=" "), "empty-answer", "empty"),
    ("no answers", good(answer=[]), "empty-answer", "at least one"),
    ("twice", good(answer=["4821", " 4821 "]), "repeated-answer", "different"),
    ("not there", good(answer="9999"), "answer-not-in-context", "'9999'"),
    ("part of a number", good(answer="482"), "answer-not-in-context", "'482'"),
    ("in the question", good(question="Is it 4821?"), "answer-given-away", "in the question"),
    ("in the prefix", good(answer_prefix="It is 4821,"), "answer-given-away", "answer_prefix"),
    ("foreign evidence", good(evidence=["The code is 1"]), "evidence-not-in-context", "copy"),
    ("empty evidence", good(evidence=[""]), "evidence-not-in-context", "copy"),
    ("surrogate", good(question="\ud800?"), "not-unicode", "question"),
    ("nul", good(context=f"{FILLER}\0{SECRET}"), "control-character", r"'\x00'"),
    ("escape", good(answer_prefix="\x1b[2J"), "control-character", "answer_prefix"),
    ("hash", good(context=f"{FILLER} {SECRET}#"), "trailing-hash", '"#"'),
    ("long question", good(question="What " * 11), "too-long-question", "48 tokens"),
    (
        "long answer",
        good(context=f"{FILLER} 123456789", answer="123456789", evidence=None),
        "too-long-answer",
        "9 tokens",
    ),
    ("turn", good(context=f"{FILLER} <|im_end|> {SECRET}"), "control-token", "<|im_end|>"),
    ("turn asked", good(question="<|im_start|>user"), "control-token", "question"),
    ("configured token", good(answer_prefix="<tool>"), "control-token", "<tool>"),
    ("unknown", good(context=f"{FILLER} é {SECRET}"), "unknown-token", "context"),
]


@pytest.mark.parametrize(
    ("value", "code", "says"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
def test_each_violation_has_its_reason(
    counter: TokenCounter, value: Any, code: str, says: str
) -> None:
    found = check_example(value, 0, RULES, counter)
    assert isinstance(found, Rejection)
    assert found.code == code
    assert says in found.reason
    assert len(found.reason) < 400


def test_a_hash_inside_is_fine(counter: TokenCounter) -> None:
    assert isinstance(
        check_example(good(context=f"# {FILLER} {SECRET}"), 0, RULES, counter), Example
    )


def examples(*triples: tuple[str, str, str]) -> list[Example]:
    return [
        Example(context=c, question=q, answers=(a,), seed=i) for i, (c, q, a) in enumerate(triples)
    ]


def test_varied_examples_pass() -> None:
    assert check_variety(examples(*((f"c{i}", "q", f"a{i}") for i in range(6)))) is None
    # Two of two, or half of many, may share an answer by chance.
    assert check_variety(examples(("c1", "q1", "a"), ("c2", "q2", "A"))) is None
    half = [(f"c{i}", f"q{i}", "a" if i % 2 else f"a{i}") for i in range(6)]
    assert check_variety(examples(*half)) is None
    assert check_variety(examples(("c", "q", "a"))) is None


@pytest.mark.parametrize(
    ("triples", "code"),
    [
        ([("c", "q1", "a1"), ("c", "q2", "a2"), ("c3", "q3", "a3")], "repeated-context"),
        ([("c1", "q", "a"), ("c2", "q", "a")], "repeated-question"),
        ([(f"c{i}", "q", "a" if i < 4 else f"a{i}") for i in range(6)], "repeated-question"),
        (
            [(f"c{i}", f"q{i}", "a" if i < 4 else f"a{i}") for i in range(6)],
            "repeated-answer-over-seeds",
        ),
    ],
)
def test_repetition(triples: list[tuple[str, str, str]], code: str) -> None:
    found = check_variety(examples(*triples))
    assert found is not None
    assert found.code == code


def test_the_embedded_tokenizers_control_tokens(tmp_path: Path) -> None:
    """A token of the chat template counts even where the tokenizer does not call it special."""
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.add_tokens(["<turn>", "  ", "word"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{{ '<turn>' }}  {{ content }}")
    assert TokenCounter(tmp_path).special_tokens == ("<turn>",)
