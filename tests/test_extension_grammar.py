"""The plan grammar: all its programs are valid, none is proposed twice, and it learns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from galoop.domains.context_extension import wire
from galoop.domains.context_extension.artifact_spec import parse_spec
from galoop.domains.context_extension.artifacts import materialise
from galoop.domains.context_extension.checks import check, check_reach
from galoop.domains.context_extension.grammar import PlanGrammar, tree
from galoop.domains.context_extension.grammar.render import render, revive
from galoop.methods.positions import Shape
from galoop.proposers.protocol import Evaluated, Request, Task
from galoop.types import Candidate, Feedback, State
from plan_tools import BUDGET, SHAPE, W, built, distances


def test_named_trees_are_the_named_methods() -> None:
    for name, program in tree.NAMED.items():
        ours = built(render(program, 4.0, ""), 4 * W)[0][0]
        named = built(materialise(name, BUDGET), 4 * W)[0][0]
        pairs, expected = distances(ours, 4 * W), distances(named, 4 * W)
        assert pairs.keys() == expected.keys()
        worst = max(abs(a - b) for p in pairs for a, b in zip(pairs[p], expected[p], strict=True))
        # Self-Extend rounds its group to whole numbers from a slightly other reach.
        assert worst <= (1 if name == "self-extend" else 1e-9), name
        assert revive(materialise(name, BUDGET)) == program


def test_every_program_of_the_space_keeps_the_contract() -> None:
    rng = random.Random(1)
    shape = Shape(3, 4, 2, 8, W, SHAPE.frequencies, extension=4.0)
    for _ in range(120):
        chosen: dict[str, Any] = {slot: rng.choice(v) for slot, v in tree.SPACE.items()}
        program = tree.normalise(tree.Program(**chosen))
        assert tree.normalise(program) == program
        candidate = render(program, 4.0, "")
        assert revive(candidate) == program
        assert max(map(len, candidate.files["plan.py"].splitlines())) <= 100
        length = rng.choice((W, 4 * W))
        rows = built(candidate, length, shape)
        wire.pack(rows, 4, length)
        for plan in {id(p): p for row in rows for p in row}.values():
            check(plan, shape, length)
        check_reach(rows, length)
        assert (program.vary == "none") == (len({id(p) for row in rows for p in row}) == 1)


def test_an_edited_program_is_not_taken_for_its_tree() -> None:
    candidate = render(tree.NAMED["dca"], 4.0, "")
    files = {**candidate.files, "plan.py": candidate.files["plan.py"].replace("0.625", "0.5")}
    assert revive(Candidate("artifact", files)) is None
    files = {**materialise("dca", BUDGET).files}
    files["plan.py"] = files["plan.py"].replace("shape.window // 8", "shape.window // 9")
    assert revive(Candidate("artifact", files)) is None


def history(grammar: PlanGrammar, n: int, worth: Callable[[str], float]) -> list[Evaluated]:
    task = Task("artifact", "context-extension", "", "", "", budget=BUDGET)
    start = materialise("dca", BUDGET)
    seen = [Evaluated(start, Feedback(State.SCORED, 0.1, ""))]
    for index in range(n):
        parent = max(seen, key=lambda e: e.feedback.score) if index % 3 else None
        found = grammar.propose(Request(task, index, parent, tuple(seen))).candidate
        assert found is not None
        seen.append(Evaluated(found, Feedback(State.SCORED, worth(found.files["plan.py"]), "")))
    return seen


def test_the_grammar_never_repeats_and_finds_what_pays() -> None:
    def worth(source: str) -> float:
        return 0.2 + 0.4 * ("doubling(" in source) + 0.4 * ("log_scale(" in source)

    seen = history(PlanGrammar(0), 60, worth)
    assert len({e.candidate.key for e in seen}) == len(seen)
    assert all(parse_spec(e.candidate.files).budget == BUDGET for e in seen)
    assert max(e.feedback.score for e in seen) == 1.0
    late = [worth(e.candidate.files["plan.py"]) for e in seen[40:]]
    assert sum(late) / len(late) > 0.5
    again = history(PlanGrammar(0), 60, worth)
    assert [e.candidate.key for e in again] == [e.candidate.key for e in seen]
