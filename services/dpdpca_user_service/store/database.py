"""The only door to the database file. SQLite in WAL mode, synchronous FULL, deleted content overwritten.

A transaction that has returned is on the disk; writers take their turn.
"""

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy import exc as sqlalchemy_errors

from dpdpca_protocol.errors import (
    DpdpcaError,
    IntegrityError,
    MessageError,
    PolicyError,
    UnavailableError,
)
from dpdpca_runtime.files import close_to_others, make_private

_BUSY_SECONDS = 20
_CHECKPOINT_MILLISECONDS = 500
_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_WRITING = "dpdpca_writing"
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps beside a database; it gives them the mode of the database."""
_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "secure_delete=ON",
    f"busy_timeout={_BUSY_SECONDS * 1000}",
    "trusted_schema=OFF",
)
_FAILING: Final = {
    sqlite3.SQLITE_BUSY: "is busy",
    sqlite3.SQLITE_LOCKED: "is busy",
    sqlite3.SQLITE_IOERR: "cannot be read or written",
    sqlite3.SQLITE_READONLY: "cannot be written",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_NOMEM: "has no memory left",
}
_CORRUPT: Final = {
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_NOTADB: "is no database any more",
    sqlite3.SQLITE_CONSTRAINT: "contradicts itself",
}
_RESTORE: Final = "stop the service, keep a copy of its home, and put the home back from the newest backup"

_logger = logging.getLogger("dpdpca.store")


class Database:
    """One database file. `path` is made by `upgrade` if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = threading.Lock()
        self._has_to_forget = True  # what an earlier run left undone is not known
        self._engine = create_engine(
            # From parts: in a text, ? and % of the path would mean something else.
            URL.create("sqlite", database=str(path.absolute())),
            pool_size=8,
            max_overflow=24,
            connect_args={"timeout": _BUSY_SECONDS},
        )
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "begin", _begin)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that may change rows: all of it is on the disk when this returns, or none of it.

        Raises:
            UnavailableError: `storage-full` or `storage-failing`; nothing was changed.
            IntegrityError: `state-corrupt`.
        """
        with self._writer, _in_our_words(self.path), self._engine.connect() as connection:
            connection = connection.execution_options(**{_WRITING: True})
            with connection.begin():
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view; raises like `transaction`."""
        with _in_our_words(self.path), self._engine.connect() as connection, connection.begin():
            yield connection

    def upgrade(self) -> None:
        """Brings the schema to this version's, making the file (0600) if need be.

        Raises:
            PolicyError: `newer-store`, the file was written by a later version.
        """
        self._make_file()
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        known = {revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()}
        with self.transaction() as connection:
            present = MigrationContext.configure(connection).get_current_revision()
            if present is not None and present not in known:
                raise PolicyError(
                    "newer-store",
                    "the database was written by a later version of this program",
                    "run that version, or restore a backup made by this one",
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def _make_file(self) -> None:
        """The file before its first byte, and what an earlier version left beside it, closed to others."""
        make_private(self.path)
        for ending in _BESIDE:
            close_to_others(self.path.with_name(self.path.name + ending))

    @property
    def has_to_forget(self) -> bool:
        """Whether deleted content may still stand in the write-ahead log."""
        return self._has_to_forget

    def forget_deleted(self) -> bool:
        """Empties the write-ahead log, so that what was deleted is in no file of the database.

        A reader at work can hold it up: then it is still to do, and is no error.

        Returns:
            Whether it is done; `has_to_forget` says the same until the next call.
        """
        self._has_to_forget = True
        with self._writer, suppress(UnavailableError), _in_our_words(self.path):
            raw = self._engine.raw_connection()
            try:
                cursor = raw.cursor()
                # Other writers wait for this: better to come back than to wait for a reader.
                cursor.execute(f"PRAGMA busy_timeout={_CHECKPOINT_MILLISECONDS}")
                try:
                    is_held_up, *_ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                finally:
                    cursor.execute(f"PRAGMA busy_timeout={_BUSY_SECONDS * 1000}")
            finally:
                raw.close()
            self._has_to_forget = bool(is_held_up)
        return not self._has_to_forget

    def close(self) -> None:
        self._engine.dispose()


def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
    # SQLAlchemy's begin event opens transactions; the driver must not.
    connection.isolation_level = None
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@contextmanager
def as_written() -> Iterator[None]:
    """Within `reading`: what does not read back as it was written is damage, whoever asked for it.

    Raises:
        IntegrityError: `state-corrupt`.
    """
    try:
        yield
    except (MessageError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            "state-corrupt", "a stored row is not what this program wrote", _RESTORE
        ) from error


@contextmanager
def _in_our_words(path: Path) -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        error.place = error.place or str(path)  # what does not read as it was written, stands here
        raise
    except sqlalchemy_errors.DBAPIError as error:
        raise _translated(error.orig, path) from error
    except sqlite3.Error as error:
        raise _translated(error, path) from error


def _translated(error: BaseException | None, path: Path) -> DpdpcaError:
    """What an error of SQLite means, of the database at `path`."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    _logger.error("database", extra={"count": code, "file": path})
    place = str(path)
    if code == sqlite3.SQLITE_FULL:
        return UnavailableError(
            "storage-full",
            "the database has no room left",
            "make room on its disk; nothing else is needed",
            retry_after_seconds=60,
            place=place,
        )
    if code in _FAILING:
        return UnavailableError(
            "storage-failing",
            f"the database {_FAILING[code]}",
            "look at its disk, and at owner and mode of the file and its folder, and try again",
            retry_after_seconds=10,
            place=place,
        )
    if code in _CORRUPT:
        return IntegrityError("state-corrupt", f"the database {_CORRUPT[code]}", _RESTORE, place=place)
    return IntegrityError(
        "state-corrupt",
        "the database refused a statement",
        "see that it is this role's own and whole (sqlite3 FILE 'PRAGMA integrity_check'); if so, report it",
        place=place,
    )
