"""What a `Database` asks of its engine. `sqlite` and `postgres` are the two engines."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Final

from sqlalchemy import BigInteger, Connection, Engine, Integer, String, Text
from sqlalchemy import exc as sqlalchemy_errors
from sqlalchemy.types import TypeEngine

from dpdpca_protocol.errors import DpdpcaError, IntegrityError, UnavailableError

RESTORE: Final = "stop the service, keep a copy of its home, then restore the home from the newest backup"
"""What an operator does about a damaged database."""
BUSY_SECONDS: Final = 20
"""The longest wait for another writer."""

WHOLE_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")
"""The type of a column of whole numbers. SQLite stores 64 bits in any column."""


def words(most: int) -> TypeEngine[str]:
    """The type of a column of texts with at most `most` characters.

    SQLite only notes this number. Whoever writes a text has to check its length, so PostgreSQL is not told.
    """
    return Text().with_variant(String(most), "sqlite")


class DatabaseEngine(ABC):
    """A database and the connections to it.

    Attributes:
        place: names the database in errors, without a password.
        engine: SQLAlchemy's engine.
        driver_errors: the errors of the driver, which SQLAlchemy does not always wrap.
        restore: what an operator does if the database is damaged.
    """

    place: str
    engine: Engine
    driver_errors: ClassVar[type[Exception]]
    restore: ClassVar[str] = RESTORE

    @abstractmethod
    def make(self) -> None:
        """Makes the database ready for its first use."""

    @abstractmethod
    def check_whole(self) -> None:
        """Raises IntegrityError if the database is damaged, and UsageError if it is unfit."""

    @abstractmethod
    def claim(self, connection: Connection, role: str) -> None:
        """Makes sure that no other role uses this database. Raises UsageError if one does."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """A consistent view for reading."""

    @abstractmethod
    def writing(self, about: Sequence[bytes]) -> AbstractContextManager[Connection]:
        """A transaction that waits for all others that it excludes before it reads anything.

        Args:
            about: what the transaction is about, see `Database.transaction`. An engine may exclude more.
        """

    @abstractmethod
    def forget_deleted(self) -> bool:
        """Removes deleted content, as far as this engine can. Returns whether it did.

        Raises:
            UnavailableError, IntegrityError: see `errors_translated`.
        """

    @abstractmethod
    def translated(self, error: BaseException | None) -> DpdpcaError:
        """Our own error for an error of the driver."""

    def corrupt(self, how: str) -> IntegrityError:
        return IntegrityError("state-corrupt", f"the database {how}", self.restore, place=self.place)

    @contextmanager
    def errors_translated(self) -> Iterator[None]:
        """Translates errors of the database into our own errors.

        Raises:
            UnavailableError: `storage-full`, `storage-failing` or `busy`.
            IntegrityError: `state-corrupt`.
        """
        try:
            yield
        except IntegrityError as error:
            error.place = error.place or self.place  # errors in stored values are raised here
            raise
        except (sqlalchemy_errors.NoResultFound, sqlalchemy_errors.MultipleResultsFound) as error:
            # A table and its index differ: the row was found a moment ago, or it exists twice.
            raise self.corrupt("contradicts itself") from error
        except sqlalchemy_errors.DBAPIError as error:
            raise self.translated(error.orig) from error
        except self.driver_errors as error:
            raise self.translated(error) from error
        except sqlalchemy_errors.TimeoutError as error:
            raise busy("the database has no free connection") from error


def busy(problem: str) -> UnavailableError:
    return UnavailableError("busy", problem, "try again", retry_after_seconds=2)


def refused_statement(place: str, how_to_check: str) -> IntegrityError:
    """The error for a statement that the database does not accept."""
    return IntegrityError(
        "state-corrupt",
        "the database refused a statement",
        f"check that the database belongs to this role and is not damaged ({how_to_check}); if both are "
        "true, report this as a bug",
        place=place,
    )
