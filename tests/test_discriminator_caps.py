"""Caps of the discriminator's search, each to the point."""

from __future__ import annotations

import time
from typing import Any

import pytest

import fake_domain as fake
from fake_domain import MemoryStore, World
from fake_programs import artifact, probe
from galoop.evaluation.paired import Meter
from galoop.proposers.protocol import Cost
from galoop.search.protocol import StopSearch
from galoop.types import Candidate
from search_tools import (
    BROKEN,
    searched,
)


def harmless(n: int) -> list[Candidate]:
    return [probe(2, salt=i) for i in range(n)]


def test_the_cap_of_candidates_is_exact() -> None:
    for cap in (1, 7):
        found = searched(harmless(20), config=fake.config(discriminator__max_candidates=cap))
        assert found.result.candidates == cap
        assert found.result.stopped_by == f"candidates: {cap} tried"
        assert len(found.store.events("candidate")) == cap


@pytest.mark.parametrize("cap", [3, 4, 23, 24, 25, 100])
def test_the_cap_of_evaluations_is_never_passed(cap: int) -> None:
    config = fake.config(discriminator__max_evaluations=cap)
    found = searched(harmless(20), config=config)
    assert found.result.evaluations <= cap
    assert sum(found.world.calls.values()) <= cap
    assert found.result.stopped_by.startswith("evaluations: ")
    assert found.result.evaluations == cap // 24 * 24 + (4 if cap % 24 >= 4 else 0)
    assert len(found.store.events("candidate")) == cap // 24


def test_the_cap_of_evaluations_holds_within_an_admission() -> None:
    found = searched([probe(0)], config=fake.config(discriminator__max_evaluations=24 + 30))
    assert found.result.found is None
    assert found.result.evaluations == 24 + 20
    assert found.result.stopped_by.startswith("evaluations: ")


def test_the_cap_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr("galoop.evaluation.paired.time.monotonic", lambda: now[0])
    world = World()

    def tick(number: int) -> None:
        now[0] += 1.0

    world.before = tick  # every evaluation takes a second
    config = fake.config(discriminator__max_seconds=40.0)
    found = searched(harmless(20), config=config, world=world)
    # 20 s a candidate: the second ends at 40 s, which is not over; the third begins and is cut.
    assert found.result.stopped_by == "time: 40 s are over"
    assert 40 <= sum(world.calls.values()) <= 48


@pytest.mark.parametrize(
    ("cost", "cap", "asked", "words"),
    [
        (0.25, 1.0, 4, "dollars: 1.00 of 1 spent"),
        (0.3, 1.0, 4, "dollars: 1.20 of 1 spent"),
        (0.0, 0.0, 20, "the list is over"),
        (0.1, 0.0, 1, "dollars: 0.10 of 0 spent"),
        (None, 1.0, 1, "the price of a proposal is not known"),
        (None, None, 20, "the list is over"),
    ],
)
def test_the_cap_of_dollars(cost: float | None, cap: float | None, asked: int, words: str) -> None:
    config = fake.config(discriminator__max_dollars=cap)
    found = searched(harmless(20), config=config, cost=Cost(cost, 100, 10, 1.5))
    assert words in found.result.stopped_by
    assert len(found.store.events("proposal")) == asked
    assert found.result.candidates == asked, "what was paid for is evaluated"
    paid = [s for s in found.store.spent if s.kind == "proposal"]
    assert len(paid) == asked
    assert {(s.dollars, s.input_tokens, s.output_tokens, s.who) for s in paid} == {
        (cost, 100, 10, "list")
    }


def test_a_resumed_search_pays_for_no_proposal_twice_and_stops_at_the_same_cap() -> None:
    config = fake.config(discriminator__max_dollars=1.0)
    first = searched(harmless(20), config=config, cost=Cost(0.25))
    again = searched(harmless(20), config=config, cost=Cost(0.0), store=first.store)
    assert again.result == first.result
    assert sum(s.dollars for s in first.store.spent) == 1.0
    assert not again.world.calls, "every answer was there already"


def test_patience() -> None:
    config = fake.config(discriminator__patience=5)
    found = searched(harmless(20), config=config)
    assert found.result.candidates == 5
    assert "patience" in found.result.stopped_by


def test_a_meter_counts_before_it_spends() -> None:
    meter = Meter(max_evaluations=10)
    meter.check(10)
    with pytest.raises(StopSearch, match="evaluations: 0 of 10 used"):
        meter.check(11)
    meter.evaluations = 10
    meter.check()
    with pytest.raises(StopSearch):
        meter.check(1)


def test_a_given_probe_begins_the_search(tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text(probe(0, salt=77).source)
    found = searched([], config=fake.config(discriminator__seed_probe=str(path)))
    assert found.result.found is not None
    assert found.result.found.candidate.key == probe(0, salt=77).key


def test_the_reference_answers_each_example_once_whatever_the_artifacts() -> None:
    store = MemoryStore()
    searched(harmless(5), BROKEN, store=store)
    world = World()
    searched(harmless(5), artifact(1.0, 1.0, 1.0), store=store, world=world)
    assert world.calls
    assert "reference" not in {system for system, _, _ in world.calls}
