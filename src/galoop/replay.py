"""``gal replay``: any slice against any artifact and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from galoop.benchmark import read_slice
from galoop.config import ExperimentConfig
from galoop.errors import UsageError
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
    domain: str | None = None,
    budget: Mapping[str, float] | None = None,
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
        Names, expressions or folders.
    model, dtype, device
        The slice's own model by default.
    domain : str, optional
        The slice's own by default.
    budget : mapping, optional
        What to change of the slice's own budget, or, in another domain, of that domain's.
    limit : int, optional
        The first examples only.

    Raises
    ------
    StoreError
        Not a slice folder, or a changed one.
    UsageError
        An unknown domain or artifact, a budget that the domain does not take, or a context that
        does not fit the model's window.
    """
    frozen = read_slice(slice_dir)
    examples = frozen.open[:limit]
    kind = load("domains", domain or frozen.domain)()
    asked = frozen.budget_in(kind.name)
    for key in set(budget or {}) - set(kind.budget_keys):
        takes = " and ".join(kind.budget_keys)
        raise UsageError(f"{key} is not a budget of the domain {kind.name}", f"it takes {takes}")
    asked.update(budget or {})
    config = ExperimentConfig.model_validate(
        {
            "domain": kind.name,
            "model": {"name": model or frozen.about["model"], "dtype": dtype, "device": device},
            "artifact": {"start": "identity", **kind.null_budget},
            "isolation": {"require": require_isolation},
        }
    )
    session = kind.open(config, lambda text: progress.emit(Message(text)))
    about = session.describe()
    total = len(examples) * (len(artifacts) + 1)
    progress.emit(
        StageStarted("replay", 0, 0, f"{frozen.name} on {about['model']}", evaluations=total)
    )
    try:
        systems = [session.reference()]
        systems += [session.named_artifact(name, asked) for name in artifacts]
        found: dict[str, dict[str, Outcome]] = {s.key: {} for s in systems}
        for rows in session.run(systems, examples, 0):
            progress.emit(EvaluationsDone(len(rows)))
            for system, example, outcome in rows:
                found[system.key][example.key] = outcome
        reference = _scores(found[systems[0].key], examples)
        return ReplayResult(
            slice=frozen.name,
            probe_key=frozen.probe.key,
            model=about["model"],
            dtype=about["dtype"],
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
