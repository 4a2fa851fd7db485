"""The training script of the fast model: same seed same bytes, and kills that change nothing."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
TRAINING = Path(__file__).resolve().parents[1] / "training"
SMALL = ["--vocab", "1000", "--width", "16", "--scale", "0.005", "--batch-scale", "0.05",
         "--threads", "1", "--n", "4", "--window", "256", "--checkpoint-steps", "2"]  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TRAINING))
    yield importlib.import_module("train_fast_model")
    for name in ("train_fast_model", "fast_batches", "fast_model", "fast_text"):
        sys.modules.pop(name, None)
    torch.use_deterministic_algorithms(False)


def run(script: Any, root: Path, *more: str) -> dict[str, str]:
    script.main([*SMALL, "--work", str(root / "work"), "--out", str(root / "out"), *more])
    files = (p for p in (root / "out").iterdir() if p.name != "MODEL_CARD.md")  # has the seconds
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


class Killed(BaseException):
    """Stands for a kill between two steps."""


@pytest.mark.slow
def test_killed_and_run_again_ends_in_the_same_bytes(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(script, tmp_path / "whole")
    assert {"model.safetensors", "tokenizer.json", "training_log.csv"} <= whole.keys()
    step, steps = script.Trainer.step, []

    def killed(trainer: Any, phase: Any) -> float:
        steps.append(trainer.state["step"])
        if len(steps) in (4, 8, 13):
            raise Killed
        return step(trainer, phase)

    monkeypatch.setattr(script.Trainer, "step", killed)
    for _ in range(3):
        with pytest.raises(Killed):
            run(script, tmp_path / "torn")
    assert run(script, tmp_path / "torn") == whole
    assert len(steps) > len(set(steps))  # it did go back to a checkpoint
    monkeypatch.setattr(script.Trainer, "step", step)
    assert run(script, tmp_path / "other", "--seed", "1")["model.safetensors"] not in whole.values()


@pytest.mark.slow
def test_a_checkpoint_of_other_arguments_is_refused(script: Any, tmp_path: Path) -> None:
    run(script, tmp_path)
    with pytest.raises(SystemExit, match="other arguments"):
        run(script, tmp_path, "--seed", "3")


def test_the_first_heads_start_by_looking_back(script: Any) -> None:
    from fast_model import LOOK_BACK, build_model

    model = build_model(
        vocab=300, window=256, width=128, layers=3, heads=8, kv_heads=4, head_dim=32, seed=0
    )
    model.set_attn_implementation("eager")
    ids = torch.randint(0, 300, (1, 100), generator=torch.Generator().manual_seed(1))
    attentions = model(ids, output_attentions=True).attentions
    rows = torch.arange(30, 100)
    for layer, offsets in LOOK_BACK.items():
        for head, offset in enumerate(offsets):
            assert attentions[layer][0, head][rows, rows - offset].mean() > 0.7


def test_held_out_lists_stay_out_of_training(script: Any) -> None:
    import random

    from fast_text import TextConfig, Words, load_words, make_document

    real = load_words()
    assert not set(real.nouns) & set(real.held_out_nouns)
    made_up = Words(
        nouns=tuple(f"seen{c}" for c in "abcdefghijklmnop"),
        held_out_nouns=tuple(f"held{c}" for c in "abcdefghijklmnop"),
        adjectives=("plain",), verbs=("go",),
    )  # fmt: skip
    rng = random.Random(0)
    for held in (False, True):
        config = TextConfig((4, 8), 4, 5, held_out_words=held)
        for _ in range(100):
            document = make_document(rng, made_up, config)
            text = "".join(document.pieces)
            assert ("held" in text.lower()) == held
            for query in document.queries:
                assert f"{query.prefix}{query.value}" in text  # the prefix repeats the record


def test_the_mask_covers_value_stop_and_end(script: Any) -> None:
    import random

    from fast_batches import EOS, encode_documents
    from fast_model import train_tokenizer
    from fast_text import TextConfig, load_words, make_document

    tokenizer, rng = train_tokenizer(400, 0, 40), random.Random(1)
    documents = [make_document(rng, load_words(), TextConfig((2, 4), 2, 8)) for _ in range(20)]
    for document, parts in zip(documents, encode_documents(tokenizer, documents, 400), strict=True):
        context = tokenizer.decode(parts[0][0][1:])
        pieces = zip(document.pieces, document.is_record, strict=True)
        assert all(piece in context for piece, is_record in pieces if is_record)
        for query, (ids, mask) in zip(document.queries, parts[1:], strict=True):
            answer = [i for i, m in zip(ids, mask, strict=True) if m]
            assert answer[-1] == EOS
            assert tokenizer.decode(answer[:-1]) == f"{query.value}."
            assert tokenizer.decode(ids[: mask.index(1)]) == f"{query.question}\n{query.prefix}"


def test_stretched_prompts_fill_the_length_and_end_with_the_answer(script: Any) -> None:
    from fast_batches import EOS
    from fast_model import train_tokenizer

    stretch = importlib.import_module("measure_stretch")
    sys.modules.pop("measure_stretch")
    tokenizer = type("T", (), {"backend_tokenizer": train_tokenizer(600, 0, 60)})
    for length in (512, 1024):
        for ids, mask in stretch.documents(tokenizer, 6, length, 6, 0):
            assert 0.8 * length < len(ids) <= length + 40
            assert ids[-1] == EOS
            assert 3 <= sum(mask) < 40
            assert mask == sorted(mask)  # the answer is one run at the end
