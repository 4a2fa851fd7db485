"""Prompt probes: strings and programs, in the sandbox, hostile ones included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from galoop.domains.sparse_video.grammar import OpenScene, OpenThing, source_of
from galoop.domains.sparse_video.probe import (
    CONTRACT,
    PromptProbeBuilder,
    VideoPrompt,
    check_program,
    check_prompt,
    is_program,
)
from galoop.domains.sparse_video.prompts import parse
from galoop.errors import IsolationError, UsageError
from galoop.isolation import Limits
from galoop.types import State

PROMPT = "a red circle moving left on a gray background"
OPEN_SOURCE = source_of(OpenScene((OpenThing(), OpenThing())))


@pytest.fixture(scope="module")
def builder() -> Iterator[PromptProbeBuilder]:
    limits = Limits(seconds=2.0, memory_mb=256, output_bytes=2**20)
    with PromptProbeBuilder(limits=limits) as built:
        yield built


def returns(expression: str, head: str = "") -> str:
    return f"{head}\n\ndef prompt(rng):\n    return {expression}\n"


def test_a_prompt_is_one_prompt_with_noises_of_its_own(builder: PromptProbeBuilder) -> None:
    found = builder.build(PROMPT + "\n", [3, 1, 2])
    assert found.state is State.SCORED
    assert found.prompts == tuple(VideoPrompt(PROMPT, seed) for seed in (3, 1, 2))


def test_a_program_gives_prompts_by_seed(builder: PromptProbeBuilder) -> None:
    found = builder.build(OPEN_SOURCE, list(range(8)))
    assert not found.rejected
    assert [item.seed for item in found.prompts] == list(range(8))
    assert len({item.prompt for item in found.prompts}) > 4
    for item in found.prompts:
        assert str(parse(item.prompt)) == item.prompt
    assert builder.build(OPEN_SOURCE, [5]).prompts[0] == found.prompts[5]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("   \n", "empty"),
        ("a purple circle resting on a gray background", "language"),
        ("print", "language"),
        ("red " * 40, "too-long"),
        ("def prompt(rng:\n  pass", "syntax"),
        ("def other(rng):\n    return ''\n", "no-prompt"),
        ("def prompt(rng, n):\n    return ''\n", "wrong-signature"),
        ("async def prompt(rng):\n    return ''\n", "no-prompt"),
        (returns("open('/etc/passwd').read()"), "not-allowed"),
        (returns("os.getcwd()", "import os"), "import"),
        (returns("7"), "raises"),
        (returns("'x' * 10**6"), "raises"),
        (returns("1 / 0"), "raises"),
        (returns("exit"), "raises"),
        ("raise ValueError('early')\n" + returns("''"), "raises"),
        (returns("'a red circle flying on a gray background'"), "language"),
        (returns(repr(PROMPT)), "repeated-prompt"),
        (
            returns(
                "random.choice(['a', 'two']) and 'a %s circle resting on a gray background' % "
                "random.choice(['red', 'blue', 'cyan', 'green', 'yellow', 'magenta'])",
                "import random",
            ),
            "not-deterministic",
        ),
    ],
)
def test_what_is_rejected(builder: PromptProbeBuilder, source: str, code: str) -> None:
    found = builder.build(source, list(range(12)))
    assert found.code == code, found
    assert found.rejected
    assert found.prompts == ()
    assert found.state is State.INVALID


def test_endless_probes_fail(builder: PromptProbeBuilder) -> None:
    found = builder.build("def prompt(rng):\n    while True:\n        pass\n", [1, 2])
    assert (found.state, found.code) == (State.FAILED, "timeout")
    assert not builder.build(OPEN_SOURCE, [1, 2, 3]).rejected  # and the next one runs


@pytest.mark.parametrize(
    "reply",
    [{}, {"results": "abc"}, {"results": [1, 2]}, {"results": [PROMPT]}, {"results": [None, None]}],
)
def test_forged_replies(monkeypatch: pytest.MonkeyPatch, reply: Mapping[str, Any]) -> None:
    builder = PromptProbeBuilder()
    monkeypatch.setattr(builder, "_call", lambda request: reply)
    assert builder.build(OPEN_SOURCE, [1, 2]).code == "forged-reply"


def test_forged_errors_are_cut_and_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = PromptProbeBuilder()
    error = {"error": {"kind": "x", "message": "\x1b[31m" + "y" * 5000, "seed": "z"}}
    monkeypatch.setattr(builder, "_call", lambda request: error)
    found = builder.build(OPEN_SOURCE, [1])
    assert len(found.rejected) <= 600
    assert "\x1b" not in found.rejected


def test_a_sandbox_that_never_works_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: PromptProbeBuilder, request: Mapping[str, Any]) -> Any:
        raise IsolationError("gone")

    monkeypatch.setattr(PromptProbeBuilder, "_call_once", broken)
    with pytest.raises(IsolationError):
        PromptProbeBuilder().build(OPEN_SOURCE, [1])


def test_a_probe_that_kills_the_sandbox_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def kills(self: PromptProbeBuilder, request: Mapping[str, Any]) -> Any:
        if "rng.sample" in request["source"]:
            raise IsolationError("gone")
        return {"results": [""]}

    monkeypatch.setattr(PromptProbeBuilder, "_call_once", kills)
    found = PromptProbeBuilder().build(OPEN_SOURCE, [1])
    assert (found.state, found.code) == (State.FAILED, "killed-sandbox")


def test_seeds_have_to_differ(builder: PromptProbeBuilder) -> None:
    for seeds in ([], [1, 1]):
        with pytest.raises(UsageError, match="all of them different"):
            builder.build(PROMPT, seeds)


def test_the_contracts_own_examples_are_prompts() -> None:
    examples = [line.strip() for line in CONTRACT.splitlines() if "background" in line]
    examples = [line for line in examples if line.startswith(("a ", "two "))]
    assert len(examples) == 2
    assert [check_prompt(example) for example in examples] == [None, None]


def test_strings_and_programs_are_told_apart() -> None:
    assert is_program(OPEN_SOURCE)
    assert is_program("def prompt(rng): return 'x'")
    assert not is_program(PROMPT)
    assert check_program("def prompt(rng): return 'x'") is None
