"""Search engines from the same start with the same budget: best gap by evaluations.

    python benchmarks/search_engines.py [--json] [--seeds 5] [--evaluations 600]
    python benchmarks/search_engines.py --model stand-in      # arithmetic, seconds

Every engine looks for a break of one artifact with the same proposer, the same screening examples,
the same programs written from nothing first (``--fresh``), and the same cap of evaluations; of an
engine's own, only its choice of parents differs. Nothing is admitted, so that no search ends before
its budget. The gap of a screen is an estimate that the search has picked, so the best program of
each search is also measured on fresh examples that no search has seen; that figure is the result.

Engines are paired by seed. n is the number of seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from galoop.config import ExperimentConfig
from galoop.discriminator import Discriminator
from galoop.evaluation.admission import admission_seeds
from galoop.evaluation.paired import PairedEvaluator
from galoop.evaluation.statistics import mean_interval, paired_gap_interval
from galoop.plugins import load
from galoop.report.progress import NullProgress
from galoop.store.run import RunStore
from galoop.types import Candidate, Example, Feedback, Outcome, State

ENGINES = ("gepa", "openevolve", "islands")
STEPS = 4


@dataclass
class Searched:
    """One search: what it tried, what it used, what it found."""

    engine: str
    seed: int
    stopped_by: str = ""
    candidates: int = 0
    evaluations: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)  # evaluations, best gap so far
    first: list[str] = field(default_factory=list)  # keys of the first programs
    screened: float = 0.0
    confirmed: float | None = None
    reference: float | None = None

    def at(self, evaluations: int) -> float:
        """The best gap within so many evaluations."""
        return max((gap for used, gap in self.curve if used <= evaluations), default=0.0)


class Recorded(Discriminator):
    """A discriminator that admits nothing and keeps what each evaluation brought."""

    def follow(self, searched: Searched) -> None:
        """Keep the record in ``searched``."""
        self.searched, self.best = searched, None

    best: Candidate | None

    def _evaluate(self, candidate: Candidate) -> Feedback:
        before = self.result.best
        feedback = super()._evaluate(candidate)
        self.searched.first.append(candidate.key)
        self.searched.curve.append((self._meter.evaluations, self.result.best))
        if self.result.best > before:
            self.best = candidate
        return feedback

    def _try_to_admit(self, candidate: Candidate, feedback: Feedback) -> None:
        pass

    def _try_refined(self, candidates: Sequence[Any]) -> None:
        pass


class Remembering:
    """A session that computes no answer twice; what a search is charged does not change."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._known: dict[tuple[str, str, int], Outcome] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(
        self, systems: Sequence[Any], examples: Sequence[Example], repeat: int
    ) -> Iterator[list[tuple[Any, Example, Outcome]]]:
        """See :class:`galoop.domains.protocol.DomainSession`."""
        # Systems that lack the same answers go together: they share a prefill.
        groups: dict[tuple[str, ...], list[Any]] = {}
        for system in systems:
            lacking = (e.key for e in examples if (system.key, e.key, repeat) not in self._known)
            groups.setdefault(tuple(lacking), []).append(system)
        for keys, group in groups.items():
            new = [e for e in examples if e.key in set(keys)]
            for rows in self._session.run(group, new, repeat) if new else ():
                for system, example, outcome in rows:
                    self._known[system.key, example.key, repeat] = outcome
        for example in examples:
            named = [(s, (s.key, example.key, repeat)) for s in systems]
            yield [(s, example, self._known[k]) for s, k in named if k in self._known]


def configure(args: argparse.Namespace, seed: int) -> ExperimentConfig:
    """One experiment for every engine; only the name of the search is not in it."""
    return ExperimentConfig.model_validate(
        {
            "seed": seed,
            "model": {
                "name": "fast" if args.model == "stand-in" else args.model,
                "dtype": args.dtype,
                "threads": args.threads,
            },
            "artifact": {"start": args.artifact, "compression_ratio": args.ratio},
            "discriminator": {
                "length": args.length,
                "fresh": args.fresh,
                "screen_examples": args.screen,
                "max_candidates": 10**6,
                "max_evaluations": args.evaluations,
            },
        }
    )


def open_session(args: argparse.Namespace, config: ExperimentConfig) -> Any:
    if args.model == "stand-in":
        from stand_in import StandIn

        return StandIn()
    return load("domains", config.domain)().open(config, lambda text: None)


def search(
    engine: str, seed: int, config: ExperimentConfig, session: Any, confirm: int
) -> Searched:
    searched = Searched(engine, seed)
    with (
        tempfile.TemporaryDirectory(prefix="search-engines-") as folder,
        RunStore.create_or_open(Path(folder) / "run", {"benchmark": "search-engines"}) as store,
    ):
        evaluator = PairedEvaluator(session, store, 1, NullProgress())
        discriminator = Recorded(config, session, evaluator, store, NullProgress(), 1)
        discriminator.follow(searched)
        artifact = session.artifact(session.start_artifact(), "A0")
        found = discriminator.run(load("searches", engine)(), artifact, [])
        searched.stopped_by = found.stopped_by
        searched.candidates, searched.evaluations = len(searched.first), found.evaluations
        searched.screened = found.best
        if discriminator.best is not None:
            seeds = admission_seeds("search-engines", discriminator.best.key, 1, confirm)
            built = session.build_probe(discriminator.best.source, seeds)
            if built.state is State.SCORED:
                systems = [session.reference(), artifact]
                ours, theirs = evaluator.evaluate(systems, built.examples, stage="confirm")
                if theirs.state is State.SCORED:
                    searched.reference = ours.accuracy
                    searched.confirmed = ours.accuracy - theirs.accuracy
    return searched


