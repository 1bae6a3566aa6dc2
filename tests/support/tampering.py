"""The database of a role in the hands of somebody who may write everything in it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sqlalchemy import Connection, create_engine, text

from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.database import DATABASE_FILE
from dpdpca_runtime.database import Place

_DROP_CHECKS = text(
    """
    DO $$ DECLARE found record; BEGIN
        FOR found IN SELECT conname, CAST(conrelid AS regclass) AS of_table FROM pg_constraint
            WHERE contype = 'c' AND connamespace = CAST('public' AS regnamespace)
        LOOP EXECUTE 'ALTER TABLE ' || found.of_table || ' DROP CONSTRAINT ' || found.conname; END LOOP;
    END $$
    """
)


def without_references(connection: Connection) -> None:
    """For this transaction: rows may name what is not there, and be named by what stays."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
    else:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")


def tampering(home: Path) -> AbstractContextManager[Connection]:
    """`tampering_at` for the database of a stopped proxy."""
    return tampering_at(load_settings(home).database_or(home / DATABASE_FILE))


@contextmanager
def tampering_at(place: Place) -> Iterator[Connection]:
    """A transaction in a database, without its constraints."""
    engine = create_engine(f"sqlite:///{place}" if isinstance(place, Path) else place)
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                without_references(connection)
                connection.execute(_DROP_CHECKS)
            else:
                connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            yield connection
    finally:
        engine.dispose()
