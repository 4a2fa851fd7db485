"""What a run found, as plain data: the table of Figure 7, slices, generations, ledger.

The loop fills a :class:`LoopResult` in and writes it as ``result.json``; every rendering (terminal,
Markdown, HTML, ``--json``) reads only this. It holds no times and no paths, so that two runs with
the same seed write the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from galoop.errors import StoreError

if TYPE_CHECKING:
    from galoop.evaluation.admission import AdmissionVerdict

SCHEMA = 1


class IntervalLike(Protocol):
    """An estimate with its interval, as :class:`galoop.evaluation.statistics.Interval`."""

    @property
    def estimate(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def n(self) -> int: ...


class Record:
    """Base of the frozen dataclasses below: to and from JSON."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the inverse of :meth:`from_json`."""
        if not dataclasses.is_dataclass(self):
            raise TypeError(f"{type(self).__name__} is not a dataclass")
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild what :meth:`to_json` wrote; fields that are absent take their defaults."""
        hints = get_type_hints(cls)
        return cls(**{name: _build(hints[name], data[name]) for name in hints if name in data})


@dataclass(frozen=True)
class Cell(Record):
    """A mean score with its interval; ``n`` examples."""

    estimate: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, interval: IntervalLike) -> Cell:
        """The cell of a statistics interval."""
        return cls(interval.estimate, interval.low, interval.high, interval.n)


@dataclass(frozen=True)
class Column(Record):
    """A column of the table: a slice (``B1``) or a suite component (``ruler/vt``)."""

    key: str
    title: str
    group: Literal["slice", "suite"]
    note: str = ""


@dataclass(frozen=True)
class Row(Record):
    """A row of the table: a system and its cells, one for each column; None: not measured."""

    key: str
    title: str
    cells: tuple[Cell | None, ...]
    note: str = ""


@dataclass(frozen=True)
class LoopTable(Record):
    """Rows reference / A₀ / Gen-1 / …, columns B₁, B₂, … and each suite component."""

    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"row {row.key} has {len(row.cells)} cells for {len(self.columns)} columns"
                )

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell at two keys."""
        keys = [c.key for c in self.columns]
        return next(r for r in self.rows if r.key == row).cells[keys.index(column)]


@dataclass(frozen=True)
class Provenance(Record):
    """What the figures depend on."""

    name: str
    domain: str
    seed: int
    model: str
    dtype: str
    fingerprint: str
    start: str
    budget: Mapping[str, float]
    criterion: Mapping[str, float]  # tau0, tau
    gate: Mapping[str, float]  # delta, alpha, reference_floor
    isolation: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PrintedExample(Record):
    """One example of a slice, whole, with what came back."""

    context: str
    question: str
    gold: tuple[str, ...]
    evidence: tuple[str, ...]
    seed: int
    reference: str
    artifact: str
    answer_prefix: str = ""


@dataclass(frozen=True)
class AdmissionReport(Record):
    """The hold-out figures of an admission attempt."""

    admitted: bool
    reason: str
    reference: Cell
    artifact: Cell
    gap: Cell
    reference_lower: float
    gap_lower: float
    alpha_spent: float
    attempt: int
    n: int

    @classmethod
    def of(cls, verdict: AdmissionVerdict) -> AdmissionReport:
        """The figures of a verdict."""
        v = verdict
        return cls(
            v.admitted,
            v.reason,
            Cell.of(v.reference),
            Cell.of(v.artifact),
            Cell.of(v.gap),
            v.reference_lower,
            v.gap_lower,
            v.alpha_spent,
            v.attempt,
            v.n,
        )


@dataclass(frozen=True)
class SliceReport(Record):
    """An admitted slice: what was found, in words, and the evidence.

    Attributes
    ----------
    name : str
        ``B1``, ``B2``, …
    round : int
    against : str
        The artifact that it breaks (``A0``, ``Gen-1``).
    words : str
        What was found, in words: a sentence or two.
    source : str
        The probe program.
    probe_key : str
        Content hash of the program.
    screening_gap : float
        What the search saw; shown beside the hold-out gap, never instead of it.
    """

    name: str
    round: int
    against: str
    words: str
    source: str
    probe_key: str
    screening_gap: float
    admission: AdmissionReport
    example: PrintedExample


@dataclass(frozen=True)
class ComponentReport(Record):
    """The gate's verdict on one suite component."""

    component: str
    status: Literal["pass", "fail", "inconclusive", "not gating"]
    reference: Cell
    old: Cell
    new: Cell
    difference: Cell  # low is the one-sided lower bound
    delta: float
    n: int
    reason: str = ""


