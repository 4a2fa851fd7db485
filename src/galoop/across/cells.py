"""One cell of a grid: what an artifact lost there, what that says, or why nothing can be said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from galoop.evaluation.admission import Criterion
from galoop.evaluation.paired import Scores
from galoop.evaluation.statistics import mean_interval, paired_gap_interval
from galoop.report.model import Cell, Record
from galoop.report.words import cell_words
from galoop.types import State

Verdict = Literal["breaks", "holds", "undecided", "reference fails", "cannot run"]


@dataclass(frozen=True)
class GapCell(Record):
    """Reference and artifact on the same examples, in one place of a grid.

    Attributes
    ----------
    verdict : str
        ``breaks``: the lower bound of the gap reaches τ. ``holds``: the upper bound lies below τ.
        ``undecided``: τ lies within the interval. ``reference fails``: the reference scores below
        τ₀, so that nothing is said about the artifact. ``cannot run``: see ``reason``. Bounds are
        those of one two-sided 95 % interval; of many cells some are wrong by chance.
    """

    verdict: Verdict
    reference: Cell | None = None
    artifact: Cell | None = None
    gap: Cell | None = None
    reason: str = ""
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """``gap 0.42 [0.28, 0.57], n = 40``, or the reason."""
        if self.gap is None:
            return self.reason
        return f"gap {cell_words(self.gap)}"


@dataclass(frozen=True)
class Grid(Record):
    """Cells in rows and columns; None where there is nothing to be asked.

    ``note`` says what a reader has to know of this grid.
    """

    title: str
    row_title: str
    column_title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[GapCell | None, ...], ...]
    note: str = ""


def cannot(reason: str) -> GapCell:
    """A cell in which nothing could be measured."""
    return GapCell("cannot run", reason=reason)


def gap_cell(reference: Scores, artifact: Scores, criterion: Criterion) -> GapCell:
    """Judge a cell by the criterion of its slice."""
    for scores, who in ((reference, "the reference"), (artifact, "")):
        if scores.state is not State.SCORED:
            return cannot(f"{who} {scores.state}: {scores.reason}".strip())
    whole = Cell.of(mean_interval(reference.means))
    own = Cell.of(mean_interval(artifact.means))
    gap = Cell.of(paired_gap_interval(reference.means, artifact.means))
    verdict: Verdict = "undecided"
    if whole.estimate < criterion.tau0:
        verdict = "reference fails"
    elif gap.low >= criterion.tau:
        verdict = "breaks"
    elif gap.high < criterion.tau:
        verdict = "holds"
    return GapCell(verdict, whole, own, gap, measured=_means(artifact))


def _means(scores: Scores) -> dict[str, float]:
    """What was measured of every answer, averaged; agreement steers searches and is no result."""
    measured = [o.measured for row in scores.outcomes for o in row]
    shared = set.intersection(*(set(m) for m in measured)) if measured else set()
    return {
        key: sum(m[key] for m in measured) / len(measured)
        for key in sorted(shared - {"gold_agreement"})
    }
