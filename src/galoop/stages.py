"""The two stages of a round, each run once and remembered: discover and improve.

A finished stage is read back from the store. An unfinished one starts over: the same seed asks the
same proposer the same questions, and every outcome that is already in the store is free, so it
comes to where it was stopped and goes on.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from galoop.benchmark import Slice, freeze, read_slice
from galoop.config import ExperimentConfig
from galoop.discriminator import Discovery, Discriminator, Found
from galoop.domains.protocol import DomainSession
from galoop.evaluation.paired import PairedEvaluator
from galoop.evaluation.statistics import Interval
from galoop.generator import Generator
from galoop.report.model import (
    AdmissionReport,
    Cell,
    ComponentReport,
    GenerationReport,
    PrintedExample,
    Record,
    Rejection,
    SearchReport,
    SliceChange,
    SliceReport,
)
from galoop.report.progress import Progress, StageFinished, StageStarted
from galoop.search.factory import make
from galoop.store.run import RunStore
from galoop.trial import Improvement, OpenSlice, Trial
from galoop.types import Candidate


@dataclass
class Run:
    """What every stage works with.

    Attributes
    ----------
    rounds : int
        For the progress view.
    """

    config: ExperimentConfig
    session: DomainSession
    store: RunStore
    evaluator: PairedEvaluator
    progress: Progress
    rounds: int


@dataclass(frozen=True)
class DiscoverStage(Record):
    """What a discriminator stage left."""

    search: SearchReport
    rejections: tuple[Rejection, ...] = ()
    slice: SliceReport | None = None


@dataclass(frozen=True)
class ImproveStage(Record):
    """What a generator stage left."""

    search: SearchReport
    rejections: tuple[Rejection, ...] = ()
    generation: GenerationReport | None = None


def slice_folder(name: str) -> str:
    """Where a slice stands in its run folder."""
    return f"benchmark/{name}"


def discover_stage(
    run: Run,
    round: int,
    name: str,
    artifact: Candidate,
    artifact_name: str,
    frozen: Sequence[Slice],
) -> DiscoverStage:
    """Look for a probe that breaks ``artifact``; freeze it as slice ``name``."""
    key = f"round-{round}/discover"
    done = run.store.stage(key)
    if done is not None:
        return DiscoverStage.from_json(done)
    knobs = run.config.discriminator
    run.progress.emit(
        StageStarted(
            "discriminator",
            round,
            run.rounds,
            f"looking for what breaks {artifact_name}",
            knobs.max_candidates,
            knobs.max_evaluations,
        )
    )
    discriminator = Discriminator(
        run.config, run.session, run.evaluator, run.store, run.progress, round
    )
    system = run.session.artifact(artifact, artifact_name)
    found = discriminator.run(
        make(knobs.search, run.config), system, [s.probe.source for s in frozen]
    )
    report = None
    if found.found is not None:
        report = _freeze(run, round, name, artifact_name, system, found.found)
    stage = DiscoverStage(
        search=_discovery_report(run, round, artifact_name, found),
        rejections=_rejections(run, round, "discriminator", found.rejected),
        slice=report,
    )
    run.store.finish_stage(key, stage.to_json())
    run.progress.emit(StageFinished("discriminator", round, _discovery_words(name, found)))
    return DiscoverStage.from_json(_kept(run, key))


def _freeze(
    run: Run, round: int, name: str, against: str, system: Any, found: Found
) -> SliceReport:
    verdict = found.verdict
    about = {
        "round": round,
        "domain": run.config.domain,
        "against": against,
        "words": probe_words(found.candidate),
        "length": run.config.discriminator.length,
        "artifact": run.config.artifact.start if against == "A0" else against,
        "budget": run.config.artifact.budget,
        "criterion": {"tau0": run.config.criterion.tau0, "tau": run.config.criterion.tau},
        "admission": verdict.to_json(),
        "system": system.key,
        **run.session.describe(),
    }
    about.pop("isolation", None)
    frozen = Slice(name, found.candidate, found.open, found.sealed, about)
    freeze(run.store, slice_folder(name), frozen)
    return SliceReport(
        name=name,
        round=round,
        against=against,
        words=probe_words(found.candidate),
        source=found.candidate.source,
        probe_key=found.candidate.key,
        screening_gap=found.screening_gap,
        admission=AdmissionReport.of(verdict),
        example=_printed(run, system, found),
    )


def _printed(run: Run, system: Any, found: Found) -> PrintedExample:
    """An open example that the artifact lost, or the first one."""
    stage = "report"
    reference, artifact = run.evaluator.evaluate(
        [run.session.reference(), system], found.open, stage=stage
    )
    pairs = list(zip(found.open, reference.outcomes, artifact.outcomes, strict=True))
    lost = [p for p in pairs if (p[1][0].score or 0) > (p[2][0].score or 0)]
    example, ours, theirs = (lost or pairs)[0]
    return PrintedExample(
        context=example.context,
        question=example.question,
        gold=example.answers,
        evidence=example.evidence,
        seed=example.seed,
        reference=ours[0].answer,
        artifact=theirs[0].answer,
        answer_prefix=example.answer_prefix,
    )


def probe_words(candidate: Candidate) -> str:
    """What a probe does, in words: its docstring, else the note of who wrote it."""
    try:
        text = ast.get_docstring(ast.parse(candidate.source)) or candidate.note
    except SyntaxError:
        text = candidate.note
    return " ".join(text.split())


def improve_stage(
    run: Run,
    round: int,
    name: str,
    parent: Candidate,
    parent_name: str,
    slices: Sequence[Slice],
) -> ImproveStage:
    """Look for an artifact that repairs the slices; write it as generation ``name``."""
    key = f"round-{round}/improve"
    done = run.store.stage(key)
    if done is not None:
        return ImproveStage.from_json(done)
    knobs = run.config.generator
    run.progress.emit(
        StageStarted(
            "generator",
            round,
            run.rounds,
            f"repairing {parent_name} on {', '.join(s.name for s in slices)}",
            knobs.max_candidates,
            knobs.max_evaluations,
        )
    )
    parts = [OpenSlice(s.name, s.open[: knobs.examples], s.open[knobs.examples :]) for s in slices]
    generator = Generator(
        run.config, run.session, run.evaluator, run.store, run.progress, round, parts
    )
    found = generator.run(make(knobs.search, run.config), parent, run.session.start_artifact())
    report = _generation_report(round, name, parent, parent_name, found)
    if report is not None and report.accepted:
        write_artifact(run.store, name, report.files)
    stage = ImproveStage(
        search=_improvement_report(run, round, parent_name, found),
        rejections=_rejections(run, round, "generator", found.rejected),
        generation=report,
    )
    run.store.finish_stage(key, stage.to_json())
    words = f"{name} accepted" if found.accepted else "nothing accepted"
    run.progress.emit(StageFinished("generator", round, words))
    return ImproveStage.from_json(_kept(run, key))


def _kept(run: Run, key: str) -> dict[str, Any]:
    """A stage as a resumed run will see it: the order of keys too is part of the bytes."""
    kept = run.store.stage(key)
    assert kept is not None
    return kept


def write_artifact(store: RunStore, name: str, files: Any) -> None:
    """Write an artifact's folder under the run folder."""
    for path, text in files.items():
        store.write_text(f"artifacts/{name.lower()}/{path}", text)


