"""Access to a service's database: `transaction(name)` to write, `reading(name)` to read.

A transaction that has returned is on the disk. Writers about the same thing run one after the other, so a row
of this thing that was read inside a transaction has not changed when it is written. Failures of the database
are raised as our own errors. Callers only see SQLAlchemy; code for one engine is in that engine's module.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, Executable, TableClause, inspect

from dpdpca_protocol.errors import DpdpcaError, IntegrityError, MessageError, UnavailableError, printable
from dpdpca_runtime import sqlite
from dpdpca_runtime.engine import RESTORE, DatabaseEngine

__all__ = ["RESTORE"]  # and what is defined here

Place: TypeAlias = Path | URL
"""Where a database is: a file of SQLite, or the address of a PostgreSQL database from `postgres_url`."""
Observer = Callable[[str], None]
Row = TypeVar("Row")
Read = TypeVar("Read")


class Database:
    """A database and its connections.

    Args:
        place: where it is. `upgrade` creates a file that is missing.
        migrations: the folder of the schema's Alembic scripts.
        role: the role that uses the database.
        observe: called with the name of every transaction that changed something.

    Attributes:
        place: names the database in errors, without a password.
    """

    def __init__(
        self, place: Place, migrations: Path, role: str, observe: Observer = lambda name: None
    ) -> None:
        self._migrations = migrations
        self._role = role
        self._observe = observe
        self._store = engine_at(place)
        self.place = self._store.place
        self._engine = self._store.engine
        self._forgetting = threading.Lock()
        self._has_to_forget = True  # it is unknown what an earlier run left undone

    @contextmanager
    def transaction(self, name: str, *about: bytes) -> Iterator[Connection]:
        """A transaction that may change rows. When this returns, either all changes are on the disk or none
        is.

        No transaction about the same thing, about a part of it or about a larger thing runs at the same time.
        Any others may, so the transaction must not rely on rows that those change.

        Args:
            name: the name of the operation, for metrics.
            about: names a thing from the largest to the smallest: a study, or a study and one of its owners.
                Nothing means everything.

        Raises:
            UnavailableError: `storage-full`, `storage-failing` or `busy`; nothing was changed. The one
                exception: if the connection to a server breaks during the commit, the change may have been
                made, and a repeated request finds that.
            IntegrityError: `state-corrupt`.
        """
        with self._store.writing(about) as connection:
            yield connection
        self._observe(name)

    @contextmanager
    def reading(self, name: str) -> Iterator[Connection]:
        """A consistent view for reading. Raises like `transaction`."""
        with self._store.reading() as connection:
            yield connection

    def upgrade(self) -> None:
        """Upgrades the schema to this version. Creates a file (mode 0600) if it is missing.

        Raises:
            PolicyError: `newer-store`, a later version wrote the database.
            UsageError: `bad-settings`, the server is unfit, or another role uses the database.
            IntegrityError: `state-corrupt`, the file is damaged. If a search missed a row, finished work
                would be repeated: the proxy would draw noise a second time.
        """
        self._store.make()
        self._store.check_whole()
        with self._store.writing(()) as connection:
            present = _revision(connection)
            if present != newest_revision(self._migrations):
                from dpdpca_runtime.migrations import upgrade_schema

                upgrade_schema(connection, self._migrations, present)
            self._store.claim(connection, self._role)

    @property
    def has_to_forget(self) -> bool:
        """Whether a file of the database may still contain deleted content that this program can remove."""
        return self._has_to_forget

    def forget_deleted(self) -> bool:
        """Removes deleted content from every file of an SQLite database.

        The files of a PostgreSQL server are out of reach: they keep deleted rows until they are overwritten.
        An active reader or a failing disk can prevent this for the moment. This raises no error; the caller
        must try again later.

        Returns:
            Whether the content was removed: the opposite of `has_to_forget` after this call.
        """
        self._has_to_forget = True
        with self._forgetting, suppress(UnavailableError):
            self._has_to_forget = not self._store.forget_deleted()
        return not self._has_to_forget

    def close(self) -> None:
        self._engine.dispose()


def engine_at(place: Place) -> DatabaseEngine:
    """The engine of a database."""
    if isinstance(place, Path):
        return sqlite.SqliteFile(place)
    from dpdpca_runtime.postgres import Postgres

    return Postgres(place)


def newest_revision(migrations: Path) -> str:
    """The revision of the newest script in a folder of Alembic scripts, whose names begin with it."""
    return max(script.stem.partition("_")[0] for script in (migrations / "versions").glob("[0-9]*.py"))


def _revision(connection: Connection) -> str | None:
    """What Alembic noted in the database. None if the file is new."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    present: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return present


def conditional_insert(connection: Connection, table: TableClause) -> Any:
    """An INSERT that can define what happens if the row already exists, which is not standard SQL.

    Both engines have the same `on_conflict_do_nothing` and `on_conflict_do_update`.
    """
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment] # both are alike here
    return insert(table)


def wait_turn(connection: Connection) -> None:
    """Lets one transaction at a time go on, until it ends: for rows that transactions about any thing write.

    Take the turn last, and end the transaction soon: all others may be waiting.
    """
    if connection.dialect.name == "postgresql":
        from dpdpca_runtime.postgres import TURN

        connection.exec_driver_sql(TURN)


def seconds_now(connection: Connection) -> int:
    """The clock of the database, in seconds since 1970: the same for all processes that use it."""
    if connection.dialect.name == "postgresql":
        from dpdpca_runtime.postgres import SECONDS
    else:
        from dpdpca_runtime.sqlite import SECONDS
    seconds: int = connection.exec_driver_sql(SECONDS).scalar_one()
    return seconds


def change_one(connection: Connection, statement: Executable, conflict: DpdpcaError) -> None:
    """Executes a conditional write.

    Raises `conflict` unless it changes exactly one row; the transaction is then rolled back.
    """
    if connection.execute(statement).rowcount != 1:
        raise conflict


@contextmanager
def as_written() -> Iterator[None]:
    """Reports errors in stored data as damage instead of errors of a peer.

    Raises:
        IntegrityError: `state-corrupt`.
    """
    try:
        yield
    except (MessageError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            "state-corrupt", "a stored row is damaged: this program did not write its content", RESTORE
        ) from error


def readable(rows: Iterable[Row], read: Callable[[Row], Read]) -> tuple[list[Read], list[Row]]:
    """The results of `read` for the rows that it can read, and the rows that it finds damaged."""
    made, damaged = list[Read](), list[Row]()
    for row in rows:
        try:
            made.append(read(row))
        except IntegrityError:
            damaged.append(row)
    return made, damaged


def rows_damaged(what: str, names: Iterable[object], place: str) -> IntegrityError:
    """The error for rows that cannot be read. `what` is the kind of row; `names` are as stored."""
    listed = printable(", ".join(map(str, names)))
    return IntegrityError(
        "state-corrupt", f"the stored rows of some {what} are damaged: {listed}", RESTORE, place=place
    )
