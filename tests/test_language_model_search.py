"""Whole loops with a language model in both seats, against a local server."""

from __future__ import annotations

import ast
import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import fake_domain as fake
from fake_domain import World
from fake_programs import artifact, probe
from galoop.errors import InfrastructureError, UsageError
from galoop.hashing import content_hash
from galoop.loop import discover, run_loop
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from loop_tools import SMALL, small
from model_server import Asked, ModelServer, Reply, serving

pytestmark = pytest.mark.skipif(find_spec("litellm") is None, reason="needs the extra llm")

QUIET = NullProgress()
KEY = "sk-test-0123456789abcdef-SECRET"
NOTES = "<think>\nperhaps ```python\n</think>\n"


def model(number: int, asked: Asked) -> Reply:
    """A model that writes a random program, the same one for the same prompt."""
    rng = random.Random(content_hash(asked.prompt))
    if "artifact" in asked.prompt.rpartition("## Your answer")[2]:
        skills = [round(rng.uniform(0.2, 1.0), 2), 1.0, round(rng.uniform(0.3, 1.0), 2)]
        made, info = artifact(*skills, salt=rng.randrange(10**6)), "json params.json"
        body = made.files["params.json"]
    else:
        made, info = probe(rng.randrange(3), 0.0, rng.randrange(10**6)), "python"
        body = made.source
    text = f"{NOTES}Change: {made.note}\n\n````{info}\n{body}````\n"
    return Reply(text, usage=(rng.randrange(100, 900), rng.randrange(10, 90)))


def config(server: ModelServer, **changes: Any) -> Any:
    return small(**settings(server, **changes))


def settings(server: ModelServer, **changes: Any) -> dict[str, Any]:
    return {
        "discriminator__proposer": "language-model",
        "generator__proposer": "language-model",
        "discriminator__fresh": 2,
        "language_model__model": "openai/thing",
        "language_model__api_base": server.address,
        "language_model__backoff": 0.0,
        "language_model__input_price": 2.0,
        "language_model__output_price": 8.0,
        "language_model__key_variable": "GALOOP_TEST_KEY",
    } | changes


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GALOOP_TEST_KEY", KEY)


def proposals(run: Path) -> list[dict[str, Any]]:
    with RunStore.open(run) as store:
        return [e["payload"] for e in store.events("proposal")]


def assert_no_key(run: Path) -> None:
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path


def test_a_loop_and_its_exact_ledger(world: World, fast_path: Path) -> None:
    used: list[tuple[int, int]] = []

    def script(number: int, asked: Asked) -> Reply:
        reply = model(number, asked)
        assert reply.usage is not None
        used.append(reply.usage)
        return reply

    with serving(script) as server:
        result = run_loop(config(server), fast_path / "run", QUIET)
    assert [s.name for s in result.slices] == ["B1", "B2"]
    assert any(g.accepted for g in result.generations)
    spent, made = (sum(row[i] for row in used) for i in (0, 1))
    with RunStore.open(fast_path / "run") as store:
        total = store.totals("kind")["proposal"]
        stages = store.totals("stage")
    assert total.entries == len(used) == len(proposals(fast_path / "run"))
    assert (total.input_tokens, total.output_tokens) == (spent, made)
    assert total.dollars == pytest.approx((2 * spent + 8 * made) / 1e6, rel=1e-12)
    assert total.sources == ("estimated",)
    assert {"round-1/discriminator", "round-1/generator"} <= set(stages)
    assert {p["prices"] for p in proposals(fast_path / "run")} == {"experiment file"}
    rows = [row for row in result.ledger if row.kind == "proposal"]
    assert sum(row.count for row in rows) == len(used)
    assert {(row.who, row.source) for row in rows} == {
        ("language-model", "estimated (experiment file)")
    }
    assert sum(row.dollars or 0.0 for row in rows) == pytest.approx(total.dollars)
    assert ", estimated (experiment file) |" in (fast_path / "run" / "report.md").read_text()
    kept = fast_path / "run" / "proposers" / "round-1" / "discriminator"
    assert (kept / "0000.0-prompt.md").read_text().startswith("## Goal")
    assert (kept / "0000.0-answer.md").read_text().strip().startswith("Change: topic")
    assert_no_key(fast_path / "run")


def test_prompts_tell_what_was_found(world: World, fast_path: Path) -> None:
    with serving(model) as server:
        discover(config(server, criterion__tau=0.95), fast_path / "run", QUIET)
    fresh, mutating = server.asked[0].prompt, server.asked[5].prompt
    assert "Write a new program from nothing" in fresh
    assert "## The parent" not in fresh
    for words in (
        "Write a better program",
        "## The parent",
        "SPEC = {'topic': ",
        "reference_accuracy 1.000",
        "gold answer: 'yes'",
        "the unmodified model: 'yes'",
        "with the approximation: 'no'",
        "## Tried in this search\n\n5 so far",
    ):
        assert words in mutating, words


