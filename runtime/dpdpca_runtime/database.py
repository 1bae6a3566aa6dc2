"""The only door to a service's database: `transaction(name)` to change, `reading(name)` to read.

A transaction that has returned is on the disk, and writers take their turn: a row that was read inside a
transaction is still true when it is written. What the database cannot do is said in the words of the error
taxonomy. Callers see SQLAlchemy alone; what only one engine knows stands in that engine's module.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Executable, TableClause

from dpdpca_protocol.errors import DpdpcaError, IntegrityError, MessageError, PolicyError, UnavailableError
from dpdpca_runtime import sqlite

Observer = Callable[[str], None]


class Database:
    """One database and its connections.

    Args:
        path: the file; made by `upgrade` if it is not there.
        migrations: the folder of the schema's Alembic scripts.
        observe: called with the name of every transaction that changed something.
    """

    def __init__(self, path: Path, migrations: Path, observe: Observer = lambda name: None) -> None:
        self.path = path
        self._migrations = migrations
        self._observe = observe
        self._store = sqlite.SqliteFile(path)
        self._engine = self._store.engine
        self._writer = threading.Lock()
        self._has_to_forget = True  # what an earlier run left undone is not known

    @contextmanager
    def transaction(self, name: str) -> Iterator[Connection]:
        """A transaction that may change rows: all of it is on the disk when this returns, or none of it.

        Args:
            name: what becomes true, for metrics.

        Raises:
            UnavailableError: `storage-full`, `storage-failing` or `busy`; nothing was changed.
            IntegrityError: `state-corrupt`.
        """
        with self._writer, self._store.writing() as connection:
            yield connection
        self._observe(name)

    @contextmanager
    def reading(self, name: str) -> Iterator[Connection]:
        """One consistent view; raises like `transaction`."""
        with self._store.reading() as connection:
            yield connection

    def upgrade(self) -> None:
        """Brings the schema to this version's, making the file (0600) if need be.

        Raises:
            PolicyError: `newer-store`, the file was written by a later version.
            IntegrityError: `state-corrupt`, the file is damaged. A search that misses a row would do again
                what was done: the proxy would draw a second noise.
        """
        self._store.make()
        self._store.check_whole()
        config = Config()
        config.set_main_option("script_location", str(self._migrations).replace("%", "%%"))
        known = {revision.revision for revision in ScriptDirectory.from_config(config).walk_revisions()}
        with self._writer, self._store.writing() as connection:
            present = MigrationContext.configure(connection).get_current_revision()
            if present is not None and present not in known:
                raise PolicyError(
                    "newer-store",
                    "the database was written by a later version of this program",
                    "run that version, or restore a backup made by this one",
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    @property
    def has_to_forget(self) -> bool:
        """Whether deleted content may still stand in a file of the database."""
        return self._has_to_forget

    def forget_deleted(self) -> bool:
        """Takes what was deleted out of every file of the database.

        A reader at work or a failing disk can hold it up: then it is still to do, and is no error.

        Returns:
            Whether it is done; `has_to_forget` says the same until the next call.
        """
        self._has_to_forget = True
        with self._writer, suppress(UnavailableError):
            self._has_to_forget = not self._store.empty_log()
        return not self._has_to_forget

    def close(self) -> None:
        self._engine.dispose()


def conditional_insert(table: TableClause) -> sqlite.Insert:
    """An INSERT that can say what happens where its row is there already, which is no standard SQL."""
    return sqlite.insert(table)


def change_one(connection: Connection, statement: Executable, conflict: DpdpcaError) -> None:
    """Executes a conditional write. Unless it hits one row, raises `conflict`: the transaction is undone."""
    if connection.execute(statement).rowcount != 1:
        raise conflict


@contextmanager
def as_written() -> Iterator[None]:
    """What does not read back as it was written is damage, whoever asked for it.

    Raises:
        IntegrityError: `state-corrupt`.
    """
    try:
        yield
    except (MessageError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            "state-corrupt", "a stored row is not what this program wrote", sqlite.RESTORE
        ) from error
