"""Checks of what came back from a probe: the trusted side's half of the probe contract.

The data comes from a process that ran foreign code. Types, sizes and keys are checked before
anything else is done with it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from galoop.domains.text.contract import OPTIONAL_KEYS, REQUIRED_KEYS, ProbeRules
from galoop.domains.text.scoring import normalise, occurs
from galoop.domains.text.tokens import TokenCounter
from galoop.probing.static import Rejection
from galoop.types import Example

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def check_example(
    value: Any, seed: int, rules: ProbeRules, counter: TokenCounter
) -> Example | Rejection:
    """Turn one untrusted result into an example, or say why it is none."""
    fault = _check_shape(value, rules)
    if fault is not None:
        return fault
    answer = value["answer"]
    example = Example(
        context=value["context"],
        question=value["question"],
        answers=(answer,) if isinstance(answer, str) else tuple(answer),
        answer_prefix=value.get("answer_prefix", ""),
        evidence=tuple(value.get("evidence", ())),
        seed=seed,
        max_new_tokens=rules.max_new_tokens,
        scoring="all",
    )
    return (
        _check_text(example)
        or _check_answers(example, rules)
        or _check_tokens(example, rules, counter)
        or example
    )


def _check_shape(value: Any, rules: ProbeRules) -> Rejection | None:
    if not isinstance(value, dict):
        return Rejection(
            "not-a-dict", f"build returned a {type(value).__name__}: return a dict as described"
        )
    known = (*REQUIRED_KEYS, *OPTIONAL_KEYS)
    missing = [key for key in REQUIRED_KEYS if key not in value]
    if missing:
        return Rejection(
            "missing-key", f"the dict has no {', '.join(missing)}: return every required key"
        )
    unknown = sorted(str(key)[:40] for key in value if key not in known)
    if unknown:
        return Rejection(
            "unknown-key",
            f"the dict has the unknown key {', '.join(unknown[:5])}: only {', '.join(known)} "
            "are allowed",
        )
    for key in ("context", "question", "answer_prefix"):
        if not isinstance(value.get(key, ""), str):
            return _wrong_type(key, value[key], "a str")
    answer = value["answer"]
    if not isinstance(answer, str) and not _is_list_of_str(answer):
        return _wrong_type("answer", answer, "a str or a list of str")
    if not _is_list_of_str(value.get("evidence", [])):
        return _wrong_type("evidence", value["evidence"], "a list of str")
    return _check_sizes(value, rules)


def _is_list_of_str(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _wrong_type(key: str, value: Any, wanted: str) -> Rejection:
    return Rejection("wrong-type", f"{key} is a {type(value).__name__}: it has to be {wanted}")


def _check_sizes(value: dict[str, Any], rules: ProbeRules) -> Rejection | None:
    """Bounds in characters and items, so that nothing huge reaches the tokenizer."""
    for key, code, most in (
        ("answer", "too-many-answers", rules.max_answers),
        ("evidence", "too-much-evidence", rules.max_evidence),
    ):
        items = value.get(key, [])
        if isinstance(items, list) and len(items) > most:
            return Rejection(code, f"{key} has {len(items)} entries: give at most {most}")
    if len(value["context"]) > rules.most_chars:
        return Rejection(
            "too-long",
            f"the context has {len(value['context'])} characters, far more than "
            f"{rules.most_tokens} tokens: shorten it",
        )
    answers = [value["answer"]] if isinstance(value["answer"], str) else value["answer"]
    for name, texts, most in (
        ("question", [value["question"]], 64 * rules.max_question_tokens),
        ("answer_prefix", [value.get("answer_prefix", "")], 64 * rules.max_question_tokens),
        ("answer", answers, 64 * rules.max_new_tokens),
        ("evidence", value.get("evidence", []), rules.most_chars),
    ):
        if any(len(text) > most for text in texts):
            return Rejection(f"too-long-{name}", f"{name} is far too long: shorten it")
    return None


def _check_text(example: Example) -> Rejection | None:
    parts = {
        "context": (example.context,),
        "question": (example.question,),
        "answer_prefix": (example.answer_prefix,),
        "answer": example.answers,
        "evidence": example.evidence,
    }
    for name, texts in parts.items():
        for text in texts:
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                return Rejection(
                    "not-unicode", f"{name} is not valid Unicode (half a surrogate pair): use text"
                )
            found = _CONTROL.search(text)
            if found:
                return Rejection(
                    "control-character",
                    f"{name} contains the control character {found.group()!r}: use text, spaces "
                    "and line ends alone",
                )
    if not example.context.strip():
        return Rejection("empty-context", "the context is empty: fill it up to length")
    if not example.question.strip():
        return Rejection("empty-question", "the question is empty: ask for the answer")
    if example.context.endswith("#"):
        return Rejection(
            "trailing-hash",
            'the context ends in "#", which is lost where context and question are put together: '
            "end it otherwise",
        )
    return None


def _check_answers(example: Example, rules: ProbeRules) -> Rejection | None:
    if not example.answers or not all(answer.strip() for answer in example.answers):
        return Rejection(
            "empty-answer", "an answer is empty: give at least one, none of them empty"
        )
    if len({normalise(answer) for answer in example.answers}) < len(example.answers):
        return Rejection(
            "repeated-answer", "the list of answers names one twice: give different answers"
        )
    for answer in example.answers:
        if not occurs(answer, example.context):
            return Rejection(
                "answer-not-in-context",
                f"the answer {_short(answer)} does not occur in the context as words of its own: "
                "the context has to state it",
            )
        for name, text in (
            ("question", example.question),
            ("answer_prefix", example.answer_prefix),
        ):
            if occurs(answer, text):
                return Rejection(
                    "answer-given-away",
                    f"the answer {_short(answer)} is already in the {name}: ask without naming it",
                )
    context = normalise(example.context)
    for passage in example.evidence:
        if not passage.strip() or normalise(passage) not in context:
            return Rejection(
                "evidence-not-in-context",
                f"the evidence {_short(passage)} does not occur in the context: copy the passage "
                "from it",
            )
    return None


def _check_tokens(example: Example, rules: ProbeRules, counter: TokenCounter) -> Rejection | None:
    ids = {
        "context": counter.ids(example.context),
        "question": counter.ids(example.question),
        "answer_prefix": counter.ids(example.answer_prefix),
    }
    answer_size = counter.count(" " + ", ".join(example.answers))
    fault = _check_lengths(
        len(ids["context"]), len(ids["question"]) + len(ids["answer_prefix"]), answer_size, rules
    )
    if fault is not None:
        return fault
    for name, tokens in ids.items():
        special = counter.special_in(getattr(example, name), tokens)
        if special is not None:
            return Rejection(
                "control-token",
                f"{name} contains {special}, a control token of the model: write it otherwise",
            )
        if counter.unknown_id in tokens:
            return Rejection(
                "unknown-token",
                f"{name} contains characters that the model's tokenizer does not know: use "
                "plainer text",
            )
    return None


def _check_lengths(context: int, asked: int, answers: int, rules: ProbeRules) -> Rejection | None:
    if context > rules.most_tokens:
        return Rejection(
            "too-long",
            f"the context has {context} tokens, at most {rules.most_tokens} are allowed: count "
            "the finished text and leave out what exceeds length",
        )
    if context < rules.fewest_tokens:
        return Rejection(
            "too-short",
            f"the context has {context} tokens, at least {rules.fewest_tokens} are needed: add "
            f"text until it comes close to {rules.most_tokens}",
        )
    if asked > rules.max_question_tokens:
        return Rejection(
            "too-long-question",
            f"question and answer_prefix have {asked} tokens, at most "
            f"{rules.max_question_tokens} are allowed: put the text into the context",
        )
    if answers > rules.max_new_tokens:
        return Rejection(
            "too-long-answer",
            f"the answers take {answers} tokens, but the system writes "
            f"{rules.max_new_tokens}: ask for less",
        )
    return None


def check_variety(examples: Sequence[Example]) -> Rejection | None:
    """Reject a probe whose examples repeat over seeds."""
    contexts = Counter(example.context for example in examples)
    context, times = contexts.most_common(1)[0]
    if times > 1:
        seeds = [example.seed for example in examples if example.context == context]
        return Rejection(
            "repeated-context",
            f"{times} of {len(examples)} seeds give the same context (seeds {seeds[0]} and "
            f"{seeds[1]}): draw more of it from rng",
        )
    asked = Counter(
        (example.question, tuple(sorted(map(normalise, example.answers)))) for example in examples
    )
    pair_times = asked.most_common(1)[0][1]
    if pair_times > max(1, len(examples) // 2):
        return Rejection(
            "repeated-question",
            f"{pair_times} of {len(examples)} seeds ask the same question with the same answer: "
            "draw them from rng",
        )
    answers = Counter(tuple(sorted(map(normalise, example.answers))) for example in examples)
    answer, answer_times = answers.most_common(1)[0]
    # A few seeds may agree by chance; most of a larger number do not.
    if answer_times > max(2, len(examples) // 2):
        return Rejection(
            "repeated-answer-over-seeds",
            f"{answer_times} of {len(examples)} seeds have the same answer "
            f"{_short(', '.join(answer))}: draw it from rng",
        )
    return None


def _short(text: str, most: int = 60) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= most else flat[: most - 1] + "…")
