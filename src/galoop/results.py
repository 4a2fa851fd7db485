"""From what the stages left to the table, the result and its renderings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from galoop.benchmark import Slice
from galoop.evaluation.paired import Scores
from galoop.evaluation.statistics import mean_interval
from galoop.proposers.agents.account import sentences
from galoop.regression import Regression
from galoop.report.model import (
    Cell,
    Column,
    GenerationReport,
    LedgerRow,
    LoopResult,
    LoopTable,
    Provenance,
    Rejection,
    Row,
    SearchReport,
    SliceReport,
)
from galoop.report.progress import StageFinished, StageStarted
from galoop.stages import DiscoverStage, ImproveStage, Run
from galoop.types import Candidate, Example, State


@dataclass
class Standing:
    """What the rounds have come to so far.

    Attributes
    ----------
    systems : list of (str, Candidate)
        A₀ and every accepted generation, oldest first.
    """

    systems: list[tuple[str, Candidate]]
    slices: list[SliceReport] = field(default_factory=list)
    generations: list[GenerationReport] = field(default_factory=list)
    searches: list[SearchReport] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_discovery(self, stage: DiscoverStage) -> None:
        """Take in a discriminator stage."""
        self.searches.append(stage.search)
        self.rejections += stage.rejections
        if stage.slice is not None:
            self.slices.append(stage.slice)

    def add_improvement(self, stage: ImproveStage) -> None:
        """Take in a generator stage; an accepted artifact becomes the current one."""
        self.searches.append(stage.search)
        self.rejections += stage.rejections
        made = stage.generation
        if made is None:
            self.notes.append(f"Round {stage.search.round}: no candidate was promising.")
            return
        self.generations.append(made)
        if made.accepted:
            self.systems.append((made.name, Candidate("artifact", made.files, made.words)))


def write_result(
    run: Run, standing: Standing, slices: Sequence[Slice], *, suites: bool = True
) -> LoopResult:
    """Fill in the table from sealed examples and suites; write result.json and the reports."""
    from galoop.report import html, markdown, words

    total = sum(len(s.sealed) for s in slices) * (len(standing.systems) + 1)
    run.progress.emit(
        StageStarted("report", 0, run.rounds, "measuring on sealed examples", evaluations=total)
    )
    table = _table(run, standing, slices, suites)
    result = LoopResult(
        provenance=_provenance(run),
        table=table,
        status="complete",
        summary=words.summary(table, standing.slices, standing.generations),
        slices=tuple(standing.slices),
        generations=tuple(standing.generations),
        searches=tuple(standing.searches),
        rejections=tuple(standing.rejections),
        ledger=_ledger(run),
        agents=sentences(run.store),
        notes=tuple(standing.notes),
    )
    run.store.write_text("report.md", markdown.render(result))
    run.store.write_text("report.html", html.render(result))
    run.store.write_text("result.json", result.dumps())
    run.progress.emit(StageFinished("report", 0, "report written"))
    return result


def _table(run: Run, standing: Standing, slices: Sequence[Slice], suites: bool) -> LoopTable:
    columns: list[Column] = []
    cells: list[list[Cell | None]] = []
    for one in slices:
        columns.append(Column(one.name, one.name, "slice"))
        for name, _ in standing.systems:
            # Opening the sealed part is an event of its own, once a generation.
            run.store.event(
                "sealed-opened",
                {"slice": one.name, "for": name},
                key=f"sealed/{one.name}/{name}",
            )
        cells.append(_cells(_answers(run, standing, one.sealed, "sealed")))
    start = run.session.artifact(standing.systems[0][1], "A0")
    regression = Regression(run.config, run.session, run.evaluator, start, "suites")
    for component in regression.components if suites else []:
        scores = _answers(run, standing, component.examples, "suites")
        title = component.name.partition("/")[2]
        columns.append(Column(component.name, title, "suite", perplexities(scores)))
        cells.append(_cells(scores))
    keys = ["reference", *(name for name, _ in standing.systems)]
    rows = tuple(Row(key, key, tuple(column[i] for column in cells)) for i, key in enumerate(keys))
    return LoopTable(tuple(columns), rows)


def _answers(run: Run, standing: Standing, examples: Sequence[Example], stage: str) -> list[Scores]:
    systems = [
        run.session.reference(),
        *(run.session.artifact(candidate, name) for name, candidate in standing.systems),
    ]
    return run.evaluator.evaluate(systems, examples, stage=stage)


def _cells(scores: Sequence[Scores]) -> list[Cell | None]:
    return [Cell.of(mean_interval(s.means)) if s.state is State.SCORED else None for s in scores]


def perplexities(scores: Sequence[Scores]) -> str:
    """Perplexity of each system over all scored tokens; "" where nothing was measured so.

    Cells hold the mean of 1 / perplexity over windows, which is not its inverse.
    """
    parts = []
    for one in scores:
        measured = [o.measured for row in one.outcomes for o in row]
        if not measured or not all("nll" in m for m in measured):
            continue
        tokens = sum(m["scored_tokens"] for m in measured)
        nll = sum(m["nll"] * m["scored_tokens"] for m in measured)
        parts.append(f"{one.system.name} {math.exp(min(700.0, nll / tokens)):.4g}")
    return f"perplexity: {', '.join(parts)}" if parts else ""


def _provenance(run: Run) -> Provenance:
    config, facts = run.config, dict(run.session.describe())
    return Provenance(
        name=config.name,
        domain=config.domain,
        seed=config.seed,
        model=facts["model"],
        dtype=facts["dtype"],
        fingerprint=facts["fingerprint"],
        start=config.artifact.start,
        budget=config.artifact.budget,
        criterion={"tau0": config.criterion.tau0, "tau": config.criterion.tau},
        gate={
            "delta": config.gate.delta,
            "alpha": config.gate.alpha,
            "reference_floor": config.gate.reference_floor,
        },
        isolation=str(facts.get("isolation", "")),
        versions=facts["versions"],
    )


def _ledger(run: Run) -> tuple[LedgerRow, ...]:
    """What was spent, without times: those stand in the store.

    How the evaluations were cut into chunks depends on where a run was stopped, so entries are
    summed; what is counted are proposals, also those that held no candidate, and sessions that
    cost more than their proposals.
    """
    sums: dict[tuple[str, str, str], dict[str, Any]] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    sources: dict[tuple[str, str, str], set[str]] = {}
    for kind in ("proposal", "session"):
        for event in run.store.events(kind):
            made = event["payload"]
            key = (made["stage"], made["who"], kind)
            counts[key] += 1
            if made["prices"]:
                sources.setdefault(key, set()).add(f"{made['source']} ({made['prices']})")
    for spend in run.store.spends():
        key = (spend.stage, spend.who, spend.kind)
        row = sums.setdefault(key, {"evaluations": 0, "in": 0, "out": 0, "dollars": 0.0})
        found = sources.setdefault(key, set())
        if not any(known.startswith(spend.source) for known in found):
            found.add(spend.source)
        row["evaluations"] += spend.evaluations
        row["in"] += spend.input_tokens
        row["out"] += spend.output_tokens
        if spend.dollars is None:
            row["dollars"] = None
        elif row["dollars"] is not None:
            row["dollars"] += spend.dollars
    return tuple(
        LedgerRow(
            *key,
            counts[key],
            row["evaluations"],
            row["in"],
            row["out"],
            row["dollars"],
            ", ".join(sorted(sources[key] - {"none"})) or "none",
        )
        for key, row in sorted(sums.items())
    )
