"""The proxy's database, and the witness outside it, which remembers the newest entry of the proxy's log.

A transaction that writes to the log is compared with the witness before it commits. Afterwards, the witness
is updated.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from dpdpca_protocol.errors import DpdpcaError, UnavailableError
from dpdpca_proxy.store.log import check_holds, last_mark, take_written
from dpdpca_proxy.store.witness import Mark, Witness
from dpdpca_runtime.database import Database, Observer, Place

DATABASE_FILE: Final = "proxy.sqlite3"
_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_STORAGE_SLUGS: Final = frozenset({"storage-full", "storage-failing"})


class ProxyDatabase(Database):
    """A `Database` with the proxy's schema and its witness.

    Args:
        place: where it is. `upgrade` creates a file that is missing.
        observe: called with the name of every transaction that changed something.
        witness: remembers the newest log entry; if None, nothing remembers it.
    """

    def __init__(
        self, place: Place, observe: Observer = lambda name: None, witness: Witness | None = None
    ) -> None:
        super().__init__(place, _MIGRATIONS, "proxy", observe)
        self._witness = witness
        self.trouble: str | None = None
        """The reason why the last write failed, if the storage caused it; None after a successful write."""

    @contextmanager
    def transaction(self, name: str, *about: bytes, accepting_loss: bool = False) -> Iterator[Connection]:
        """Like `Database.transaction`. When this returns, the witness knows of the transaction.

        Args:
            name: the name of the operation, for metrics.
            about: the thing that it is about, from the largest to the smallest. Nothing means everything.
            accepting_loss: continues although the witness has seen more than the database contains.

        Raises:
            UnavailableError: `storage-full`, `storage-failing` or `busy`; nothing was changed. The two
                exceptions: only the update of the witness failed, or the connection to a server broke during
                the commit. The change was, or may have been, made, and a repeated request finds that.
            ConflictError: `generation-mismatch`; nothing was changed.
            IntegrityError: `state-corrupt`.
        """
        mark: Mark | None = None
        try:
            with super().transaction(name, *about) as connection:
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

    def settle_witness(self) -> None:
        """Makes sure that the witness has seen everything in the database.

        After this, the proxy notices if anything in the database is undone.

        Raises:
            ConflictError: `generation-mismatch`, the witness has seen more.
            UnavailableError: the witness cannot be updated.
        """
        if self._witness is None:
            return
        seen = self._witness.read()
        with self.reading("read newest log entry") as connection:
            check_holds(connection, seen, self._witness.path)
            last = last_mark(connection)
        if seen is None or seen.generation < last.generation:
            self._tell(last, anew=False)

    def witnessed(self) -> Mark | None:
        """What the witness has seen, or None if nothing can be read."""
        try:
            return None if self._witness is None else self._witness.read()
        except DpdpcaError:
            return None

    def check_witness_is_there(self) -> None:
        """Checks that the witness exists, unless this proxy has never done anything.

        Raises:
            ConflictError: `generation-mismatch`. Often the settings just name the wrong file.
            UnavailableError: the witness cannot be read.
        """
        if self._witness is not None and self._witness.read() is None:
            with self.reading("is the database new") as connection:
                check_holds(connection, None, self._witness.path)

    def _tell(self, mark: Mark, *, anew: bool) -> None:
        if self._witness is not None:
            (self._witness.replace if anew else self._witness.raise_to)(mark)
