"""Algorithm 1: discriminator and generator take turns over a benchmark that only grows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from galoop.benchmark import Slice, freeze, read_slice
from galoop.config import ExperimentConfig
from galoop.domains.protocol import DomainSession
from galoop.evaluation.paired import PairedEvaluator
from galoop.gate import check_confirmation, check_gate
from galoop.plugins import load
from galoop.proposers.factory import check
from galoop.replay import replay
from galoop.report.model import LoopResult
from galoop.report.progress import Message, Progress, StageStarted
from galoop.results import Standing, write_result
from galoop.stages import (
    Run,
    discover_stage,
    improve_stage,
    slice_folder,
    stored_slices,
    write_artifact,
)
from galoop.store.run import RunStore

__all__ = ["discover", "improve", "replay", "run_loop"]

logger = logging.getLogger(__name__)

#: Whose proposers a command asks.
_SEATS: Mapping[str, Sequence[Literal["discriminator", "generator"]]] = {
    "loop": ("discriminator", "generator"),
    "discover": ("discriminator",),
    "improve": ("generator",),
}


@contextmanager
def opened(
    config: ExperimentConfig,
    run_dir: Path,
    progress: Progress,
    command: str,
    extra: Mapping[str, Any] | None = None,
) -> Iterator[Run]:
    """The domain and the run store of one command.

    The manifest of the store holds the configuration and what the domain says the figures depend
    on; a run folder of anything else is refused.
    """
    check(config, _SEATS[command])
    progress.emit(StageStarted("prepare", 0, config.loop.rounds, "loading the model"))

    def say(text: str) -> None:
        progress.emit(Message(text))

    session: DomainSession = load("domains", config.domain)().open(config, say)
    try:
        facts = dict(session.describe())
        facts.pop("isolation", None)  # how candidates are confined does not change an answer
        if command != "discover":
            check_gate(config, session)
        manifest = {"command": command, **config.manifest(), **facts, **(extra or {})}
        with RunStore.create_or_open(run_dir, manifest) as store:
            store.write_text("experiment.toml", config.to_toml())
            start = session.start_artifact()
            write_artifact(store, "A0", start.files)
            evaluator = PairedEvaluator(session, store, config.evaluation.repeats, progress)
            yield Run(config, session, store, evaluator, progress, config.loop.rounds)
    finally:
        session.close()


def run_loop(config: ExperimentConfig, run_dir: Path, progress: Progress) -> LoopResult:
    """Run rounds of discriminator and generator, or go on with a run that was stopped.

    Parameters
    ----------
    config : ExperimentConfig
    run_dir : Path
        New, empty, or the folder of the same run.
    progress : Progress

    Returns
    -------
    LoopResult
        Also written as ``result.json``, ``report.md`` and ``report.html``.
    """
    left = config.admission.examples - config.generator.examples
    check_confirmation(config, [left] * min(config.loop.rounds, 2))
    with opened(config, run_dir, progress, "loop") as run:
        standing = Standing([("A0", run.session.start_artifact())])
        names: list[str] = []
        for round in range(1, config.loop.rounds + 1):
            current_name, current = standing.systems[-1]
            found = discover_stage(
                run, round, f"B{len(names) + 1}", current, current_name, stored_slices(run, names)
            )
            standing.add_discovery(found)
            if found.slice is None:
                standing.notes.append(
                    f"Round {round}: nothing that breaks {current_name} was admitted "
                    f"({found.search.stopped_by}); the loop ends here."
                )
                break
            names.append(found.slice.name)
            made = improve_stage(
                run,
                round,
                f"Gen-{round}",  # of its round, so that a refused one lends its name to no other
                current,
                current_name,
                stored_slices(run, names),
            )
            standing.add_improvement(made)
        return write_result(run, standing, stored_slices(run, names))


def discover(
    config: ExperimentConfig, run_dir: Path, progress: Progress, *, frozen: Sequence[Path] = ()
) -> LoopResult:
    """The discriminator alone: look for a slice that breaks ``artifact.start``.

    Parameters
    ----------
    frozen : sequence of Path
        Slice folders that a new probe should differ from.
    """
    known = [read_slice(path) for path in frozen]
    extra = {"frozen": [s.probe.key for s in known]}
    with opened(config, run_dir, progress, "discover", extra) as run:
        standing = Standing([("A0", run.session.start_artifact())])
        found = discover_stage(run, 1, "B1", run.session.start_artifact(), "A0", known)
        standing.add_discovery(found)
        names = [found.slice.name] if found.slice is not None else []
        return write_result(run, standing, stored_slices(run, names), suites=False)


def improve(
    config: ExperimentConfig, run_dir: Path, progress: Progress, *, slices: Sequence[Path]
) -> LoopResult:
    """The generator alone: look for an artifact that repairs given slices, oldest first."""
    given = [read_slice(path) for path in slices]
    given = [
        Slice(f"B{i}", s.probe, s.open, s.sealed, s.about) for i, s in enumerate(given, start=1)
    ]
    extra = {"slices": [s.about["sha256"] for s in given]}
    check_confirmation(config, [len(s.open) - config.generator.examples for s in given])
    with opened(config, run_dir, progress, "improve", extra) as run:
        for one in given:
            freeze(run.store, slice_folder(one.name), _plain(one))
        start = run.session.start_artifact()
        standing = Standing([("A0", start)])
        made = improve_stage(run, 1, "Gen-1", start, "A0", given)
        standing.add_improvement(made)
        return write_result(run, standing, given)


def _plain(one: Slice) -> Slice:
    """The slice without what :func:`freeze` writes itself."""
    own = {"schema", "name", "probe_key", "note", "sha256"}
    about = {k: v for k, v in one.about.items() if k not in own}
    return Slice(one.name, one.probe, one.open, one.sealed, about)
