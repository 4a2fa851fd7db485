"""Every slice against every artifact on every model: where else does it fail?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from galoop import plugins
from galoop.across.cells import GapCell, Grid, cannot, gap_cell
from galoop.across.slices import (
    Machine,
    Origin,
    experiment_of,
    one_line,
    opened,
    read_origin,
    slice_folders,
)
from galoop.errors import GaloopError, ModelError, NothingEvaluatedError, UsageError
from galoop.evaluation.paired import PairedEvaluator
from galoop.report.model import Record
from galoop.report.progress import Message, Progress, StageStarted
from galoop.store.run import RunStore

SCHEMA = 1


@dataclass(frozen=True)
class MatrixCell(Record):
    """A slice, an artifact, a model, and what came of them."""

    slice: str
    artifact: str
    model: str
    result: GapCell


@dataclass(frozen=True)
class Matrix(Record):
    """All cells; slices, artifacts and models in the order in which they were given."""

    slices: tuple[str, ...]
    artifacts: tuple[str, ...]
    models: tuple[str, ...]
    cells: tuple[MatrixCell, ...]
    words: tuple[str, ...] = ()
    schema: int = SCHEMA

    def cell(self, slice: str, artifact: str, model: str) -> GapCell | None:
        """One cell; None where a slice was not asked on that model."""
        wanted = (slice, artifact, model)
        found = (c.result for c in self.cells if (c.slice, c.artifact, c.model) == wanted)
        return next(found, None)

    @property
    def grids(self) -> tuple[Grid, ...]:
        """One grid a model: artifacts in rows, slices in columns."""
        return tuple(
            Grid(
                f"on {model}",
                "artifact",
                "slice",
                self.artifacts,
                self.slices,
                tuple(
                    tuple(self.cell(s, artifact, model) for s in self.slices)
                    for artifact in self.artifacts
                ),
            )
            for model in self.models
        )


@dataclass(frozen=True)
class Contender:
    """An artifact of a row: how it is called, its domain (None: the slice's own), its name."""

    label: str
    name: str
    domain: str | None = None


def contender(text: str) -> Contender:
    """``keydiff``, ``./my-press``, ``sparse-decoding:pqcache``.

    What stands before a colon is a domain where there is one of that name.
    """
    domain, colon, name = text.partition(":")
    if colon and name and domain in plugins.names("domains"):
        return Contender(text, name, domain)
    return Contender(text, text)


def _short(rows: Sequence[Contender]) -> list[Contender]:
    """Folders by their own names, where these differ from all other names."""
    names = [Path(row.name).name if Path(row.name).is_dir() else row.label for row in rows]
    return [
        replace(row, label=name) if names.count(name) == 1 else row
        for row, name in zip(rows, names, strict=True)
    ]


def gathered(sources: Sequence[Path]) -> tuple[list[tuple[str, Origin]], list[Contender]]:
    """Slices of run folders and slice folders, labelled, and the artifacts beside them.

    Raises
    ------
    UsageError, StoreError
        A source that holds no slice, or a changed one.
    """
    found: list[tuple[str, Origin]] = []
    rows: list[Contender] = []
    runs = [source.resolve() for source in sources]
    for run in runs:
        home = run.parent.parent if run.parent.name == "benchmark" else run
        prefix = f"{home.name}/" if len(runs) > 1 else ""
        for folder in slice_folders(run):
            found.append((prefix + folder.name, read_origin(folder)))
        for file in sorted((run / "artifacts").glob("*/artifact.toml")):
            rows.append(Contender(prefix + file.parent.name, str(file.parent)))
    return _unlike(found), rows


def _unlike(found: list[tuple[str, Origin]]) -> list[tuple[str, Origin]]:
    """Labels that differ: a number behind those that come again."""
    seen: dict[str, int] = {}
    made = []
    for label, origin in found:
        seen[label] = seen.get(label, 0) + 1
        made.append((label if seen[label] == 1 else f"{label} ({seen[label]})", origin))
    return made


def matrix(
    sources: Sequence[Path],
    artifacts: Sequence[str],
    models: Sequence[str],
    *,
    run_dir: Path,
    examples: int | None,
    machine: Machine,
    progress: Progress,
) -> Matrix:
    """Fill in the matrix, going on where an earlier call of the same folder stopped.

    Parameters
    ----------
    sources : sequence of Path
        Run folders and slice folders.
    artifacts : sequence of str
        See :func:`contender`; none: the artifacts of the run folders.
    models : sequence of str
        None: each slice on its own.
    examples : int, optional
        First open examples of each slice; all of them by default.
    """
    slices, beside = gathered(sources)
    rows = _short([contender(text) for text in dict.fromkeys(artifacts)]) or beside
    if not rows:
        raise UsageError("no artifact: the folders hold none", "name some with --artifact")
    columns = [
        (m or str(origin.slice.about["model"]), label, origin)
        for m in (models or [None])  # type: ignore[list-item]
        for label, origin in slices
    ]
    titles = tuple(dict.fromkeys(model for model, _, _ in columns))
    total = len(columns) * (len(rows) + 1)
    progress.emit(StageStarted("matrix", 0, 0, f"{len(columns)} columns, {len(rows)} artifacts"))
    progress.emit(Message(f"{total - len(columns)} cells, kept in {run_dir}"))
    cells: list[MatrixCell] = []
    with RunStore.create_or_open(run_dir, {"command": "matrix", "schema": SCHEMA}) as store:
        for domain in dict.fromkeys(row.domain for row in rows):
            group = [row for row in rows if row.domain == domain]
            for model, label, origin in columns:
                made = _column(
                    origin,
                    replace(machine, model=model),
                    domain,
                    group,
                    examples,
                    store,
                    progress,
                )
                cells += [MatrixCell(label, row.label, model, made[row.label]) for row in group]
    if all(c.result.gap is None for c in cells):
        reasons = sorted({c.result.reason for c in cells})
        raise NothingEvaluatedError(f"no cell could be run: {'; '.join(reasons)[:600]}")
    found = Matrix(
        tuple(label for label, _ in slices), tuple(row.label for row in rows), titles, tuple(cells)
    )
    return replace(found, words=tuple(sentences(found)))


def _column(
    origin: Origin,
    machine: Machine,
    domain: str | None,
    rows: Sequence[Contender],
    examples: int | None,
    store: RunStore,
    progress: Progress,
) -> dict[str, GapCell]:
    """A slice against the artifacts of one domain on one model; reasons where it cannot be."""

    def say(text: str) -> None:
        progress.emit(Message(text))

    made: dict[str, GapCell] = {}
    systems: dict[str, Any] = {}
    try:
        with opened(experiment_of(origin, machine, domain=domain), say) as session:
            budget = origin.slice.budget_in(domain or origin.domain)
            for row in rows:
                try:
                    systems[row.label] = session.named_artifact(row.name, budget)
                except (GaloopError, ValueError) as error:
                    made[row.label] = cannot(one_line(error))
            if not systems:
                return made
            evaluator = PairedEvaluator(session, store, 1, progress)
            reference, *scores = evaluator.evaluate(
                [session.reference(), *systems.values()],
                origin.slice.open[:examples],
                stage="matrix",
            )
    except (UsageError, ModelError) as error:  # no such model, or prompts that do not fit it
        rest = {row.label for row in rows} - set(made)
        return {**made, **dict.fromkeys(rest, cannot(one_line(error)))}
    for label, one in zip(systems, scores, strict=True):
        made[label] = gap_cell(reference, one, origin.criterion)
    return made


def sentences(found: Matrix) -> Iterator[str]:
    """Where else it fails: one sentence for each artifact and model."""
    for model in found.models:
        for artifact in found.artifacts:
            here = {
                c.slice: c.result for c in found.cells if (c.artifact, c.model) == (artifact, model)
            }
            parts = []
            for verdict, verb in (
                ("breaks", "breaks on"),
                ("holds", "holds on"),
                ("undecided", "is undecided on"),
                ("reference fails", "is not tested by (the reference itself fails)"),
                ("cannot run", "cannot run on"),
            ):
                names = [
                    f"{name} ({cell.words})" if cell.gap else name
                    for name, cell in here.items()
                    if cell.verdict == verdict
                ]
                if names:
                    parts.append(f"{verb} {', '.join(names)}")
            if parts:
                yield f"On {model}, {artifact} {'; '.join(parts)}."
