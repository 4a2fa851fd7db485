"""A domain that runs real probe programs and whose systems are a line of arithmetic each.

A context of words holds lines ``The code of KEY is N.``; the question names a KEY. The reference
reads the line. The artifact ``last`` answers with the last number of the context, so it fails
exactly where another number follows. Its budget ``compression_ratio`` is the share of the words, at
the start, that it does not see: below 0.3 it reads the right line if that lies beyond.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fake_domain import Built, Point
from galoop import plugins
from galoop.benchmark import Slice, freeze
from galoop.config import ExperimentConfig
from galoop.domains.text.scoring import occurs, score
from galoop.errors import ModelError, UsageError
from galoop.hashing import content_hash
from galoop.store.run import RunStore
from galoop.types import Candidate, Example, Outcome, State

PROBE = '''"""Asks for a code among other codes."""

import random

# Things that have codes.
THINGS = """
loquat poster slate twig cover spice stand upper hunt neck carbon sink bootee tour
""".split()
UNUSED = ["never", "read"]


def line(key: str, code: int) -> str:
    return f"The code of {key} is {code}."


def filler(rng: random.Random, n: int) -> list[str]:
    words = ["so", "it", "goes", "on"]
    return [rng.choice(words) for _ in range(n)]


def build(rng: random.Random, length: int, count_tokens) -> dict:
    keys = rng.sample(THINGS, 4)
    codes = rng.sample(range(1000, 9999), 4)
    lines = [line(k, c) for k, c in zip(keys, codes)]
    rest = length - count_tokens(" ".join(lines))
    words = filler(rng, rest)
    spare = sum(len(w) for w in words)
    if spare > 10:
        context = " ".join(words) + "\\n" + "\\n".join(lines)
    else:
        context = "\\n".join(lines)
    return {
        "context": context,
        "question": f"\\nPlease say: what is the code of {keys[0]}, if you would?",
        "answer": str(codes[0]),
        "evidence": [lines[0]],
    }
'''


@dataclass(frozen=True)
class ProgramSystem:
    key: str
    name: str
    candidate: Candidate | None = None
    ratio: float = 0.0


@dataclass
class ProgramWorld:
    """What tests look at and change."""

    evaluated: list[tuple[str, str]] = field(default_factory=list)
    built: int = 0
    before: Callable[[int], None] = lambda number: None


class ProgramSession:
    """See :class:`galoop.domains.protocol.DomainSession`; what is used here."""

    def __init__(self, config: ExperimentConfig, world: ProgramWorld) -> None:
        self.config = config
        self.world = world
        self.model_seconds = 0.0
        if config.model.name == "absent":
            raise ModelError("there is no model absent")

    def build_probe(self, source: str, seeds: Sequence[int]) -> Built:
        self.world.built += 1
        examples = []
        length = self.config.discriminator.length
        try:
            space: dict[str, Any] = {}
            exec(compile(source, "probe.py", "exec", dont_inherit=True), space)
            for seed in seeds:
                made = space["build"](random.Random(seed), length, lambda t: len(t.split()))
                examples.append(self._checked(made, seed, length))
        except Exception as error:  # noqa: BLE001 - whatever a program does
            return Built((), f"{type(error).__name__}: {error}", State.INVALID, "raised")
        if len({e.context for e in examples}) < len(examples):
            return Built((), "contexts repeat", State.INVALID, "repeated-context")
        return Built(tuple(examples))

    def _checked(self, made: dict[str, Any], seed: int, length: int) -> Example:
        if set(made) - {"context", "question", "answer", "answer_prefix", "evidence"}:
            raise ValueError("unknown key")
        words = len(made["context"].split())
        if not length // 2 <= words <= length:
            raise ValueError(f"{words} words")
        answer = made["answer"]
        if not occurs(answer, made["context"]) or occurs(answer, made["question"]):
            raise ValueError("answer missing or given away")
        evidence = tuple(made.get("evidence", ()))
        if any(passage not in made["context"] for passage in evidence):
            raise ValueError("evidence is not in the context")
        return Example(made["context"], made["question"], (answer,), "", evidence, seed)

    def reference(self) -> ProgramSystem:
        return ProgramSystem(content_hash("reference"), "reference")

    def start_artifact(self) -> Candidate:
        return Candidate("artifact", {"a": self.config.artifact.start})

    def named_artifact(self, name: str, budget: Mapping[str, float] | None = None) -> ProgramSystem:
        name = Path(name).name
        if name not in ("identity", "last", "blind", "broken"):
            raise UsageError(f"there is no artifact {name!r}")
        ratio = float((budget or {}).get("compression_ratio", 0.75))
        if name == "identity":
            ratio = 0.0
        made = Candidate("artifact", {"a": name})
        return ProgramSystem(content_hash([name, ratio]), name, made, ratio)

    def artifact(self, candidate: Candidate, name: str, *, trusted: bool = False) -> ProgramSystem:
        return self.named_artifact(candidate.files["a"])

    def run(
        self, systems: Sequence[ProgramSystem], examples: Sequence[Example], repeat: int
    ) -> Iterator[list[tuple[ProgramSystem, Example, Outcome]]]:
        for example in examples:
            if len(example.context.split()) > 400:
                raise UsageError("an example needs more tokens than the window of 400 holds")
        for example in examples:
            rows = []
            for system in systems:
                self.world.before(len(self.world.evaluated) + 1)
                self.world.evaluated.append((system.key, example.key))
                rows.append((system, example, self._answer(system, example)))
            yield rows

    def _answer(self, system: ProgramSystem, example: Example) -> Outcome:
        name = system.candidate.files["a"] if system.candidate else "reference"
        if name == "broken":
            return Outcome(State.FAILED, reason="crashed: on purpose")
        asked = re.search(r"code of (\w+)", example.question)
        lines = re.findall(r"code of (\w+) is (\d+)", example.context)
        text = dict(lines).get(asked[1], "") if asked else ""
        if name == "blind":
            text = ""
        if name == "last" and system.ratio >= 0.3:
            text = (re.findall(r"\d+", example.context) or [""])[-1]
        return Outcome(State.SCORED, text, score(text, example), "", {"kept": 1.0 - system.ratio})

    def describe(self) -> Mapping[str, Any]:
        return {"model": self.config.model.name, "dtype": "none", "fingerprint": "f",
                "isolation": "plain", "versions": {"fake": "1"}}  # fmt: skip

    def close(self) -> None: ...


def install(world: ProgramWorld, setattr_: Callable[[Any, str, Any], None]) -> ProgramWorld:
    """Add the domain ``programs`` through the door that plugins use."""

    class Programs:
        """Programs and arithmetic."""

        name = "programs"
        budget_keys: ClassVar = {"compression_ratio": 0.75}
        null_budget: ClassVar = {"compression_ratio": 0.0}
        defaults: ClassVar = {}

        def open(self, config: ExperimentConfig, say: Callable[[str], None]) -> ProgramSession:
            return ProgramSession(config, world)

    real = plugins._points
    more = {"domains": [Point("programs", Programs)]}
    setattr_(plugins, "_points", lambda group: [*real(group), *more.get(group, [])])
    return world


def write_slice(
    run: Path, name: str = "B1", source: str = PROBE, length: int = 60, **about: Any
) -> Path:
    """A slice folder of a run, frozen from a program."""
    config = ExperimentConfig.model_validate({"discriminator": {"length": length}})
    session = ProgramSession(config, ProgramWorld())
    built = session.build_probe(source, list(range(30)))
    assert not built.rejected, built.rejected
    told = {
        "domain": "programs",
        "length": length,
        "against": "A0",
        "artifact": "last",
        "model": "arithmetic",
        "dtype": "none",
        "budget": {"compression_ratio": 0.75},
        "criterion": {"tau0": 0.8, "tau": 0.4},
        "words": "Asks for a code.",
        **about,
    }
    frozen = Slice(
        name,
        Candidate("probe", {"probe.py": source}),
        built.examples[:20],
        built.examples[20:],
        told,
    )
    with RunStore.create_or_open(run, {"command": "test"}) as store:
        freeze(store, f"benchmark/{name}", frozen)
    return run / "benchmark" / name
