"""Programs of the codec grammar: each runs, keeps its budget, reads back, and is what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from galoop.config import ExperimentConfig
from galoop.domains.quantized_kv import blocks
from galoop.domains.quantized_kv.artifact_spec import RULES, parse_spec
from galoop.domains.quantized_kv.artifacts import materialise
from galoop.domains.quantized_kv.domain import QuantizedKV
from galoop.domains.quantized_kv.grammar import CodecGrammar
from galoop.domains.quantized_kv.grammar.render import render, revive
from galoop.domains.quantized_kv.grammar.tree import KNOBS, Program, from_json, normalise, to_json
from galoop.domains.text.artifact_code import call_entry
from galoop.methods.codec import Cache, stored_bytes
from galoop.methods.kivi import Kivi
from galoop.proposers.protocol import Evaluated, Request, Seat, Task
from galoop.types import Candidate, Feedback, State
from test_quantization import cache

BITS = 2.75


def load(candidate: Candidate, bits: float = BITS) -> Any:
    return call_entry(candidate.files, parse_spec(candidate.files), RULES, bits=bits)


def through(candidate: Candidate, given: Cache, bits: float = BITS) -> tuple[Any, Any, float]:
    """Encoded by one instance and decoded by another; and the bits that were stored."""
    encoded = load(candidate, bits).encode(given)
    keys, values = load(candidate, bits).decode(
        {name: t.clone() for name, t in encoded.items()}, given.shape
    )
    return keys, values, 8 * stored_bytes(encoded) / given.shape.numbers


def proposals(n: int, seed: int = 0, judge: Callable[[Program], float] | None = None) -> list[Any]:
    grammar = CodecGrammar(seed)
    task = Task("artifact", "quantized-kv", "", "", "", 0, {"bits": BITS})
    history: list[Evaluated] = []
    for i in range(n):
        parent = None if i < n // 2 else max(history, key=lambda e: e.feedback.score)
        made = grammar.propose(Request(task, i, parent, tuple(history))).candidate
        assert made is not None
        program = revive(made)
        assert program is not None, "what it wrote, it reads"
        score = judge(program) if judge else 0.5
        history.append(Evaluated(made, Feedback(State.SCORED, score, {})))
    return history


def test_every_program_keeps_its_budget_and_gives_back_a_cache() -> None:
    small, short = cache(layers=3, length=120), cache(layers=3, length=9)
    found = proposals(70)
    assert len({e.candidate.key for e in found}) == 70
    for entry in found:
        keys, values, bits = through(entry.candidate, small)
        assert bits <= BITS, entry.candidate.note
        assert bits > BITS - 0.4, "the budget is filled"
        assert keys.shape == values.shape == small.keys.shape
        assert bool(torch.isfinite(keys).all() and torch.isfinite(values).all())
        # At eight bits what comes back is what went in, whatever the program does with it.
        exact = through(entry.candidate, small, 11.0)
        for restored, own in zip(exact, (small.keys, small.values), strict=False):
            worst = 0.4 if "shrink" in entry.candidate.note else 0.06
            assert float((restored - own).norm() / own.norm()) < worst, entry.candidate.note
        keys, values, bits = through(entry.candidate, short, 6.0)
        assert bits <= 6.0
        assert keys.shape == short.keys.shape


@pytest.mark.parametrize(("slot", "value"), [(s, v) for s, vs in KNOBS.items() for v in vs])
def test_each_knob_has_its_place_in_the_file(slot: str, value: Any) -> None:
    extra = {"outliers": 2} if slot == "outliers_by" else {}
    program = normalise(replace(Program(), **{slot: value, **extra}))
    candidate = render(program, BITS, "test")
    assert revive(candidate) == program
    assert from_json(to_json(program)) == program
    if asdict(program)[slot] != asdict(Program())[slot]:
        assert candidate.files["codec.py"] != render(Program(), BITS, "test").files["codec.py"]


def test_the_plainest_program_is_kivi() -> None:
    """The same rounding at the same width, by other code."""
    given = cache(layers=2, length=128, dim=64)
    keys, values, _ = through(render(Program(), 4.52, ""), given, 4.52)
    kivi = Kivi(4.52)
    assert kivi.plan(given.shape) == (4, 0)
    expected = kivi.decode(kivi.encode(given), given.shape)
    torch.testing.assert_close(keys, expected[0])
    torch.testing.assert_close(values, expected[1])


def test_what_stays_exact_is_exact_and_what_is_rotated_comes_back() -> None:
    given = cache(layers=2, length=128, dim=64)
    program = normalise(
        Program(before_rope=True, keys_rotate=True, values_rotate=True, first=2, last=4, outliers=2,
                outliers_by="value norm", keys_axis="token", keys_center=True, depth="measured")
    )  # fmt: skip
    keys, values, _ = through(render(program, 8.8, ""), given, 8.8)
    assert float((keys - given.keys).norm() / given.keys.norm()) < 0.02
    assert float((values - given.values).norm() / given.values.norm()) < 0.02
    loudest = given.values[0].norm(dim=-1).mean(dim=0)[2:-4].topk(2).indices + 2
    for token in [0, 1, 124, 125, 126, 127, *loudest.tolist()]:
        torch.testing.assert_close(values[0][:, token], given.values[0][:, token].half().float())


def test_widths_fill_the_budget_where_the_weights_say() -> None:
    shape = cache(layers=4, length=128, dim=64).shape
    plain = blocks.Rounding("channel"), blocks.Rounding("token")
    fit = blocks.fit(shape, 3.0, *plain, exact=0)
    even = fit.widths(blocks.weights("even", 0.0, [1.0] * 8))
    assert max(even) - min(even) <= 1
    assert fit.bytes(even) <= fit.allowed < fit.bytes([w + 1 for w in even])
    lean = fit.widths(blocks.weights("even", 2.0, [1.0] * 8))
    assert np.mean(lean[::2]) - np.mean(lean[1::2]) == pytest.approx(2, abs=0.6)
    late = fit.widths(blocks.weights("late", 0.0, [1.0] * 8))
    assert late[-1] > late[0]
    hard = fit.widths(blocks.weights("measured", 0.0, [1.0] * 4 + [64.0] + [1.0] * 3))
    assert hard.index(max(hard)) == 4


def test_a_program_that_asks_for_too_much_is_cut_to_size() -> None:
    shape = cache(layers=2, length=64, dim=32).shape
    small = blocks.Rounding("token", group=4)
    fit = blocks.fit(shape, 2.5, small, small, exact=40)
    assert fit.exact == 0
    assert min(fit.keys.group, fit.values.group) >= 16
    assert fit.bytes([1] * 4) <= fit.allowed


def test_the_search_learns_what_pays() -> None:
    found = proposals(120, seed=3, judge=lambda p: 0.2 + 0.4 * p.keys_rotate + 0.4 * p.before_rope)
    last = [revive(e.candidate) for e in found[-40:]]
    assert sum(p is not None and p.keys_rotate and p.before_rope for p in last) > 25
    again = proposals(120, seed=3, judge=lambda p: 0.2 + 0.4 * p.keys_rotate + 0.4 * p.before_rope)
    assert [e.candidate.key for e in again] == [e.candidate.key for e in found]


def test_it_starts_from_kivi_and_leaves_other_code_alone(tmp_path: Path) -> None:
    grammar = QuantizedKV().artifact_grammar(
        Seat("quantized-kv", "artifact", 0, ExperimentConfig(), tmp_path)
    )
    assert isinstance(grammar, CodecGrammar)
    assert grammar.revive(materialise("kivi", {"bits": BITS})) == Program()
    assert grammar.revive(materialise("identity", {"bits": BITS})) is None
    edited = dict(render(Program(), BITS, "").files)
    edited["codec.py"] += "# edited\n"
    assert revive(Candidate("artifact", edited)) is None
