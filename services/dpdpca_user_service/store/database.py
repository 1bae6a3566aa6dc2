"""The database of the data user's service: a `Database` with tables for studies, chains and the log."""

from pathlib import Path
from typing import Final

from dpdpca_runtime.database import Database, Place

_MIGRATIONS: Final = Path(__file__).parent / "migrations"


def service_database(place: Place) -> Database:
    """The database at `place`. `Database.upgrade` creates a file that is missing."""
    return Database(place, _MIGRATIONS, "data user")
