"""The session's answers are those of kvpress's own pipeline, press by press, example by example."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from galoop.domains.kv_compression.session import Session
from galoop.domains.text.decoding.decode import DRAFTED_ROWS
from galoop.domains.text.model_session import Options
from galoop.isolation import Limits
from galoop.types import Candidate, Example, Outcome, State
from presses import (
    by_expression,
    example,
    examples,
    kvpress_answer,
    make_tiny_model,
    model_info,
    one_thread,
)

RATIO = 0.5
#: Presses of kvpress that replay on a Llama and need no download; with the fraction they keep.
REPLAYED = (
    "RandomPress()",
    "KnormPress()",
    "SnapKVPress(window_size=8)",
    "ExpectedAttentionPress()",
    "StreamingLLMPress()",
    "TOVAPress()",
    "LagKVPress(lag_size=16)",
    "KeyDiffPress()",
    "NonCausalAttnPress()",
    "LeverageScorePress()",
    "CompactorPress()",
    "CURPress()",
    "CapPress()",
    "EntropyGatedChunkKVPress(KnormPress())",
    "ChunkPress(KnormPress(), chunk_length=32)",
    "CriticalKVPress(KnormPress())",
    "BlockPress(KeyDiffPress(), block_size=16)",
    "MergingPress(KnormPress())",
    "ComposedPress([KnormPress(0.3), SnapKVPress(0.3, window_size=8)])",
)
#: Head-wise presses: nothing is removed, keys are masked per head.
HEADWISE = (
    "AdaKVPress(CompactorPress())",
    "AdaKVPress(KnormPress())",
    "CriticalAdaKVPress(KeyDiffPress())",
    "DMSPress(KnormPress(), threshold=-3.0, sliding_window_size=8)",
)
OWN_PREFILL = ("KVzipPress()", "KVgradPress()", "ObservedAttentionPress()")
PIPELINE = (
    "KeyRerotationPress(KnormPress())",
    "DecodingPress(KnormPress(), compression_interval=4, target_size=32)",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def session(request: pytest.FixtureRequest, folder: Path) -> Iterator[Session]:
    with (
        one_thread(),
        Session(
            model_info(folder, request.param), Options(workers=2, limits=Limits(seconds=60))
        ) as opened,
    ):
        yield opened


def evaluate(
    session: Session, candidates: list[Candidate], asked: list[Example], **how: Any
) -> dict[tuple[int, str], Outcome]:
    """Outcomes by (number of the candidate, or -1 for the reference, and example)."""
    budget = {"compression_ratio": how.get("ratio", RATIO)}
    systems = [session.reference()]
    systems += [session.artifact(c, budget, name=c.note, trusted=True) for c in candidates]
    number = {s.key: i - 1 for i, s in enumerate(systems)}
    return {
        (number[s.key], e.key): outcome
        for rows in session.run(systems, asked, how.get("repeat", 0))
        for s, e, outcome in rows
    }


def assert_same_answers(
    session: Session, expressions: tuple[str, ...], asked: list[Example], **how: Any
) -> dict[tuple[int, str], Outcome]:
    ratio = how.get("ratio", RATIO)
    candidates = [by_expression(e, ratio) for e in expressions]
    found = evaluate(session, candidates, asked, **how)
    wrong = []
    for i, expression in [(-1, "reference"), *enumerate(expressions)]:
        for e in asked:
            outcome = found[i, e.key]
            assert outcome.state is State.SCORED, (expression, outcome.reason)
            candidate = candidates[i] if i >= 0 else None
            expected = kvpress_answer(session.info, candidate, e, ratio, how.get("repeat", 0))
            if outcome.answer != expected:
                wrong.append((expression, e.seed, outcome.answer, expected))
    assert not wrong
    return found


def state_of(model: Any) -> list[Any]:
    """What a run must leave as it was."""
    state: list[Any] = [model.config._attn_implementation]
    for module in model.modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks)
        state.append((sum(map(len, hooks)), "forward" in vars(module)))
        state.append(getattr(module, "masked_key_indices", None))
    return state


def test_presses_that_replay(session: Session) -> None:
    before = state_of(session._loaded[0])
    presses = REPLAYED if session.info.dtype == "float32" else REPLAYED[:13]
    found = assert_same_answers(session, presses, examples(12))
    assert state_of(session._loaded[0]) == before
    answers = {o.answer for o in found.values()}
    assert len(answers) > len(found) / 4  # a model that says one thing would prove nothing
    kept = [o.measured["kept_fraction"] for (i, _), o in found.items() if i >= 0]
    assert max(kept) <= RATIO


def test_masked_keys_are_not_attended_and_count_as_dropped(session: Session) -> None:
    before = state_of(session._loaded[0])
    found = assert_same_answers(session, HEADWISE, examples(6))
    assert state_of(session._loaded[0]) == before
    for (i, _), outcome in found.items():
        if i >= 0:
            assert 0 < outcome.measured["kept_fraction"] <= RATIO
            assert outcome.measured["kept_least_per_head"] < outcome.measured["kept_most_per_head"]


def test_presses_with_a_prefill_of_their_own(session: Session) -> None:
    found = assert_same_answers(session, OWN_PREFILL, examples(4))
    passes = {
        name: [o.measured["extra_forward_passes"] for (i, _), o in found.items() if i == k]
        for k, name in enumerate(OWN_PREFILL)
    }
    # KVzip repeats the context once, in chunks, each with a short instruction.
    assert all(1.0 <= n <= 3.0 for n in passes["KVzipPress()"])
    assert passes["ObservedAttentionPress()"] == [0.0] * 4


def test_presses_that_act_while_decoding_or_move_positions(session: Session) -> None:
    # Long enough for the decoding press to have compressed: before, it is over any budget.
    assert_same_answers(
        session, PIPELINE, [example(i, 50 + i, max_new_tokens=10) for i in (0, 2, 4)]
    )


def test_repeats_have_seeds_of_their_own(session: Session) -> None:
    asked = examples(6)
    runs = [assert_same_answers(session, ("RandomPress()",), asked, repeat=r) for r in (0, 1)]
    artifact = [[o.answer for (i, _), o in run.items() if i == 0] for run in runs]
    reference = [[o.answer for (i, _), o in run.items() if i == -1] for run in runs]
    assert artifact[0] != artifact[1]
    assert reference[0] == reference[1]


def test_one_by_one_or_together_in_any_order(session: Session) -> None:
    """What an example is evaluated with does not touch its answer."""
    candidates = [by_expression(e, RATIO) for e in (*REPLAYED[:4], HEADWISE[1])]
    asked = examples(6, longest=200)
    together = evaluate(session, candidates, asked)
    backwards = evaluate(session, candidates, asked[::-1])
    assert {k: o.answer for k, o in together.items()} == {k: o.answer for k, o in backwards.items()}
    for i, candidate in enumerate(candidates):
        for e in asked[::3]:
            alone = evaluate(session, [candidate], [e])
            assert alone[0, e.key].answer == together[i, e.key].answer


@pytest.mark.parametrize(
    "answers",
    [("nothing-of-the-kind",), ("ba do ki lu me no pa ri su ta ve zo " * 8,), ("",), ("7",)],
    ids=["unknown", "too long", "empty", "short"],
)
def test_the_draft_never_changes_an_answer(session: Session, answers: tuple[str, ...]) -> None:
    """The gold answer serves as the draft; here it is anything but right."""
    for expression in ("KnormPress()", "AdaKVPress(KnormPress())"):
        asked = [example(i, 60 + i, answers=answers) for i in range(100, 104)]
        assert len(asked) * 2 <= DRAFTED_ROWS
        assert_same_answers(session, (expression,), asked)


def test_one_token_is_asked_for(session: Session) -> None:
    asked = [example(i, 70, max_new_tokens=1) for i in range(300, 303)]
    assert_same_answers(session, ("KnormPress()",), asked)


def test_layers_that_keep_different_numbers(session: Session) -> None:
    """kvpress's own SDPA mask does not fit such caches: its pipeline raises, the session answers.

    Where it does answer (a question of one token needs no mask) the answers are the same.
    """
    expression = "PyramidKVPress(0.5, window_size=8)"
    candidate = by_expression(expression, 0.3)
    short = [example(i, 90, question="", answer_prefix="") for i in range(3)]
    asked = [*examples(4), *short]
    found = evaluate(session, [candidate], asked, ratio=0.3)
    raised, uneven = 0, []
    for e in asked:
        outcome = found[0, e.key]
        assert outcome.state is State.SCORED, outcome.reason
        uneven.append(
            outcome.measured["kept_least_per_head"] < outcome.measured["kept_most_per_head"]
        )
        try:
            expected = kvpress_answer(session.info, candidate, e, 0.3)
        except RuntimeError:
            raised += 1
        else:
            assert outcome.answer == expected
    assert raised
    assert sum(uneven) > len(asked) / 2
    again = [evaluate(session, [candidate], [e], ratio=0.3)[0, e.key].answer for e in asked]
    assert again == [found[0, e.key].answer for e in asked]


@pytest.mark.parametrize("words", [0, 1, 2, 4, 8, 12])
def test_very_short_contexts(session: Session, words: int) -> None:
    """A press that cannot handle them fails with a reason; the others answer as in kvpress."""
    context = " ".join(["ba", "do", "ki", "lu"] * 4).split()[:words]
    asked = [example(0, 1, context=" ".join(context))]
    expressions = ("CompactorPress()", "KnormPress()", "SnapKVPress(window_size=8)")
    candidates = [by_expression(e, RATIO) for e in expressions]
    found = evaluate(session, candidates, asked)
    for i, candidate in enumerate(candidates):
        outcome = found[i, asked[0].key]
        expected, fault = "", ""
        try:
            expected = kvpress_answer(session.info, candidate, asked[0], RATIO)
        except Exception as error:  # noqa: BLE001 - whatever kvpress raises
            fault = type(error).__name__
        assert outcome.answer == expected
        assert outcome.state is (State.FAILED if fault else State.SCORED), outcome.reason
        assert fault in outcome.reason
    assert found[-1, asked[0].key].answer == kvpress_answer(session.info, None, asked[0], RATIO)


def test_masks_left_on_the_model_do_not_touch_a_run(session: Session) -> None:
    """kvpress leaves ``masked_key_indices`` behind; a run starts without."""
    import torch

    asked = examples(3)
    candidates = [by_expression("KnormPress()", RATIO)]
    clean = evaluate(session, candidates, asked)
    model = session._loaded[0]
    for layer in model.model.layers:
        zero = torch.zeros(1, dtype=torch.long)
        layer.self_attn.masked_key_indices = (zero, zero, zero + 1)
    dirty = evaluate(session, candidates, asked)
    assert {k: o.answer for k, o in dirty.items()} == {k: o.answer for k, o in clean.items()}
    assert all(x.self_attn.masked_key_indices is None for x in model.model.layers)


def test_float32_redoes_few_rows_and_bfloat16_none_where_bits_agree(session: Session) -> None:
    before = (session.decode_stats.rows, session.decode_stats.redone)
    evaluate(session, [by_expression(e, RATIO) for e in REPLAYED[:6]], examples(8, longest=150))
    rows = session.decode_stats.rows - before[0]
    redone = session.decode_stats.redone - before[1]
    assert rows == 7 * 8
    assert redone < rows / 4 or session._decoder._margin > 0.01  # a processor we have not seen


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_fast_model_too(dtype: str) -> None:
    """A trained model: confident decisions, real key statistics, its own chat template."""
    from galoop.models import resolve

    info = resolve("fast", dtype=dtype)
    rng = random.Random(0)
    asked = []
    for seed in range(12):
        codes = {name: str(rng.randrange(1000, 10000)) for name in ("Ada", "Boris", "Chloe")}
        lines = [f"The code of {name} is {code}." for name, code in codes.items()]
        lines += ["The sun is warm today."] * (2 + seed // 2)
        rng.shuffle(lines)
        name = rng.choice(sorted(codes))
        asked.append(
            Example(
                " ".join(lines),
                f" What is the code of {name}?",
                (codes[name],),
                f"The code of {name} is",
                max_new_tokens=8,
                seed=seed,
            )
        )
    with one_thread(), Session(info, Options(workers=2, limits=Limits(seconds=60))) as opened:
        # Rounded up in each chunk, ChunkPress is over its budget on most of these lengths.
        presses = [e for e in (*REPLAYED, *HEADWISE) if not e.startswith("ChunkPress")]
        assert_same_answers(opened, tuple(presses), asked)
        assert_same_answers(opened, OWN_PREFILL, asked[:3])