def test_prompts_show_the_frozen_slices(world: World, fast_path: Path) -> None:
    with serving(model) as server:
        result = run_loop(config(server), fast_path / "run", QUIET)
    later = [a.prompt for a in server.asked if "## Already found" in a.prompt]
    assert later
    assert all(result.slices[0].source.strip() in prompt for prompt in later)


def test_everything_that_can_go_wrong_at_once(world: World, fast_path: Path) -> None:
    """One failure of each kind, and the search goes on; what each one costs is exact."""
    program = probe(2, salt=1).source
    good = [f"````python\n{probe(2, salt=i).source}````\n" for i in range(2, 9)]
    replies = [
        Reply(good[0]),
        Reply(status=429),
        Reply(status=500),
        Reply(good[1]),
        Reply("", drop="within"),
        Reply(good[2]),
        Reply("no program at all"),
        Reply(f"````python\n{program[: len(program) // 2]}", finish="length"),
        Reply("a" * 2_000_000),
        Reply(f"```python\nx = 1\n```\n```python\nprint(1)\n```\n{good[3]}"),
        Reply(good[3]),  # known
        Reply(good[4]),
        Reply(good[5], usage=None),
    ]
    changes = settings(
        ModelServer(""),
        discriminator__max_candidates=6,
        discriminator__fresh=6,
        criterion__tau=0.95,
        language_model__max_output_tokens=1000,
        language_model__retries=2,
    )
    with serving(replies) as server:
        changes["language_model__api_base"] = server.address
        result = discover(small(**changes), fast_path / "run", QUIET)
        assert server.calls == len(replies)
    (search,) = result.searches
    assert search.candidates == 6
    assert search.stopped_by == "candidates: 6 tried"
    assert search.invalid == 0
    rows = proposals(fast_path / "run")
    refused = [
        (r["index"], r["attempt"], r["rejected"].split(":")[0]) for r in rows if r["rejected"]
    ]
    assert [r[:2] for r in refused] == [(3, 0), (3, 1), (3, 2), (4, 0)]
    assert "no fenced block" in rows[3]["rejected"]
    assert "cut off" in rows[4]["rejected"]
    assert "more than 1000000 are not read" in rows[5]["rejected"]
    assert "evaluated before" in rows[7]["rejected"]
    prompts = [a.prompt for a in server.asked]
    assert "- the answer holds no fenced block" in prompts[7]
    assert "- the answer was cut off" in prompts[8]
    assert len(rows) == len(replies) - 3, "two tries and a lost call belong to another proposal"
    lost = next(r for r in rows if r["about"].get("lost_calls"))
    assert lost["index"] == 2
    assert lost["output_tokens"] == 1000 + 20
    assert lost["input_tokens"] == 100 + sum(map(len, texts(server.asked[4]))) // 3 + 1
    rest = [r for r in rows[:-1] if r is not lost]
    assert {(r["input_tokens"], r["output_tokens"]) for r in rest} == {(100, 20)}
    assert rows[-1]["about"]["tokens"].startswith("estimated")
    for row in rows:
        expected = (2 * row["input_tokens"] + 8 * row["output_tokens"]) / 1e6
        assert row["dollars"] == pytest.approx(expected, rel=1e-12)


def texts(asked: Asked) -> list[str]:
    return [m["content"] for m in asked.body["messages"]]


@pytest.mark.parametrize(
    ("caps", "calls"),
    [
        ({"max_proposals": 5}, 5),
        ({"max_tokens": 500}, 5),  # 120 a call: 480, then 600
        ({"max_tokens": 480}, 4),
        ({"max_dollars": 0.0018}, 5),  # 0.00036 a call
    ],
)
def test_caps_hold_to_within_one_call_and_over_a_resume(
    world: World, fast_path: Path, caps: dict[str, Any], calls: int
) -> None:
    def script(number: int, asked: Asked) -> Reply:
        return Reply(model(number, asked).text, usage=(100, 20))

    changes = {f"discriminator__{k}": v for k, v in caps.items()}
    changes |= {"discriminator__max_candidates": 100, "criterion__tau": 0.95}
    with serving(script) as server:
        for _ in range(2):
            result = discover(config(server, **changes), fast_path / "run", QUIET)
            assert server.calls == calls
    (search,) = result.searches
    assert search.stopped_by.startswith(next(iter(caps)).removeprefix("max_"))


def test_an_outage_ends_the_search_and_keeps_what_was_found(world: World, fast_path: Path) -> None:
    def script(number: int, asked: Asked) -> Reply:
        return model(number, asked) if number < 3 else Reply(status=503)

    changes = {"language_model__retries": 1, "criterion__tau": 0.95}
    with serving(script) as server:
        result = discover(config(server, **changes), fast_path / "run", QUIET)
        assert server.calls == 3 + 5 * 2
    (search,) = result.searches
    assert search.candidates == 3
    assert search.stopped_by.startswith("proposer: 5 proposals in a row held no candidate")
    assert "503" in search.stopped_by or "ServiceUnavailable" in search.stopped_by


