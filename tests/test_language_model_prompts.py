"""Prompts: complete, bounded, and without hints."""

from __future__ import annotations

import re

import pytest

import fake_domain as fake
from galoop.proposers.language_model import Completion, LanguageModelProposer, ModelUnavailable
from galoop.proposers.language_model.prompts import messages, prompt
from galoop.proposers.protocol import Cost, Evaluated, Request, Seat, Task
from galoop.redaction import redact
from galoop.types import Candidate, Excerpt, Feedback, State

KNOBS = fake.config().language_model
PROGRAM = "def build(rng, length, count_tokens):\n    return {}\n"


def scored(score: float, note: str = "", **changes: object) -> Feedback:
    return Feedback(State.SCORED, score, {"gap": score}, **changes)  # type: ignore[arg-type]


def one(number: int, feedback: Feedback | None = None) -> Evaluated:
    made = Candidate("probe", {"probe.py": f"X = {number}\n"}, f"note {number}")
    return Evaluated(made, feedback or scored(number / 100))


def request(**changes: object) -> Request:
    task = Task(
        "probe",
        "d",
        "THE OBJECTIVE",
        "THE BACKGROUND",
        "THE CONTRACT",
        512,
        {},
        ("F = 1\n", "F = 2\n"),
    )
    data: dict[str, object] = {"task": task, "index": 0, "parent": None, "history": ()}
    return Request(**{**data, **changes})  # type: ignore[arg-type]


def test_everything_that_is_known_is_said() -> None:
    excerpt = Excerpt("THE PROMPT", "THE GOLD", "THE REFERENCE", "THE ANSWER", "lost")
    parent = one(7, scored(0.7, reason="THE REASON", excerpts=(excerpt,), details={"n": 20}))
    text = prompt(request(parent=parent, history=(one(1), parent), rejected=("UNREADABLE",)), KNOBS)
    for words in (
        "THE OBJECTIVE", "THE BACKGROUND", "THE CONTRACT", "512 tokens", "F = 1", "F = 2",
        "X = 7", "score 0.700 (gap 0.700)", '"n": 20', "THE REASON", "THE PROMPT", "'THE GOLD'",
        "'THE REFERENCE'", "'THE ANSWER'", "Lost (the unmodified model solves it",
        "2. note 7: score 0.700", "- UNREADABLE",
    ):  # fmt: skip
        assert words in text, words
    assert [m["role"] for m in messages(request(), KNOBS)] == ["system", "user"]


def test_a_rejected_parent_shows_its_reason_and_no_score() -> None:
    bad = Feedback(State.INVALID, 0.0, {"gap": 0.0}, "answer is not in the context")
    text = prompt(request(parent=one(1, bad)), KNOBS)
    assert "invalid, not evaluated: answer is not in the context" in text
    assert "score 0" not in text


def test_artifacts_show_every_file_and_the_budget() -> None:
    files = {"artifact.toml": "a = 1\n", "press.py": "P = 1\n", "sub/x.py": "Q = 1\n"}
    parent = Evaluated(Candidate("artifact", files), scored(0.5))
    task = Task("artifact", "d", "", "", "", 0, {"compression_ratio": 0.75})
    text = prompt(request(task=task, parent=parent), KNOBS)
    assert "compression_ratio = 0.75" in text
    for path, source in files.items():
        assert f"`{path}`:" in text
        assert source.strip() in text
    assert "unified diff" in text


def test_a_program_with_fences_is_fenced_wider() -> None:
    parent = Evaluated(Candidate("probe", {"probe.py": 'T = """\n````\n"""\n'}), scored(0.5))
    assert '`````python\nT = """' in prompt(request(parent=parent), KNOBS)


@pytest.mark.parametrize("room", [4000, 20_000])
def test_a_prompt_never_grows_beyond_its_bound_and_always_says_how_to_answer(room: int) -> None:
    knobs = KNOBS.model_copy(update={"prompt_characters": room})
    long = "x" * 500_000
    excerpts = tuple(Excerpt(long, long, long, long) for _ in range(9))
    parent = Evaluated(
        Candidate("probe", {"probe.py": long}, long),
        scored(0.5, reason=long, excerpts=excerpts, details={"d": long}),
    )
    task = Task("probe", "d", "GOAL", "", "RULES", 1, {}, tuple(long + str(i) for i in range(20)))
    text = prompt(
        request(task=task, parent=parent, history=(parent,) * 500, rejected=(long,) * 9), knobs
    )
    assert len(text) <= room + 50
    assert "GOAL" in text
    assert "RULES" in text
    assert text.rstrip().endswith("inside the program do no harm.")


