"""SQLite as the engine of a `Database`: one file in WAL mode, and the meaning of its errors.

With synchronous FULL, a committed transaction is on the disk. Deleted content is overwritten.
"""

import logging
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import URL, Connection, create_engine, event

from dpdpca_protocol.errors import DpdpcaError, UnavailableError
from dpdpca_runtime.engine import BUSY_SECONDS, DatabaseEngine, busy, refused_statement
from dpdpca_runtime.files import close_to_others, make_private

SECONDS: Final = "SELECT CAST(strftime('%s', 'now') AS INTEGER)"
"""The clock of the database, in seconds since 1970."""

_CHECKPOINT_MILLISECONDS = 500
_WRITING: Final = "dpdpca_writing"
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""The suffixes of SQLite's additional files. SQLite gives these files the mode of the database."""
_PRAGMAS: Final = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "secure_delete=ON",
    f"busy_timeout={BUSY_SECONDS * 1000}",
    "trusted_schema=OFF",
)
_PASSING: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FAILING: Final = {
    sqlite3.SQLITE_IOERR: "cannot be read or written",
    sqlite3.SQLITE_READONLY: "cannot be written",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_NOMEM: "has no memory left",
}
_CORRUPT: Final = {
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_NOTADB: "is no longer a database",
    sqlite3.SQLITE_CONSTRAINT: "contradicts itself",
}

_logger = logging.getLogger("dpdpca.store")


class _Connection(sqlite3.Connection):
    """A connection that knows its cursors.

    A cursor whose rows were not all fetched keeps the view that it reads. If an error's traceback keeps the
    cursor alive, later transactions on the same connection would read this old view, and could not write.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reads = WeakSet[sqlite3.Cursor]()

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        made = super().cursor(*args, **kwargs)
        self._reads.add(made)
        return made

    def end_reads(self) -> None:
        for cursor in list(self._reads):
            cursor.close()
        self._reads.clear()


class SqliteFile(DatabaseEngine):
    """A database file and the connections to it."""

    driver_errors = sqlite3.Error

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = str(path)
        self._writer = threading.Lock()
        self.engine = create_engine(
            # The URL is built from parts, because ? and % in a path would be misread in a text.
            URL.create("sqlite", database=str(path.absolute())),
            pool_size=16,
            max_overflow=48,
            connect_args={"timeout": BUSY_SECONDS, "factory": _Connection},
        )
        event.listen(self.engine, "connect", _prepare)
        event.listen(self.engine, "begin", _begin)
        event.listen(self.engine, "reset", _end_reads)

    def make(self) -> None:
        """Creates the file with mode 0600, or sets the mode of existing files to 0600."""
        make_private(self.path)
        for ending in _BESIDE:
            close_to_others(self.path.with_name(self.path.name + ending))

    def check_whole(self) -> None:
        """Raises IntegrityError if a table and its index differ, because then searches would miss rows."""
        with self.reading() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
        if found != "ok":
            raise self.corrupt("is damaged")

    def claim(self, connection: Connection, role: str) -> None:
        """The file is in the home of its role."""

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent view for reading."""
        with self.errors_translated(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self, about: Sequence[bytes] = ()) -> Iterator[Connection]:
        """A transaction that waits for all other writers, whatever they are about."""
        with self._writer, self.errors_translated(), self.engine.connect() as connection:
            connection = connection.execution_options(**{_WRITING: True})
            with connection.begin():
                yield connection

    def forget_deleted(self) -> bool:
        """Empties the write-ahead log: the file itself has no deleted content. An active reader can prevent
        this."""
        with self._writer, self.errors_translated():
            raw = self.engine.raw_connection()
            try:
                cursor = raw.cursor()
                # Other writers wait for this, so it is better to try later than to wait for a reader.
                cursor.execute(f"PRAGMA busy_timeout={_CHECKPOINT_MILLISECONDS}")
                try:
                    is_held_up, *_ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                finally:
                    cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
            finally:
                raw.close()
        return not is_held_up

    def translated(self, error: BaseException | None) -> DpdpcaError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        _logger.error("database", extra={"count": code, "file": self.path})
        if code == sqlite3.SQLITE_FULL:
            return UnavailableError(
                "storage-full",
                "the disk of the database is full",
                "make room on the disk; nothing else is needed",
                retry_after_seconds=60,
                place=self.place,
            )
        if code in _PASSING:
            return busy("the database is busy")
        if code in _FAILING:
            return UnavailableError(
                "storage-failing",
                f"the database {_FAILING[code]}",
                "check the disk, and the owner and mode of the file and its folder, then try again",
                retry_after_seconds=60,
                place=self.place,
            )
        if code in _CORRUPT:
            return self.corrupt(_CORRUPT[code])
        return refused_statement(self.place, "sqlite3 FILE 'PRAGMA integrity_check'")


def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
    # SQLAlchemy's begin event opens transactions; the driver must not.
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _end_reads(connection: _Connection, _record: Any, _state: Any) -> None:
    connection.end_reads()


def _begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
