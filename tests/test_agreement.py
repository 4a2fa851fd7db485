"""The share of the gold answer's tokens that a system would have said, against recomputation."""

from __future__ import annotations

import pytest
import torch

from galoop.domains.kv_compression.session import Session
from galoop.domains.text.model_session import Options
from galoop.models import load, resolve
from galoop.types import Example


def example(code: str, batch: int) -> Example:
    context = (
        f"The grass is green. The access code of the harbor is {code}. The sky is blue and wide. "
        f"The access code of the castle is {int(code) + 1111}. A river runs through the town."
    )
    return Example(
        context=context,
        question=" What is the access code of the harbor?",
        answers=(code,),
        answer_prefix="The access code of the harbor is",
        seed=batch,
    )


def teacher_forced(model, tokenizer, e: Example) -> float:
    """One plain forward pass over prompt and gold answer; arg-max against the gold tokens."""
    prompt = tokenizer.bos_token + e.context + e.question + "\n" + e.answer_prefix
    parts = [tokenizer.bos_token + e.context, e.question + "\n" + e.answer_prefix]
    ids = [i for p in parts for i in tokenizer.encode(p, add_special_tokens=False)]
    assert tokenizer.decode(ids) == prompt
    gold = tokenizer.encode(f" {e.answers[0]}.", add_special_tokens=False)
    with torch.inference_mode():
        logits = model(torch.tensor([ids + gold])).logits[0]
    said = logits[len(ids) - 1 : -1].argmax(dim=-1).tolist()
    return sum(a == b for a, b in zip(said, gold, strict=True)) / len(gold)


@pytest.mark.parametrize("rows", [3, 12], ids=["few rows", "many rows"])
def test_agreement_equals_a_plain_forward_pass(rows: int) -> None:
    torch.set_num_threads(1)
    info = resolve("fast")
    model, tokenizer = load(info)
    examples = [example(str(2345 + 613 * i), i) for i in range(rows)]
    with Session(info, Options(threads=1, agreement=True)) as session:
        found = [o for part in session.run([session.reference()], examples) for _, _, o in part]
    measured = [o.measured["gold_agreement"] for o in found]
    assert measured == pytest.approx([teacher_forced(model, tokenizer, e) for e in examples])
    assert len(set(measured)) > 1 or measured[0] in (0.0, 1.0)


def test_it_is_measured_only_where_it_is_asked_for() -> None:
    info = resolve("fast")
    with Session(info, Options(threads=1)) as session:
        ((_, _, outcome),) = next(iter(session.run([session.reference()], [example("2345", 0)])))
    assert "gold_agreement" not in outcome.measured
