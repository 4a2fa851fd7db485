"""The probe grammar: what it writes keeps the contract, never repeats, and is reproducible."""

from __future__ import annotations

import ast
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pytest

from galoop.hashing import derive_seed
from galoop.proposers.grammar import tree as space
from galoop.proposers.grammar.probes import SPACE, ProbeGrammar
from galoop.proposers.grammar.render import recover, render
from galoop.proposers.grammar.tree import Program
from galoop.proposers.protocol import Evaluated, Proposer, Request, Task
from galoop.types import Candidate, Feedback, State

LENGTH = 256


def count_pieces(text: str) -> int:
    """A stand-in for a tokenizer: words, digits and signs are a token each."""
    return len(re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]", text))


def make_task(frozen: tuple[str, ...] = (), length: int = LENGTH) -> Task:
    return Task("probe", "kv-compression", "", "", "", length=length, frozen=frozen)


def feedback(score: float, reference: float = 1.0, state: State = State.SCORED) -> Feedback:
    return Feedback(state, score, {"reference_accuracy": reference, "gap": score})


def pseudo_score(candidate: Candidate) -> Feedback:
    """Some feedback that depends on the candidate alone."""
    number = derive_seed("score", candidate.key) % 1000 / 1000
    if number < 0.3:
        return Feedback(State.INVALID, 0.0, {"reference_accuracy": 0.0, "gap": 0.0}, "too hard")
    return feedback(number, reference=min(1.0, number + 0.3))


@lru_cache(maxsize=1)
def long_search() -> list[Candidate]:
    return run_search(3, 500)


def search(seed: int, number: int, task: Task | None = None) -> list[Candidate]:
    """A search's candidates; the long one is shared by tests that only read programs."""
    if seed == 3 and task is None:
        return long_search()[:number]
    return run_search(seed, number, task)


def run_search(seed: int, number: int, task: Task | None = None) -> list[Candidate]:
    """A search by random choice of parents: seedless first, then everything as a parent."""
    grammar, history, found = ProbeGrammar(seed), [], []
    rng = random.Random(seed)
    for index in range(number):
        parent = rng.choice(history) if history and rng.random() < 0.85 else None
        request = Request(task or make_task(), index, parent, tuple(history))
        candidate = grammar.propose(request).candidate
        found.append(candidate)
        history.append(Evaluated(candidate, pseudo_score(candidate)))
    return found


@lru_cache(maxsize=8)
def module_of(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "probe.py", "exec"), names)
    return names


def build(source: str, seed: int, length: int = LENGTH) -> dict[str, Any]:
    result = module_of(source)["build"](random.Random(seed), length, count_pieces)
    assert isinstance(result, dict)
    return result


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def mentions(phrase: str, text: str) -> int:
    """How often a phrase stands in a text as words of its own."""
    return len(re.findall(rf"(?<!\w){re.escape(phrase.lower())}(?!\w)", text.lower()))


def check_contract(source: str, seeds: Iterable[int], length: int = LENGTH) -> list[dict[str, Any]]:
    """The contract as the design states it, checked without the harness's own checker."""
    assert len(source) < 20_000
    parsed = ast.parse(source)
    modules = [node for node in ast.walk(parsed) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in modules] == ["import random"]
    assert "random.seed" not in source
    assert "random.random" not in source
    examples = []
    for seed in seeds:
        example = build(source, seed, length)
        assert example == build(source, seed, length), "not deterministic"
        assert set(example) == {"context", "question", "answer", "answer_prefix", "evidence"}
        context = example["context"]
        assert length // 2 <= count_pieces(context) <= length
        assert example["question"].startswith("\n")
        assert example["answer_prefix"] == example["answer_prefix"].rstrip()
        assert count_pieces(example["question"] + " " + example["answer_prefix"]) <= 96
        answers = listed(example["answer"])
        assert answers
        assert len(set(answers)) == len(answers)
        assert count_pieces(", ".join(answers)) <= 16
        for answer in answers:
            assert mentions(answer, context) >= 1
            assert mentions(answer, example["question"]) == 0
            assert mentions(answer, example["answer_prefix"]) == 0
        assert example["evidence"]
        for passage in example["evidence"]:
            assert passage in context
        assert any(answers[-1] in passage for passage in example["evidence"])
        assert not re.search(r"[{}]\w*[{}]|\[\[|\]\]|  |<\|", context + example["question"])
        examples.append(example)
    contexts = {example["context"] for example in examples}
    assert len(contexts) == len(examples)
    asked = {(example["question"], str(example["answer"])) for example in examples}
    assert len(asked) > len(examples) / 2
    return examples


