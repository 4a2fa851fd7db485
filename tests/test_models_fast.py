"""The fast model: what it loads as, how it reads text, and that it retrieves.

The documents here are written by hand and by templates of this file: none of the training code.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import pytest

from galoop import models

torch = pytest.importorskip("torch")

ROWS = ("alder", "beacon", "cellar", "dairy", "engine", "ferry", "garden", "hotel", "island")
PROSE = (
    "The rain fell on the old road all morning.", "A dog slept beside the warm oven.",
    "Nobody asked about the broken window.", "They carried the boxes down to the boat.",
    "The teacher closed the book and went home.", "It was cold, and the river was high.",
)  # fmt: skip


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> models.ModelInfo:
    return models.resolve("fast", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def loaded(info: models.ModelInfo) -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return models.load(info)


def test_it_is_small_grouped_and_plain(info: models.ModelInfo, loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    config = model.config
    assert info.dtype == "float32"
    assert info.window == config.max_position_embeddings >= 256
    assert config.num_attention_heads == 2 * config.num_key_value_heads
    assert config.rope_parameters["rope_theta"] == 1e4
    assert tokenizer.chat_template is None
    assert tokenizer.model_max_length == info.window
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (
        config.bos_token_id, config.eos_token_id)  # fmt: skip
    assert sum(p.stat().st_size for p in info.path.iterdir()) < 8 * 2**20
    assert {"MODEL_CARD.md", "training_log.csv"} <= {p.name for p in info.path.iterdir()}


def test_any_text_round_trips_and_digits_stand_alone(loaded: tuple[Any, Any]) -> None:
    tokenizer = loaded[1]
    rng = random.Random(0)
    texts = ["".join(map(chr, range(1, 127))), "naïve façade — 東京\n\n\ttab  two  spaces "]
    texts += ["".join(chr(rng.randrange(32, 127)) for _ in range(200)) for _ in range(20)]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    for number in ("4821", " 4821"):
        tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode(number))
        assert [t.strip("Ġ") for t in tokens] == list("4821")


def example(rng: random.Random) -> tuple[str, str, str, str]:
    """Context, question, answer prefix and value: eight records in prose."""
    keys = rng.sample(ROWS, 8)
    codes = {key: str(rng.randrange(1000, 100_000)) for key in keys}
    sentences = [f"The access code of the {key} is {code}." for key, code in codes.items()]
    sentences += rng.sample(PROSE, 4)
    rng.shuffle(sentences)
    key = rng.choice(keys)
    question = f"What is the access code of the {key}?"
    return " ".join(sentences), question, f"The access code of the {key} is", codes[key]


def test_it_answers_through_the_pipeline_of_kvpress(loaded: tuple[Any, Any]) -> None:
    from kvpress.pipeline import KVPressTextGenerationPipeline

    model, tokenizer = loaded
    pipeline = KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)
    rng, n, right = random.Random(7), 40, 0
    for _ in range(n):
        context, question, prefix, code = example(rng)
        answer = pipeline(
            context, question=question, answer_prefix=prefix, max_new_tokens=12
        )["answer"]  # fmt: skip
        right += answer.strip() == f"{code}."
    # A guard against a broken model, below what the card reports, not the goal of 0.9.
    assert right >= 0.75 * n


def test_what_it_answers_comes_from_the_context(loaded: tuple[Any, Any]) -> None:
    """Without the record that was asked for, the same prompt does not give its value."""
    model, tokenizer = loaded
    rng, leaked = random.Random(8), 0
    for _ in range(10):
        context, question, prefix, code = example(rng)
        record = f"{prefix} {code}."
        assert record in context
        prompt = "<bos>" + context.replace(record, "") + question + "\n" + prefix
        ids = tokenizer.encode(prompt, add_special_tokens=False, return_tensors="pt")
        out = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
        leaked += code in tokenizer.decode(out)
    assert leaked == 0


def test_the_log_is_a_curve(info: models.ModelInfo) -> None:
    with (info.path / "training_log.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(set(steps))
    assert float(rows[-1]["accuracy"]) > 0.9 > float(rows[0]["accuracy"])


def test_the_card_says_figures_with_intervals() -> None:
    card = Path(models.list_models()["fast"].location, "MODEL_CARD.md").read_text()
    assert "{{" not in card
    assert "held-out forms and nouns" in card
