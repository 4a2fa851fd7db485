"""A domain without a model: whole loops in well under a second, and the truth in closed form.

An example carries two uniform draws, ``v`` and ``u``. The reference solves it iff v < 1 - hardness;
an artifact solves it iff the reference does and u < skill[topic]. So for a probe on topic t the
reference scores 1 - hardness and the gap is (1 - hardness) (1 - skill[t]). An artifact of skill 1
everywhere is the reference itself.

:func:`install` makes it known as the domain, suite and proposer ``fake`` through the door that
plugins use.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fake_programs import TOPICS, artifact, artifact_spec, draw, probe, probe_spec, solves
from galoop import plugins
from galoop.config import ExperimentConfig
from galoop.errors import UsageError
from galoop.hashing import content_hash, derive_seed
from galoop.proposers.protocol import Cost, Proposal, Request, Seat, Task
from galoop.search.protocol import Problem, StopSearch
from galoop.store.ledger import Totals, total
from galoop.types import Candidate, Example, Outcome, State

CHUNK = 4
WINDOW = 512
#: Start artifacts by name.
SKILLS: dict[str, tuple[float, ...]] = {
    "identity": (1.0, 1.0, 1.0),
    "weak": (0.2, 0.95, 0.4),
    "edge": (0.7, 0.7, 0.7),
}
#: Suite components: topic and hardness. The reference fails on ``hopeless``.
COMPONENTS = {"easy": (1, 0.0), "mid": (1, 0.2), "hopeless": (1, 0.9)}


# -- the domain ----------------------------------------------------------------------------


@dataclass
class World:
    """What a test wants to know and to change.

    Attributes
    ----------
    calls : Counter
        (system, example, repeat) -> how often it was evaluated.
    before : callable
        Called with the running number of an evaluation before it happens; may raise.
    log : Path or None
        One line is appended for each evaluation (for children that are killed).
    proposer : callable or None
        (kind, seed) -> Proposer, in place of the random one.
    """

    calls: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    before: Callable[[int], None] = lambda number: None
    log: Path | None = None
    proposer: Callable[[str, int], Any] | None = None
    opened: int = 0
    built: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def evaluated(self, system: str, example: str, repeat: int) -> None:
        self.before(sum(self.calls.values()) + 1)
        self.calls[system, example, repeat] += 1
        if self.log is not None:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(f"{system} {example} {repeat}\n")


@dataclass(frozen=True)
class FakeSystem:
    key: str
    name: str
    candidate: Candidate | None = None


@dataclass(frozen=True)
class Built:
    examples: tuple[Example, ...]
    rejected: str = ""
    state: State = State.SCORED
    code: str = ""


class FakeSession:
    """See :class:`galoop.domains.protocol.DomainSession`."""

    def __init__(self, config: ExperimentConfig, world: World) -> None:
        self.config = config
        self.world = world
        self.model_seconds = 0.0
        self.closed = False

    def probe_task(self, frozen: Sequence[str]) -> Task:
        length = self.config.discriminator.length
        if length > WINDOW:
            raise UsageError(f"a context of {length} tokens does not fit the window of {WINDOW}")
        return Task("probe", "fake", "break it", "", "", length, {}, tuple(frozen))

    def artifact_task(self) -> Task:
        return Task("artifact", "fake", "repair it", "", "")

    def build_probe(self, source: str, seeds: Sequence[int]) -> Built:
        self.world.built.append((source, tuple(seeds)))
        try:
            spec = probe_spec(source)
        except (IndexError, SyntaxError, ValueError) as error:
            return Built((), f"syntax: {error}", State.INVALID, "syntax")
        first = len({s for src, s in self.world.built if src == source}) == 1
        if spec["does"] == "stale" and not first:
            return Built((), "answer is not in the context", State.INVALID, "answer-missing")
        if spec["does"] == "invalid":
            return Built((), "answer is not in the context", State.INVALID, "answer-missing")
        if spec["does"] == "failed":
            return Built((), "ran over its time", State.FAILED, "timeout")
        return Built(
            tuple(draw(spec["topic"], spec["hardness"], spec["salt"], seed) for seed in seeds)
        )

    def reference(self) -> FakeSystem:
        return FakeSystem("reference", "reference")

    def start_artifact(self) -> Candidate:
        name = self.config.artifact.start
        if name not in SKILLS:
            raise UsageError(f"unknown artifact {name!r}; there are: {', '.join(SKILLS)}")
        return artifact(*SKILLS[name])

    def artifact(self, candidate: Candidate, name: str, *, trusted: bool = False) -> FakeSystem:
        return FakeSystem(content_hash(["fake", candidate.key]), name, candidate)

    def named_artifact(self, name: str, budget: Mapping[str, float] | None = None) -> FakeSystem:
        if name not in SKILLS:
            raise UsageError(f"there is no artifact {name!r}; there are: {', '.join(SKILLS)}")
        return self.artifact(artifact(*SKILLS[name]), name)

    def run(
        self, systems: Sequence[FakeSystem], examples: Sequence[Example], repeat: int
    ) -> Iterator[list[tuple[FakeSystem, Example, Outcome]]]:
        out: set[str] = set()
        for start in range(0, len(examples), CHUNK):
            rows = []
            for system in systems:
                if system.key in out:
                    continue
                for example in examples[start : start + CHUNK]:
                    self.world.evaluated(system.key, example.key, repeat)
                    rows.append((system, example, self._answer(system, example, repeat)))
            out |= {s.key for s, _, o in rows if o.state is not State.SCORED}
            self.model_seconds += 0.001 * len(rows)
            if rows:
                yield rows

    def _answer(self, system: FakeSystem, example: Example, repeat: int) -> Outcome:
        if system.candidate is None:
            right = solves(None, example)
            return Outcome(State.SCORED, "yes" if right else "no", float(right))
        spec = artifact_spec(system.candidate)
        if spec["does"] == "invalid":
            return Outcome(State.INVALID, reason="over budget: kept 0.9 of 0.25")
        if spec["does"] == "failed":
            return Outcome(State.FAILED, reason="crashed: ZeroDivisionError")
        if spec["does"] == "late" and float(example.context.split()[3]) > 0.7:
            return Outcome(State.FAILED, reason="crashed: on this one")
        right = solves(spec["skills"], example)
        if spec["does"] == "noisy":
            right = right and random.Random(derive_seed(example.key, repeat)).random() < 0.8
        measured = {"kept_fraction": 0.25, "kept_bytes": 100.0}
        return Outcome(State.SCORED, "yes" if right else "no", float(right), "", measured)

    def suite_examples(self, suite: str, component: str, n: int, seed: int) -> list[Example]:
        if self.config.gate.length > WINDOW:
            raise UsageError(f"gate.length = {self.config.gate.length} exceeds the window")
        if self.config.gate.length < 64:
            raise UsageError(f"{component} cannot be built within {self.config.gate.length} tokens")
        topic, hardness = COMPONENTS[component]
        return [draw(topic, hardness, component, seed, i) for i in range(n)]

    def proposer(self, name: str, seat: Seat) -> Any:
        if self.world.proposer is not None:
            return self.world.proposer(seat.kind, seat.seed)
        return plugins.load("proposers", name)(seat)

    def describe(self) -> Mapping[str, Any]:
        return {
            "model": "fake",
            "dtype": "none",
            "fingerprint": "f" * 64,
            "isolation": "plain",
            "versions": {"fake": "1"},
        }

    def close(self) -> None:
        self.closed = True


class RandomProposer:
    """Random programs; artifacts are random changes of the parent."""

    name = "fake"
    replayable = True

    def __init__(self, kind: str, seed: int, cost: Cost | None = None) -> None:
        self._kind = kind
        self._rng = random.Random(seed)
        self._cost = cost or Cost()
        self.requests: list[Request] = []

    def propose(self, request: Request) -> Proposal:
        self.requests.append(request)
        rng = self._rng
        if self._kind == "probe":
            does = rng.choice(["", "", "", "", "invalid", "failed"])
            made = probe(
                rng.randrange(TOPICS),
                round(rng.choice([0.0, 0.0, 0.05, 0.4, 0.6]), 2),
                rng.randrange(10**6),
                does,
            )
        else:
            skills = [0.4] * TOPICS
            if request.parent is not None:
                skills = artifact_spec(request.parent.candidate)["skills"]
            skills = [
                round(min(1.0, max(0.0, s + rng.choice([-0.2, 0.0, 0.3]))), 2) for s in skills
            ]
            does = rng.choice(["", "", "", "", "", "invalid", "failed", "late"])
            made = artifact(*skills, does=does, salt=rng.randrange(10**6))
        return Proposal(made, self._cost)


class ListProposer:
    """Proposes given candidates in order, then says that the search is over."""

    name = "list"
    replayable = True

    def __init__(self, candidates: Sequence[Candidate], cost: Cost | None = None) -> None:
        self._candidates = list(candidates)
        self._cost = cost or Cost()
        self.requests: list[Request] = []

    def propose(self, request: Request) -> Proposal:
        self.requests.append(request)
        if len(self.requests) > len(self._candidates):
            raise StopSearch("the list is over")
        return Proposal(self._candidates[len(self.requests) - 1], self._cost)


class LineSearch:
    """The simplest search: one proposal after another, from the start candidate."""

    name = "line"

    def run(self, problem: Problem) -> str:
        try:
            for candidate in problem.start:
                problem.evaluate(candidate)
            index = 0
            while True:
                request = Request(problem.task, index, None, ())
                made = problem.proposer.propose(request).candidate
                assert made is not None
                problem.evaluate(made)
                index += 1
        except StopSearch as stop:
            return stop.reason


class FakeSuite:
    """A suite of the fake domain."""

    name = "fake"

    def components(self) -> tuple[str, ...]:
        return tuple(COMPONENTS)


@dataclass(frozen=True)
class Point:
    """What :mod:`galoop.plugins` needs of an entry point."""

    name: str
    thing: Any
    dist: None = None

    @property
    def value(self) -> str:
        return f"fake_domain:{self.name}"

    def load(self) -> Any:
        return self.thing


def points(world: World) -> dict[str, list[Point]]:
    class FakeDomain:
        """Arithmetic in the place of a model."""

        name = "fake"
        budget_keys: ClassVar = {"compression_ratio": 0.75}
        null_budget: ClassVar = {"compression_ratio": 0.0}
        defaults: ClassVar = {}

        def open(self, config: ExperimentConfig, say: Callable[[str], None]) -> FakeSession:
            world.opened += 1
            session = FakeSession(config, world)
            session.start_artifact()
            return session

    def proposer(seat: Seat) -> RandomProposer:
        """Random programs."""
        return RandomProposer(seat.kind, seat.seed)

    return {
        "domains": [Point("fake", FakeDomain)],
        "suites": [Point("fake", FakeSuite)],
        "proposers": [Point("fake", proposer)],
        "searches": [Point("line", LineSearch)],
    }


def install(world: World, setattr_: Callable[[Any, str, Any], None] = setattr) -> World:
    """Add the fake parts beside the installed ones; give ``monkeypatch.setattr`` in tests."""
    real, more = plugins._points, points(world)
    setattr_(plugins, "_points", lambda group: [*real(group), *more.get(group, [])])
    return world


# -- configuration, a store in memory ------------------------------------------------------


def config(**changes: Any) -> ExperimentConfig:
    """A small experiment on the fake domain; ``discriminator__length=…`` changes a key."""
    data: dict[str, Any] = {
        "name": "fake",
        "domain": "fake",
        "artifact": {"start": "weak"},
        "discriminator": {"proposer": "fake", "fresh": 0, "max_candidates": 30},
        "generator": {"proposer": "fake", "fresh": 0, "max_candidates": 40},
        "gate": {
            "suites": ("fake",),
            "components": (),
            "examples": 40,
            "most_examples": 40,
            "look": 0,
            "delta": 0.1,
        },
    }
    for key, value in changes.items():
        section, _, name = key.rpartition("__")
        (data.setdefault(section, {}) if section else data)[name] = value
    return ExperimentConfig.model_validate(data)


class MemoryStore:
    """The methods of the run store that the searches use, in memory; refuses a second record."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], Outcome] = {}
        self.log: dict[str, tuple[str, dict[str, Any]]] = {}
        self.spent: list[Any] = []
        self.objects: dict[str, bytes] = {}

    def outcomes(
        self, system: str, examples: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], Outcome]:
        return {(e, r): self.rows[system, e, r] for e, r in examples if (system, e, r) in self.rows}

    def record(self, rows: Sequence[tuple[str, str, int, Outcome]], spends: Sequence[Any]) -> None:
        for system, example, repeat, outcome in rows:
            assert (system, example, repeat) not in self.rows, "evaluated twice"
            self.rows[system, example, repeat] = outcome
        self.spent += spends

    def spend(self, *spends: Any) -> None:
        self.spent += spends

    def event(self, kind: str, payload: Mapping[str, Any], *, key: str) -> bool:
        new = key not in self.log
        self.log.setdefault(key, (kind, dict(payload)))
        return new

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [
            {"kind": k, "payload": p, "key": key}
            for key, (k, p) in self.log.items()
            if kind in (None, k)
        ]

    def transaction(self) -> AbstractContextManager[None]:
        return nullcontext()

    def put_object(self, data: bytes) -> str:
        digest = content_hash(data.decode("utf-8"))
        self.objects[digest] = data
        return digest

    def get_object(self, digest: str) -> bytes:
        return self.objects[digest]

    def total(self, stage: str) -> Totals:
        return total(spend for spend in self.spent if spend.stage == stage)

    def folder(self, stage: str) -> Path:
        return Path("no-such-folder") / stage


# -- a loop in a child process (to be killed) ----------------------------------------------

CHILD = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import fake_domain
from galoop.loop import run_loop
from galoop.report.progress import NullProgress

world = fake_domain.install(fake_domain.World(log=pathlib.Path(sys.argv[3])))
print("ready", flush=True)
run_loop(fake_domain.config(**eval(sys.argv[4])), pathlib.Path(sys.argv[2]), NullProgress())
print("done", flush=True)
"""
