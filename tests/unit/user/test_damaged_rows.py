"""A damaged row of the data user's service hides no other study or chain, and readiness tells it."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dpdpca_protocol.errors import IntegrityError
from dpdpca_runtime.database import Database
from dpdpca_user_service.store.chains import ChainStore
from dpdpca_user_service.store.database import service_database
from dpdpca_user_service.store.studies import StudyStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROXY = "https://proxy.example"


@pytest.fixture
def database(tmp_path: Path) -> Database:
    made = service_database(tmp_path / "user.sqlite3")
    made.upgrade()
    return made


def alter(database: Database, table: str, column: str) -> None:
    with closing(sqlite3.connect(database.place)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE {table} SET {column} = '{{x' WHERE id = 'bad'")


@pytest.mark.parametrize("column", ["stage", "study", "facts", "seconds"])
def test_the_other_studies_go_on(database: Database, column: str) -> None:
    store = StudyStore(database)
    for row_id in ("bad", "good"):
        store.add(row_id, "Title", "joint", b"{}", "application/json", PROXY, True, NOW)
    store.check_rows()
    alter(database, "studies", column)
    assert [row.id for row in store.all()] == ["good"]
    assert [row.id for row in store.unfinished()] == ["good"]
    with pytest.raises(IntegrityError) as told:
        store.check_rows()
    assert "studies are damaged: bad" in told.value.problem


@pytest.mark.parametrize("column", ["base", "state", "rounds"])
def test_the_other_chains_go_on(database: Database, column: str) -> None:
    store = ChainStore(database)
    for chain_id in ("bad", "good"):
        store.add(chain_id, "Title", {}, PROXY, NOW, publish=True, in_clear=False, records=1, scales=False)
    store.check_rows()
    alter(database, "chains", column)
    assert [chain.id for chain in store.running()] == ["good"]
    with pytest.raises(IntegrityError) as told:
        store.check_rows()
    assert "chains are damaged: bad" in told.value.problem
