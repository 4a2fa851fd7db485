"""What can be read of a run: by the run itself, by reports, by ``gal show``, and by people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from galoop.errors import StoreError
from galoop.store.database import Database
from galoop.store.files import Files
from galoop.store.ledger import Spend, Totals, total
from galoop.types import Outcome

BATCH = 400  # pairs a query: well below SQLite's limit of bound parameters
SPEND_COLUMNS = (
    "stage, who, kind, dollars, input_tokens, output_tokens, model_seconds, evaluations,"
    " wall_seconds, source"
)

By = Literal["stage", "kind", "who"]


@dataclass(frozen=True)
class OutcomeRow:
    """One recorded outcome with its key.

    Attributes
    ----------
    system, example : str
        Content hashes.
    repeat : int
        From 0; more than one only for stochastic systems.
    outcome : Outcome
    stage : str
        The stage that recorded it.
    at : float
        When, in seconds since 1970.
    """

    system: str
    example: str
    repeat: int
    outcome: Outcome
    stage: str
    at: float

    def flat(self) -> dict[str, Any]:
        """One level of columns, for a data frame; measured figures are ``measured.NAME``."""
        row: dict[str, Any] = {
            "system": self.system,
            "example": self.example,
            "repeat": self.repeat,
            "stage": self.stage,
            "at": self.at,
        }
        data = self.outcome.to_json()
        measured = data.pop("measured")
        return {**row, **data, **{f"measured.{name}": value for name, value in measured.items()}}


class RunReader:
    """The reading half of :class:`galoop.store.run.RunStore`.

    It holds no lock, and never waits for a writer: it sees what was committed when it asked.

    Attributes
    ----------
    path : Path
        The run folder.
    """

    path: Path
    _database: Database
    _files: Files

    @property
    def manifest(self) -> dict[str, Any]:
        """What :meth:`create_or_open` was given when the run began."""
        rows = self._database.query("SELECT value FROM meta WHERE key = 'manifest'")
        if not rows:
            raise StoreError(f"{self.path} holds no run yet", "start the run first")
        return dict(json.loads(rows[0][0]))

    def outcome(self, system: str, example: str, repeat: int = 0) -> Outcome | None:
        """The outcome of one evaluation, or None if it has not been recorded."""
        return self.outcomes(system, [(example, repeat)]).get((example, repeat))

    def outcomes(
        self, system: str, examples: Sequence[tuple[str, int]]
    ) -> dict[tuple[str, int], Outcome]:
        """Those of the (example, repeat) pairs that are recorded for ``system``."""
        found: dict[tuple[str, int], Outcome] = {}
        for start in range(0, len(examples), BATCH):
            batch = examples[start : start + BATCH]
            places = ", ".join(["(?, ?)"] * len(batch))
            flat = [part for pair in batch for part in pair]
            for example, repeat, text in self._database.query(
                "SELECT example, repeat, outcome FROM outcomes"
                f" WHERE system = ? AND (example, repeat) IN (VALUES {places})",
                (system, *flat),
            ):
                found[example, repeat] = Outcome.from_json(json.loads(text))
        return found

    def iter_outcomes(self, system: str | None = None) -> Iterator[OutcomeRow]:
        """All outcomes in the order of their keys, in pages: a large run needs little memory."""
        after: tuple[str, str, int] = ("", "", -1)
        where = "(system, example, repeat) > (?, ?, ?)" + (
            "" if system is None else " AND system = ?"
        )
        while True:
            rows = self._database.query(
                "SELECT system, example, repeat, outcome, stage, at FROM outcomes"
                f" WHERE {where} ORDER BY system, example, repeat LIMIT 1000",
                after if system is None else (*after, system),
            )
            for name, example, repeat, text, stage, at in rows:
                outcome = Outcome.from_json(json.loads(text))
                yield OutcomeRow(name, example, repeat, outcome, stage, at)
            if not rows:
                return
            after = rows[-1][:3]

    def to_rows(self, system: str | None = None) -> list[dict[str, Any]]:
        """All outcomes as flat dictionaries: ``pandas.DataFrame(store.to_rows())``."""
        return [row.flat() for row in self.iter_outcomes(system)]

    def events(self, kind: str | None = None, *, after: int = 0) -> list[dict[str, Any]]:
        """Events in order, as ``{"id", "kind", "payload", "key", "at"}``.

        ``after`` is the id of the last event already seen (for a live view).
        """
        rows = self._database.query(
            "SELECT id, kind, payload, key, at FROM events WHERE id > ?"
            + (" AND kind = ?" if kind is not None else "")
            + " ORDER BY id",
            (after,) if kind is None else (after, kind),
        )
        return [
            {
                "id": row[0],
                "kind": row[1],
                "payload": json.loads(row[2]),
                "key": row[3],
                "at": row[4],
            }
            for row in rows
        ]

    def stage(self, key: str) -> dict[str, Any] | None:
        """The result of a finished stage, or None if it has not finished."""
        rows = self._database.query("SELECT payload FROM stages WHERE key = ?", (key,))
        return dict(json.loads(rows[0][0])) if rows else None

    def stages(self) -> dict[str, dict[str, Any]]:
        """All finished stages, in the order in which they finished."""
        rows = self._database.query("SELECT key, payload FROM stages ORDER BY at, key")
        return {key: json.loads(payload) for key, payload in rows}

    def spends(self) -> list[Spend]:
        """All entries of the ledger, in order."""
        return [
            Spend(*row)
            for row in self._database.query(f"SELECT {SPEND_COLUMNS} FROM ledger ORDER BY id")
        ]

    def totals(self, by: By) -> dict[str, Totals]:
        """The ledger added up by stage, by kind or by who spent, sorted by name."""
        groups: dict[str, list[Spend]] = {}
        for spend in self.spends():
            groups.setdefault(getattr(spend, by), []).append(spend)
        return {name: total(groups[name]) for name in sorted(groups)}

    def total(self, stage: str | None = None) -> Totals:
        """The whole ledger added up, or that of one stage."""
        return total(row for row in self.spends() if stage is None or row.stage == stage)

    def get_object(self, digest: str) -> bytes:
        """The bytes of an object, checked against its hash."""
        return self._files.get_object(digest)

    def has_object(self, digest: str) -> bool:
        """Whether an object of that hash is kept."""
        return self._files.has_object(digest)

    def read_text(self, relative: str) -> str:
        """Read a plain file."""
        return self._files.read_text(relative)