def stored_slices(run: Run, names: Sequence[str]) -> list[Slice]:
    """Slices of this run, read back and checked against their hashes."""
    return [read_slice(run.store.path / slice_folder(name)) for name in names]


# -- reports -------------------------------------------------------------------------------


def unified_diff(old: Candidate, new: Candidate, old_name: str, new_name: str) -> str:
    """Unified diff between two source trees, file by file."""
    parts: list[str] = []
    for path in sorted({*old.files, *new.files}):
        parts += difflib.unified_diff(
            old.files.get(path, "").splitlines(keepends=True),
            new.files.get(path, "").splitlines(keepends=True),
            f"{old_name}/{path}",
            f"{new_name}/{path}",
        )
    return "".join(line if line.endswith("\n") else line + "\n" for line in parts)


def _generation_report(
    round: int, name: str, parent: Candidate, parent_name: str, found: Improvement
) -> GenerationReport | None:
    trial = found.accepted or _best_trial(found)
    if trial is None:
        return None
    return GenerationReport(
        name=name,
        round=round,
        parent=parent_name,
        accepted=trial.accepted,
        words=trial.candidate.note,
        reason=trial.reason,
        diff=unified_diff(parent, trial.candidate, parent_name, name),
        key=trial.candidate.key,
        files=dict(trial.candidate.files),
        measured=dict(trial.measured),
        changes=tuple(
            SliceChange(
                c.slice, Cell.of(c.old), Cell.of(c.new), c.gained, c.lost, c.p_value, c.reason
            )
            for c in trial.changes
        ),
        components=tuple(
            ComponentReport(
                v.component,
                v.status,
                Cell.of(v.reference),
                Cell.of(v.old),
                Cell.of(v.new),
                _difference(v.difference),
                v.delta,
                v.n,
                v.reason,
            )
            for v in trial.components
        ),
    )


