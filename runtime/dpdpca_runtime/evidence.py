"""Reads manifests from a role's database. These manifests show which keys the role has used."""

import sqlite3
from collections.abc import Generator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.wire.signing import Statement, verify_statement

if TYPE_CHECKING:
    from dpdpca_runtime.database import Place  # most commands of a data user do not load SQLAlchemy

_LOOK = "SELECT manifest FROM studies WHERE manifest IS NOT NULL ORDER BY {} LIMIT 1"
_IN_FILE = [_LOOK.format(f"rowid {order}") for order in ("ASC", "DESC")]
_ON_SERVER = [_LOOK.format(f"created_at {order}") for order in ("ASC", "DESC")]


def kept_manifests(database: "Place") -> list[Statement]:
    """The first and the last manifest in the table `studies`; empty if there is none, or no database.

    Args:
        database: the database of the proxy or the data user, in any version. The database is only read, so
            its service may be running.
    """
    kept = []
    look = _in_file if isinstance(database, Path) else _on_server
    with suppress(sqlite3.Error, DpdpcaError), closing(look(database)) as manifests:
        for manifest in manifests:
            kept.append(verify_statement("manifest", manifest))
    return kept


def _in_file(place: "Place") -> Generator[bytes, None, None]:
    assert isinstance(place, Path)
    address = f"{place.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        for asked in _IN_FILE:
            for (manifest,) in connection.execute(asked):
                yield manifest


def _on_server(place: "Place") -> Generator[bytes, None, None]:
    from sqlalchemy import inspect

    from dpdpca_runtime.database import engine_at

    store = engine_at(place)
    try:
        with store.reading() as connection:
            for asked in _ON_SERVER if inspect(connection).has_table("studies") else ():
                for (manifest,) in connection.exec_driver_sql(asked):
                    yield bytes(manifest)
    finally:
        store.engine.dispose()
