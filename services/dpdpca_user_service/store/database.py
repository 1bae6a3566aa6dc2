"""The database of the data user's service: a `Database` with tables for studies, chains and the log."""

from pathlib import Path
from typing import Final

from dpdpca_runtime.database import Database

_MIGRATIONS: Final = Path(__file__).parent / "migrations"


def service_database(path: Path) -> Database:
    """The database in the file at `path`. `Database.upgrade` creates the file if it is missing."""
    return Database(path, _MIGRATIONS)
