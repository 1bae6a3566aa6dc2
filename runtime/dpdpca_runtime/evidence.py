"""Reads manifests from a role's database. These manifests show which keys the role has used."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.wire.signing import Statement, verify_statement

_LOOK = "SELECT manifest FROM studies WHERE manifest IS NOT NULL ORDER BY rowid {} LIMIT 1"


def kept_manifests(database: Path) -> list[Statement]:
    """The first and the last manifest in the table `studies`; empty if there is none, or no database.

    Args:
        database: the database of the proxy or the data user, in any version. The database is only read, so
            its service may be running.
    """
    kept = []
    address = f"{database.absolute().as_uri()}?mode=ro"
    with suppress(sqlite3.Error, DpdpcaError), closing(sqlite3.connect(address, uri=True)) as connection:
        for order in ("ASC", "DESC"):
            for (manifest,) in connection.execute(_LOOK.format(order)):
                kept.append(verify_statement("manifest", manifest))
    return kept
