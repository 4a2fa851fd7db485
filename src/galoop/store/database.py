"""The SQLite file of a run: schema, opening, transactions, and errors in words.

The journal is a write-ahead log, so that readers (a live view, ``gal show``) never wait for the
writer. ``synchronous=FULL`` flushes it at every commit. Killing the process loses no commit with
``NORMAL`` either, but a power cut may; a commit here follows seconds of model time or paid tokens,
against which a flush of some milliseconds is cheap.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from galoop.errors import StoreError

SCHEMA_VERSION = 1
APPLICATION_ID = 0x67616C70  # "galp" in the file's header: this is a run of ours
DATABASE = "run.sqlite"
DATABASE_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal")
_BUSY_SECONDS = 30.0

_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE outcomes (
        system TEXT NOT NULL, example TEXT NOT NULL, repeat INTEGER NOT NULL,
        outcome TEXT NOT NULL, stage TEXT NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (system, example, repeat)) WITHOUT ROWID""",
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, payload TEXT NOT NULL,
        key TEXT UNIQUE, at REAL NOT NULL)""",
    "CREATE INDEX events_by_kind ON events (kind, id)",
    """CREATE TABLE stages (
        key TEXT PRIMARY KEY, payload TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE ledger (
        id INTEGER PRIMARY KEY AUTOINCREMENT, stage TEXT NOT NULL, who TEXT NOT NULL,
        kind TEXT NOT NULL, dollars REAL, input_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL, model_seconds REAL NOT NULL,
        evaluations INTEGER NOT NULL, wall_seconds REAL NOT NULL, source TEXT NOT NULL,
        at REAL NOT NULL)""",
)


class Database:
    """A connection that threads may share, with nested transactions and errors of our tree.

    Parameters
    ----------
    folder : Path
        The run folder; must exist.
    writable : bool
        A writer creates what is missing, and must hold the folder's lock.
    """

    def __init__(self, folder: Path, *, writable: bool) -> None:
        self.path = folder / DATABASE
        self.writable = writable
        self._lock = threading.RLock()
        self._depth = 0
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        with self._errors("open"):
            self._connection = self._connect()
            try:
                self._check()
                if writable:
                    self._connection.execute("PRAGMA journal_mode=WAL").fetchall()
                    self._connection.execute("PRAGMA synchronous=FULL")
            except BaseException:
                self.close()
                raise

    def _connect(self) -> sqlite3.Connection:
        if self.writable:
            return self._try("rwc")
        if not self.path.is_file():
            raise StoreError(f"{self.path.parent} is not a run folder", "name an existing run")
        try:
            # Not "ro": a reader that may write tidies the log's files away when it closes.
            connection = self._try("rw")
            connection.execute("PRAGMA query_only=ON")
            return connection
        except sqlite3.OperationalError:
            # On read-only media SQLite cannot make the index of the log. Without a log the file is
            # all there is, and may be read as it is.
            log = self.path.with_name(f"{DATABASE}-wal")
            if log.is_file() and log.stat().st_size:
                raise
            return self._try("ro&immutable=1")

    def _try(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,  # transactions are begun by us, explicitly
            check_same_thread=False,
        )
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self) -> None:
        """Is it ours, and of this version? A new file gets the schema in one transaction."""
        tables = self.query("SELECT count(*) FROM sqlite_master")[0][0]
        ours = self.query("PRAGMA application_id")[0][0] == APPLICATION_ID
        if tables and not ours:
            raise StoreError(
                f"{self.path} is a database of another program", "choose another folder"
            )
        if not tables:
            if not self.writable:
                raise StoreError(f"{self.path} holds no run yet", "start the run first")
            with self.transaction():
                for statement in _SCHEMA:
                    self.execute(statement)
                self.execute(f"PRAGMA application_id={APPLICATION_ID}")
                self.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            return
        version = self.query("PRAGMA user_version")[0][0]
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"run folder {self.path.parent} has store version {version}, and this galoop"
                f" reads version {SCHEMA_VERSION}",
                "use the galoop that wrote it, or start a new run folder; nothing was changed",
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; an inner one may fail alone, and is kept only with the outer one.

        Other threads wait.
        """
        self._live()  # before the lock, which a forked child may have inherited locked
        with self._lock:
            begin, commit = "BEGIN IMMEDIATE", "COMMIT"
            abort: tuple[str, ...] = ("ROLLBACK",)
            if self._depth:
                point = f"level{self._depth}"
                begin, commit = f"SAVEPOINT {point}", f"RELEASE {point}"
                abort = (f"ROLLBACK TO {point}", f"RELEASE {point}")
            self.execute(begin)
            self._depth += 1
            try:
                yield
                self.execute(commit)
            except BaseException:
                self._abort(abort)
                raise
            finally:
                self._depth -= 1

    def _abort(self, statements: Sequence[str]) -> None:
        # On a full disk SQLite may have rolled everything back by itself.
        connection = self._connection
        if connection is not None and connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                for statement in statements:
                    connection.execute(statement)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement; the number of rows that it changed."""
        connection = self._live()
        with self._lock, self._errors("write"):
            return connection.execute(statement, parameters).rowcount

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        connection = self._live()
        with self._lock, self._errors("read"):
            return connection.execute(statement, parameters).fetchall()

    def _live(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path} was closed", "open the run again")
        if self._process != os.getpid():
            # SQLite forbids a connection to cross a fork; the lock stays with the parent too.
            raise StoreError(
                f"{self.path} was opened by process {self._process} and cannot be used in its"
                " forked child",
                "return results to the parent and record them there",
            )
        return self._connection

    @contextlib.contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            raise StoreError(
                f"cannot {action} {self.path}: {text}; what was recorded before is kept",
                _remedy(text),
            ) from error

    def close(self) -> None:
        """Close; the last to do so folds the log into the file. Does nothing in a forked child."""
        if self._connection is not None and self._process == os.getpid():
            with self._lock, contextlib.suppress(sqlite3.Error):  # commits are in the log already
                self._connection.close()
            self._connection = None


def _remedy(text: str) -> str:
    if "full" in text or "disk I/O" in text:
        return "free space on that disk and run the same command again"
    if "readonly" in text or "unable to open" in text:
        return "make the run folder readable and writable, or choose another one"
    if "locked" in text:
        return "another program holds the file; close it and run the same command again"
    if "not a database" in text or "malformed" in text:
        return "the file is damaged or not a run; restore a copy or choose another folder"
    return "correct the cause and run the same command again"
