"""The run store: outcomes, events, stages, ledger and files of one run.

A run folder holds plain files for what people read and diff, ``objects/`` for what is addressed by
its hash, and ``run.sqlite`` for the rest. Times stand only in the SQLite file, so that the same
seed writes the same plain files, byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from galoop.errors import StoreError
from galoop.store.database import DATABASE_FILES, Database
from galoop.store.files import SCRATCH, Files, disk_errors
from galoop.store.ledger import Spend, Totals
from galoop.store.lock import FolderLock
from galoop.store.reader import SPEND_COLUMNS, OutcomeRow, RunReader
from galoop.types import Outcome, State

__all__ = ["OutcomeRow", "RunStore", "Spend", "Totals"]

LOCK = "run.lock"
_OWN = frozenset({*DATABASE_FILES, LOCK, SCRATCH})


class RunStore(RunReader):
    """One run folder. Make it with :meth:`create_or_open` (to write) or :meth:`open` (to read).

    Every writing method is atomic: when it has returned, what it wrote survives the death of the
    process; when it raises, nothing of it is there. Threads may share a store; forked children may
    not. A store is a context manager.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self._files = Files(path, _OWN)
        self._lock: FolderLock | None = None
        if writable:
            with disk_errors(f"lock {path}"):
                self._lock = FolderLock(path / LOCK)
        try:
            self._database = Database(path, writable=writable)
            if writable:  # not before it is known that the folder is ours
                self._files.clear_scratch()
        except BaseException:
            self._release()
            raise

    @classmethod
    def create_or_open(cls, path: Path, manifest: Mapping[str, Any]) -> RunStore:
        """Start a run, or go on with it.

        Parameters
        ----------
        path : Path
            Absent, empty, or the folder of the same run.
        manifest : mapping
            JSON-compatible: what the run's results depend on (hash of the configuration, versions,
            model, dtype). It must be the same whenever the run is gone on with.

        Raises
        ------
        StoreError
            If the folder belongs to something else, to a run with another manifest (the message
            names the keys), to another store version, or to a process that is still running.
        """
        path = Path(path)
        wanted = _dump(manifest)
        with disk_errors(f"create run folder {path}"):
            path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in path.iterdir()}
        if names and not names & set(DATABASE_FILES) and not names <= _OWN:
            raise StoreError(
                f"{path} is not empty and not a run folder", "name a new or an empty folder"
            )
        store = cls(path, writable=True)
        try:
            store._agree(wanted)
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> RunStore:
        """Open an existing run, by default to read it: also while another process writes it."""
        path = Path(path)
        if not (path / DATABASE_FILES[0]).is_file():
            raise StoreError(f"{path} is not a run folder", "name the folder of an existing run")
        store = cls(path, writable=writable)
        try:
            store.manifest  # noqa: B018  a folder whose creation was interrupted has none
        except BaseException:
            store.close()
            raise
        return store

    def _agree(self, wanted: str) -> None:
        rows = self._database.query("SELECT value FROM meta WHERE key = 'manifest'")
        if not rows:
            self._database.execute("INSERT INTO meta VALUES ('manifest', ?)", (wanted,))
        elif rows[0][0] != wanted:
            before, now = _flatten(json.loads(rows[0][0])), _flatten(json.loads(wanted))
            differing = sorted(
                key for key in before.keys() | now.keys() if before.get(key) != now.get(key)
            )
            said = "; ".join(
                f"{key}: {_short(before.get(key))} there, {_short(now.get(key))} now"
                for key in differing[:8]
            )
            raise StoreError(
                f"run folder {self.path} belongs to another experiment ({said})",
                "restore these settings, or choose another run folder; nothing was changed",
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make several writes (outcomes, spends, events, stages) one: all survive, or none."""
        self._may_write()
        with self._database.transaction():
            yield

    # Outcomes

    def record(
        self,
        rows: Iterable[tuple[str, str, int, Outcome]],
        spends: Iterable[Spend] = (),
        *,
        stage: str = "",
    ) -> None:
        """Record evaluations (system, example, repeat, outcome) and what they cost, as one.

        A key that was recorded before with the same outcome is left as it is; the spends are
        entered all the same, since they were spent.

        Raises
        ------
        StoreError
            If a key was recorded before with another outcome (something was evaluated twice), or
            if an outcome is one of infrastructure: that is never a result, and must be retried.
        """
        with self.transaction():
            now = time.time()
            for system, example, repeat, outcome in rows:
                _check_outcome(system, example, outcome)
                text = _dump(outcome.to_json())
                added = self._database.execute(
                    "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (system, example, repeat, text, stage, now),
                )
                if not added:
                    self._check_same(system, example, repeat, text)
            self._spend(spends, now)

    def _check_same(self, system: str, example: str, repeat: int, text: str) -> None:
        (before,) = self._database.query(
            "SELECT outcome FROM outcomes WHERE system = ? AND example = ? AND repeat = ?",
            (system, example, repeat),
        )
        if before[0] != text:
            raise StoreError(
                f"system {system} was evaluated twice on example {example}, repeat {repeat}, with"
                f" two outcomes: {_short(before[0])} and {_short(text)}",
                "look outcomes up before evaluating; the first one is kept",
            )

    # Events and stages

    def event(self, kind: str, payload: Mapping[str, Any], *, key: str | None = None) -> bool:
        """Append to the run's log.

        Parameters
        ----------
        kind : str
        payload : mapping
            JSON-compatible.
        key : str, optional
            An event of a key is logged once: what a restarted stage repeats changes nothing.

        Returns
        -------
        bool
            Whether it was added.
        """
        self._may_write()
        return bool(
            self._database.execute(
                "INSERT INTO events (kind, payload, key, at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (key) DO NOTHING",
                (kind, _dump(payload), key, time.time()),
            )
        )

    def finish_stage(self, key: str, payload: Mapping[str, Any]) -> None:
        """Say that a stage is done, with its result. Again with the same result is harmless."""
        with self.transaction():
            text = _dump(payload)
            added = self._database.execute(
                "INSERT INTO stages VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (key, text, time.time()),
            )
            query = "SELECT payload FROM stages WHERE key = ?"
            if not added and self._database.query(query, (key,))[0][0] != text:
                raise StoreError(
                    f"stage {key} of {self.path} finished before with another result",
                    "the run is not reproducible; the first result is kept",
                )

    # Ledger

    def spend(self, *spends: Spend) -> None:
        """Enter spends in the ledger."""
        with self.transaction():
            self._spend(spends, time.time())

    def _spend(self, spends: Iterable[Spend], now: float) -> None:
        for spend in spends:
            row = spend.to_json()
            self._database.execute(
                f"INSERT INTO ledger ({SPEND_COLUMNS}, at) VALUES ({', '.join('?' * 11)})",
                (*(row[name] for name in SPEND_COLUMNS.split(", ")), now),
            )

    # Files

    def put_object(self, data: bytes) -> str:
        """Keep bytes under their SHA-256, which is returned."""
        self._may_write()
        return self._files.put_object(data)

    def write_text(self, relative: str, text: str) -> Path:
        """Write a plain file, wholly or not at all; its path."""
        self._may_write()
        return self._files.write_text(relative, text)

    def folder(self, stage: str) -> Path:
        """``proposers/<stage>``, for files that a proposer keeps itself; it may not exist."""
        return self.path / "proposers" / stage

    # Life cycle

    def _may_write(self) -> None:
        if not self.writable:
            raise StoreError(f"run folder {self.path} was opened to be read", "open it writable")

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def close(self) -> None:
        """Let go of the folder. Needed for no data: a killed process loses nothing either."""
        self._database.close()
        if self._lock is not None and self._lock.held:
            with contextlib.suppress(StoreError):
                self._files.clear_scratch()
        self._release()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _check_outcome(system: str, example: str, outcome: Outcome) -> None:
    where = f"outcome of system {system} on example {example}"
    if outcome.state is State.INFRASTRUCTURE:
        raise StoreError(
            f"{where} is an infrastructure failure ({outcome.reason}), which is never recorded",
            "retry the evaluation, and stop the run if it fails again",
        )
    if outcome.state is State.SCORED:
        if outcome.score is None or not 0.0 <= outcome.score <= 1.0:
            raise StoreError(f"{where} is scored {outcome.score}, which is not in [0, 1]")
    elif outcome.score is not None:
        raise StoreError(f"{where} is {outcome.state} and has a score", "a failure has none")
    bad = [name for name, value in outcome.measured.items() if not math.isfinite(value)]
    if bad:
        raise StoreError(f"{where} has no finite value of {', '.join(sorted(bad))}")


def _dump(value: Any) -> str:
    # ASCII: text that a model or a candidate wrote may hold surrogates that UTF-8 cannot.
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(f"cannot store {_short(repr(value))}: {error}") from error


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat.update(_flatten(inner, f"{prefix}.{key}" if prefix else key))
        return flat
    return {prefix: json.dumps(value, sort_keys=True)}


def _short(text: str | None) -> str:
    if text is None:
        return "absent"
    return text if len(text) <= 80 else f"{text[:77]}..."
