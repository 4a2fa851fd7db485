"""The null cases: nothing to be found is not found, and luck is admitted no more than alpha."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy.stats import binom

import fake_domain as fake
from fake_domain import FakeSession, LineSearch, ListProposer, MemoryStore, World
from fake_programs import artifact, probe
from galoop.discriminator import Discovery, Discriminator
from galoop.evaluation.paired import PairedEvaluator
from galoop.loop import discover
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from galoop.types import Candidate


def test_against_identity_200_candidates_are_searched_and_nothing_is_admitted(
    world: World, fast_path: Path
) -> None:
    config = fake.config(artifact__start="identity", discriminator__max_candidates=200)
    found = discover(config, fast_path / "run", NullProgress())
    (search,) = found.searches
    assert search.candidates == 200
    assert search.stopped_by == "candidates: 200 tried"
    assert search.best == 0.0, "not even on the screen"
    assert search.attempts == ()
    assert found.slices == ()
    assert not search.admitted
    with RunStore.open(fast_path / "run") as store:
        states = Counter(e["payload"]["state"] for e in store.events("candidate"))
    assert sum(states.values()) == 200
    assert states["scored"] > 80, "valid probes were really compared"
    assert (fast_path / "run" / "report.md").read_text().count("B1") == 0


def search(seed: int, probes: Sequence[Candidate], against: Candidate) -> Discovery:
    """One search by the simplest engine, on a run of its own."""
    # A small margin on the screen: many attempts, which is what the level must bear.
    config = fake.config(
        seed=seed, discriminator__max_candidates=len(probes), admission__screen_margin=0.02
    )
    world = World(proposer=lambda kind, s: ListProposer(probes))
    session = FakeSession(config, world)
    evaluator = PairedEvaluator(session, MemoryStore(), 1, NullProgress())  # type: ignore[arg-type]
    made = Discriminator(config, session, evaluator, MemoryStore(), NullProgress(), 1)  # type: ignore[arg-type]
    return made.run(LineSearch(), session.artifact(against, "A0"), [])


def rate(searches: int, gap: float, hardness: float = 0.0, candidates: int = 12) -> tuple[int, int]:
    """How many of so many searches over probes of one true gap admit; and all attempts made."""
    skill = 1.0 - gap / (1.0 - hardness)
    admitted = attempts = 0
    for seed in range(searches):
        rng = random.Random(seed)
        probes = [probe(0, hardness, rng.randrange(2**40)) for _ in range(candidates)]
        found = search(seed, probes, artifact(skill, 1.0, 1.0))
        admitted += found.found is not None
        attempts += len(found.attempts)
    return admitted, attempts


def test_a_true_gap_of_exactly_tau_is_admitted_at_most_at_alpha() -> None:
    n = 25
    admitted, attempts = rate(n, 0.3)
    assert attempts > n, "or the level was not tested"
    assert admitted <= binom.ppf(0.999, n, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("gap", "hardness"), [(0.3, 0.0), (0.3, 0.1), (0.6, 0.2)])
def test_the_level_over_many_searches(gap: float, hardness: float) -> None:
    # (0.6, 0.2): the gap is large, and the reference's true score is exactly tau0.
    n = 400
    admitted, attempts = rate(n, gap, hardness, candidates=40)
    assert attempts > n / 4
    assert admitted <= binom.ppf(0.999, n, 0.05)


def test_a_large_true_gap_is_nearly_always_admitted() -> None:
    admitted, _ = rate(12, 0.7, candidates=8)
    assert admitted == 12
