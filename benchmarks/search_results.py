"""What one search found, and the table of many; see ``search_engines.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from galoop.evaluation.statistics import mean_interval, paired_gap_interval

STEPS = 6


@dataclass
class Searched:
    """One search: what it tried, what it used, what it found."""

    engine: str
    seed: int
    stopped_by: str = ""
    candidates: int = 0
    evaluations: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)  # evaluations, best gap so far
    first: list[str] = field(default_factory=list)  # keys of the first programs
    screened: float = 0.0
    confirmed: float | None = None
    reference: float | None = None

    def at(self, evaluations: int) -> float:
        """The best gap within so many evaluations."""
        return max((gap for used, gap in self.curve if used <= evaluations), default=0.0)

    def area(self, budget: int) -> float:
        """The best gap so far, averaged over the evaluations of the budget."""
        total, last, best = 0.0, 0, 0.0
        for used, gap in self.curve:
            total += (min(used, budget) - last) * best
            last, best = min(used, budget), gap
        return (total + (budget - last) * best) / budget

    def reached(self, gap: float) -> int | None:
        """Evaluations after which the best gap was at least so large; None if it never was."""
        return next((used for used, best in self.curve if best >= gap - 1e-9), None)

    @property
    def found(self) -> float:
        """The gap of the best program on fresh examples, at least 0."""
        return max(0.0, self.confirmed or 0.0)


def same_start(found: Sequence[Searched], fresh: int) -> bool:
    """Whether the engines of each seed began with the same programs."""
    starts: dict[int, set[tuple[str, ...]]] = {}
    for one in found:
        starts.setdefault(one.seed, set()).add(tuple(one.first[:fresh]))
    return all(len(different) == 1 for different in starts.values())


def summary(
    engine: str, baseline: str, found: Sequence[Searched], budget: int, tau: float
) -> dict[str, Any]:
    mine = [one for one in found if one.engine == engine]
    theirs = [one for one in found if one.engine == baseline]
    steps = [budget * (i + 1) // STEPS for i in range(STEPS)]
    reached = [one.reached(tau) for one in mine]
    told: dict[str, Any] = {
        "engine": engine,
        "n": len(mine),
        "programs": sum(one.candidates for one in mine) / len(mine),
        "best_gap": {str(step): spread([one.at(step) for one in mine]) for step in steps},
        "mean_best_gap": spread([one.area(budget) for one in mine]),
        "evaluations_to_tau": reached,
        "found": spread([one.found for one in mine]),
    }
    if engine != baseline:
        told["against"] = {
            "engine": baseline,
            "mean_best_gap": apart(
                [o.area(budget) for o in mine], [o.area(budget) for o in theirs]
            ),
            "found": apart([one.found for one in mine], [one.found for one in theirs]),
        }
    return told


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean over seeds with its 95% interval and the range."""
    made = mean_interval([min(1.0, v) for v in values])
    ends = {"least": min(values), "most": max(values)}
    return {"mean": made.estimate, "low": made.low, "high": made.high, **ends, "values": values}


def apart(mine: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Differences paired by seed: mean with its 95% interval, and the range."""
    made = paired_gap_interval(mine, theirs)
    each = [a - b for a, b in zip(mine, theirs, strict=True)]
    ends = {"least": min(each), "most": max(each)}
    return {"mean": made.estimate, "low": made.low, "high": made.high, **ends, "values": each}


def table(result: dict[str, Any]) -> str:
    """The result in Markdown."""
    n, budget = result["n"], result["evaluations"]
    steps = list(result["engines"][0]["best_gap"])
    lines = [
        f"{result['artifact']} at compression {result['ratio']:g} on {result['model']} "
        f"({result['dtype']}), {result['length']} tokens; n = {n} seeds "
        f"({', '.join(map(str, result['seeds']))}), {budget} evaluations each, the first "
        f"{result['fresh']} programs {'the same' if result['same_start'] else 'NOT the same'}.",
        "",
        "Best gap on the screen after so many evaluations: mean over seeds (least to most).",
        "",
        "| engine | n | programs | " + " | ".join(steps) + " |",
        "|" + " --- |" * (3 + len(steps)),
    ]
    for row in result["engines"]:
        cells = [ranged(row["best_gap"][step]) for step in steps]
        lines.append(f"| {row['engine']} | {n} | {row['programs']:.1f} | {' | '.join(cells)} |")
    lines += [
        "",
        "Best gap averaged over the budget; evaluations until it was τ; gap of the best program on "
        f"{result['confirm']} fresh examples. Mean over seeds, 95% interval (least to most).",
        "",
        f"| engine | n | over the budget | evaluations to τ = {result['tau']:g} | fresh |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in result["engines"]:
        reached = ", ".join("–" if r is None else str(r) for r in row["evaluations_to_tau"])
        over, fresh = interval(row["mean_best_gap"]), interval(row["found"])
        lines.append(f"| {row['engine']} | {n} | {over} | {reached} | {fresh} |")
    pairs = [row for row in result["engines"] if "against" in row]
    if pairs:
        lines += ["", "Differences, paired by seed.", ""]
        lines += ["| pair | n | over the budget | fresh |", "| --- | --- | --- | --- |"]
    for row in pairs:
        against = row["against"]
        over, fresh = (interval(against[k], "+") for k in ("mean_best_gap", "found"))
        lines.append(f"| {row['engine']} − {against['engine']} | {n} | {over} | {fresh} |")
    return "\n".join(lines) + "\n"


def ranged(cell: dict[str, Any]) -> str:
    return f"{cell['mean']:.2f} ({cell['least']:.2f} to {cell['most']:.2f})"


def interval(cell: dict[str, Any], sign: str = "") -> str:
    mean, low, high, least, most = (
        format(cell[k], f"{sign}.2f") for k in ("mean", "low", "high", "least", "most")
    )
    return f"{mean} [{low}, {high}] ({least} to {most})"
