"""Likelihood against transformers' own loss and kvpress's own cache; BOS tokens, once."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from galoop.domains.kv_compression.session import Session
from galoop.domains.text.likelihood import beginning, likelihood_outcome, plain_prompt
from galoop.domains.text.model_session import Options
from galoop.errors import InfrastructureError, UsageError
from galoop.isolation import Limits, Tier
from galoop.types import Candidate, Example, Outcome, State
from presses import (
    WORDS,
    by_expression,
    example,
    folder_artifact,
    make_tiny_model,
    model_info,
    one_thread,
    press_that,
)

BUDGET = {"compression_ratio": 0.5}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"))
    limits = Limits(seconds=60, memory_mb=1024, output_bytes=32 * 2**20)
    options = Options(workers=1, tier=Tier.PLAIN, limits=limits, agreement=True)
    with one_thread(), Session(model_info(folder), options) as opened:
        yield opened


def window(seed: int, words: int = 50, gold: int = 12) -> Example:
    rng = random.Random(seed)
    text = [" " + rng.choice(WORDS) for _ in range(words + 3 + gold)]
    return Example(
        context="".join(text[:words]).lstrip(),
        question="".join(text[words : words + 3]),
        answers=("".join(text[words + 3 :]),),
        max_new_tokens=gold + 1,
        scoring="likelihood",
    )


def run(session: Session, systems: list[Any], examples: list[Example]) -> dict[Any, Outcome]:
    rows = [row for part in session.run(systems, examples) for row in part]
    return {(s.key, e.key): o for s, e, o in rows}


def ids(session: Session, text: str) -> list[int]:
    return list(session.tokenizer.encode(text, add_special_tokens=False))


def transformers_loss(session: Session, asked: Example) -> float:
    """The model's own loss over the continuation, in one pass over everything."""
    import torch

    head = [*beginning(session.tokenizer), *ids(session, asked.context + asked.question)]
    gold = ids(session, asked.answers[0])
    both = torch.tensor([[*head, *gold]])
    labels = torch.tensor([[*[-100] * len(head), *gold]])
    with torch.inference_mode():
        return float(session.model(input_ids=both, labels=labels).loss)


def kvpress_loss(session: Session, candidate: Candidate, asked: Example) -> float:
    """The loss over the continuation after kvpress's own compression of the context."""
    import torch
    from transformers import DynamicCache

    from galoop.domains.kv_compression.artifact_loader import load_press

    model = session.model
    context, question = session.tokenise(asked)
    gold = ids(session, asked.answers[0])
    cache = DynamicCache()
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None
    with torch.inference_mode():
        with load_press(candidate.files, 0.5)[0](model):
            model.model(input_ids=torch.tensor([context]), past_key_values=cache)
        fed = [*question, *gold]
        start = len(context)
        out = model(
            input_ids=torch.tensor([fed]),
            past_key_values=cache,
            position_ids=torch.arange(start, start + len(fed))[None],
        )
        logits = out.logits[0, len(question) - 1 : -1]
        for layer in model.model.layers:
            layer.self_attn.masked_key_indices = None
        return float(torch.nn.functional.cross_entropy(logits.float(), torch.tensor(gold)))


def test_an_uncompressed_cache_has_transformers_own_loss(session: Session) -> None:
    asked = [window(i, words=30 + 7 * i) for i in range(3)]
    reference = session.reference()
    found = run(session, [reference], asked)
    for one in asked:
        outcome = found[reference.key, one.key]
        expected = transformers_loss(session, one)
        assert outcome.state is State.SCORED
        assert outcome.measured["nll"] == pytest.approx(expected, abs=2e-5)
        assert outcome.score == pytest.approx(math.exp(-expected), rel=1e-4)
        assert outcome.measured["scored_tokens"] == len(ids(session, one.answers[0]))
        assert outcome.answer == ""
        assert "gold_agreement" not in outcome.measured


@pytest.mark.parametrize("expression", ["KnormPress()", "AdaKVPress(KnormPress())"])
def test_a_compressed_cache_has_kvpress_own_loss(expression: str, session: Session) -> None:
    candidate = by_expression(expression, 0.5)
    asked = window(5)
    system = session.artifact(candidate, BUDGET, name="press", trusted=True)
    outcome = run(session, [session.reference(), system], [asked])[system.key, asked.key]
    assert outcome.measured["nll"] == pytest.approx(
        kvpress_loss(session, candidate, asked), abs=1e-4
    )
    assert outcome.measured["nll"] != pytest.approx(transformers_loss(session, asked), abs=1e-3)
    assert outcome.measured["kept_fraction"] == pytest.approx(0.5, abs=0.05)


