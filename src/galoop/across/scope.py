"""On what a found failure depends: budget, length of the context, depth of the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from galoop.across.cells import GapCell, Grid, cannot, gap_cell
from galoop.across.depth import move_evidence
from galoop.across.slices import (
    Machine,
    Origin,
    Rebuilt,
    check_length,
    experiment_of,
    one_line,
    opened,
    read_origin,
    rebuild,
)
from galoop.domains.protocol import DomainSession
from galoop.errors import GaloopError, NothingEvaluatedError, UsageError
from galoop.evaluation.paired import PairedEvaluator
from galoop.hashing import derive_seed
from galoop.report.model import Record
from galoop.report.progress import Message, Progress, StageStarted
from galoop.store.run import RunStore
from galoop.types import Example

SCHEMA = 1
#: What is tried of a budget's key where nothing else is asked for; the slice's own comes with it.
BUDGETS: Mapping[str, tuple[float, ...]] = {
    "compression_ratio": (0.25, 0.5, 0.75, 0.875),
    "density": (0.02, 0.05, 0.1, 0.2),
    "bits": (2, 3, 4, 8),
    "extension": (2, 4, 8),
}
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Scope(Record):
    """How far a slice reaches.

    Attributes
    ----------
    slice, probe_key, artifact, model : str
    budget : mapping
        The slice's own.
    length, n : int
        The slice's own length; examples a cell.
    grids : tuple of Grid
        Budget × length, and budget × depth.
    words : tuple of str
        What follows, with n and intervals.
    """

    slice: str
    probe_key: str
    artifact: str
    model: str
    budget: Mapping[str, float]
    length: int
    n: int
    grids: tuple[Grid, ...]
    words: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class Ask:
    """What is asked: values along each axis; None takes the defaults.

    ``budgets`` belong to one key of the budget, ``key`` ("" where it has only one).
    """

    key: str = ""
    budgets: tuple[float, ...] | None = None
    lengths: tuple[int, ...] | None = None
    depths: tuple[float, ...] = DEPTHS
    examples: int = 20
    seed: int = 0


def scope(
    path: Path,
    ask: Ask,
    *,
    artifact: str | None,
    length: int | None,
    run_dir: Path,
    machine: Machine,
    progress: Progress,
) -> Scope:
    """Measure the grids, going on where an earlier call of the same folder stopped.

    Raises
    ------
    UsageError
        No length, a budget that has no such key, or a slice that cannot be rebuilt.
    NothingEvaluatedError
        When no cell could be measured.
    """
    origin = read_origin(path, length)

    def say(text: str) -> None:
        progress.emit(Message(text))

    check_length(origin, machine, say)
    name = artifact or origin.artifact
    key, values = _budgets(origin, ask)
    manifest = {"command": "scope", "schema": SCHEMA, "probe": origin.slice.probe.key}
    with (
        RunStore.create_or_open(run_dir, manifest) as store,
        opened(experiment_of(origin, machine), say) as session,
    ):
        systems: dict[float, Any] = {}
        failed: dict[float, GapCell] = {}
        for value in values:
            try:
                systems[value] = session.named_artifact(name, {**origin.budget, key: value})
            except (GaloopError, ValueError) as error:
                failed[value] = cannot(one_line(error))
        work = _Work(origin, machine, ask, session, systems, failed, store, progress)
        grids = [work.by_length(key, values)]
        if ask.depths:
            grids.append(work.by_depth(key, values))
        facts = session.describe()
    found = Scope(
        slice=origin.slice.name,
        probe_key=origin.slice.probe.key,
        artifact=Path(name).name,
        model=str(facts["model"]),
        budget=origin.budget,
        length=origin.length,
        n=ask.examples,
        grids=tuple(grids),
    )
    measured = [c for grid in grids for line in grid.cells for c in line if c and c.gap]
    if not measured:
        reasons = sorted({c.reason for g in grids for line in g.cells for c in line if c})
        raise NothingEvaluatedError(f"no cell could be run: {'; '.join(reasons)[:600]}")
    return replace(found, words=tuple(sentences(found, key)))


def _budgets(origin: Origin, ask: Ask) -> tuple[str, tuple[float, ...]]:
    keys = list(origin.budget)
    key = ask.key or (keys[0] if len(keys) == 1 else "")
    if key not in origin.budget:
        raise UsageError(
            f"{origin.path}: the slice's budget has the keys {', '.join(keys) or '(none)'}"
            + (f", not {key!r}" if key else ""),
            "say which one: --budget KEY=VALUES",
        )
    own = origin.budget[key]
    values = BUDGETS.get(key, ()) if ask.budgets is None else ask.budgets
    return key, tuple(sorted({float(own), *map(float, values)}))


class _Work:
    """The evaluations of one call."""

    def __init__(
        self,
        origin: Origin,
        machine: Machine,
        ask: Ask,
        session: DomainSession,
        systems: Mapping[float, Any],
        failed: Mapping[float, GapCell],
        store: RunStore,
        progress: Progress,
    ) -> None:
        self._origin = origin
        self._machine = machine
        self._ask = ask
        self._session = session
        self._systems = systems
        self._failed = failed
        self._evaluator = PairedEvaluator(session, store, 1, progress)
        self._progress = progress
        self._known: dict[int, Rebuilt] = {}
        self._seeds = [
            derive_seed("scope", ask.seed, origin.slice.probe.key, i) for i in range(ask.examples)
        ]

    def by_length(self, key: str, values: Sequence[float]) -> Grid:
        """The probe's program at other lengths, on seeds of the scope's own."""
        own = self._origin.length
        asked = self._ask.lengths or (own // 2, own, 2 * own, 4 * own)
        lengths = sorted({own, *asked})
        lines = [self._line(f"{n} tokens", values, lambda n=n: self._built(n)) for n in lengths]  # type: ignore[misc]
        return _grid("budget and length", "length", key, lengths, values, lines, own, "")

    def by_depth(self, key: str, values: Sequence[float]) -> Grid:
        """The examples of the slice's own length with their evidence elsewhere."""

        def moved(depth: float) -> list[Example]:
            return [move_evidence(e, depth) for e in self._built(self._origin.length)]

        depths = sorted(set(self._ask.depths))
        lines = [
            self._line(f"depth {d:g}", values, lambda d=d: moved(d))  # type: ignore[misc]
            for d in depths
        ]
        note = (
            f"at {self._origin.length} tokens; the evidence was moved to that share of the rest "
            "of the context"
        )
        return _grid("budget and depth", "depth", key, depths, values, lines, None, note)

    def _built(self, length: int) -> list[Example]:
        def say(text: str) -> None:
            self._progress.emit(Message(text))

        if length not in self._known:
            self._known[length] = rebuild(self._origin, self._machine, self._seeds, length, say)
        made = self._known[length]
        if made.reason:
            raise UsageError(made.reason)
        return list(made.examples)

    def _line(
        self, title: str, values: Sequence[float], examples: Callable[[], list[Example]]
    ) -> list[GapCell]:
        total = self._ask.examples * (len(self._systems) + 1)
        self._progress.emit(StageStarted("scope", 0, 0, title, evaluations=total))
        try:
            reference, *scores = self._evaluator.evaluate(
                [self._session.reference(), *self._systems.values()], examples(), stage="scope"
            )
        except UsageError as error:  # no such examples, or the window is too small for them
            return [self._failed.get(v) or cannot(one_line(error)) for v in values]
        made = dict(zip(self._systems, scores, strict=True))
        criterion = self._origin.criterion
        return [
            self._failed[v] if v in self._failed else gap_cell(reference, made[v], criterion)
            for v in values
        ]