def test_the_history_is_the_best_and_the_latest() -> None:
    knobs = KNOBS.model_copy(update={"history": 4})
    history = tuple(one(n) for n in (90, 10, 80, 20, 30, 40, 50))
    text = prompt(request(history=history), knobs)
    assert re.findall(r"^\d+\. note (\d+):", text, re.M) == ["90", "80", "40", "50"]
    assert "7 so far" in text
    none = prompt(request(history=history), KNOBS.model_copy(update={"history": 0}))
    assert "note 90" not in none


def test_our_own_words_hint_at_no_attack_and_no_repair() -> None:
    """What galoop adds around the task's texts must not say where approximations are weak."""
    task = Task("probe", "d", "", "", "", 0, {}, ())
    art = Task("artifact", "d", "", "", "", 0, {}, ())
    ours = " ".join(
        m["content"] for t in (task, art) for m in messages(request(task=t), KNOBS)
    ).lower()
    words = ("needle", "similar", "distract", "position", "attention", "digit", "rare", "late",
             "long-range", "many keys", "compress", "window", "head", "layer")  # fmt: skip
    assert not [w for w in words if re.search(rf"\b{w}", ours)]


# -- a callable in the seat ----------------------------------------------------------------


def seat(tmp_path: object) -> Seat:
    return Seat("fake", "probe", 0, fake.config(), tmp_path, "s")  # type: ignore[arg-type]


def test_a_callable_that_returns_text(tmp_path: object) -> None:
    asked = []

    def complete(messages: object) -> str:
        asked.append(messages)
        return f"```python\n{PROGRAM}```"

    made = LanguageModelProposer(seat(tmp_path), complete).propose(request())
    assert made.candidate is not None
    assert made.candidate.source == PROGRAM
    assert made.cost.dollars is None, "nobody said what it costs"
    assert asked == [messages(request(), KNOBS)]


def test_a_callable_that_says_what_it_cost(tmp_path: object) -> None:
    said = Completion("no", Cost(0.0, 5, 6), about={"model": "mine"})
    made = LanguageModelProposer(seat(tmp_path), lambda m: said).propose(request())
    assert made.candidate is None
    assert (made.cost.dollars, made.cost.input_tokens, made.cost.output_tokens) == (0.0, 5, 6)
    assert made.about == {"model": "mine"}
    assert "no fenced block" in made.rejected


@pytest.mark.parametrize(
    ("error", "dollars"),
    [(RuntimeError("broke sk-0123456789"), None), (ModelUnavailable("down", Cost(0.5)), 0.5)],
)
def test_a_callable_that_fails(
    tmp_path: object, error: Exception, dollars: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789")

    def complete(messages: object) -> str:
        raise error

    made = LanguageModelProposer(seat(tmp_path), complete).propose(request())
    assert made.candidate is None
    assert made.cost.dollars == dollars
    assert "down" in made.rejected or "RuntimeError: broke [redacted]" in made.rejected


def test_half_a_surrogate_pair_is_stored_as_something_else(tmp_path: object) -> None:
    text = "```python\nX = '\ud800'\n```"
    made = LanguageModelProposer(seat(tmp_path), lambda m: text).propose(request())
    assert made.candidate is not None
    made.candidate.source.encode("utf-8")


def test_redaction() -> None:
    secrets = {
        "A_KEY": "abcdefgh12",
        "B_TOKEN": "abcdefgh12345",
        "C_SECRET": "short",
        "D": "plainvalue",
    }
    said = redact("abcdefgh12345 abcdefgh12 short plainvalue", secrets)
    assert said == "[redacted] [redacted] short plainvalue"
    assert redact("a%2Fb%2Fcdefg a/b/cdefg", {"X_KEY": "a/b/cdefg"}) == "[redacted] [redacted]"
