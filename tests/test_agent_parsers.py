"""What agents print, in the formats of their documentation, and what is read from it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from galoop.proposers.agents.adapter import MAX_TEXT, Bill, Job, Parser, Reading
from galoop.proposers.agents.factory import adapter

NAMES = ("claude-code", "claude-agent-sdk", "codex", "cursor", "mini-swe-agent", "command")
JOB = Job("do it", "/bin/x", "/w", "/h", "/t", "/w/TASK.md", seconds=60.0)


def read(name: str, *events: Any) -> Reading:
    parser = adapter(name).parser()
    for event in events:
        line = event if isinstance(event, bytes) else json.dumps(event).encode()
        parser.feed(line)
    return parser.reading


def assistant(key: str, text: str, **usage: int) -> dict[str, Any]:
    block = {"type": "text", "text": text}
    return {"type": "assistant", "message": {"id": key, "content": [block], "usage": usage}}


CLAUDE_RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "duration_ms": 5120,
    "num_turns": 3,
    "result": "I improved it.",
    "session_id": "s",
    "total_cost_usd": 0.0421,
    "usage": {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 3000,
        "output_tokens": 400,
    },
}


def test_claude_counts_every_message_once_and_takes_the_price_of_the_result() -> None:
    system = {"type": "system", "subtype": "init", "session_id": "s", "tools": ["Bash"]}
    first = assistant("m1", "a", input_tokens=5, cache_read_input_tokens=100, output_tokens=7)
    tool = {"type": "user", "message": {"content": [{"type": "tool_result", "content": "ok"}]}}
    second = assistant("m2", "b", input_tokens=2, output_tokens=3)
    running = read("claude-code", system, first, first, tool, second)
    assert (running.input_tokens, running.output_tokens) == (107, 10)
    assert running.dollars is None
    assert not running.finished
    assert running.text == "b"
    done = read("claude-code", system, first, first, tool, second, CLAUDE_RESULT)
    assert (done.input_tokens, done.output_tokens, done.dollars) == (3210, 400, 0.0421)
    assert (done.text, done.error, done.finished) == ("I improved it.", "", True)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"subtype": "error_max_budget_usd", "is_error": True, "errors": ["too dear"]}, "too dear"),
        ({"subtype": "success", "is_error": True, "result": "API Error: 401"}, "401"),
    ],
)
def test_claude_errors(event: dict[str, Any], words: str) -> None:
    found = read("claude-code", {"type": "result", "total_cost_usd": 0.5, "usage": {}, **event})
    assert words in found.error
    assert found.dollars == 0.5


def test_codex_counts_tokens_and_has_no_price() -> None:
    found = read(
        "codex",
        {"type": "thread.started", "thread_id": "0199"},
        {"type": "turn.started"},
        {"type": "item.started", "item": {"id": "i0", "type": "command_execution"}},
        {"type": "item.completed", "item": {"id": "i1", "type": "reasoning", "text": "hm"}},
        {"type": "item.completed", "item": {"id": "i2", "type": "agent_message", "text": "Done."}},
        {"type": "error", "message": "Reconnecting... 1/5"},
        {
            "type": "turn.completed",
            "usage": {"input_tokens": 24763, "cached_input_tokens": 24448, "output_tokens": 122},
        },
    )
    assert (found.input_tokens, found.output_tokens, found.dollars) == (24763, 122, None)
    assert (found.text, found.error, found.finished) == ("Done.", "", True)


def test_codex_failure() -> None:
    found = read("codex", {"type": "turn.failed", "error": {"message": "stream disconnected"}})
    assert found.error == "stream disconnected"


def test_cursor_has_neither_tokens_nor_price() -> None:
    found = read(
        "cursor",
        {"type": "system", "subtype": "init", "model": "x", "cwd": "/w", "session_id": "s"},
        {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "go"}]}},
        assistant("", "Reading."),
        {"type": "tool_call", "subtype": "started", "call_id": "c", "tool_call": {}},
        assistant("", "Finished."),
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "duration_ms": 10,
            "result": "Reading.Finished.",
        },
    )
    assert (found.input_tokens, found.output_tokens, found.dollars) == (0, 0, None)
    assert (found.text, found.finished) == ("Finished.", True)


@pytest.mark.parametrize("name", ["claude-agent-sdk", "mini-swe-agent", "command"])
def test_a_command_may_report_totals(name: str) -> None:
    found = read(
        name,
        b"thinking",
        {"type": "usage", "input_tokens": 100, "output_tokens": 10, "dollars": 0.1},
        {"type": "usage", "input_tokens": 300, "output_tokens": 30, "dollars": 0.3},
        {"score": 1.0, "type": "claim"},
        b"all done",
        b"",
    )
    assert (found.input_tokens, found.output_tokens, found.dollars) == (300, 30, 0.3)
    assert found.text == "all done"
    assert read(name, b"x").dollars is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"null",
        b"[1, 2]",
        b"{}",
        b'{"type": null}',
        b'{"type": "result", "usage": 3, "total_cost_usd": "much"}',
        b'{"type": "assistant", "message": "no"}',
        b'{"type": "assistant", "message": {"content": [1], "usage": {"input_tokens": -5}}}',
        b'{"type": "turn.completed", "usage": {"input_tokens": NaN, "output_tokens": 1e400}}',
        b'{"type": "turn.failed"}',
        b'{"type": "item.completed", "item": null}',
        b'{"type": "usage", "dollars": -1, "input_tokens": true}',
    ],
)
def test_no_line_breaks_a_parser_or_a_bill(name: str, line: bytes) -> None:
    found = read(name, line)
    assert found.input_tokens == 0
    assert found.output_tokens == 0
    assert found.dollars is None


def test_text_is_bounded() -> None:
    found = read("cursor", assistant("", "x" * (MAX_TEXT + 100)))
    assert len(found.text) == MAX_TEXT


def test_a_bill_adds_up_and_never_runs_backwards() -> None:
    bill, reading = Bill(), Reading(100, 10, None)
    assert bill.since(reading) == (100, 10, 0.0)
    assert bill.since(reading) == (0, 0, 0.0)
    reading.input_tokens, reading.dollars = 90, 0.5
    assert bill.since(reading) == (0, 0, 0.5)
    reading.input_tokens = 130
    assert bill.since(reading) == (30, 0, 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_command_lines_name_model_and_arguments(name: str) -> None:
    chosen = adapter(name)
    job = Job(**{**JOB.__dict__, "model": "m-1", "arguments": ("--more",)})
    line = chosen.argv(job)
    assert line[0] == "/bin/x"
    assert "--more" in line
    said = " ".join(line) + chosen.stdin(job).decode() + str(chosen.environment(job))
    assert "m-1" in said
    assert "do it" in said
    assert not any("skip" in word and "permission" in word for word in line)


def test_budget_and_inner_sandbox() -> None:
    claude = adapter("claude-code").argv(Job(**{**JOB.__dict__, "max_dollars": 1.5}))
    assert claude[claude.index("--max-budget-usd") + 1] == "1.5000"
    codex = adapter("codex")
    assert "workspace-write" in codex.argv(JOB)
    assert "danger-full-access" in codex.argv(Job(**{**JOB.__dict__, "sandboxed": True}))


def test_claude_minimal_mode_only_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk")
    assert "--bare" in adapter("claude-code").argv(JOB)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    assert "--bare" not in adapter("claude-code").argv(JOB)


def test_parsers_are_not_shared() -> None:
    chosen = adapter("codex")
    first: Parser = chosen.parser()
    first.feed(b'{"type": "error", "message": "x"}')
    assert chosen.parser().reading.error == ""