def test_a_wrong_key_stops_the_run_which_goes_on_when_it_is_right(
    world: World, fast_path: Path
) -> None:
    good = [True]
    changes = {"criterion__tau": 0.95, "discriminator__max_candidates": 6}

    def script(number: int, asked: Asked) -> Reply:
        if number >= 3 and not good[0]:
            said = f"Incorrect API key provided: {asked.headers['authorization']}"
            return Reply(said, status=401)
        return model(number, asked)

    with serving(script) as server:
        base = discover(config(server, **changes), fast_path / "base", QUIET)
        calls, good[0] = server.calls, False
        server.asked.clear()
        with pytest.raises(InfrastructureError, match="openai/thing") as error:
            discover(config(server, **changes), fast_path / "run", QUIET)
        assert KEY not in str(error.value)
        assert server.calls == 4
        good[0] = True
        again = discover(config(server, **changes), fast_path / "run", QUIET)
        assert server.calls == calls + 1, "the refused one alone was asked again"
    assert again.searches == base.searches
    assert base.searches[0].candidates == 6
    assert_no_key(fast_path / "run")


def test_a_server_that_quotes_the_key(world: World, fast_path: Path) -> None:
    def script(number: int, asked: Asked) -> Reply:
        said = asked.headers["authorization"]
        assert KEY in said
        if number % 3 == 1:
            return Reply(f"you sent {said}", status=400)
        made = model(number, asked).text
        body = made.replace('"""\n', f' {said}"""\n', 1).replace("Change:", f"Change: {said}")
        return Reply(body)

    with serving(script) as server:
        discover(config(server, criterion__tau=0.95), fast_path / "run", QUIET)
    notes = [r["note"] for r in proposals(fast_path / "run")]
    assert any("[redacted]" in note for note in notes)
    assert_no_key(fast_path / "run")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"language_model__model": ""}, r"language_model\.model is empty"),
        ({"language_model__key_variable": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
        ({"generator__proposer": "recorded"}, r"recorded\.run is empty"),
    ],
)
def test_what_the_generator_lacks_is_said_before_anything_is_run(
    world: World, fast_path: Path, changes: dict[str, Any], words: str
) -> None:
    given = settings(
        ModelServer("http://127.0.0.1:9/v1"), discriminator__proposer="fake", **changes
    )
    with pytest.raises(UsageError, match=words):
        run_loop(small(**given), fast_path / "run", QUIET)
    assert world.opened == 0
    assert not (fast_path / "run").exists()


@pytest.mark.slow
def test_kills_at_random_instants_pay_at_most_one_proposal_each(
    world: World, fast_path: Path
) -> None:
    delay = 0.15

    def script(number: int, asked: Asked) -> Reply:
        time.sleep(delay)
        return model(number, asked)

    with serving(script) as server:
        base = run_loop(config(server), fast_path / "base", QUIET)
        needed = server.calls
        server.asked.clear()
        chance, kills, done = random.Random(5), 0, False
        while not done and kills < 25:
            arguments = [str(Path(__file__).parent), str(fast_path / "run"),
                         str(fast_path / "log"), repr({**SMALL, **settings(server)})]  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, "-c", fake.CHILD, *arguments],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "GALOOP_TEST_KEY": KEY},
            )
            assert process.stdout is not None
            with process.stdout as output:
                assert output.readline() == "ready\n"
                time.sleep(chance.uniform(2.0, 7.0))
                process.send_signal(signal.SIGKILL)
                done = "done" in output.read()
            process.wait()
            kills += 1
        assert kills >= 3
        result = run_loop(config(server), fast_path / "run", QUIET)
        assert needed <= server.calls <= needed + kills
    assert result.slices == base.slices
    assert [g.key for g in result.generations] == [g.key for g in base.generations]
    assert len(proposals(fast_path / "run")) == needed
    assert_no_key(fast_path / "run")


def test_the_prompt_s_programs_are_the_ones_that_were_asked_about() -> None:
    """The scripted model writes what the fake domain reads, or these tests show nothing."""
    asked = Asked("", {}, {"messages": [{"content": "## Your answer: a program"}]}, 0.0)
    body = model(0, asked).text.partition("````python\n")[2].partition("````")[0]
    assert set(ast.literal_eval(body.split("SPEC = ")[1])) == {"topic", "hardness", "salt", "does"}
    asked.body["messages"][0]["content"] = "## Your answer: an artifact"
    body = model(0, asked).text.partition("params.json\n")[2].partition("````")[0]
    assert set(json.loads(body)) == {"skills", "does", "salt"}