@dataclass(frozen=True)
class SliceChange(Record):
    """How a generation does on one slice, against its parent."""

    slice: str
    old: Cell
    new: Cell
    gained: int
    lost: int
    p_value: float
    reason: str = ""


@dataclass(frozen=True)
class GenerationReport(Record):
    """A generation: the algorithm that took the place of its parent, or the best that did not.

    Attributes
    ----------
    name : str
        ``Gen-1``, ``Gen-2``, …
    parent : str
        The row it was compared with.
    accepted : bool
    words : str
        What changed, in words.
    reason : str
        Why it was accepted or not.
    diff : str
        Unified diff against the parent's sources.
    files : mapping
        The whole source tree.
    measured : mapping
        The measured budget (``kept_fraction``, ``kept_bytes``, …), without times.
    """

    name: str
    round: int
    parent: str
    accepted: bool
    words: str
    reason: str
    diff: str
    key: str
    files: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    changes: tuple[SliceChange, ...] = ()
    components: tuple[ComponentReport, ...] = ()


@dataclass(frozen=True)
class Rejection(Record):
    """Candidates of one search that were rejected for one reason."""

    round: int
    search: Literal["discriminator", "generator"]
    reason: str
    count: int


@dataclass(frozen=True)
class SearchReport(Record):
    """How one search went; ``curve``: (candidate number, best score so far) where that changed."""

    round: int
    search: Literal["discriminator", "generator"]
    against: str
    proposer: str
    engine: str
    candidates: int
    invalid: int
    evaluations: int
    best: float
    admitted: bool
    stopped_by: str
    attempts: tuple[AdmissionReport, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class LedgerRow(Record):
    """What was spent, summed over one stage, spender and kind.

    Attributes
    ----------
    count : int
        Proposals, also those without a candidate; sessions with a rest; 0 for evaluations.
    dollars : float or None
        None: the price of some is not known.
    source : str
        Where the dollars come from: reported, estimated (with the price table), unknown, none.
    """

    stage: str
    who: str
    kind: str
    count: int
    evaluations: int
    input_tokens: int
    output_tokens: int
    dollars: float | None
    source: str = "none"


@dataclass(frozen=True)
class LoopResult(Record):
    """Everything that a run found; ``result.json`` of a run folder."""

    provenance: Provenance
    table: LoopTable
    status: Literal["complete", "stopped"] = "complete"
    summary: str = ""
    slices: tuple[SliceReport, ...] = ()
    generations: tuple[GenerationReport, ...] = ()
    searches: tuple[SearchReport, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    ledger: tuple[LedgerRow, ...] = ()
    agents: tuple[str, ...] = ()  # a sentence on each session of an agent
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA

    def dumps(self) -> str:
        """The text of ``result.json``."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True)
class ReplayRow(Record):
    """One system on one slice."""

    artifact: str
    reference: Cell
    score: Cell
    gap: Cell
    measured: Mapping[str, float] = field(default_factory=dict)
    invalid: str = ""  # why it could not be scored, when it could not


@dataclass(frozen=True)
class ReplayResult(Record):
    """``gal replay``: a slice against artifacts on a model."""

    slice: str
    probe_key: str
    model: str
    dtype: str
    rows: tuple[ReplayRow, ...]
    example: PrintedExample | None = None
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA


def read_result(run_dir: Path) -> LoopResult:
    """Read ``result.json`` of a run folder.

    Raises
    ------
    StoreError
        No such file, not JSON, or of another schema version.
    """
    path = run_dir / "result.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not run_dir.is_dir():
            raise StoreError(f"{run_dir}: no such run folder") from None
        raise StoreError(
            f"{run_dir}: no result.json: the run has not finished",
            "run the same command again to go on",
        ) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from None
    found = data.get("schema") if isinstance(data, dict) else None
    if found != SCHEMA:
        raise StoreError(
            f"{path}: schema version {found!r}, this galoop reads {SCHEMA}",
            "show it with the version of galoop that wrote it",
        )
    try:
        return LoopResult.from_json(data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise StoreError(f"{path}: not a result of galoop: {error}") from None


def _build(hint: Any, value: Any) -> Any:
    """``value`` of a JSON document as the type ``hint`` says."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return (
            None if value is None else _build(next(a for a in args if a is not type(None)), value)
        )
    if origin is tuple:
        inner = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_build(kind, item) for kind, item in zip(inner, value, strict=True))
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json(value)
    return dict(value) if origin is not None and isinstance(value, dict) else value
