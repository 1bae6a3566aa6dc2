"""The rows of a database query, fetched in batches; the database is named by a SQLAlchemy URL.

Error messages contain neither the URL nor the query nor any message of the database.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from dpdpca_owner.records.source import Listener, RecordSource
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature


class SqlSource(RecordSource):
    """A query on a database. The query is run once for its column names and once for its rows.

    Args:
        url: may contain a password; it is never shown.
        query: a SELECT statement, run as it stands: : and % have no meaning of their own.
    """

    def __init__(self, url: str, query: str) -> None:
        with _asking():
            self._engine = sqlalchemy.create_engine(url)
        _check_file(self._engine)
        self._query = query
        with self._result(1) as result:
            if not result.returns_rows:
                raise InputError("not-a-query", "the statement is not a query", "give a SELECT statement")
            self.names = tuple(result.keys())

    def __repr__(self) -> str:
        return "SqlSource(…)"

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        with self._result(records) as result:
            for rows in result.partitions(records):
                columns = list(zip(*rows, strict=True))
                if listener is not None:
                    listener(columns)
                yield [columns[position] for position in positions]

    @contextmanager
    def _result(self, records: int) -> Iterator[sqlalchemy.CursorResult[Any]]:
        with _asking(), self._engine.connect() as connection:
            # Reading must change nothing: read-only if the database supports it, and rolled back at the end.
            if self._engine.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA query_only = ON")
            elif self._engine.dialect.name == "postgresql":
                connection = connection.execution_options(postgresql_readonly=True)
            streaming = connection.execution_options(stream_results=True, max_row_buffer=records)
            # Without parameters, neither SQLAlchemy nor a driver looks for : or % in the query.
            yield streaming.exec_driver_sql(self._query, execution_options={"no_parameters": True})


def _check_file(engine: sqlalchemy.Engine) -> None:
    """Refuses a missing SQLite file, because SQLite would create an empty database."""
    file = engine.url.database if engine.dialect.name == "sqlite" else None
    if file and not file.startswith((":memory:", "file:")) and not Path(file).is_file():
        raise InputError(
            "no-such-file",
            "the URL names an SQLite file that does not exist",
            "give the path of the file; in a URL ? is written %3F and % is written %25",
        )


@contextmanager
def _asking() -> Iterator[None]:
    try:
        yield
    except (ArgumentError, NoSuchModuleError) as error:
        raise InputError(
            "bad-database-url",
            "SQLAlchemy does not understand the database URL",
            "compare the URL with the database URLs in SQLAlchemy's manual",
        ) from error
    except SQLAlchemyError as error:
        cause = type(getattr(error, "orig", None) or error).__name__
        raise InputError(
            "database-refused",
            f"the database refused the connection or the query ({cause})",
            "run the query in the database's own client to see the reason",
        ) from error
