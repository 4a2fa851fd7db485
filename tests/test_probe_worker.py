"""The isolated side, called in this process: what it replies to good and bad probes."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from galoop.domains.text import worker
from galoop.domains.text.tokens import TokenCounter
from galoop.errors import ModelError
from probe_tools import GOOD, probe, write_tokenizer


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> TokenCounter:
    return worker.warm({"tokenizer_dir": str(write_tokenizer(tmp_path_factory.mktemp("tok")))})


@pytest.fixture(autouse=True)
def _restore_random() -> Any:
    state = random.getstate()
    yield
    random.setstate(state)


def run(counter: TokenCounter, source: str, seeds: list[int], salt: str = "a") -> dict[str, Any]:
    request = {"source": source, "seeds": seeds, "length": 120, "salt": salt}
    return worker.run(counter.count, request)


def test_counts_are_not_cut_by_the_saved_truncation(counter: TokenCounter) -> None:
    assert counter.count("The vault code is 1234.") == 4 + 4 + 1
    assert counter.count("post " * 100) == 100


def test_special_tokens_are_found(counter: TokenCounter) -> None:
    assert set(counter.special_tokens) == {"<|im_start|>", "<|im_end|>", "<unk>", "<tool>"}
    for text, found in (("a <|im_end|> b", "<|im_end|>"), ("<tool>", "<tool>"), ("plain", None)):
        assert counter.special_in(text, counter.ids(text)) == found


def test_missing_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        TokenCounter(tmp_path)


def test_results_follow_the_seeds_in_any_order(counter: TokenCounter) -> None:
    forward = run(counter, GOOD, [1, 2, 3])["results"]
    backward = run(counter, GOOD, [3, 2, 1], salt="b")["results"]
    assert forward == backward[::-1]
    assert len({r["context"] for r in forward}) == 3


def test_the_global_generator_differs_between_salts(counter: TokenCounter) -> None:
    source = probe("d['question'] += str(random.random())")
    assert run(counter, source, [1], "a") != run(counter, source, [1], "b")


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        (probe("raise ValueError('boom ' * 500)"), "build", "ValueError: boom boom"),
        (probe("return helper(1)", head="def helper(x):\n    return x / 0"), "build", "in helper"),
        ("raise KeyError('k')\n" + GOOD, "load", "KeyError"),
        (probe("raise SystemExit(3)"), "build", "SystemExit"),
        (probe("raise KeyboardInterrupt"), "build", "KeyboardInterrupt"),
        (probe("raise MemoryError"), "memory", "memory"),
        (probe("d['answer'] = {1, 2}"), "result", "not text"),
        (probe("d['answer'] = float('nan')"), "result", "not text"),
        (probe("d['context'] = 'x' * 10_000_000"), "result", "bytes"),
        (probe("d['d'] = d"), "result", "not text"),
        (probe("count_tokens(3)"), "build", "takes a str, not int"),
        (GOOD + "\nbuild = None", "load", "not a function"),
        (probe("build(rng, length, count_tokens)"), "build", "RecursionError"),
    ],
)
def test_errors(counter: TokenCounter, source: str, kind: str, says: str) -> None:
    reply = run(counter, source, [5])
    assert reply["error"]["kind"] == kind
    assert says in reply["error"]["message"]
    assert len(reply["error"]["message"]) < 600


def test_an_error_names_the_line(counter: TokenCounter) -> None:
    source = "def build(rng, length, count_tokens):\n    x = {}\n    return x['missing']\n"
    error = run(counter, source, [9])["error"]
    assert "line 3 in build" in error["message"]
    assert error["seed"] == 9


def test_dataclasses_work_in_a_probe(counter: TokenCounter) -> None:
    head = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Row:\n    name: str"
    )
    source = probe("d['question'] += Row('x').name", head=head)
    assert "results" in run(counter, source, [1])


def test_the_worker_starts_without_torch() -> None:
    code = (
        "import sys, galoop.domains.text.worker, galoop.isolation.channel\n"
        "heavy = {'torch', 'transformers', 'numpy', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_serve_answers_every_request(counter: TokenCounter) -> None:
    class Fake:
        replies: list[Any] = []  # noqa: RUF012

        def __iter__(self) -> Any:
            for seed in (1, 2):
                yield {"source": GOOD, "seeds": [seed], "length": 120, "salt": "a"}, []

        def reply(self, obj: Any) -> None:
            self.replies.append(obj)

    channel = Fake()
    worker.serve(counter, {}, channel)
    assert [len(reply["results"]) for reply in channel.replies] == [1, 1]
