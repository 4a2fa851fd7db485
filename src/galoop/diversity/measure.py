"""A look at one run folder: its slices, its refined candidates, its searches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from galoop.benchmark import read_slice
from galoop.diversity.distance import (
    Vectors,
    column_distances,
    cosine_distances,
    mean_of_pairs,
    set_distances,
    vendi,
)
from galoop.diversity.embedding import Embedder
from galoop.diversity.judge import Judge, judged
from galoop.diversity.model import Behaviour, Distances, DiversityReport, Item, Spread
from galoop.errors import NothingEvaluatedError, UsageError
from galoop.report.model import Cell, LoopResult, LoopTable, ReplayResult, SliceReport, read_result
from galoop.store.run import RunStore
from galoop.types import Example

#: Open examples of a slice that are embedded: contexts are long, and more of them change little.
EXAMPLES = 12
#: Programs of one search that are compared, evenly taken: the table of pairs is quadratic.
_PROGRAMS = 200


def measure(
    run_dir: Path,
    embedder: Embedder | None,
    *,
    replays: Sequence[Path] = (),
    judge: Judge | None = None,
    judge_name: str = "",
    searches: bool = False,
) -> DiversityReport:
    """Compare what a run found.

    Parameters
    ----------
    run_dir : Path
        A run folder with a result.
    embedder : Embedder or None
        None leaves the distances of texts out.
    replays : sequence of Path
        What ``gal replay … --json`` wrote on slices of this run: further methods.
    judge : callable, optional
    judge_name : str
        For the report.
    searches : bool
        Also compare the scored programs of every search.

    Raises
    ------
    StoreError
        No result, a changed slice, an unreadable replay.
    NothingEvaluatedError
        The run found nothing that could be compared.
    UsageError
        A replay of a slice that is not in this run.
    """
    result = read_result(run_dir)
    store = RunStore.open(run_dir) if (run_dir / "run.sqlite").is_file() else None
    try:
        items, sources, examples = _items(run_dir, result, store)
        if not items:
            raise NothingEvaluatedError(
                f"{run_dir}: nothing was admitted and no candidate was refined: nothing to compare"
            )
        programs = sets = judgement = None
        names = [item.name for item in items]
        if embedder is not None:
            programs = _distances(names, embedder(sources))
            sets = _example_distances(names, examples, embedder)
        if judge is not None:
            judgement = judged(judge, names, sources)
        behaviour = None
        if result.slices:
            behaviour = behaviour_of(result, [read_replay(path) for path in replays])
        spreads: tuple[Spread, ...] = ()
        if searches and embedder is not None and store is not None:
            spreads = _spreads(result, store, embedder)
        return DiversityReport(
            items=items,
            embedding=embedder.name if embedder is not None else "",
            programs=programs,
            examples=sets,
            behaviour=behaviour,
            judge=judge_name if judge is not None else "",
            judged=judgement,
            searches=spreads,
            notes=_notes(judgement),
        )
    finally:
        if store is not None:
            store.close()


def _notes(judgement: Distances | None) -> tuple[str, ...]:
    if judgement is None:
        return ()
    unread = sum(v is None for i, row in enumerate(judgement.rows) for v in row[:i])
    return (f"the judge's answer could not be read for {unread} pairs",) if unread else ()


# -- what is compared ----------------------------------------------------------------------


def _items(
    run_dir: Path, result: LoopResult, store: RunStore | None
) -> tuple[tuple[Item, ...], list[str], list[list[Example]]]:
    items: list[Item] = []
    sources: list[str] = []
    examples: list[list[Example]] = []
    for one in result.slices:
        kept = list(read_slice(run_dir / "benchmark" / one.name).open[:EXAMPLES])
        items.append(Item(one.name, "slice", one.probe_key, one.words, len(kept)))
        sources.append(one.source)
        examples.append(kept)
    known = {item.key for item in items}
    for name, key, note, source in _refined(store):
        if key not in known:
            known.add(key)
            items.append(Item(name, "refined", key, note))
            sources.append(source)
            examples.append([])
    return tuple(items), sources, examples


def _refined(store: RunStore | None) -> list[tuple[str, str, str, str]]:
    """Name, key, note and source of what the islands of each round ended with."""
    if store is None:
        return []
    candidates = {e["payload"]["key"]: e["payload"] for e in _probe_events(store)}
    found = []
    for event in store.events("refined"):
        round = _round(event["payload"]["stage"])
        for number, key in enumerate(event["payload"]["keys"], start=1):
            if key in candidates:
                one = candidates[key]
                source = store.get_object(one["source"]).decode("utf-8")
                found.append((f"R{round}-{number}", key, one["note"], source))
    return found


def _probe_events(store: RunStore) -> list[dict[str, Any]]:
    return [e for e in store.events("candidate") if "source" in e["payload"]]


def _round(stage: str) -> int:
    return int(stage.partition("/")[0].removeprefix("round-"))


def _distances(names: Sequence[str], vectors: Vectors) -> Distances:
    rows = _rows(cosine_distances(vectors))
    return Distances(tuple(names), rows, mean_of_pairs(rows), round(vendi(vectors), 6))


def _rows(table: Vectors) -> tuple[tuple[float, ...], ...]:
    # Rounded, so that the last bits of a processor's sums do not stand in a file.
    return tuple(tuple(round(float(v), 6) for v in row) for row in table)


def _example_distances(
    names: Sequence[str], examples: Sequence[Sequence[Example]], embedder: Embedder
) -> Distances | None:
    """Between the slices' sets of open examples; what the sealed ones hold stays out of reports."""
    kept = [(name, some) for name, some in zip(names, examples, strict=True) if some]
    if not kept:
        return None
    texts = [f"{e.context}\n{e.question}" for _, some in kept for e in some]
    vectors = embedder(texts)
    ends = np.cumsum([len(some) for _, some in kept])[:-1]
    rows = _rows(set_distances(np.split(vectors, ends)))
    return Distances(tuple(name for name, _ in kept), rows, mean_of_pairs(rows))


