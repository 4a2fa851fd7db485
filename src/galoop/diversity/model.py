"""What a look at diversity says, as plain data; ``diversity.json`` of a run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from galoop.errors import StoreError
from galoop.report.model import LoopResult, Record

SCHEMA = 1
FILE = "diversity.json"


@dataclass(frozen=True)
class Item(Record):
    """A probe that is compared.

    Attributes
    ----------
    name : str
        ``B1``, or ``R1-2`` for the second refined candidate of round 1.
    kind : {"slice", "refined"}
    key : str
        Content hash of the program.
    words : str
        What it does, in words.
    examples : int
        How many of its open examples were compared; 0 for a refined candidate.
    """

    name: str
    kind: Literal["slice", "refined"]
    key: str
    words: str
    examples: int = 0


@dataclass(frozen=True)
class Distances(Record):
    """Distances between items, pair by pair.

    Attributes
    ----------
    names : tuple of str
    rows : tuple of tuple of float or None
        Symmetric, in the order of ``names``. The diagonal is 0, or the spread within an item where
        an item is a set. None: not measured.
    mean : float or None
        Mean over the pairs of different items that were measured.
    effective : float or None
        Vendi score: the effective number of different items, between 1 and their number.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[float | None, ...], ...]
    mean: float | None = None
    effective: float | None = None


@dataclass(frozen=True)
class Behaviour(Record):
    """Which methods lose what on which slice.

    Attributes
    ----------
    slices, methods : tuple of str
    reference : tuple of float or None
        Score of the reference, one a slice.
    gaps : tuple of tuple of float or None
        Reference minus method, a row for each method, a column for each slice; None: not measured.
    examples : tuple of tuple of int
        Examples behind each of them.
    broken : tuple of tuple of bool or None
        Whether the estimates meet the criterion of the run (τ₀, τ). An estimate, not an admission.
    patterns : int
        How many different columns ``broken`` has.
    distances : Distances
        Between slices: the mean absolute difference of the gaps over the methods.
    """

    slices: tuple[str, ...]
    methods: tuple[str, ...]
    reference: tuple[float | None, ...]
    gaps: tuple[tuple[float | None, ...], ...]
    examples: tuple[tuple[int, ...], ...]
    broken: tuple[tuple[bool | None, ...], ...]
    patterns: int
    distances: Distances


@dataclass(frozen=True)
class Spread(Record):
    """How far one search went: its scored programs, compared with each other."""

    round: int
    engine: str
    programs: int
    mean: float | None
    effective: float | None


@dataclass(frozen=True)
class DiversityReport(Record):
    """A look at the diversity of one run.

    Attributes
    ----------
    embedding, judge : str
        Which embedding and which judge; empty where there was none.
    """

    items: tuple[Item, ...] = ()
    embedding: str = ""
    programs: Distances | None = None
    examples: Distances | None = None
    behaviour: Behaviour | None = None
    judge: str = ""
    judged: Distances | None = None
    searches: tuple[Spread, ...] = ()
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA

    def dumps(self) -> str:
        """The text of ``diversity.json``."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_diversity(run_dir: Path, result: LoopResult | None = None) -> DiversityReport | None:
    """Read ``diversity.json`` of a run folder; None where there is none.

    Parameters
    ----------
    run_dir : Path
    result : LoopResult, optional
        The run's result: what was kept before the run found further slices is None too.

    Raises
    ------
    StoreError
        Not JSON, or of another schema version.
    """
    path = run_dir / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise StoreError(f"{path}: schema {data['schema']!r}, this galoop reads {SCHEMA}")
        report = DiversityReport.from_json(data)
        compared = {item.key for item in report.items if item.kind == "slice"}
        if result is not None and compared != {one.probe_key for one in result.slices}:
            return None
        return report
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path}: cannot be read: {error}", "`gal diversity RUN --save` writes it again"
        ) from None
