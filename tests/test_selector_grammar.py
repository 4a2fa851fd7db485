"""The selector grammar: its programs run, keep the budget, never repeat, and learn."""

from __future__ import annotations

import ast
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from galoop.domains.sparse_decoding import scores
from galoop.domains.sparse_decoding.artifacts import materialise
from galoop.domains.sparse_decoding.grammar import SPACE, SelectorGrammar
from galoop.domains.sparse_decoding.grammar.moves import MOVES, cross, new_program
from galoop.domains.sparse_decoding.grammar.render import render, revive, wrappable
from galoop.domains.sparse_decoding.grammar.tree import (
    BY_QUERY,
    SIGNALS,
    Program,
    Signal,
    index_fraction,
    normalise,
)
from galoop.domains.sparse_decoding.worker import load_selector
from galoop.methods.selection import Step, budget
from galoop.proposers.grammar.signals.moves import Chooser
from galoop.proposers.protocol import Evaluated, Proposer, Request, Task
from galoop.types import Candidate, Feedback, State
from presses import one_thread

BUDGET = {"density": 0.1, "sparse_question": 1.0, "index_fraction": 2.0}
TASK = Task("artifact", "sparse-decoding", "", "", "", budget=BUDGET)
START = materialise("pqcache", BUDGET)
H, J, D = 6, 3, 32


def evaluated(candidate: Candidate, score: float) -> Evaluated:
    return Evaluated(candidate, Feedback(State.SCORED, score, {}))


def value_of(candidate: Candidate) -> float:
    """A made-up score that depends on the text alone."""
    return int(candidate.key[:4], 16) / 0xFFFF


def search(seed: int, number: int, value: Any = value_of, task: Task = TASK) -> list[Candidate]:
    """Propose ``number`` times, mutating the best so far every second time."""
    grammar, history, out = SelectorGrammar(seed), [evaluated(START, 0.2)], []
    for i in range(number):
        best = max(history, key=lambda e: e.feedback.score)
        parent = best if i % 2 else (history[-1] if i % 4 else None)
        candidate = grammar.propose(Request(task, i, parent, tuple(history))).candidate
        assert candidate is not None
        out.append(candidate)
        history.append(evaluated(candidate, value(candidate)))
    return out


@pytest.fixture(scope="module")
def programs() -> list[Candidate]:
    return search(3, 120)


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(selector: Any, context: int, density: float) -> None:
    """Index a context, read a question and three answer tokens; hold each choice to the rules."""
    keys, values = draw(1, J, context + 9, D, seed=1), draw(1, J, context + 9, D, seed=2)
    queries = draw(1, H, 9, D, seed=3)
    index = selector.index(keys[:, :, :context], values[:, :, :context])
    size = sum(t.numel() * t.element_size() for t in index.values())
    assert size <= 2.0 * keys[:, :, :context].numel() * 4
    previous, below = None, None
    for start, stop in ((0, 6), (6, 7), (7, 8), (8, 9)):
        step = Step(
            queries[:, :, start:stop],
            keys[:, :, context : context + stop],
            values[:, :, context : context + stop],
            context,
            1,
            previous=previous,
            below=below,
        )
        chosen = scores.as_mask(selector.select(index, step), step)
        assert not (chosen & ~step.seen).any()
        for r, n in enumerate(step.visible.tolist()):
            own = chosen[0, :, r].clone()
            own[:, n - 1] = True
            assert int(own.sum()) <= H * budget(density, n)
        previous = chosen[:, :, -1]
        below = torch.zeros(1, H, 1, context + stop + 1, dtype=torch.bool)
        below[..., :2] = True


@pytest.mark.parametrize(("first", "context"), [(0, 128), (1, 200)])
def test_programs_run_and_keep_the_budget(
    programs: list[Candidate], first: int, context: int
) -> None:
    with one_thread():
        for candidate in programs[first::2]:
            check(load_selector(candidate.files, 0.1), context, 0.1)


def test_programs_never_repeat_and_a_seed_gives_the_same_ones(programs: list[Candidate]) -> None:
    assert len({c.key for c in programs}) == len(programs)
    assert [c.key for c in search(3, 20)] == [c.key for c in programs[:20]]
    assert [c.key for c in search(4, 20)] != [c.key for c in programs[:20]]