def _spreads(result: LoopResult, store: RunStore, embedder: Embedder) -> tuple[Spread, ...]:
    engines = {s.round: s.engine for s in result.searches if s.search == "discriminator"}
    by_round: dict[int, dict[str, str]] = {}
    for event in _probe_events(store):
        one = event["payload"]
        if one["state"] == "scored":
            by_round.setdefault(_round(one["stage"]), {})[one["key"]] = one["source"]
    found = []
    for round, digests in sorted(by_round.items()):
        chosen = list(digests.values())
        step = max(1, -(-len(chosen) // _PROGRAMS))
        texts = [store.get_object(digest).decode("utf-8") for digest in chosen[::step]]
        told = _distances([""] * len(texts), embedder(texts))
        found.append(Spread(round, engines.get(round, ""), len(texts), told.mean, told.effective))
    return tuple(found)


# -- behaviour -----------------------------------------------------------------------------


def read_replay(path: Path) -> ReplayResult:
    """Read what ``gal replay … --json`` printed.

    Raises
    ------
    UsageError
        Not such a file.
    """
    try:
        return ReplayResult.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: not a replay: {type(error).__name__}: {error}",
            "give a file that `gal replay SLICE --artifact … --json` wrote",
        ) from None


def behaviour_of(result: LoopResult, replays: Sequence[ReplayResult] = ()) -> Behaviour:
    """Which systems of a run, and which replayed methods, lose what on which of its slices.

    The run's own figures are those of its table, from sealed examples; those of a replay come from
    the open ones.
    """
    names = [one.name for one in result.slices]
    reference, rows = _of_table(result.table, names)
    model = result.provenance.model
    for one in replays:
        at = _place(one, result.slices)
        for row in one.rows:
            method = row.artifact if one.model == model else f"{row.artifact} on {one.model}"
            line = rows.setdefault(method, [None] * len(names))
            if not row.invalid:
                line[at] = _Measured(row.reference.estimate, row.score.estimate, row.score.n)
    limits = result.provenance.criterion
    gaps = [[cell.gap if cell else None for cell in line] for line in rows.values()]
    broken = [
        [cell.breaks(limits["tau0"], limits["tau"]) if cell else None for cell in line]
        for line in rows.values()
    ]
    apart = column_distances(gaps)
    return Behaviour(
        slices=tuple(names),
        methods=tuple(rows),
        reference=tuple(reference),
        gaps=tuple(map(tuple, gaps)),
        examples=tuple(tuple(cell.n if cell else 0 for cell in line) for line in rows.values()),
        broken=tuple(map(tuple, broken)),
        patterns=len(set(zip(*broken, strict=True))) if broken else 0,
        distances=Distances(tuple(names), tuple(map(tuple, apart)), mean_of_pairs(apart)),
    )


@dataclass(frozen=True)
class _Measured:
    """A method on a slice, with the reference on the same examples."""

    reference: float
    score: float
    n: int

    @property
    def gap(self) -> float:
        return round(self.reference - self.score, 9)

    def breaks(self, tau0: float, tau: float) -> bool:
        return self.reference >= tau0 and self.gap >= tau


def _of_table(
    table: LoopTable, names: Sequence[str]
) -> tuple[list[float | None], dict[str, list[_Measured | None]]]:
    """The reference's scores, and what every other row measured, slice by slice."""
    columns = [column.key for column in table.columns]

    def cells(row: Sequence[Cell | None]) -> list[Cell | None]:
        return [row[columns.index(name)] if name in columns else None for name in names]

    own = next((cells(row.cells) for row in table.rows if row.key == "reference"), [])
    own = own or [None] * len(names)
    rows: dict[str, list[_Measured | None]] = {}
    for row in table.rows:
        if row.key != "reference":
            rows[row.key] = [
                _Measured(r.estimate, c.estimate, c.n) if r is not None and c is not None else None
                for r, c in zip(own, cells(row.cells), strict=True)
            ]
    return [r.estimate if r is not None else None for r in own], rows


def _place(replay: ReplayResult, slices: Sequence[SliceReport]) -> int:
    for i, one in enumerate(slices):
        if one.probe_key == replay.probe_key:
            return i
    raise UsageError(
        f"the replay of {replay.slice} is of a slice that this run does not hold",
        "replay the slices of the run itself: RUN/benchmark/B1",
    )
