"""One search of a discriminator or a generator on the fake domain, and all that it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import fake_domain as fake
from fake_domain import FakeSession, LineSearch, ListProposer, MemoryStore, World
from fake_programs import artifact, artifact_spec
from galoop.config import ExperimentConfig
from galoop.discriminator import Discovery, Discriminator
from galoop.evaluation.paired import PairedEvaluator
from galoop.generator import Generator
from galoop.proposers.protocol import Cost
from galoop.report.progress import Event, NullProgress
from galoop.trial import Improvement, OpenSlice
from galoop.types import Candidate, Example

#: Loses topic 0 wholly, half of topic 1, nothing of topic 2.
BROKEN = artifact(0.0, 0.5, 1.0)
#: Solves a fifth of topic 0, all of topic 1 (the suites'), two fifths of topic 2.
PARENT = artifact(0.2, 1.0, 0.4)


GOOD = artifact(1.0, 1.0, 1.0)


def open_slice(name: str, topic: int, primary: int = 20, confirmation: int = 20) -> OpenSlice:
    """A slice on one topic."""
    examples = [fake.draw(topic, 0.0, name, i) for i in range(primary + confirmation)]
    return OpenSlice(name, tuple(examples[:primary]), tuple(examples[primary:]))


B1, B2 = open_slice("B1", 0), open_slice("B2", 2)


class Kept(NullProgress):
    """Keeps what was shown."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


@dataclass
class Searched:
    """One search over given probes, with all that it left."""

    result: Discovery
    world: World
    store: MemoryStore
    proposer: ListProposer
    discriminator: Discriminator
    progress: Kept = field(default_factory=Kept)


def searched(
    probes: Sequence[Candidate],
    against: Candidate = BROKEN,
    config: ExperimentConfig | None = None,
    *,
    store: Any = None,
    cost: Cost | None = None,
    frozen: Sequence[str] = (),
    world: World | None = None,
    proposer: Any = None,
) -> Searched:
    config = config or fake.config()
    world, progress = world or World(), Kept()
    store = MemoryStore() if store is None else store
    proposer = proposer or ListProposer(probes, cost)
    world.proposer = lambda kind, seed: proposer
    session = FakeSession(config, world)
    evaluator = PairedEvaluator(session, store, config.evaluation.repeats, progress)
    made = Discriminator(config, session, evaluator, store, progress, 1)
    system = session.artifact(against, "A0")
    result = made.run(LineSearch(), system, frozen)
    return Searched(result, world, store, proposer, made, progress)


@dataclass
class Improved:
    """One search over given artifacts, with all that it left."""

    result: Improvement
    world: World
    store: MemoryStore
    proposer: ListProposer
    session: FakeSession

    def key(self, candidate: Candidate) -> str:
        return self.session.artifact(candidate, "").key

    def asked(self, candidate: Candidate, examples: Sequence[Example]) -> int:
        """On how many of the examples a candidate was evaluated."""
        keys = {e.key for e in examples}
        return sum(s == self.key(candidate) and e in keys for s, e, _ in self.world.calls)

    def scores(self) -> dict[str, float]:
        events = self.store.events("candidate")
        return {e["payload"]["key"]: e["payload"]["score"] for e in events}


def improved(
    candidates: Sequence[Candidate],
    slices: Sequence[OpenSlice] = (B1,),
    parent: Candidate = PARENT,
    config: ExperimentConfig | None = None,
    *,
    start: Candidate | None = None,
    cost: Cost | None = None,
    search: Any = None,
    proposer: Any = None,
    store: Any = None,
) -> Improved:
    config = config or fake.config()
    world = World()
    store = MemoryStore() if store is None else store
    proposer = proposer or ListProposer(candidates, cost)
    world.proposer = lambda kind, seed: proposer
    session = FakeSession(config, world)
    evaluator = PairedEvaluator(session, store, 1, NullProgress())
    made = Generator(config, session, evaluator, store, NullProgress(), 1, slices)
    result = made.run(search or LineSearch(), parent, start or parent)
    return Improved(result, world, store, proposer, session)


def truth(candidate: Candidate, examples: Sequence[Example]) -> float:
    """The share of the examples that an artifact solves, in closed form."""
    skills = artifact_spec(candidate)["skills"]
    return sum(fake.solves(skills, e) for e in examples) / len(examples)


def weak(n: int) -> list[Candidate]:
    """Artifacts no better than the parent."""
    return [artifact(0.2, 1.0, 0.4, salt=i + 1) for i in range(n)]
