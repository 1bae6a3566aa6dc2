"""The only door to the database: `Database.transaction(name)` to change, `Database.reading(name)` to read.

SQLite in WAL mode with synchronous FULL: a transaction that has returned is on the disk. Writers take their
turn (BEGIN IMMEDIATE), so a row that was read inside a transaction is still true when it is written. Deleted
content is overwritten. A transaction that wrote into the proxy's log is held against the witness before it
commits, and the witness is told after it. What the database cannot do is said in the words of the error
taxonomy.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Executable, create_engine, event
from sqlalchemy import exc as sqlalchemy_errors

from dpdpca_protocol.errors import DpdpcaError, IntegrityError, PolicyError, UnavailableError
from dpdpca_proxy.store.log import check_holds, last_mark, take_written
from dpdpca_proxy.store.witness import Mark, Witness
from dpdpca_runtime.files import close_to_others, make_private

_BUSY_SECONDS = 20
_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_WRITING = "dpdpca_writing"
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps beside a database; it gives them the mode of the database."""

_PASSING: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FAILING: Final = {
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
_STORAGE_SLUGS: Final = frozenset({"storage-full", "storage-failing"})

_logger = logging.getLogger("dpdpca.store")

Observer = Callable[[str], None]


class Database:
    """One database file and its connections.

    Args:
        path: the file; made by `upgrade` if it is not there.
        observe: called with the name of every transaction that changed something.
        witness: knows how far this proxy had come; None asks and tells nobody.
    """

    def __init__(
        self, path: Path, observe: Observer = lambda name: None, witness: Witness | None = None
    ) -> None:
        self.path = path
        self._observe = observe
        self._witness = witness
        self._writer = threading.Lock()
        self.trouble: str | None = None
        """Why the last write failed, where it was the storage's fault; None after one that went well."""
        self._engine = create_engine(
            # From parts: in a text, ? and % of the path would mean something else.
            URL.create("sqlite", database=str(path.absolute())),
            pool_size=16,
            max_overflow=48,
            connect_args={"timeout": _BUSY_SECONDS},
        )
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "begin", _begin)

    @contextmanager
    def transaction(self, name: str, *, accepting_loss: bool = False) -> Iterator[Connection]:
        """A transaction that may change rows: all of it is on the disk when this returns, or none of it.

        Args:
            name: what becomes true, for metrics.
            accepting_loss: goes on where the witness has seen more than the database holds.

        Raises:
            UnavailableError: `storage-full`, `storage-failing` or `busy`; nothing was changed, but where it
                was the witness that could not be told: then the same act again finds it done.
            ConflictError: `generation-mismatch`; nothing was changed.
            IntegrityError: `state-corrupt`.
        """
        mark: Mark | None = None
        try:
            with self._writer, _in_our_words(self.path), self._engine.connect() as connection:
                connection = connection.execution_options(**{_WRITING: True})
                with connection.begin():
                    try:
                        yield connection
                    finally:
                        mark = take_written(connection)
                    if mark is not None and self._witness is not None and not accepting_loss:
                        check_holds(connection, self._witness.read(), self._witness.path)
            if mark is not None:
                self._tell(mark, anew=accepting_loss)
        except UnavailableError as error:
            if error.slug in _STORAGE_SLUGS:
                self.trouble = error.slug
            raise
        self.trouble = None
        self._observe(name)

    def settle_witness(self) -> None:
        """That the witness has seen all that the database holds, so that none of it can be undone unseen.

        Raises:
            ConflictError: `generation-mismatch`, it has seen more.
            UnavailableError: it cannot be told.
        """
        if self._witness is None:
            return
        seen = self._witness.read()
        with self.reading("what has the witness to know") as connection:
            check_holds(connection, seen, self._witness.path)
            last = last_mark(connection)
        if seen is None or seen.generation < last.generation:
            self._tell(last, anew=False)

    def witnessed(self) -> Mark | None:
        """What the witness has seen, or None where it knows nothing that can be read."""
        try:
            return None if self._witness is None else self._witness.read()
        except DpdpcaError:
            return None

    def check_witness_is_there(self) -> None:
        """That there is a witness, unless this proxy never did anything.

        Raises:
            ConflictError: `generation-mismatch`. Often it is only looked for at the wrong place.
            UnavailableError: it cannot be read.
        """
        if self._witness is not None and self._witness.read() is None:
            with self.reading("is the database new") as connection:
                check_holds(connection, None, self._witness.path)

    def _tell(self, mark: Mark, *, anew: bool) -> None:
        if self._witness is not None:
            (self._witness.replace if anew else self._witness.raise_to)(mark)

    @contextmanager
    def reading(self, name: str) -> Iterator[Connection]:
        """One consistent view; raises like `transaction`."""
        with _in_our_words(self.path), self._engine.connect() as connection, connection.begin():
            yield connection

    def upgrade(self) -> None:
        """Brings the schema to this version's, making the database if need be.

        Raises:
            PolicyError: `newer-store`, the file was written by a later version.
        """
        self._make_file()
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        with _in_our_words(self.path), self._engine.connect() as connection:
            connection = connection.execution_options(**{_WRITING: True})
            with connection.begin():
                known = {
                    revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()
                }
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

    def forget_deleted(self) -> None:
        """Empties the write-ahead log, so that what was deleted is in no file of the database.

        Raises:
            UnavailableError: `busy`, readers kept the log for longer than we wait.
        """
        with self._writer, _in_our_words(self.path):
            raw = self._engine.raw_connection()
            try:
                cursor = raw.cursor()
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                outcome = cursor.fetchone()
                cursor.close()
            finally:
                raw.close()
        if outcome is None or outcome[0]:
            raise UnavailableError("busy", "the database's log is in use", "try again", retry_after_seconds=2)

    def close(self) -> None:
        self._engine.dispose()


def change_one(connection: Connection, statement: Executable, conflict: DpdpcaError) -> None:
    """Executes a conditional write. Unless it hits one row, raises `conflict`: the transaction is undone."""
    if connection.execute(statement).rowcount != 1:
        raise conflict


def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
    # SQLAlchemy's begin event opens transactions; the driver must not.
    connection.isolation_level = None
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "secure_delete=ON",
        f"busy_timeout={_BUSY_SECONDS * 1000}",
        "trusted_schema=OFF",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


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
    except sqlalchemy_errors.TimeoutError as error:
        raise UnavailableError(
            "busy", "the database has no free connection", "try again", retry_after_seconds=2
        ) from error


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
    if code in _PASSING:
        return UnavailableError("busy", "the database is busy", "try again", retry_after_seconds=2)
    if code in _FAILING:
        return UnavailableError(
            "storage-failing",
            f"the database {_FAILING[code]}",
            "look at its disk, and at owner and mode of the file and its folder, and try again",
            retry_after_seconds=60,
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
