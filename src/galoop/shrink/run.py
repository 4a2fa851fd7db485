"""``gal shrink``: a slice's probe against what it was found against, made smaller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from galoop.across.slices import (
    Machine,
    Origin,
    check_length,
    experiment_of,
    opened,
    read_origin,
)
from galoop.benchmark import Slice, freeze
from galoop.evaluation.paired import PairedEvaluator
from galoop.report.model import AdmissionReport
from galoop.report.progress import Message, Progress, StageFinished, StageStarted
from galoop.report.shrunk import ShrunkReport, save_shrunk
from galoop.shrink.search import PROBE, Knobs, Shrinker, Shrunk
from galoop.shrink.size import size
from galoop.store.run import RunStore
from galoop.types import Candidate

SCHEMA = 1


@dataclass(frozen=True)
class Ask:
    """What is asked: against which artifact, at which length, with what to spend."""

    artifact: str | None = None
    length: int | None = None
    knobs: Knobs = field(default_factory=Knobs)
    keep: bool = True


def shrink(
    path: Path, ask: Ask, *, run_dir: Path, machine: Machine, progress: Progress
) -> ShrunkReport:
    """Shrink a slice's probe; go on where an earlier call of the same folder stopped.

    The run folder gets ``probe.py``, ``shrunk.json`` and, where something smaller was confirmed,
    the slice of it. ``ask.keep`` also puts it into the run that the slice came from, beside the
    original, which is not touched.

    Raises
    ------
    UsageError
        A slice that cannot be rebuilt, or does not meet its criterion here.
    """
    origin = read_origin(path, ask.length)

    def say(text: str) -> None:
        progress.emit(Message(text))

    check_length(origin, machine, say)
    name = ask.artifact or origin.artifact
    with opened(experiment_of(origin, machine), say) as session:
        system = session.named_artifact(name, origin.slice.budget_in(origin.domain))
        facts = dict(session.describe())
        facts.pop("isolation", None)
        knobs = ask.knobs
        about = {"system": system.key, **facts}
        with RunStore.create_or_open(run_dir, _manifest(origin, knobs, about)) as store:
            progress.emit(
                StageStarted(
                    "shrink",
                    0,
                    0,
                    f"{origin.slice.name} against {Path(name).name}",
                    knobs.max_candidates,
                    knobs.max_evaluations,
                )
            )
            evaluator = PairedEvaluator(session, store, 1, progress)
            shrinker = Shrinker(
                session, evaluator, store, progress, system, origin.criterion, knobs
            )
            made = shrinker.run(origin.slice.probe.source)
            report = _report(origin, Path(name).name, str(facts["model"]), made)
            store.write_text(PROBE, report.source)
            text = json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n"
            store.write_text("shrunk.json", text)
            if report.confirmed:
                _freeze(store, origin, made, name, system, facts)
            progress.emit(StageFinished("shrink", 0, report.words))
    run = path.resolve().parent.parent
    if ask.keep and report.confirmed and (run / "result.json").is_file():
        save_shrunk(run, report)
    return report


def _manifest(origin: Origin, knobs: Knobs, about: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be equal for a shrink to be gone on with: all but its caps."""
    return {
        "command": "shrink",
        "schema": SCHEMA,
        "probe": origin.slice.probe.key,
        "length": origin.length,
        "seed": knobs.seed,
        "examples": knobs.examples,
        "margin": knobs.margin,
        "fresh": [knobs.fresh, knobs.sealed, knobs.attempts, knobs.alpha],
        **about,
    }


def _report(origin: Origin, artifact: str, model: str, made: Shrunk) -> ShrunkReport:
    original = origin.slice.probe.source
    source, edits = original, tuple[str, ...]()
    if made.confirmed is not None:
        source = made.confirmed.source
        edits = tuple(s.edit for s in made.steps if s.number <= made.confirmed.number)
    return ShrunkReport(
        slice=origin.slice.name,
        probe_key=origin.slice.probe.key,
        artifact=artifact,
        model=model,
        original=original,
        source=source,
        before=size(original),
        after=size(source),
        edits=edits,
        tried=made.tried,
        evaluations=made.evaluations,
        stopped_by=made.stopped_by,
        attempts=tuple(map(AdmissionReport.of, made.verdicts)),
        confirmed=made.confirmed is not None,
    )


def _freeze(
    store: RunStore,
    origin: Origin,
    made: Shrunk,
    artifact: str,
    system: Any,
    facts: Mapping[str, Any],
) -> None:
    """The slice of the smaller program: examples of its own, evidence of its own."""
    assert made.confirmed is not None
    about = {
        "round": 0,
        "domain": origin.domain,
        "against": "A0",
        "words": str(origin.slice.about.get("words", "")),
        "length": origin.length,
        "artifact": artifact,
        "budget": origin.budget,
        "criterion": {"tau0": origin.criterion.tau0, "tau": origin.criterion.tau},
        "admission": made.verdicts[-1].to_json(),
        "system": system.key,
        "shrunk_from": origin.slice.probe.key,
        **facts,
    }
    probe = Candidate("probe", {PROBE: made.confirmed.source}, "shrunk")
    freeze(
        store,
        f"benchmark/{origin.slice.name}",
        Slice(origin.slice.name, probe, made.open, made.sealed, about),
    )