def _difference(interval: Interval) -> Cell:
    return Cell(interval.estimate, interval.low, interval.high, interval.n)


def _best_trial(found: Improvement) -> Trial | None:
    return max(found.trials, key=lambda t: t.primary, default=None)


def _discovery_report(run: Run, round: int, against: str, found: Discovery) -> SearchReport:
    return SearchReport(
        round=round,
        search="discriminator",
        against=against,
        proposer=run.config.discriminator.proposer,
        engine=run.config.discriminator.search,
        candidates=found.candidates,
        invalid=sum(found.rejected.values()),
        evaluations=found.evaluations,
        best=found.best,
        admitted=found.found is not None,
        stopped_by=found.stopped_by,
        attempts=tuple(AdmissionReport.of(attempt.verdict) for attempt in found.attempts),
        curve=tuple(found.curve),
    )


def _improvement_report(run: Run, round: int, against: str, found: Improvement) -> SearchReport:
    return SearchReport(
        round=round,
        search="generator",
        against=against,
        proposer=run.config.generator.proposer,
        engine=run.config.generator.search,
        candidates=found.candidates,
        invalid=sum(found.rejected.values()),
        evaluations=found.evaluations,
        best=found.best,
        admitted=found.accepted is not None,
        stopped_by=found.stopped_by,
        curve=tuple(found.curve),
    )


def _rejections(run: Run, round: int, search: Any, counts: dict[str, int]) -> tuple[Rejection, ...]:
    """Rejected candidates by reason, and answers of a proposer that held none."""
    counts = dict(counts)
    for event in run.store.events("proposal"):
        made = event["payload"]
        # An agent that ended by itself, with nothing new left in its tree, was not turned away.
        about = made["about"]
        ended = about.get("status") == "finished" and not about.get("refused")
        if made["stage"] == f"round-{round}/{search}" and made["rejected"] and not ended:
            reason = f"no candidate: {made['rejected'][:160]}"
            counts[reason] = counts.get(reason, 0) + 1
    return tuple(Rejection(round, search, reason, n) for reason, n in sorted(counts.items()))


def _discovery_words(name: str, found: Discovery) -> str:
    if found.found is None:
        return f"nothing admitted after {found.candidates} candidates ({found.stopped_by})"
    verdict = found.found.verdict
    return (
        f"{name} admitted: φ {verdict.reference.estimate:.2f}, artifact "
        f"{verdict.artifact.estimate:.2f} on {verdict.n} fresh examples"
    )
