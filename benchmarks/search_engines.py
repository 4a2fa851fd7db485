"""Search engines from the same start with the same budget: best gap by evaluations.

    python benchmarks/search_engines.py [--seeds 5] [--artifact snapkv] [--ratio 0.5]
    python benchmarks/search_engines.py --model stand-in      # arithmetic, seconds

Every engine looks for a break of one artifact with the same proposer, the same screening examples,
the same programs written from nothing first (``--fresh``), and the same cap of evaluations; of an
engine's own, only its choice of parents differs. Nothing is admitted, so that no search ends before
its budget. The gap of a screen is an estimate that the search has picked, so the best program of
each search is also measured on fresh examples that no search has seen; that figure is the result.
A gap below 0 counts as 0, and so does a search that found no program with a gap.

Engines are paired by seed. n is the number of seeds.

Everything goes to ``--out``. A finished search (one engine, one seed) is a file there and is not
repeated; a killed one starts over from its seed, and every answer that was computed is handed back.
What a search is charged does not change: its evaluations count as asked for. Several processes may
share a folder as long as no two have a seed in common (``--first-seed``); ``--table`` runs nothing
and shows what is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from search_results import Searched, same_start, summary, table

from galoop.config import ExperimentConfig
from galoop.discriminator import Discriminator
from galoop.evaluation.admission import admission_seeds
from galoop.evaluation.paired import PairedEvaluator
from galoop.plugins import load
from galoop.report.progress import NullProgress
from galoop.search.factory import make
from galoop.store.run import RunStore
from galoop.types import Candidate, Example, Feedback, Outcome, State

ENGINES = ("gepa", "openevolve", "islands")
#: Options that decide a search's result; all of a folder's searches have the same.
SETTINGS = (
    "model",
    "dtype",
    "threads",
    "evaluations",
    "fresh",
    "screen",
    "confirm",
    "length",
    "artifact",
    "ratio",
)
SAY_SECONDS = 20.0


class Recorded(Discriminator):
    """A discriminator that admits nothing and keeps what each evaluation brought."""

    def follow(self, searched: Searched, say: Callable[[], None]) -> None:
        """Keep the record in ``searched``; ``say`` is called after each program."""
        self.searched, self.say, self.best = searched, say, None

    best: Candidate | None

    def _evaluate(self, candidate: Candidate) -> Feedback:
        before = self.result.best
        feedback = super()._evaluate(candidate)
        self.searched.first.append(candidate.key)
        self.searched.curve.append((self._meter.evaluations, self.result.best))
        if self.result.best > before:
            self.best = candidate
        self.say()
        return feedback

    def _try_to_admit(self, candidate: Candidate, feedback: Feedback) -> None:
        pass

    def _try_refined(self, candidates: Sequence[Any]) -> None:
        pass


class Remembering:
    """A session that computes no answer twice, in whatever process.

    Parameters
    ----------
    session : DomainSession
    answers : RunStore
        Where the answers are kept.
    """

    def __init__(self, session: Any, answers: RunStore) -> None:
        self._session = session
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(
        self, systems: Sequence[Any], examples: Sequence[Example], repeat: int
    ) -> Iterator[list[tuple[Any, Example, Outcome]]]:
        """See :class:`galoop.domains.protocol.DomainSession`."""
        asked = [(e.key, repeat) for e in examples]
        known = {s.key: self._answers.outcomes(s.key, asked) for s in systems}
        # Systems that lack the same answers go together: they share a prefill.
        groups: dict[tuple[str, ...], list[Any]] = {}
        for system in systems:
            lacking = tuple(k for k, r in asked if (k, r) not in known[system.key])
            groups.setdefault(lacking, []).append(system)
        for keys, group in groups.items():
            new = [e for e in examples if e.key in set(keys)]
            for rows in self._session.run(group, new, repeat) if new else ():
                self._answers.record([(s.key, e.key, repeat, o) for s, e, o in rows], [])
                for system, example, outcome in rows:
                    known[system.key][example.key, repeat] = outcome
        for example in examples:
            named = [(s, known[s.key].get((example.key, repeat))) for s in systems]
            yield [(s, example, o) for s, o in named if o is not None]


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
    spoke = [0.0]

    def say() -> None:
        if time.monotonic() - spoke[0] < SAY_SECONDS:
            return
        spoke[0] = time.monotonic()
        used, best = searched.curve[-1]
        cap = config.discriminator.max_evaluations
        tell(f"{used} of {cap} evaluations, {len(searched.first)} programs, best gap {best:.2f}")

    def tell(words: str) -> None:
        print(f"seed {seed}, {engine}: {words}", file=sys.stderr, flush=True)

    with (
        tempfile.TemporaryDirectory(prefix="search-engines-") as folder,
        RunStore.create_or_open(Path(folder) / "run", {"benchmark": "search-engines"}) as store,
    ):
        evaluator = PairedEvaluator(session, store, 1, NullProgress())
        discriminator = Recorded(config, session, evaluator, store, NullProgress(), 1)
        discriminator.follow(searched, say)
        artifact = session.artifact(session.start_artifact(), "A0")
        found = discriminator.run(make(engine, config), artifact, [])
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
    tell(
        f"{searched.candidates} programs, {searched.evaluations} evaluations, gap "
        f"{searched.screened:.2f} on the screen, {searched.found:.2f} on fresh examples; "
        f"{searched.stopped_by}"
    )
    return searched


def run(args: argparse.Namespace) -> None:
    """Every search that is not there yet."""
    settings = {name: getattr(args, name) for name in SETTINGS}
    session: Any = None
    try:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            missing = [e for e in args.engines.split(",") if not place(args.out, seed, e).exists()]
            if not missing:
                continue
            config = configure(args, seed)
            # The model and its artifact do not depend on the seed.
            session = session or open_session(args, config)
            about = {
                k: session.describe()[k] for k in ("model", "dtype", "fingerprint", "versions")
            }
            manifest = {"settings": settings, "seed": seed, **about}
            folder = args.out / f"seed-{seed}" / "answers"
            with RunStore.create_or_open(folder, manifest) as answers:
                for engine in missing:
                    found = search(
                        engine, seed, config, Remembering(session, answers), args.confirm
                    )
                    data = {"manifest": manifest, **asdict(found)}
                    write(place(args.out, seed, engine), json.dumps(data) + "\n")
    finally:
        if session is not None:
            session.close()


def place(out: Path, seed: int, engine: str) -> Path:
    """Where a finished search is kept."""
    return out / f"seed-{seed}" / f"{engine}.json"


def write(path: Path, text: str) -> None:
    """Write a file, wholly or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def gather(args: argparse.Namespace) -> dict[str, Any]:
    """What there is of the searches that were asked for.

    Only seeds that every engine has finished are compared: engines are paired by seed.
    """
    engines = args.engines.split(",")
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    whole = [s for s in seeds if all(place(args.out, s, e).exists() for e in engines)]
    rows = [json.loads(place(args.out, s, e).read_text()) for s in whole for e in engines]
    if not rows:
        raise SystemExit(f"{args.out}: no seed has been finished by every engine yet")
    manifests = [row.pop("manifest") for row in rows]
    settings = manifests[0]["settings"]
    for manifest in manifests:
        if {**manifest, "seed": 0} != {**manifests[0], "seed": 0}:
            raise SystemExit(
                f"{args.out}: holds searches with other settings; choose another --out"
            )
    found = [Searched(**row) for row in rows]
    tau = configure(args, 0).criterion.tau
    return {
        **settings,
        "model": manifests[0]["model"],
        "dtype": manifests[0]["dtype"],
        "tau": tau,
        "n": len(whole),
        "seeds": whole,
        "same_start": same_start(found, settings["fresh"]),
        "engines": [summary(e, engines[0], found, settings["evaluations"], tau) for e in engines],
        "searches": [asdict(one) for one in found],
    }


def parser() -> argparse.ArgumentParser:
    """The command line."""
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
    parser.add_argument("--artifact", default="compactor", help="a name, expression or folder")
    parser.add_argument("--ratio", type=float, default=0.75, help="compression ratio")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/search-engines"), help="results, answers, table"
    )
    parser.add_argument("--table", action="store_true", help="run nothing; show what is there")
    return parser


def main() -> int:
    args = parser().parse_args()
    if not args.table:
        run(args)
    result = gather(args)
    write(args.out / "result.json", json.dumps(result) + "\n")
    write(args.out / "table.md", table(result))
    print(json.dumps(result) if args.json else table(result), end="")
    return 0 if result["same_start"] else 1


if __name__ == "__main__":
    sys.exit(main())