def test_others_in_the_call_change_no_bit(session: Session) -> None:
    reference = session.reference()
    asked = window(8)
    alone = run(session, [reference], [asked])[reference.key, asked.key]
    mixed = run(session, [reference], [window(9), example(1, 60), asked, example(2, 40)])
    assert mixed[reference.key, asked.key] == alone
    answered = mixed[reference.key, example(1, 60).key]
    assert "nll" not in answered.measured


def test_only_as_many_tokens_as_asked_are_scored(session: Session) -> None:
    whole = window(3)
    reference = session.reference()
    short = Example(**{**whole.__dict__, "max_new_tokens": 4})
    outcome = run(session, [reference], [short])[reference.key, short.key]
    words = whole.answers[0].split(" ")
    cut = Example(**{**whole.__dict__, "answers": (" ".join(words[:5]),)})
    assert outcome.measured["scored_tokens"] == 4
    assert outcome.measured["nll"] == pytest.approx(transformers_loss(session, cut), abs=2e-5)


def test_the_artifact_sees_the_context_alone(session: Session) -> None:
    """A press that answers with what it was given: nothing of question or continuation is there."""
    spy = press_that("raise RuntimeError(f'{keys.shape[2]} tokens, {sorted(kwargs)}')")
    asked = window(11)
    system = session.artifact(folder_artifact(spy), BUDGET, name="spy")
    outcome = run(session, [system], [asked])[system.key, asked.key]
    assert outcome.state is State.FAILED
    assert f"{len(session.tokenise(asked)[0])} tokens" in outcome.reason
    for word in asked.answers[0].split():
        assert word not in outcome.reason


def test_what_answers_by_itself_is_refused(session: Session) -> None:
    outcome = session.scored(window(1), [3, 4], {})
    assert outcome.state is State.INVALID
    assert "without showing it the answer" in outcome.reason


def test_outcomes_of_hopeless_likelihoods_can_be_kept() -> None:
    assert likelihood_outcome(float("nan"), 3, {}).state is State.INVALID
    endless = likelihood_outcome(float("inf"), 3, {"kept": 1.0})
    assert endless.score == 0.0
    assert all(math.isfinite(v) for v in endless.measured.values())
    assert likelihood_outcome(-1e-9, 3, {}).score == 1.0


def test_an_empty_part_is_refused(session: Session) -> None:
    with pytest.raises(UsageError, match="needs a context and a question"):
        plain_prompt(session.tokenizer, Example("a", "", ("b",), scoring="likelihood"))


# -- the BOS token -------------------------------------------------------------------------


def tokenizer_with_bos(template: str | None) -> Any:
    """A tokenizer that puts <s> in front of every text, as Llama's does."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", "?", *WORDS, "user", "assistant", "#"]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(dict.fromkeys(words))}, "?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    out = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="?"
    )
    out.chat_template = template
    return out


def prompts_with(template: str | None) -> Session:
    info = SimpleNamespace(window=1000, name="stub", fingerprint="f", dtype="float32")
    session = Session(info, Options())  # type: ignore[arg-type]
    session.__dict__["_loaded"] = (None, tokenizer_with_bos(template))
    return session


TURN = "user {{ messages[0]['content'] }} {% if add_generation_prompt %}assistant {% endif %}"


@pytest.mark.parametrize("template", [None, "<s> " + TURN])
@pytest.mark.parametrize("kind", ["all", "likelihood"])
def test_a_prompt_has_one_bos_token(template: str | None, kind: str) -> None:
    session = prompts_with(template)
    asked = Example(" ".join(WORDS[:8]), f" {WORDS[9]}", (f" {WORDS[10]}",), scoring=kind)  # type: ignore[arg-type]
    context, question = session.tokenise(asked)
    assert [*context, *question].count(session.tokenizer.bos_token_id) == 1
    assert context[0] == session.tokenizer.bos_token_id


def test_a_doubled_bos_token_is_caught() -> None:
    """A template that writes BOS, and something that adds another one."""
    session = prompts_with("<s> <s> " + TURN)
    with pytest.raises(InfrastructureError, match="'<s>' twice"):
        session.tokenise(Example(" ".join(WORDS[:8]), f" {WORDS[9]}", ("x",)))


def test_a_tokenizer_without_bos_gets_none(session: Session) -> None:
    head = beginning(session.tokenizer)
    plain, _ = session.tokenise(window(2))
    assert plain == [*head, *ids(session, window(2).context)]
    assert json.dumps(head) in ("[]", json.dumps([session.tokenizer.bos_token_id]))
