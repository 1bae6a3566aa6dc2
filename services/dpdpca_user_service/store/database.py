"""The database of the data user's service: a `Database` with the schema of its studies, chains and log."""

from pathlib import Path
from typing import Final

from dpdpca_runtime.database import Database

_MIGRATIONS: Final = Path(__file__).parent / "migrations"


def service_database(path: Path) -> Database:
    """The database in the file at `path`, which `Database.upgrade` makes if it is not there."""
    return Database(path, _MIGRATIONS)
