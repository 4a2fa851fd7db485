"""``gal replay``: any slice against any artifact and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from galoop.benchmark import read_slice
from galoop.config import ExperimentConfig
from galoop.evaluation.statistics import cluster_means, mean_interval, paired_gap_interval
from galoop.plugins import load
from galoop.report.model import Cell, PrintedExample, ReplayResult, ReplayRow
from galoop.report.progress import EvaluationsDone, Message, Progress, StageStarted
from galoop.types import Example, Outcome, State


def replay(
    slice_dir: Path,
    artifacts: Sequence[str],
    *,
    model: str | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    compression_ratio: float | None = None,
    limit: int | None = None,
    require_isolation: bool = False,
    progress: Progress,
) -> ReplayResult:
    """Run a slice's open examples against artifacts.

    Parameters
    ----------
    slice_dir : Path
        ``benchmark/B1`` of a run folder.
    artifacts : sequence of str
        Names, press expressions or folders.
    model, dtype, device, compression_ratio
        The slice's own model and budget by default.
    limit : int, optional
        The first examples only.

    Raises
    ------
    StoreError
        Not a slice folder, or a changed one.
    UsageError
        An unknown artifact, or a context that does not fit the model's window.
    """
    frozen = read_slice(slice_dir)
    examples = frozen.open[:limit]
    budget = frozen.about.get("budget", {})
    ratio = budget.get("compression_ratio", 0.0) if compression_ratio is None else compression_ratio
    config = ExperimentConfig.model_validate(
        {
            "model": {"name": model or frozen.about["model"], "dtype": dtype, "device": device},
            "artifact": {"start": "identity", "compression_ratio": 0.0},
            "isolation": {"require": require_isolation},
        }
    )
    from galoop.domains.kv_compression.artifacts import materialise

    session = load("domains", "kv-compression")().open(
        config, lambda text: progress.emit(Message(text))
    )
    total = len(examples) * (len(artifacts) + 1)
    progress.emit(
        StageStarted("replay", 0, 0, f"{frozen.name} on {session.info.name}", evaluations=total)
    )
    try:
        own = {"compression_ratio": float(ratio)}
        systems = [session.reference()]
        for name in artifacts:
            given = {"compression_ratio": 0.0} if name == "identity" else own
            systems.append(
                session.artifact_under(materialise(name, given), given, name=name, trusted=True)
            )
        found: dict[str, dict[str, Outcome]] = {s.key: {} for s in systems}
        for rows in session.run(systems, examples, 0):
            progress.emit(EvaluationsDone(len(rows)))
            for system, example, outcome in rows:
                found[system.key][example.key] = outcome
        reference = _scores(found[systems[0].key], examples)
        return ReplayResult(
            slice=frozen.name,
            probe_key=frozen.probe.key,
            model=session.info.name,
            dtype=session.info.dtype,
            rows=tuple(
                _row(name, found[s.key], examples, reference)
                for name, s in zip(artifacts, systems[1:], strict=True)
            ),
            example=_printed(examples[0], found[systems[0].key], found[systems[1].key]),
        )
    finally:
        session.close()


def _scores(outcomes: Mapping[str, Outcome], examples: Sequence[Example]) -> list[float]:
    return cluster_means([[outcomes[e.key].score or 0.0] for e in examples])


def _row(
    name: str,
    outcomes: Mapping[str, Outcome],
    examples: Sequence[Example],
    reference: Sequence[float],
) -> ReplayRow:
    cell = Cell.of(mean_interval(reference))
    bad = next((o for o in outcomes.values() if o.state is not State.SCORED), None)
    if bad is not None:
        nothing = Cell(0.0, 0.0, 1.0, 0)
        return ReplayRow(name, cell, nothing, nothing, {}, f"{bad.state}: {bad.reason}")
    own = _scores(outcomes, examples)
    measured = [o.measured for o in outcomes.values()]
    keys = sorted(set.intersection(*(set(m) for m in measured)))
    return ReplayRow(
        name,
        cell,
        Cell.of(mean_interval(own)),
        Cell.of(paired_gap_interval(reference, own)),
        {key: sum(m[key] for m in measured) / len(measured) for key in keys},
    )


def _printed(
    example: Example, reference: Mapping[str, Outcome], artifact: Mapping[str, Outcome]
) -> PrintedExample:
    theirs = artifact.get(example.key)
    return PrintedExample(
        context=example.context,
        question=example.question,
        gold=example.answers,
        evidence=example.evidence,
        seed=example.seed,
        reference=reference[example.key].answer,
        artifact=theirs.answer if theirs else "",
        answer_prefix=example.answer_prefix,
    )