def test_programs_fresh_and_mutated_keep_the_contract() -> None:
    for candidate in search(3, 300):
        assert candidate.kind == "probe"
        assert list(candidate.files) == ["probe.py"]
        assert candidate.note
        check_contract(candidate.source, (1, 2, 3))


@pytest.mark.parametrize("length", [96, 500, 2000])
def test_programs_fit_other_lengths(length: int) -> None:
    for candidate in search(5, 30, make_task(length=length)):
        check_contract(candidate.source, (7, 8), length)


def test_forty_seeds_give_forty_contexts_in_nearly_every_program() -> None:
    """Admission takes forty fresh seeds and rejects what repeats."""
    repeating = 0
    for candidate in search(3, 60):
        contexts = {build(candidate.source, seed)["context"] for seed in range(40)}
        repeating += len(contexts) < 40
    assert repeating <= 3


def test_contexts_come_near_the_length() -> None:
    sizes = [
        count_pieces(build(candidate.source, 3, 600)["context"])
        for candidate in search(13, 60, make_task(length=600))
    ]
    assert sum(size > 0.85 * 600 for size in sizes) >= 0.8 * len(sizes)


def test_few_calls_of_the_tokenizer_and_fast() -> None:
    calls, spent = [], []
    for candidate in search(14, 40):
        counted = Counter[str]()

        def counting(text: str, counted: Counter[str] = counted) -> int:
            counted["calls"] += 1
            return len(text) // 4

        build_once = module_of(candidate.source)["build"]
        start = time.perf_counter()
        build_once(random.Random(1), 1000, counting)
        spent.append(time.perf_counter() - start)
        calls.append(counted["calls"])
    assert sorted(calls)[len(calls) // 2] <= 5
    assert max(calls) <= 20
    assert sorted(spent)[len(spent) // 2] < 0.005


# Ambiguity.


def asked_names(example: dict[str, Any], tree: Program) -> list[str]:
    """The keys that a question names, read from its words."""
    tail = re.split(r" of (?=the |[A-Za-z])", example["question"].rstrip("?."), maxsplit=1)[1]
    tail = tail.removesuffix(". What is it").removesuffix(". What are they")
    return [name.removeprefix("the ") for name in tail.split(" and ")]


def entries_of(text: str, tree: Program) -> list[str]:
    """The lines, or the sentences of prose."""
    prose = tree.entry.form in ("sentence", "reminder", "possession")
    return re.split(r"\n|(?<=\.) " if prose else r"\n", text)


def test_the_asked_entry_is_the_only_one() -> None:
    seen: Counter[str] = Counter()
    for candidate in search(3, 250):
        tree = recover(candidate.source)
        assert tree is not None
        outdated = tree.entry.status.split("/")[1]
        for seed in (1, 2):
            example = build(candidate.source, seed)
            context = example["context"]
            seen[tree.ask.direction] += 1
            for answer in listed(example["answer"]):
                expected = 1
                if tree.ask.direction == "key":  # its outdated entries name it too
                    expected += sum(
                        mentions(answer, part) > 0 and mentions(outdated, part) > 0
                        for part in entries_of(context, tree)
                        if tree.entry.stale
                    )
                assert mentions(answer, context) == expected, candidate.source
            if tree.ask.direction == "key":
                (value,) = re.findall(r"goes with the (.+?)(?:[.?]|$)", example["question"])
                value = value.split(" ", 1)[1]
                assert any(
                    mentions(example["answer"], passage) and value.split()[-1] in passage
                    for passage in example["evidence"]
                )
                continue
            rest = context
            for passage in example["evidence"]:
                rest = rest.replace(passage, "", 1)
            for name in asked_names(example, tree):
                assert any(mentions(name, passage) for passage in example["evidence"])
                parts = [part for part in entries_of(rest, tree) if mentions(name, part)]
                left = sum(mentions(name, part) for part in parts)
                assert left <= tree.entry.stale, candidate.source
                assert all(mentions(outdated, part) for part in parts)
    assert seen["key"] > 20
    assert seen["value"] > 100


# Never repeating, reproducible.


def test_never_repeats_over_five_hundred_proposals() -> None:
    found = search(3, 500)
    assert len({candidate.key for candidate in found}) == 500
    trees = [recover(candidate.source) for candidate in found]
    assert None not in trees
    assert len({space.identity(tree) for tree in trees if tree is not None}) == 500


def test_same_seed_same_bytes_and_another_seed_differs() -> None:
    first, second, other = search(7, 60), search(7, 60), search(8, 60)
    assert [dict(c.files) for c in first] == [dict(c.files) for c in second]
    assert [c.note for c in first] == [c.note for c in second]
    assert first[0].key != other[0].key
    assert len({c.key for c in first} & {c.key for c in other}) == 0


def test_does_not_repeat_what_others_evaluated() -> None:
    mine = search(9, 20)
    grammar = ProbeGrammar(9)
    history = tuple(Evaluated(candidate, feedback(0.1)) for candidate in mine)
    for index in range(20):
        candidate = grammar.propose(Request(make_task(), index, None, history)).candidate
        assert candidate.key not in {known.key for known in mine}


def test_is_a_proposer() -> None:
    grammar = ProbeGrammar(0)
    assert isinstance(grammar, Proposer)
    assert grammar.name == "grammar"
    for words in ("ledger", "dialogue", "outdated", "reference", "prior"):
        assert words in SPACE


# Trees.


def test_every_program_is_recovered_from_its_source_and_not_when_edited() -> None:
    for candidate in search(3, 60):
        tree = recover(candidate.source)
        assert tree is not None
        assert render(tree) == candidate.source
        assert space.normalise(tree) == tree
        assert recover(candidate.source + "# a remark\n") is None
        assert recover(candidate.source.replace("import random", "import random  # r")) is None


@pytest.mark.parametrize(
    "note", ["x", "=", "entry.form=nothing", "count=a", "count=10**9", "value.alike=2"]
)
def test_a_broken_note_recovers_nothing(note: str) -> None:
    assert recover(f'"""T."""\n\n# Construction: {note}\n\nimport random\n') is None


def test_normalise_is_idempotent_over_the_raw_space() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        tree = Program(
            value=space.Value(
                rng.choice(space.VALUE_KINDS), rng.choice(space.VALUE_SIZES), rng.random() < 0.5
            ),
            key=rng.choice(space.KEY_KINDS),
            entry=space.Entry(
                rng.choice(space.FORMS),
                rng.choice((1, 2, 3)),
                rng.choice((0, 1, 2)),
                rng.choice(space.STATUSES),
            ),
            count=rng.choice(space.COUNTS),
            hops=rng.choice((1, 2, 3)),
            filler=space.Filler(rng.choice(space.FILLERS), rng.choice(space.FILLER_SENTENCES)),
            placement=space.Placement(rng.choice(space.SPOTS), rng.choice(space.OTHERS)),
            ask=space.Ask(
                rng.choice(space.QUESTIONS),
                rng.choice(space.PREFIXES),
                rng.choice(space.DIRECTIONS),
                rng.choice((1, 2, 3)),
            ),
            attribute=rng.randrange(4),
            words=rng.randrange(100),
        )
        once = space.normalise(tree)
        assert space.normalise(once) == once
        assert space.answer_tokens(once) <= 14


def test_fresh_programs_reach_every_option() -> None:
    grammar = ProbeGrammar(2)
    seen: dict[str, set[str]] = {}
    for index in range(600):
        candidate = grammar.propose(Request(make_task(), index, None, ())).candidate
        tree = recover(candidate.source)
        assert tree is not None
        for slot, option in grammar.features(tree).items():
            seen.setdefault(slot, set()).add(option)
    assert seen["form"] == set(space.FORMS)
    assert seen["filler"] == set(space.FILLERS)
    assert seen["value"] == set(space.VALUE_KINDS)
    assert seen["key"] == set(space.KEY_KINDS)
    assert seen["asked spot"] == set(space.SPOTS)
    assert seen["other spots"] == set(space.OTHERS)
    assert seen["prefix"] == set(space.PREFIXES)
    assert seen["hops"] == {"1", "2", "3"}


# Readable.


def test_programs_are_short_and_formatted(tmp_path: Any) -> None:
    found = search(3, 60)
    lengths = sorted(len(candidate.source.splitlines()) for candidate in found)
    assert lengths[len(lengths) // 2] <= 90
    assert lengths[-1] <= 115
    for number, candidate in enumerate(found):
        assert max(map(len, candidate.source.splitlines())) <= 120
        (tmp_path / f"probe_{number}.py").write_text(candidate.source)
    ruff = shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    command = [ruff, "format", "--check", "--isolated", "--line-length", "100", str(tmp_path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
