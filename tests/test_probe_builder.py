"""Probes built for real, in forks of a sandbox: what is accepted, and every way to be rejected."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from galoop.domains.text.probe import ProbeBuilder, ProbeResult
from galoop.errors import IsolationError, UsageError
from galoop.isolation import CandidateCrashed, CandidateProtocolError, Limits
from galoop.types import State
from probe_tools import GOOD, probe, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tok"))


@pytest.fixture(scope="module")
def builder(folder: Path) -> Iterator[ProbeBuilder]:
    limits = Limits(seconds=3.0, memory_mb=256)
    with ProbeBuilder(folder, length=120, max_context_tokens=150, limits=limits) as made:
        yield made


def test_good_probe(builder: ProbeBuilder) -> None:
    result = builder.build(GOOD, [5, 3, 8])
    assert (result.state, result.rejected, result.code) == (State.SCORED, "", "")
    assert [example.seed for example in result.examples] == [5, 3, 8]
    assert len({example.context for example in result.examples}) == 3
    for example in result.examples:
        assert 60 <= builder._counter.count(example.context) <= 120
        assert example.answers[0] in example.evidence[0]


def test_an_example_depends_on_its_seed_alone(builder: ProbeBuilder) -> None:
    many = builder.build(GOOD, [1, 2, 3, 4]).examples
    other = builder.build(GOOD, [4, 9, 2]).examples
    assert many[3] == other[0]
    assert many[1] == other[2]


def test_the_seed_is_that_of_the_standard_generator(builder: ProbeBuilder) -> None:
    import random

    (example,) = builder.build(GOOD, [42]).examples
    assert example.answers == (str(random.Random(42).randint(1000, 9999)),)


@pytest.mark.parametrize(
    ("source", "state", "code", "says"),
    [
        ("def build(", State.INVALID, "syntax", "does not parse"),
        (f"import os\n{GOOD}", State.INVALID, "import", "os"),
        (probe("raise ValueError('no')"), State.INVALID, "raises", "ValueError: no"),
        (f"1 / 0\n{GOOD}", State.INVALID, "raises", "when it is loaded"),
        (probe("raise SystemExit"), State.INVALID, "raises", "SystemExit"),
        (probe("return None"), State.INVALID, "not-a-dict", "NoneType"),
        (probe("d['answer'] = 4"), State.INVALID, "wrong-type", "answer is a int"),
        (probe("d['answer'] = {'4'}"), State.INVALID, "wrong-type", "not text"),
        (probe("d['extra'] = '4'"), State.INVALID, "unknown-key", "extra"),
        (probe("d['context'] *= 2"), State.INVALID, "too-long", "at most 120"),
        (probe("d['answer'] = 'zebra'"), State.INVALID, "answer-not-in-context", "seed 1, and 3"),
        (
            probe("d['question'] += str(random.random())"),
            State.INVALID,
            "not-deterministic",
            "in question",
        ),
        (
            probe("KEPT.append(1); d['question'] += '?' * len(KEPT)", head="KEPT = []"),
            State.INVALID,
            "not-deterministic",
            "between calls",
        ),
        (
            probe("d['question'] += str(hash(object()))"),
            State.INVALID,
            "not-deterministic",
            "seed 1 differ",
        ),
        (GOOD.replace("def build", "def make"), State.INVALID, "no-build", "defines no build"),
        (probe("while True: pass"), State.FAILED, "timeout", "end every loop"),
        (probe("x = bytearray(10**9)"), State.FAILED, "memory", "memory"),
        (probe("x = ['a' * 10**6 for _ in range(10**4)]"), State.FAILED, "memory", "memory"),
        (probe("random._os._exit(0)"), State.FAILED, "crash", "did not finish"),
        (probe("random._os.kill(random._os.getpid(), 9)"), State.FAILED, "crash", "did not"),
        (probe("random._os.fork()"), State.INVALID, "raises", "not permitted"),
        (probe("print('x' * 10**7)"), State.SCORED, "", ""),
    ],
)
def test_what_becomes_of_it(
    builder: ProbeBuilder, source: str, state: State, code: str, says: str
) -> None:
    result = builder.build(source, [1, 2, 3, 4])
    assert (result.state, result.code) == (state, code), result.rejected
    assert says in result.rejected
    assert bool(result.examples) == (state is State.SCORED)
    # Whatever the last probe did, the next one is built as ever.
    assert builder.build(GOOD, [1]).state is State.SCORED


def test_constant_probe_is_rejected(builder: ProbeBuilder) -> None:
    source = GOOD.replace("    code = ", "    rng = random.Random(0)\n    code = ")
    result = builder.build(source, [1, 2])
    assert result.code == "repeated-context"


def test_a_probe_cannot_write_or_see_the_machine(builder: ProbeBuilder, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("gold", encoding="utf-8")
    source = probe(f"io = __builtins__['op' + 'en']({str(secret)!r}); d['question'] += io.read()")
    result = builder.build(source, [1])
    assert result.code == "raises"
    assert "gold" not in result.rejected


def test_no_torch_on_either_side() -> None:
    import subprocess

    code = "import sys, galoop.domains.text.probe; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_usage_errors(folder: Path, builder: ProbeBuilder) -> None:
    with pytest.raises(UsageError, match="does not fit"):
        ProbeBuilder(folder, length=200, max_context_tokens=199)
    with pytest.raises(UsageError, match="too small"):
        ProbeBuilder(folder, length=31, max_context_tokens=199)
    with pytest.raises(UsageError, match="at least one seed"):
        builder.build(GOOD, [])
    with pytest.raises(UsageError, match="different"):
        builder.build(GOOD, [1, 1])


class FakeServer:
    """Stands for the sandbox: replies as told, or raises."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.requests: list[Any] = []
        self.closed = 0

    def fork(self, serve: str, init: Any, limits: Any) -> FakeServer:
        return self

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        self.closed += 1

    def call(self, request: Any) -> Any:
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def with_fake(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *replies: Any
) -> tuple[ProbeBuilder, FakeServer]:
    fake = FakeServer(*replies)
    made = ProbeBuilder(folder, length=120, max_context_tokens=150)
    monkeypatch.setattr(made, "_started", lambda: (fake, Limits()))
    # Closing a fake leaves it usable, as a restarted sandbox would be.
    made._server = fake  # type: ignore[assignment]
    return made, fake


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"results": 3},
        {"results": []},
        {"results": [{}, {}]},
        {"error": "x"},
        {"results": {"0": 1}},
        CandidateProtocolError("garbage"),
    ],
)
def test_forged_replies(folder: Path, monkeypatch: pytest.MonkeyPatch, reply: Any) -> None:
    made, _ = with_fake(folder, monkeypatch, reply)
    result = made.build(GOOD, [1])
    assert (result.state, result.code) == (State.INVALID, "forged-reply")