def test_programs_are_readable_and_revive(programs: list[Candidate]) -> None:
    for candidate in programs:
        text = candidate.files["selector.py"]
        tree = ast.parse(text)
        assert max(map(len, text.splitlines())) <= 110
        assert ast.get_docstring(tree)
        assert len(text.splitlines()) < 60
        program = revive(candidate)
        assert program is not None
        assert normalise(program) == program
        edited = {**candidate.files, "selector.py": text + "\n"}
        assert revive(Candidate("artifact", edited, "")) is None


def test_the_whole_space_is_reached(programs: list[Candidate]) -> None:
    trees = [revive(c) for c in programs]
    used = Counter(s.name for t in trees if t for s in t.signals)
    assert set(used) == set(SIGNALS)
    assert {t.group for t in trees if t} == {"head", "sum", "max", "votes"}
    assert any(t.base for t in trees if t)
    assert any(t.compete for t in trees if t)
    assert all(any(s.name in BY_QUERY for s in t.signals) for t in trees if t)
    for name in ("sinks", "pages", "norms", "index_fraction", "known slice"):
        assert name.rstrip("s") in SPACE


def test_the_start_keeps_its_share(programs: list[Candidate]) -> None:
    """Where the start has a share of the budget, what it chooses under it is chosen."""
    found = next(t for t in map(revive, programs) if t and t.base)
    assert found.base == START.files["selector.py"] == wrappable(START)
    candidate = render(replace(found, fraction=0.5), BUDGET, "")
    whole = load_selector(candidate.files, 0.2)
    base = load_selector(START.files, 0.1)
    keys, values = draw(1, J, 209, D, seed=1), draw(1, J, 209, D, seed=2)
    step = Step(draw(1, H, 9, D, seed=3), keys[:, :, 200:], values[:, :, 200:], 200, 1)
    parts = whole.index(keys[:, :, :200], values[:, :, :200])
    chosen = whole.select(parts, step)
    own = base.select(base.index(keys[:, :, :200], values[:, :, :200]), step)
    assert bool((chosen | ~own).all())
    assert int(chosen.sum()) > int(own.sum())


def test_no_program_is_proposed_whose_index_is_over_the_budget() -> None:
    task = replace(TASK, budget={**BUDGET, "index_fraction": 0.2})
    found = [revive(c) for c in search(5, 40, task=task)]
    assert all(index_fraction(t) <= 0.2 for t in found if t)
    assert len({s.name for t in found if t for s in t.signals if s.name in BY_QUERY}) >= 4


@pytest.mark.parametrize("name", SIGNALS)
def test_the_estimate_of_an_index_is_near_its_size(name: str) -> None:
    """In bfloat16, 256 tokens, 64 dimensions; within a fifth of the keys, for every option."""
    keys, values = (draw(1, 2, 256, 64, seed=s).bfloat16() for s in (1, 2))
    space = SIGNALS[name]
    for at in range(max([len(v) for v in space.values()] or [1])):
        options = tuple((k, v[at % len(v)]) for k, v in space.items())
        made = getattr(scores, name)(**dict(options))
        size = sum(t.numel() * t.element_size() for t in made.index(keys, values).values())
        estimate = index_fraction(Program((Signal(name, options),)))
        assert size / (keys.numel() * 2) == pytest.approx(estimate, abs=0.2)


def test_every_move_applies_somewhere_and_changes_what_it_says() -> None:
    rng = random.Random(0)
    choose = Chooser(rng, lambda slot, options: rng.choice(list(options)), base="# base")
    applied: Counter[str] = Counter()
    for _ in range(60):
        program = new_program(choose)
        for name, move in MOVES.items():
            changed = move(program, choose)
            if changed is not None:
                applied[name] += 1
                assert 1 <= len(changed.signals) <= 3
                assert any(s.name in BY_QUERY for s in changed.signals)
                render(normalise(changed), BUDGET, "")
        both = cross(program, new_program(choose), choose)
        assert len({s.name for s in both.signals}) == len(both.signals)
    assert set(applied) == set(MOVES)


def test_it_learns_which_signal_pays() -> None:
    def pays(candidate: Candidate) -> float:
        return 0.9 if "Rounded" in candidate.files["selector.py"] else 0.1

    late = search(1, 80, pays)[40:]
    assert sum("Rounded" in c.files["selector.py"] for c in late) > 20


def test_it_is_a_proposer() -> None:
    grammar: Proposer = SelectorGrammar(0)
    assert grammar.replayable