def run(args: argparse.Namespace) -> dict[str, Any]:
    engines = args.engines.split(",")
    found: list[Searched] = []
    session: Any = None
    try:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            config = configure(args, seed)
            # The model and its artifact do not depend on the seed.
            session = session or Remembering(open_session(args, config))
            for engine in engines:
                found.append(search(engine, seed, config, session, args.confirm))
                if not args.json:
                    one = found[-1]
                    print(
                        f"seed {seed}, {engine}: {one.candidates} programs, {one.evaluations} "
                        f"evaluations, gap {one.screened:.2f} on the screen, {one.stopped_by}",
                        file=sys.stderr,
                    )
        about = dict(session.describe())
    finally:
        if session is not None:
            session.close()
    return {
        "model": about["model"],
        "dtype": about["dtype"],
        "artifact": args.artifact,
        "compression_ratio": args.ratio,
        "length": args.length,
        "fresh": args.fresh,
        "evaluations": args.evaluations,
        "n": args.seeds,
        "confirm": args.confirm,
        "same_start": same_start(found, args.fresh),
        "engines": [summary(e, engines[0], found, args) for e in engines],
        "searches": [one.__dict__ for one in found],
    }


def same_start(found: Sequence[Searched], fresh: int) -> bool:
    """Whether the engines of each seed began with the same programs."""
    starts: dict[int, set[tuple[str, ...]]] = {}
    for one in found:
        starts.setdefault(one.seed, set()).add(tuple(one.first[:fresh]))
    return all(len(different) == 1 for different in starts.values())


def summary(
    engine: str, baseline: str, found: Sequence[Searched], args: argparse.Namespace
) -> dict[str, Any]:
    mine = [one for one in found if one.engine == engine]
    theirs = [one for one in found if one.engine == baseline]
    steps = [args.evaluations * (i + 1) // STEPS for i in range(STEPS)]
    confirmed = [one.confirmed or 0.0 for one in mine]
    told: dict[str, Any] = {
        "engine": engine,
        "n": len(mine),
        "programs": sum(one.candidates for one in mine) / len(mine),
        "best_gap": {str(step): interval([one.at(step) for one in mine]) for step in steps},
        "confirmed": interval(confirmed),
    }
    if engine != baseline:
        other = [one.confirmed or 0.0 for one in theirs]
        apart = paired_gap_interval([max(0.0, c) for c in confirmed], [max(0.0, c) for c in other])
        told["confirmed_against"] = {
            "engine": baseline,
            "estimate": apart.estimate,
            "low": apart.low,
            "high": apart.high,
            "n": apart.n,
        }
    return told


def interval(values: Sequence[float]) -> dict[str, Any]:
    made = mean_interval([min(1.0, max(0.0, v)) for v in values])
    return {"mean": made.estimate, "low": made.low, "high": made.high, "values": list(values)}


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['artifact']} at {result['compression_ratio']:g} on {result['model']} "
        f"({result['dtype']}), {result['length']} tokens; n = {result['n']} seeds, "
        f"{result['evaluations']} evaluations each, the first {result['fresh']} programs "
        + ("the same" if result["same_start"] else "NOT the same")
    )
    print("mean best gap on the screen after so many evaluations, then the gap of the best program")
    print(f"on {result['confirm']} fresh examples with its 95% interval over seeds")
    steps = list(result["engines"][0]["best_gap"])
    print(f"{'engine':<12}{'n':>3}{'programs':>10}" + "".join(f"{s:>8}" for s in steps) + "  fresh")
    for row in result["engines"]:
        means = "".join(f"{row['best_gap'][s]['mean']:>8.2f}" for s in steps)
        c = row["confirmed"]
        fresh = f"  {c['mean']:.2f} [{c['low']:.2f}, {c['high']:.2f}]"
        print(f"{row['engine']:<12}{row['n']:>3}{row['programs']:>10.1f}{means}{fresh}")
    for row in result["engines"]:
        if "confirmed_against" in row:
            a = row["confirmed_against"]
            print(
                f"{row['engine']} - {a['engine']}, fresh: {a['estimate']:+.2f} "
                f"[{a['low']:+.2f}, {a['high']:+.2f}], n = {a['n']}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", default="smollm2-135m", help="or `stand-in`: no model at all")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--engines", default=",".join(ENGINES), help="the first is the baseline")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=600, help="cap of one search")
    parser.add_argument("--fresh", type=int, default=8, help="programs written from nothing first")
    parser.add_argument("--screen", type=int, default=10, help="examples of one screen")
    parser.add_argument("--confirm", type=int, default=40, help="fresh examples of the best")
    parser.add_argument("--length", type=int, default=192, help="context tokens")
    parser.add_argument("--artifact", default="compactor")
    parser.add_argument("--ratio", type=float, default=0.75, help="compression ratio")
    args = parser.parse_args()
    result = run(args)
    if args.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if result["same_start"] else 1


if __name__ == "__main__":
    sys.exit(main())
