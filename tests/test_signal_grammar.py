"""What the grammars of scored signals share, shown on a small third one that no domain owns."""

from __future__ import annotations

import ast
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import galoop.proposers.grammar.signals as package
from galoop.proposers.grammar.engine import MoveContext
from galoop.proposers.grammar.signals.moves import Chooser, SignalMoves, remove_signal
from galoop.proposers.grammar.signals.search import Language, SignalGrammar
from galoop.proposers.grammar.signals.text import docstring, letters, signed, weighted_sum
from galoop.proposers.grammar.signals.tree import Signal, SignalProgram, parse, settle, to_json
from galoop.proposers.protocol import Evaluated, Request, Task
from galoop.types import Candidate, Feedback, State

SIGNALS = {"size": {"of": ("keys", "values"), "top": (1, 2)}, "age": {}, "luck": {}}
MOVES = SignalMoves(SIGNALS, ("none", "zscore"), ("sum", "turns"), ("none", "mean"), (3, 5), (1, 2))
TASK = Task("artifact", "none", "", "", "")


@dataclass(frozen=True)
class Program(SignalProgram[Signal]):
    depth: int = 0


def normalise(program: Program) -> Program:
    return settle(program, ordered=("turns",))


def read(candidate: Candidate) -> Program | None:
    text = candidate.files.get("tree", "")
    base = candidate.files.get("base", "")
    return normalise(parse(text, base, SIGNALS, Signal, Program)) if text else None


def drawn(choose: Chooser, names: list[str]) -> Program:
    signals = tuple(Signal(n, MOVES.options(n, choose)) for n in names)
    return Program(signals, depth=choose.whole("depth", range(100)), base=choose.base)


class Small(SignalGrammar[Program]):
    language = Language(
        {
            "option": MOVES.change_option,
            "transform": MOVES.change_transform,
            "weight": MOVES.change_weight,
            "combination": MOVES.change_combination,
            "pool": MOVES.change_pool,
            "remove": remove_signal,
        },
        lambda one, two, choose: replace(one, signals=choose.rng.choice((one, two)).signals),
        normalise,
        read,
        lambda candidate: candidate.files.get("plain", ""),
    )

    def fresh(self, context: MoveContext[Program]) -> Program:
        choose = self.chooser(context)
        first = choose.text("signal", list(SIGNALS))
        return normalise(drawn(choose, list(dict.fromkeys((first, "age")))))

    def render(self, tree: Program, note: str) -> Candidate:
        return Candidate("artifact", {"tree": to_json(tree), "base": tree.base}, note)


def chooser(seed: int = 0, base: str = "") -> Chooser:
    rng = random.Random(seed)
    return Chooser(rng, lambda slot, options: rng.choice(list(options)), base)


SIZE = Signal("size", (("of", "keys"), ("top", 1)), weight=2.0)


def test_settled_programs_are_equal_where_they_do_the_same() -> None:
    one, two = Signal("luck"), Signal("age", weight=2.0)
    alone = normalise(Program((two,), combine="turns", width=5))
    assert alone == Program((Signal("age"),)), "one signal: no weight, no combination, no pooling"
    assert normalise(Program((one, two))) == normalise(Program((two, one)))
    turns = normalise(Program((one, two), combine="turns"))
    assert turns != normalise(Program((two, one), combine="turns")), "the order of turns matters"
    assert [s.weight for s in turns.signals] == [1.0, 1.0]


def test_a_tree_is_read_back_and_a_broken_one_is_refused() -> None:
    program = Program((SIZE, Signal("age", sign=-1)), pool="mean", width=5, base="source", depth=3)
    text = to_json(program)
    assert "source" not in text
    assert parse(text, "source", SIGNALS, Signal, Program) == program
    data = json.loads(text)
    for signals in (
        [],
        [{**data["signals"][0], "options": {"of": "keys"}}],
        [{**data["signals"][0], "options": {"of": "elsewhere", "top": 1}}],
        [{**data["signals"][0], "name": "unknown"}],
        [{**data["signals"][0], "further": 1}],
    ):
        with pytest.raises((ValueError, KeyError, TypeError)):
            parse(json.dumps({**data, "signals": signals}), "", SIGNALS, Signal, Program)


def test_each_move_changes_its_part_alone() -> None:
    program = Program((SIZE, Signal("age")), depth=3)
    for seed in range(20):
        choose = chooser(seed)
        option = MOVES.change_option(program, choose)
        assert option is not None
        assert replace(option, signals=program.signals) == program
        changed = dict(option.signals[0].options).items() ^ dict(SIZE.options).items()
        assert len({key for key, _ in changed}) == 1
        weight = MOVES.change_weight(program, choose)
        assert weight is not None
        pairs = list(zip(weight.signals, program.signals, strict=True))
        assert sum(a != b for a, b in pairs) == 1
        assert all(replace(a, weight=b.weight) == b for a, b in pairs)
        fewer = remove_signal(program, choose)
        assert fewer in (Program((SIZE,), depth=3), Program((Signal("age"),), depth=3))
        assert MOVES.change_combination(program, choose) == replace(program, combine="turns")
    single = Program((Signal("age"),))
    for move in (MOVES.change_option, MOVES.change_weight, MOVES.change_combination, remove_signal):
        assert move(single, chooser()) is None, "it does not apply"
    assert MOVES.change_weight(replace(program, combine="turns"), chooser()) is None


def test_the_search_keeps_the_start_never_repeats_and_weighs_what_paid() -> None:
    start = Evaluated(
        Candidate("artifact", {"plain": "the start"}), Feedback(State.SCORED, 0.2, {})
    )
    grammar, history = Small(0), [start]
    for i in range(60):
        parent = max(history, key=lambda e: e.feedback.score) if i % 2 else None
        made = grammar.propose(Request(TASK, i, parent, tuple(history))).candidate
        program = read(made)
        assert program is not None
        assert program.base == "the start"
        paid = any(s.name == "luck" for s in program.signals)
        history.append(Evaluated(made, Feedback(State.SCORED, 0.9 if paid else 0.1, {})))
    assert len({e.candidate.key for e in history}) == 61
    context: MoveContext[Program] = MoveContext(random.Random(0), Request(TASK, 60, None, ()))
    weights = grammar.choice_weights("signal", context)
    assert weights["'luck'"] > 1.0 > weights["'size'"]
    assert grammar.choice_weights("pool", context) == {}


def test_text() -> None:
    program = Program((SIZE, Signal("age")))
    assert weighted_sum(letters(program), program.signals) == "2.0 * a + b"
    assert signed("size", replace(SIZE, sign=-1)) == "2·−size"
    for words in ("short", "word " * 40 + "end"):
        text = docstring("A program", words)
        assert max(map(len, text.splitlines())) <= 100
        held = ast.get_docstring(ast.parse(text))
        assert held is not None
        assert set(words.split()) <= set(held.replace(".", " ").split())


def test_it_knows_no_domain() -> None:
    for path in Path(package.__path__[0]).glob("*.py"):
        assert "galoop.domains" not in path.read_text(encoding="utf-8")
