"""The probe grammar as a searcher: it learns what pays, and copes with any parent."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Callable

import pytest

from galoop.hashing import derive_seed
from galoop.proposers.grammar import foreign
from galoop.proposers.grammar import tree as space
from galoop.proposers.grammar.engine import FRESH, Bandit
from galoop.proposers.grammar.probes import EASY_MOVES, ProbeGrammar
from galoop.proposers.grammar.render import recover, render
from galoop.proposers.grammar.tree import Ask, Entry, Program, Value
from galoop.proposers.protocol import Evaluated, Request, Task
from galoop.types import Candidate, Feedback, State

FOREIGN = '''"""Written by a person."""
import random

PLACES = ["old harbor", "quiet museum", "north tower", "small bakery"]


def build(rng, length, count_tokens):
    """Hide one number."""
    place = rng.choice(PLACES)
    number = rng.randint(1000, 9999)
    fact = f"The number of the {place} is {number}."
    filler = "It rained all day. " * 12
    share = 0.5
    cut = int(len(filler) * share)
    context = filler[:cut] + fact + " " + filler[cut:]
    question = f"What is the number of the {place}?"
    return {"context": context, "question": question, "answer": str(number)}
'''


def make_task(frozen: tuple[str, ...] = ()) -> Task:
    return Task("probe", "kv-compression", "", "", "", length=256, frozen=frozen)


def feedback(score: float, reference: float = 1.0, state: State = State.SCORED) -> Feedback:
    return Feedback(state, score, {"reference_accuracy": reference, "gap": score})


def probe(source: str) -> Candidate:
    return Candidate("probe", {"probe.py": source})


# The bandit.


def test_bandit_finds_the_paying_arm_and_keeps_exploring() -> None:
    rng, bandit = random.Random(1), Bandit(["a", "b", "c", "d"], floor=0.2)
    pays = {"a": 0.1, "b": 0.1, "c": 0.7, "d": 0.1}
    chosen = []
    for _ in range(600):
        arm = bandit.choose(rng)
        bandit.update(arm, float(rng.random() < pays[arm]))
        chosen.append(arm)
    late = Counter(chosen[300:])
    assert late["c"] > 0.6 * 300
    for arm in "abd":  # the floor alone gives each arm 300 * 0.2 / 4 = 15
        assert late[arm] >= 6
    assert bandit.mean("c") > bandit.mean("a")


def test_bandit_forgets() -> None:
    rng, bandit = random.Random(2), Bandit(["a", "b"], memory=0.97)
    for _ in range(150):
        bandit.update("a", 1.0)
        bandit.update("b", 0.0)
    for _ in range(150):
        bandit.update("a", 0.0)
        bandit.update("b", 1.0)
    picks = Counter(bandit.choose(rng) for _ in range(200))
    assert picks["b"] > 150


def test_bandit_is_uniform_without_evidence_and_follows_weights() -> None:
    rng = random.Random(3)
    picks = Counter(Bandit(["a", "b", "c"]).choose(rng) for _ in range(3000))
    assert all(900 < picks[arm] < 1100 for arm in "abc")
    bandit = Bandit(["a", "b", "c"])
    weighted = Counter(bandit.choose(rng, weights={"a": 3.0, "b": 0.0}) for _ in range(1000))
    assert weighted["b"] == 0
    assert weighted["a"] > 700
    only = {bandit.choose(rng, ["b"], {"b": 0.0}) for _ in range(5)}
    assert only == {"b"}
    with pytest.raises(ValueError, match="at least one arm"):
        Bandit().choose(rng)


def test_bandit_clips_rewards_and_learns_new_arms() -> None:
    bandit = Bandit(["a"])
    bandit.update("new", 7.0)
    assert bandit.mean("new") == pytest.approx(2 / 3)
    assert bandit.mean("unknown") == 0.5


# Learning within a search.


def searched(
    seed: int, number: int, score: Callable[[Candidate], Feedback]
) -> tuple[ProbeGrammar, list[Candidate]]:
    """A search whose parent is the best so far."""
    grammar, history = ProbeGrammar(seed), []
    for index in range(number):
        parent = max(history, key=lambda entry: entry.feedback.score) if history else None
        request = Request(make_task(), index, parent, tuple(history))
        candidate = grammar.propose(request).candidate
        history.append(Evaluated(candidate, score(candidate)))
    return grammar, [entry.candidate for entry in history]


@pytest.mark.parametrize("paying", ["kind of filler", "placement"])
def test_a_move_that_pays_gets_a_larger_share(paying: str) -> None:
    """Every child of the paying move beats its parent; every other child is worse."""
    other = ProbeGrammar(50)
    parents = [
        Evaluated(other.propose(Request(make_task(), i, None, ())).candidate, feedback(0.5))
        for i in range(50)
    ]
    grammar, history, notes = ProbeGrammar(5), [], []
    for index in range(150):
        parent = parents[index % len(parents)]
        request = Request(make_task(), index, parent, tuple(history))
        candidate = grammar.propose(request).candidate
        notes.append(candidate.note)
        history.append(Evaluated(candidate, feedback(0.9 if candidate.note == paying else 0.1)))
    late = notes[-75:]
    assert late.count(paying) > 3 * 75 / (1 + len(grammar.moves()))
    assert late.count(paying) > 25
    assert len(set(late)) >= 5  # the floor keeps other moves alive


def test_a_kind_that_pays_is_written_more_often() -> None:
    def score(candidate: Candidate) -> Feedback:
        tree = recover(candidate.source)
        assert tree is not None
        return feedback(0.9 if tree.entry.form == "table" else 0.05)

    grammar, history = ProbeGrammar(6), []
    forms = []
    for index in range(200):
        candidate = grammar.propose(Request(make_task(), index, None, tuple(history))).candidate
        history.append(Evaluated(candidate, score(candidate)))
        tree = recover(candidate.source)
        assert tree is not None
        forms.append(tree.entry.form)
    assert forms[-100:].count("table") > 2 * max(1, forms[:50].count("table"))
    assert forms[-100:].count("table") > 30
    assert len(set(forms[-100:])) >= 6


def test_search_beats_blind_sampling_on_a_hidden_target() -> None:
    """A smooth target over four nodes: the search comes nearer than fresh programs do."""

    def score(candidate: Candidate) -> Feedback:
        tree = recover(candidate.source)
        assert tree is not None
        hits = [
            tree.value.kind == "code",
            tree.entry.form == "log",
            tree.placement.asked == "end",
            tree.filler.kind == "story",
            tree.key == "person",
            tree.ask.prefix == "label",
        ]
        return feedback(sum(hits) / len(hits))

    found, blind = [], []
    for seed in range(2):
        _, candidates = searched(seed, 160, score)
        found.append(max(score(candidate).score for candidate in candidates))
        grammar = ProbeGrammar(100 + seed)
        fresh = [
            grammar.propose(Request(make_task(), index, None, ())).candidate for index in range(160)
        ]
        blind.append(max(score(candidate).score for candidate in fresh))
    assert sum(found) / 2 > sum(blind) / 2 + 0.15


def test_infrastructure_failures_teach_nothing() -> None:
    grammar = ProbeGrammar(1)
    first = grammar.propose(Request(make_task(), 0, None, ())).candidate
    parent = Evaluated(first, feedback(0.5))
    second = grammar.propose(Request(make_task(), 1, parent, (parent,))).candidate
    broken = Evaluated(second, feedback(0.0, state=State.INFRASTRUCTURE))
    before = {name: grammar.move_bandit.mean(name) for name in [FRESH, *grammar.moves()]}
    grammar.propose(Request(make_task(), 2, parent, (parent, broken)))
    assert before == {name: grammar.move_bandit.mean(name) for name in before}


def test_what_the_reference_cannot_answer_becomes_easier() -> None:
    hard = space.normalise(
        Program(
            value=Value("digits", 8, True),
            entry=Entry("ledger", 1, 2),
            count=24,
            hops=3,
            ask=Ask(prefix="none"),
        )
    )

    def share(reference: float) -> float:
        moves = []
        for seed in range(80):
            parent = Evaluated(probe(render(hard)), feedback(0.01, reference))
            request = Request(make_task(), 0, parent, (parent,))
            moves.append(ProbeGrammar(seed).propose(request).candidate.note)
        return sum(move in EASY_MOVES for move in moves) / len(moves)

    assert share(0.1) > 2 * share(1.0)


def test_every_move_changes_the_program_or_says_it_does_not_apply() -> None:
    grammar, applied = ProbeGrammar(4), Counter[str]()
    rng = random.Random(4)
    from galoop.proposers.grammar.engine import MoveContext

    known = []
    for index in range(40):
        request = Request(make_task(), index, None, ())
        context = MoveContext(rng, request, tuple(known))
        tree = grammar.fresh(context)
        known.append((tree, feedback(rng.random())))
        for name, move in grammar.moves().items():
            changed = move(tree, context)
            if changed is not None:
                applied[name] += 1
                assert changed != tree
                assert space.normalise(changed) == changed
    assert set(applied) == set(grammar.moves())


# Frozen slices.


def test_frozen_programs_are_not_proposed_and_their_kinds_are_rarer() -> None:
    frozen_tree = space.normalise(Program(entry=Entry("table"), words=1))
    frozen = (render(frozen_tree), FOREIGN, "not python (")
    grammar, forms = ProbeGrammar(8), Counter[str]()
    for index in range(240):
        request = Request(make_task(frozen), index, None, ())
        tree = recover(grammar.propose(request).candidate.source)
        assert tree is not None
        assert space.identity(tree) != space.identity(frozen_tree)
        forms[tree.entry.form] += 1
    others = [count for form, count in forms.items() if form != "table"]
    assert forms["table"] < 0.75 * sum(others) / len(others)


def test_the_tree_of_a_frozen_program_is_excluded_whatever_its_words() -> None:
    tree = space.normalise(Program())
    other_words = space.normalise(Program(words=99))
    grammar = ProbeGrammar(0)
    request = Request(make_task((render(other_words),)), 0, None, ())
    assert grammar.excluded(tree, probe(render(tree)), request)
    assert not grammar.excluded(space.normalise(Program(count=5)), probe(""), request)


# Parents that somebody else wrote.


def test_programs_of_another_grammar_are_understood() -> None:
    other = ProbeGrammar(77).propose(Request(make_task(), 0, None, ())).candidate
    tree = recover(other.source)
    assert tree is not None
    kept = 0
    for seed in range(30):
        parent = Evaluated(other, feedback(0.6))
        child = ProbeGrammar(seed).propose(Request(make_task(), 0, parent, (parent,))).candidate
        changed = recover(child.source)
        assert changed is not None
        kept += changed.words == tree.words  # a mutation keeps the words, a fresh one does not
    assert kept > 15


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def build(:\n",
        "\0",
        "x = 1",
        "# Construction: value.kind=digits\n",
        "def build(rng, length, count_tokens):\n    return {}\n",
        "x = " + "(" * 3000 + ")" * 3000,
        "x = [" + "1, " * 40_000 + "]\n",
        "y = '" + "a" * 500_000 + "'\n",
        "class A:\n    x = [1, 2, 3]\n",
        "x = ['\\ud800', 'b', 'c']\n",
    ],
    ids=[
        "empty",
        "syntax",
        "null",
        "tiny",
        "note",
        "no example",
        "deep",
        "long list",
        "huge",
        "class",
        "surrogate",
    ],
)
def test_any_parent_is_survived(source: str) -> None:
    for seed in range(6):
        grammar = ProbeGrammar(seed)
        parent = Evaluated(probe(source), feedback(0.2))
        for index in range(4):
            candidate = grammar.propose(Request(make_task(), index, parent, (parent,))).candidate
            assert candidate.key != parent.candidate.key
            ast.parse(candidate.source)


def test_a_parent_of_several_files_or_none_is_survived() -> None:
    for files in ({}, {"a.py": "x = 1", "b.py": "y = 2"}, {"probe.txt": "hello"}):
        parent = Evaluated(Candidate("probe", files), feedback(0.2))
        candidate = ProbeGrammar(1).propose(Request(make_task(), 0, parent, (parent,))).candidate
        ast.parse(candidate.source)


def test_foreign_programs_are_edited_and_mostly_still_run() -> None:
    rng, works, kinds = random.Random(0), 0, set()
    for _ in range(200):
        edited = foreign.mutate(FOREIGN, rng)
        assert edited is not None
        assert ast.dump(ast.parse(edited.source)) != ast.dump(ast.parse(FOREIGN)) or (
            "order" in edited.note or "exchanged" in edited.note
        )
        kinds.add(edited.note.split(": ", 1)[1].split(" ")[-1])
        names: dict = {}
        exec(compile(edited.source, "probe.py", "exec"), names)
        try:
            example = names["build"](random.Random(1), 100, len)
        except ValueError:
            continue  # for example an empty range of numbers
        works += example["answer"] in example["context"]
    assert works > 150
    assert len(kinds) > 5


def test_a_foreign_parent_is_edited_again_and_again_without_repeats() -> None:
    grammar = ProbeGrammar(3)
    parent = Evaluated(probe(FOREIGN), feedback(0.4))
    history, edits, keys = [parent], 0, {parent.candidate.key}
    for index in range(60):
        request = Request(make_task(), index, parent, tuple(history))
        candidate = grammar.propose(request).candidate
        assert candidate.key not in keys
        keys.add(candidate.key)
        edits += candidate.note.startswith("edit the source")
        number = derive_seed(candidate.key) % 100 / 100
        history.append(Evaluated(candidate, feedback(number)))
    assert edits > 10


def test_huge_integers_and_nested_lists_do_not_stop_an_edit() -> None:
    rng = random.Random(1)
    assert foreign.mutate("x = 10 ** 6\n", rng) is not None
    assert foreign.mutate(f"x = {10**60}\n", rng) is not None
    formatted = foreign.mutate("x = f'{1:>10}'\n", rng)
    assert formatted is not None
    assert formatted.source in ("x = f'{2:>10}'\n", "x = f'{0:>10}'\n")
    assert foreign.mutate("x = True\n", rng) is None
    assert foreign.mutate("'''text 1'''\n", rng) is None


def test_nearing_validity_pays_while_the_score_is_at_its_floor() -> None:
    grammar = ProbeGrammar(0)
    floor, nearer = feedback(0.0, 0.2), feedback(0.0, 0.5)
    assert grammar.paid(nearer, floor)
    assert not grammar.paid(floor, nearer)
    assert grammar.paid(feedback(0.3, 0.9), feedback(0.2, 1.0))
    assert not grammar.paid(feedback(0.2, 1.0), feedback(0.2, 0.9))
    assert grammar.worth(feedback(0.4, 1.0), 0.8) == pytest.approx(0.25 + 0.75 * 0.25)
    assert grammar.worth(floor, 0.0) == pytest.approx(0.05)
