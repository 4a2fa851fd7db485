"""The press grammar: its programs run, keep the budget, never repeat, and learn."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from galoop.domains.kv_compression.artifacts import load_press, materialise
from galoop.domains.kv_compression.grammar import SPACE, PressGrammar
from galoop.domains.kv_compression.grammar.moves import reserve_share
from galoop.domains.kv_compression.grammar.render import render, revive, source
from galoop.domains.kv_compression.grammar.tree import (
    COMBINES,
    GRAINS,
    SCOPES,
    SIGNALS,
    TRANSFORMS,
    Program,
    Signal,
    normalise,
)
from galoop.domains.kv_compression.replay_modes import execution_mode
from galoop.proposers.grammar.signals.moves import Chooser
from galoop.proposers.protocol import Evaluated, Proposer, Request, Task
from galoop.types import Candidate, Feedback, State

RATIO = 0.75
TASK = Task("artifact", "kv-compression", "", "", "", budget={"compression_ratio": RATIO})
START = materialise("compactor", TASK.budget)


def evaluated(candidate: Candidate, score: float) -> Evaluated:
    return Evaluated(candidate, Feedback(State.SCORED, score, {}))


def value_of(candidate: Candidate) -> float:
    """A made-up score that depends on the text alone."""
    return int(candidate.key[:4], 16) / 0xFFFF


def search(seed: int, number: int, start: Candidate = START, value: Any = value_of) -> list[Any]:
    """Propose ``number`` times, mutating the best so far every second time."""
    grammar, history, out = PressGrammar(seed), [evaluated(start, 0.2)], []
    for i in range(number):
        best = max(history, key=lambda e: e.feedback.score)
        parent = best if i % 2 else (history[-1] if i % 4 else None)
        candidate = grammar.propose(Request(TASK, i, parent, tuple(history))).candidate
        out.append(candidate)
        history.append(evaluated(candidate, value(candidate)))
    return out


@pytest.fixture(scope="module")
def programs() -> list[Candidate]:
    return search(3, 200)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=60,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


class Prefill:
    """One prefill that many presses are replayed on."""

    def __init__(self, model: LlamaForCausalLM, size: int) -> None:
        self.model, self.size = model, size
        self.modules = [layer.self_attn for layer in model.model.layers]
        rows: list[dict[str, Any]] = []
        hooks = [
            m.register_forward_hook(lambda _m, _a, kw, _o: rows.append(kw), with_kwargs=True)
            for m in self.modules
        ]
        for m in self.modules:
            m.rotary_emb = model.model.rotary_emb
        ids = torch.randint(0, 60, (1, size), generator=torch.Generator().manual_seed(size))
        cache = DynamicCache()
        model.model(input_ids=ids, past_key_values=cache)
        for hook in hooks:
            hook.remove()
        self.rows = rows
        self.cache = [(layer.keys, layer.values) for layer in cache.layers]

    def compress(self, press: Any) -> tuple[list[tuple[Any, Any]], list[Any]]:
        cache = DynamicCache()
        for i, (keys, values) in enumerate(self.cache):
            cache.update(keys.clone(), values.clone(), i)
        press.post_init_from_model(self.model)
        for module, row in zip(self.modules, self.rows, strict=True):
            module.masked_key_indices = None
            press.forward_hook(module, (), {**row, "past_key_values": cache}, (None, None))
        masks = [m.masked_key_indices for m in self.modules]
        for module in self.modules:
            module.masked_key_indices = None
        return [(layer.keys, layer.values) for layer in cache.layers], masks


@pytest.fixture(scope="module")
def prefills(model: LlamaForCausalLM) -> list[Prefill]:
    return [Prefill(model, size) for size in (13, 40, 200)]


def check_budget(prefill: Prefill, press: Any) -> None:
    layers, masks = prefill.compress(press)
    size, heads, total = prefill.size, 2, 0
    n = max(1, int(size * (1 - RATIO)))
    for (keys, values), mask, (before, _) in zip(layers, masks, prefill.cache, strict=True):
        assert keys.shape == values.shape
        assert keys.shape[:2] == before.shape[:2]
        assert keys.shape[3] == before.shape[3]
        assert torch.isfinite(keys).all()
        if mask is None:
            assert keys.shape[2] == n
            total += heads * n
            continue
        assert keys.shape[2] == size
        assert len(set(zip(*(part.tolist() for part in mask), strict=True))) == len(mask[0])
        kept = torch.ones(1, heads, size, dtype=torch.bool)
        kept[mask] = False
        assert kept.sum(dim=-1).min() >= 1
        total += int(kept.sum())
    assert total <= n * heads * len(layers)
    assert total > 0.9 * n * heads * len(layers) - len(layers)


def test_200_programs_load_run_and_keep_the_budget(
    programs: list[Candidate], prefills: list[Prefill]
) -> None:
    for candidate in programs:
        press, spec = load_press(candidate.files)
        assert spec.budget["compression_ratio"] == press.compression_ratio == RATIO
        assert execution_mode(press) == "replay"
        for prefill in prefills:
            check_budget(prefill, press)


def test_programs_are_deterministic(programs: list[Candidate], prefills: list[Prefill]) -> None:
    for candidate in [c for c in programs if "base.py" not in c.files][::10]:
        press, _ = load_press(candidate.files)
        first, second = prefills[1].compress(press), prefills[1].compress(press)
        for (a, _), (b, _) in zip(first[0], second[0], strict=True):
            assert torch.equal(a, b)
        for one, two in zip(first[1], second[1], strict=True):
            assert (one is None) == (two is None)
            if one is not None:
                assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


def test_every_part_of_the_space_runs(prefills: list[Prefill]) -> None:
    made = []
    for name, space in SIGNALS.items():
        for key, values in space.items() or [("", (None,))]:
            for value in values:
                chosen = {k: v[0] for k, v in space.items()}
                if key:
                    chosen[key] = value
                made.append(Program((Signal(name, tuple(chosen.items())),)))
    pair = (made[0].signals[0], made[5].signals[0], made[-2].signals[0])
    made += [Program(pair, combine=c) for c in COMBINES]
    made += [Program(pair[:1], grain=g, grain_size=s) for g, ss in GRAINS.items() for s in ss]
    made += [Program(pair[:1], scope=s, slope=x) for s in SCOPES for x in (0.0, 0.6, -0.6)]
    made += [Program((replace(pair[0], transform=t),)) for t in TRANSFORMS]
    base = START.files["press.py"]
    for program in made:
        candidate = render(normalise(replace(program, base=base)), RATIO, "")
        press, _ = load_press(candidate.files)
        for prefill in prefills:
            check_budget(prefill, press)


def test_programs_are_short_and_readable(programs: list[Candidate]) -> None:
    for candidate in programs:
        text = candidate.files["press.py"]
        assert 15 <= len([line for line in text.splitlines() if line.strip()]) <= 60
        assert max(map(len, text.splitlines())) <= 100
        ast.parse(text)
        assert candidate.kind == "artifact"
        assert candidate.note


def test_never_repeats(programs: list[Candidate]) -> None:
    assert len({c.key for c in programs}) == len(programs)
    bodies = Counter((c.files["press.py"], c.files.get("base.py")) for c in programs)
    assert max(bodies.values()) == 1


def test_same_seed_same_programs_other_seed_others(programs: list[Candidate]) -> None:
    again = search(3, 60)
    assert [c.files for c in again] == [c.files for c in programs[:60]]
    assert [c.note for c in again] == [c.note for c in programs[:60]]
    other = search(4, 60)
    assert not {c.key for c in other} & {c.key for c in again}


def test_uses_the_whole_space(programs: list[Candidate]) -> None:
    trees = [revive(c) for c in programs]
    assert all(t is not None for t in trees)
    known = [t for t in trees if t is not None]
    assert {s.name for t in known for s in t.signals} == set(SIGNALS)
    assert {t.scope for t in known} == set(SCOPES)
    assert {t.grain for t in known} == set(GRAINS)
    assert {t.combine for t in known} == set(COMBINES)


def test_learns_which_signals_paid() -> None:
    """Programs that use the norm pay; later programs use it more often than without feedback."""

    def pays(candidate: Candidate) -> float:
        return 0.9 if "signals.norm(" in candidate.files["press.py"] else 0.1

    def share(value: Any) -> float:
        used = 0
        for seed in range(4):
            grammar, history = PressGrammar(seed), []
            for i in range(50):
                made = grammar.propose(Request(TASK, i, None, tuple(history))).candidate
                used += i >= 30 and "signals.norm(" in made.files["press.py"]
                history.append(evaluated(made, value(made)))
        return used / 80

    assert share(pays) > share(lambda _: 0.5) + 0.15


def test_a_search_improves_on_drawing_at_random() -> None:
    """A hidden target: the score counts the parts that a program has in common with it."""

    def closeness(candidate: Candidate) -> float:
        tree = revive(candidate)
        assert tree is not None
        names = {s.name for s in tree.signals}
        parts = [
            len(names & {"leverage", "surprise"}) / max(2, len(names)),
            tree.scope == "heads",
            tree.grain == "runs",
            tree.pool == "gauss",
            tree.first == 8,
        ]
        return sum(parts) / len(parts)

    found, drawn = [], []
    for seed in range(8):
        found.append(max(closeness(c) for c in search(seed, 80, value=closeness)))
        grammar = PressGrammar(seed)
        fresh = [grammar.propose(Request(TASK, i, None, ())).candidate for i in range(80)]
        drawn.append(max(closeness(c) for c in fresh))
    assert sum(found) > sum(drawn) + 0.3


def test_a_share_can_be_reserved_for_the_start() -> None:
    choose = Chooser(random.Random(0), lambda slot, options: options[0], base="source")
    program = normalise(Program((Signal("recency"), Signal("lag", (("size", 64),)))))
    kept = reserve_share(program, choose)
    assert kept is not None
    assert [s.name for s in kept.signals] == ["base_score", *(s.name for s in program.signals)]
    assert (kept.combine, kept.fraction, kept.base) == ("two_stage", 0.25, "source")
    again = reserve_share(normalise(kept), choose)
    assert again is not None
    assert (again.signals, again.fraction) == (normalise(kept).signals, 0.5), "another share"
    nothing = Chooser(random.Random(0), lambda slot, options: options[0])
    assert reserve_share(program, nothing) is None, "there is no press to wrap"


def test_revives_its_own_programs_but_not_edited_ones(programs: list[Candidate]) -> None:
    for candidate in programs[:40]:
        tree = revive(candidate)
        assert tree is not None
        assert source(tree) == candidate.files["press.py"]
        edited = {**candidate.files, "press.py": candidate.files["press.py"] + "# edited\n"}
        assert revive(Candidate("artifact", edited)) is None


def test_wraps_the_press_that_the_search_started_from(prefills: list[Prefill]) -> None:
    grammar = PressGrammar(0)
    parent = evaluated(START, 0.3)
    made = [grammar.propose(Request(TASK, i, parent, (parent,))).candidate for i in range(30)]
    wrapped = [c for c in made if "base.py" in c.files]
    assert len(wrapped) >= 10
    assert all(c.files["base.py"] == START.files["press.py"] for c in wrapped)
    plain = render(
        normalise(
            Program(
                (Signal("base_score", transform="none"),),
                first=0,
                last=0,
                base=START.files["press.py"],
            )
        ),
        RATIO,
        "",
    )
    ours, theirs = load_press(plain.files)[0], load_press(START.files)[0]
    torch.manual_seed(1)
    mine = prefills[2].compress(ours)[0]
    torch.manual_seed(1)
    original = prefills[2].compress(theirs)[0]
    for (a, _), (b, _) in zip(mine, original, strict=True):  # ours are in the order of the text
        assert torch.equal(a.sum(dim=2).round(decimals=3), b.sum(dim=2).round(decimals=3))


BAD: Sequence[dict[str, str]] = (
    {},
    {"press.py": "x"},
    {"artifact.toml": "]["},
    {"artifact.toml": START.files["artifact.toml"]},
    {**START.files, "press.py": "def build_press(:"},
    {**START.files, "press.py": ""},
    {**START.files, "artifact.toml": START.files["artifact.toml"] + 'tree = "{}"\n'},
    {**START.files, "artifact.toml": START.files["artifact.toml"] + 'tree = "[1]"\n'},
    {**START.files, "helper.py": "X = 1\n"},
    materialise("identity", {"compression_ratio": 0.0}).files,
    materialise("adakv-compactor", {"compression_ratio": 0.75}).files,
)


@pytest.mark.parametrize("files", BAD, ids=range(len(BAD)))
def test_any_parent_will_do(files: dict[str, str]) -> None:
    grammar = PressGrammar(1)
    parent = Evaluated(
        Candidate("artifact", files), Feedback(State.INVALID, 0.0, {}, reason="broken")
    )
    for i in range(4):
        made = grammar.propose(Request(TASK, i, parent, (parent,))).candidate
        load_press(made.files)


def test_is_a_proposer_and_says_what_its_space_holds() -> None:
    assert isinstance(PressGrammar(0), Proposer)
    assert PressGrammar(0).name == "grammar"
    for words in ("question", "no program in it", "evenly"):
        assert words in SPACE
