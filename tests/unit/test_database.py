"""One door to a database for both services: what it says when it cannot, and what was deleted is gone."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from proxy_world import ProxyWorld, values_of
from sqlalchemy import Connection, CursorResult, event
from sqlalchemy.exc import TimeoutError as NoConnectionError

from dpdpca_protocol.errors import UnavailableError
from dpdpca_proxy.store.database import ProxyDatabase
from dpdpca_proxy.studies import sweep
from dpdpca_runtime import migrations
from dpdpca_runtime.database import Database, newest_revision
from dpdpca_user_service.store.database import service_database


@pytest.fixture(params=[ProxyDatabase, service_database], ids=["proxy", "user"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    make: Callable[[Path], Database] = request.param
    made = make(tmp_path / "x.sqlite3")
    made.upgrade()
    yield made
    made.close()


def impatient(connection: sqlite3.Connection, *_: object) -> None:
    connection.execute("PRAGMA busy_timeout=20")


def test_a_database_that_another_process_writes_is_busy(database: Database) -> None:
    event.listen(database._engine, "checkout", impatient)
    with closing(sqlite3.connect(database.place, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError) as refused, database.transaction("wait"):
            pass
    assert (refused.value.slug, refused.value.retry_after_seconds) == ("busy", 2)
    with database.transaction("go on"):
        pass


def test_alembic_runs_only_where_the_schema_is_older(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = ScriptDirectory(str(database._migrations)).get_current_head()
    assert newest_revision(database._migrations) == newest
    asked = list[str | None]()
    monkeypatch.setattr(
        migrations, "upgrade_schema", lambda _connection, _scripts, present: asked.append(present)
    )
    database.upgrade()
    assert asked == []
    with database.transaction("age") as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    database.upgrade()
    assert asked == ["0001"]


def test_a_database_without_a_free_connection_is_busy(database: Database) -> None:
    with pytest.raises(UnavailableError) as refused, database.reading("read"):
        raise NoConnectionError("QueuePool limit")
    assert refused.value.slug == "busy"


def test_the_connections_of_both_services_are_set_alike(database: Database) -> None:
    with database.reading("settings") as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete", "trusted_schema")
        }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "secure_delete": 1,
        "trusted_schema": 0,
    }


def test_a_read_that_was_broken_off_leaves_no_old_view(database: Database) -> None:
    """Whatever keeps its rows alive: a traceback, in some versions of Python."""

    def values(connection: Connection) -> CursorResult[Any]:
        return connection.exec_driver_sql("SELECT value FROM kept ORDER BY value")

    with database.transaction("fill") as connection:
        connection.exec_driver_sql("CREATE TABLE kept (value TEXT)")
        connection.exec_driver_sql("INSERT INTO kept VALUES ('a'), ('b'), ('c')")
    with database.reading("break off") as connection:
        rows = values(connection)
        assert rows.fetchone() == ("a",)
    with closing(sqlite3.connect(database.place)) as other, other:
        other.execute("UPDATE kept SET value = 'd' WHERE value = 'a'")
    with database.reading("read again") as connection:
        assert values(connection).scalars().all() == ["b", "c", "d"]
    with database.transaction("write") as connection:
        connection.exec_driver_sql("DELETE FROM kept")
    del rows


def test_a_reader_only_delays_that_what_was_deleted_is_gone(database: Database) -> None:
    assert database.has_to_forget
    assert database.forget_deleted()
    with database.transaction("write") as connection:
        connection.exec_driver_sql("CREATE TABLE t AS SELECT 'deleted content' AS x")
    with database.transaction("delete") as connection:
        connection.exec_driver_sql("UPDATE t SET x = ''")
    file, log = Path(database.place), Path(f"{database.place}-wal")
    with database.reading("read") as connection:
        connection.exec_driver_sql("SELECT * FROM t").all()
        assert not database.forget_deleted()
        assert database.has_to_forget
        assert b"deleted content" in log.read_bytes()
    assert database.forget_deleted()
    assert not database.has_to_forget
    assert b"deleted content" not in log.read_bytes() + file.read_bytes()


def test_a_reader_does_not_hold_up_a_cancellation(world: ProxyWorld) -> None:
    """The act is done; the sealed files go when the tidying finds that the key is in no file any more."""
    study = world.open_study(3)
    study.deliver(world.owners[0], values_of(3, 0))
    sealed = world.home / "studies" / study.study.hex() / "sealed"
    with world.proxy.database.reading("read") as connection:
        connection.exec_driver_sql("SELECT count(*) FROM studies").all()
        study.cancel()
        assert sealed.is_dir()
    assert study.state() == "cancelled"
    sweep(world.proxy, study.study)  # as the tidying does
    assert not sealed.exists()