def _grid(
    title: str,
    row_title: str,
    key: str,
    rows: Sequence[float],
    columns: Sequence[float],
    lines: Sequence[Sequence[GapCell]],
    own: float | None,
    note: str,
) -> Grid:
    return Grid(
        title,
        row_title,
        key,
        tuple(f"{r:g}{' (own)' if r == own else ''}" for r in rows),
        tuple(f"{c:g}" for c in columns),
        tuple(tuple(line) for line in lines),
        note,
    )


def sentences(found: Scope, key: str) -> Iterator[str]:
    """The sentence that follows from the grids, one an axis, with n and intervals."""
    lengths = found.grids[0]
    column = lengths.columns.index(f"{found.budget[key]:g}")
    own = next(i for i, name in enumerate(lengths.rows) if name.endswith("(own)"))
    here = lengths.cells[own][column]
    assert here is not None
    said = here.words if here.gap else f"nothing could be measured: {here.reason}"
    yield (
        f"{found.slice} against {found.artifact} on {found.model}, as found ({key} "
        f"{found.budget[key]:g}, {found.length} tokens), on fresh seeds: {said}."
    )
    line = dict(zip(lengths.columns, lengths.cells[own], strict=True))
    yield f"Over {key}, at {found.length} tokens: {_along(line)}."
    down = {name: line[column] for name, line in zip(lengths.rows, lengths.cells, strict=True)}
    yield f"Over the length in tokens, at {key} {found.budget[key]:g}: {_along(down)}."
    for grid in found.grids[1:]:
        down = {name: line[column] for name, line in zip(grid.rows, grid.cells, strict=True)}
        yield f"Over the depth of the evidence, at {key} {found.budget[key]:g}: {_along(down)}."


def _along(cells: Mapping[str, GapCell | None]) -> str:
    """``breaks at 0.75 (gap …) and 0.875 (gap …); holds at 0.25 (gap …)``."""
    parts = []
    for verdict, words in (
        ("breaks", "it breaks at"),
        ("holds", "it holds at"),
        ("undecided", "undecided at"),
        ("reference fails", "the reference itself fails at"),
        ("cannot run", "not measured at"),
    ):
        names = [
            f"{name.removesuffix(' (own)')} ({cell.words})"
            for name, cell in cells.items()
            if cell is not None and cell.verdict == verdict
        ]
        if names and verdict == "cannot run":
            reasons = {cell.reason for cell in cells.values() if cell and cell.gap is None}
            if len(reasons) == 1:  # said once
                names = [name.partition(" (")[0] for name in names]
                names[-1] += f" ({reasons.pop()})"
        if names:
            parts.append(f"{words} {', '.join(names)}")
    return "; ".join(parts) or "nothing was asked"
