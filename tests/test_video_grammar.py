"""The grammar of prompts: what it writes is in the language, and it never repeats itself."""

from __future__ import annotations

import random
from typing import Any

import pytest

from galoop.domains.sparse_video.grammar import (
    MARK,
    OPEN,
    OpenScene,
    OpenThing,
    PromptGrammar,
    normalise,
    prompt_of,
    recover,
    source_of,
)
from galoop.domains.sparse_video.prompts import MOTIONS, ordinary_prompts, parse
from galoop.proposers.protocol import Evaluated, Proposer, Request, Task
from galoop.types import Candidate, Feedback, State

TASK = Task("probe", "sparse-video", "", "", "")


def run(source: str, seeds: int = 12) -> list[str]:
    """The prompts of a probe, in this process: the sources here are our own."""
    if "def prompt" not in source:
        return [source.strip()]
    names: dict[str, Any] = {}
    exec(source, names)
    return [names["prompt"](random.Random(seed)) for seed in range(seeds)]


def search(
    n: int, seed: int = 0, worth: Any = lambda prompts: 0.1, frozen: tuple[str, ...] = ()
) -> list[Candidate]:
    proposer = PromptGrammar(seed)
    task = Task("probe", "sparse-video", "", "", "", frozen=frozen)
    history: list[Evaluated] = []
    for index in range(n):
        parent = max(history, key=lambda e: e.feedback.score) if history and index % 4 else None
        candidate = proposer.propose(Request(task, index, parent, tuple(history))).candidate
        assert candidate is not None
        score = worth(run(candidate.source))
        history.append(Evaluated(candidate, Feedback(State.SCORED, score, {})))
    return [entry.candidate for entry in history]


@pytest.fixture(scope="module")
def proposals() -> list[Candidate]:
    return search(250)


def test_everything_that_is_proposed_is_in_the_language(proposals: list[Candidate]) -> None:
    for candidate in proposals:
        for prompt in run(candidate.source):
            assert str(parse(prompt)) == prompt


def test_nothing_is_proposed_twice(proposals: list[Candidate]) -> None:
    assert len({candidate.source for candidate in proposals}) == len(proposals)


def test_open_words_vary_and_fixed_ones_do_not() -> None:
    tree = normalise(
        OpenScene((OpenThing("red", motion="circling", size=""), OpenThing(shape="cross", count=2)))
    )
    scenes = [parse(prompt) for prompt in run(source_of(tree), 60)]
    assert {s.things[0].colour for s in scenes} == {"red"}
    assert {s.things[0].motion for s in scenes} == {"circling"}
    assert {s.things[0].size for s in scenes} == {""}
    assert {s.things[1].shape for s in scenes} == {"cross"}
    assert {s.things[1].count for s in scenes} == {2}
    assert {s.things[1].motion for s in scenes} == set(MOTIONS)
    assert len({s.things[1].colour for s in scenes}) == 5  # never red again


def test_all_words_open_and_all_words_fixed() -> None:
    everything = OpenScene((OpenThing(), OpenThing()), OPEN, OPEN, OPEN, ("behind a post",))
    prompts = run(source_of(everything), 40)
    assert len(set(prompts)) == 40
    assert all(parse(prompt).post for prompt in prompts)
    for prompt in ordinary_prompts(100, 5):
        tree = recover(prompt)
        assert tree is not None
        assert source_of(tree) == prompt_of(tree) + "\n" == prompt + "\n"


def test_trees_are_recovered_from_their_sources(proposals: list[Candidate]) -> None:
    for candidate in proposals[:80]:
        tree = recover(candidate.source)
        assert tree is not None
        assert source_of(tree) == candidate.source
    program = next(c.source for c in proposals if c.source.startswith(MARK))
    assert recover(program + "# touched\n") is None


@pytest.mark.parametrize(
    "source", ["", "hello", MARK, MARK + "{}", MARK + "[1]", MARK + '{"things": [3]}', "def x(): 1"]
)
def test_other_sources_have_no_tree(source: str) -> None:
    assert recover(source) is None


def test_same_seed_same_proposals_and_another_differs(proposals: list[Candidate]) -> None:
    sources = [candidate.source for candidate in proposals[:30]]
    assert [c.source for c in search(30)] == sources
    assert [c.source for c in search(30, seed=1)] != sources


def test_frozen_prompts_are_not_proposed_again(proposals: list[Candidate]) -> None:
    frozen = tuple(candidate.source for candidate in proposals[:10])
    assert not {c.source for c in search(60, frozen=frozen)} & set(frozen)


def test_a_search_finds_what_pays() -> None:
    """Prompts with a circling thing under a flickering light score; blind sampling is rarer."""

    def worth(prompts: list[str]) -> float:
        hits = ["circling" in prompt for prompt in prompts]
        lit = ["flickering" in prompt for prompt in prompts]
        return 0.05 + 0.45 * sum(hits) / len(hits) + 0.45 * sum(lit) / len(lit)

    late = [worth(run(c.source)) for c in search(160, worth=worth)[-40:]]
    blind = [worth(run(c.source)) for c in search(160)[-40:]]
    assert sum(late) > 1.5 * sum(blind)


def test_it_is_a_proposer_and_takes_any_parent() -> None:
    proposer = PromptGrammar(0)
    assert isinstance(proposer, Proposer)
    for index, text in enumerate(["nonsense", "def prompt(rng):\n    return 'x'\n"]):
        parent = Evaluated(Candidate("probe", {"probe.py": text}), Feedback(State.INVALID, 0, {}))
        found = proposer.propose(Request(TASK, index, parent, (parent,))).candidate
        assert found is not None
        assert found.source != text