def test_forged_errors_are_cut_and_cleaned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "\x1b[31m\ud800" + "boo" * 10_000
    made, _ = with_fake(
        folder, monkeypatch, {"error": {"kind": [], "message": message, "seed": {}}}
    )
    result = made.build(GOOD, [1])
    assert result.code == "raises"
    assert len(result.rejected) <= 600
    assert "\x1b" not in result.rejected
    result.rejected.encode("utf-8")


def test_a_second_fork_that_crashes_is_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, builder: ProbeBuilder
) -> None:
    good = builder.build(GOOD, [1]).examples[0]
    value = {"context": good.context, "question": good.question, "answer": good.answers[0]}
    made, fake = with_fake(folder, monkeypatch, {"results": [value]}, CandidateCrashed("died"))
    result = made.build(GOOD, [1])
    assert (result.state, result.code, result.examples) == (State.FAILED, "crash", ())
    assert fake.requests[0]["salt"] != fake.requests[1]["salt"]


def test_a_probe_that_takes_the_sandbox_down_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = IsolationError("gone")
    made, fake = with_fake(folder, monkeypatch, dead, dead, {"results": [{}]})
    result = made.build(GOOD, [1])
    assert (result.state, result.code) == (State.FAILED, "killed-sandbox")
    assert fake.requests[0]["source"] == fake.requests[1]["source"] == GOOD
    assert fake.requests[2]["source"] != GOOD


def test_a_sandbox_that_never_works_is_our_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = IsolationError("gone")
    made, _ = with_fake(folder, monkeypatch, dead, dead, dead)
    with pytest.raises(IsolationError, match="gone"):
        made.build(GOOD, [1])


def test_one_accident_is_forgiven(
    folder: Path, monkeypatch: pytest.MonkeyPatch, builder: ProbeBuilder
) -> None:
    good = builder.build(GOOD, [1]).examples[0]
    value = {"context": good.context, "question": good.question, "answer": good.answers[0]}
    replies = [IsolationError("gone"), {"results": [value]}, {"results": [value]}]
    made, _ = with_fake(folder, monkeypatch, *replies)
    result: ProbeResult = made.build(GOOD, [1])
    assert result.state is State.SCORED
