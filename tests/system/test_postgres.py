"""Both services on a real PostgreSQL: what holds on SQLite holds there, and what the server does is told."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from postgres_server import FOLDER_VARIABLE, PostgresServer, programs, running_server
from proxy_process import ProcessWorld, started_world
from proxy_world import ProxyWorld, refused, values_of, wait_for
from sqlalchemy import MetaData, event
from store_checks import check_sum
from study_parties import Parties
from user_world import UserWorld

from dpdpca_protocol.errors import UnavailableError, UsageError
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.loss import accept_loss
from dpdpca_proxy.store import tables as proxy_tables
from dpdpca_proxy.store.database import ProxyDatabase
from dpdpca_proxy.store.log import append_entry, entries
from dpdpca_proxy.store.witness import Mark
from dpdpca_runtime.database import Database
from dpdpca_runtime.files import write_private
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.postgres import postgres_url
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store import tables as user_tables
from dpdpca_user_service.store.database import service_database

ROOT = Path(__file__).parents[2]
MAKERS: dict[str, tuple[Callable[..., Database], MetaData]] = {
    "proxy": (ProxyDatabase, proxy_tables.metadata),
    "data user": (service_database, user_tables.metadata),
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server(programs()) as made:
        yield made


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    made = ProxyDatabase(postgres_url(server.url(server.new_database())))
    made.upgrade()
    yield made
    made.close()


@contextmanager
def opened(server: PostgresServer, role: str, name: str) -> Iterator[Database]:
    made = MAKERS[role][0](postgres_url(server.url(name)))
    try:
        yield made
    finally:
        made.close()


def _name_of(database: Database) -> str:
    return database.place.partition("?")[0].rpartition("/")[2]


# The database


@pytest.mark.parametrize("role", MAKERS)
def test_the_migrations_make_the_schema_of_the_tables(server: PostgresServer, role: str) -> None:
    with opened(server, role, server.new_database()) as database:
        database.upgrade()
        database.upgrade()
        with database.reading("compare") as connection:
            assert compare_metadata(MigrationContext.configure(connection), MAKERS[role][1]) == []


def test_two_processes_may_upgrade_at_once(server: PostgresServer) -> None:
    name = server.new_database()
    with ThreadPoolExecutor(4) as pool:

        def upgrade(_turn: int) -> None:
            with opened(server, "proxy", name) as database:
                database.upgrade()

        list(pool.map(upgrade, range(4)))


@pytest.mark.parametrize(("first", "second"), [("proxy", "data user"), ("data user", "proxy")])
def test_a_database_of_another_role_is_refused_and_left_alone(
    server: PostgresServer, first: str, second: str
) -> None:
    name = server.new_database()
    with opened(server, first, name) as database, opened(server, second, name) as other:
        database.upgrade()
        assert refused(other.upgrade).slug in ("newer-store", "state-corrupt", "bad-settings")
        with database.transaction("as if of the same revision") as connection:
            present = other._migrations / "versions"
            newest = max(path.name[:4] for path in present.glob("0*.py"))
            connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{newest}'")
        told = refused(other.upgrade)
        assert (told.slug, told.problem) == ("bad-settings", "the database belongs to another role")


def test_a_server_that_does_not_sync_is_refused(server: PostgresServer, database: Database) -> None:
    server.execute("ALTER SYSTEM SET fsync = off")
    try:
        server.execute("SELECT pg_reload_conf()")
        wait_for(lambda: _setting(server, "fsync") == "off")
        told = refused(database.upgrade)
        assert (told.slug, "fsync = off" in told.problem) == ("bad-settings", True)
    finally:
        server.execute("ALTER SYSTEM RESET fsync")
        server.execute("SELECT pg_reload_conf()")
        wait_for(lambda: _setting(server, "fsync") == "on")
    database.upgrade()


def _setting(server: PostgresServer, name: str) -> str:
    with server.connect("postgres") as connection:
        row = connection.execute(f"SHOW {name}".encode()).fetchone()
    assert row is not None
    return str(row[0])


def test_a_database_of_another_encoding_is_refused(server: PostgresServer) -> None:
    with opened(server, "proxy", server.new_database(encoding="SQL_ASCII")) as database:
        told = refused(database.upgrade)
    assert (told.slug, "server_encoding = SQL_ASCII" in told.problem) == ("bad-settings", True)


def test_a_commit_is_synced_whatever_the_server_prefers(server: PostgresServer) -> None:
    name = server.new_database()
    server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with opened(server, "proxy", name) as database, database.transaction("settings") as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


def test_writers_about_everything_run_one_after_the_other(server: PostgresServer) -> None:
    """Each reads a number and writes the next one; several processes have no common lock but the server's."""
    name, writers, turns = server.new_database(), 4, 25
    server.execute("CREATE TABLE counter (value BIGINT)", name)
    server.execute("INSERT INTO counter VALUES (0)", name)

    def count(_writer: int) -> None:
        with opened(server, "proxy", name) as database:
            for _ in range(turns):
                with database.transaction("count") as connection:
                    value = connection.exec_driver_sql("SELECT value FROM counter").scalar_one()
                    connection.exec_driver_sql("UPDATE counter SET value = %s", (value + 1,))

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(count, range(writers)))
    with opened(server, "proxy", name) as database, database.reading("count") as connection:
        assert connection.exec_driver_sql("SELECT value FROM counter").scalar_one() == writers * turns


def impatient(connection: Any, *_: object) -> None:
    connection.execute("SET lock_timeout = '50ms'")
    connection.commit()


@pytest.mark.parametrize(
    ("held", "asked", "waits"),
    [
        pytest.param((b"study",), (b"another",), False, id="two studies"),
        pytest.param((b"study",), (b"study",), True, id="one study"),
        pytest.param((b"study", b"owner"), (b"study", b"another"), False, id="two owners of a study"),
        pytest.param((b"study", b"owner"), (b"study", b"owner"), True, id="one owner"),
        pytest.param((b"study", b"owner"), (b"another", b"owner"), False, id="an owner in two studies"),
        pytest.param((b"study", b"owner"), (b"study",), True, id="an owner and the study"),
        pytest.param((b"study",), (b"study", b"owner"), True, id="the study and an owner"),
        pytest.param((b"study", b"owner"), (), True, id="an owner and everything"),
        pytest.param((), (b"study", b"owner"), True, id="everything and an owner"),
        pytest.param((b"study", b"owner"), (b"studyowner",), False, id="names that are one text"),
    ],
)
def test_only_writers_about_the_same_wait(
    server: PostgresServer,
    database: Database,
    held: tuple[bytes, ...],
    asked: tuple[bytes, ...],
    waits: bool,
) -> None:
    """A writer that waits would have to wait for a transaction that only ends after it."""
    with opened(server, "proxy", _name_of(database)) as other, other.transaction("hold", *held):
        event.listen(database._engine, "checkout", impatient)
        if waits:
            with pytest.raises(UnavailableError) as told, database.transaction("wait", *asked):
                pass
            assert told.value.slug == "busy"
        else:
            with database.transaction("go on", *asked):
                pass
    with database.transaction("go on later", *asked):
        pass


def test_writers_of_two_studies_append_to_the_log_in_turn(server: PostgresServer, database: Database) -> None:
    """The second reads the end of the log only when the first has committed its entry."""
    now = datetime.now(UTC)
    with ThreadPoolExecutor(1) as pool, opened(server, "proxy", _name_of(database)) as other:
        with database.transaction("first", b"study") as connection:
            first = append_entry(connection, "receipt", Digest.of(b"first"), now)

            def append() -> Mark:
                with other.transaction("second", b"another") as connection:
                    return append_entry(connection, "receipt", Digest.of(b"second"), now)

            second = pool.submit(append)
            wait_for(lambda: _waiting(server) == 1)
        assert second.result().generation == first.generation + 1
    with database.reading("log") as connection:
        (before, head), (after, last) = entries(connection)
    assert (after.previous, head, last) == (before.digest, before.digest, after.digest)


def _waiting(server: PostgresServer) -> int:
    """How many transactions wait for a lock."""
    with server.connect("postgres") as connection:
        row = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    assert row is not None
    return int(row[0])


def test_writers_that_wait_leave_connections_to_readers(server: PostgresServer, database: Database) -> None:
    writers = 40
    with opened(server, "proxy", _name_of(database)) as other, ThreadPoolExecutor(writers) as pool:
        with other.transaction("hold", b"study"):

            def write(_turn: int) -> None:
                with database.transaction("wait", b"study"):
                    pass

            waiting = [pool.submit(write, turn) for turn in range(writers)]
            wait_for(lambda: _waiting(server) == 8)
            with database.reading("read") as connection:
                assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
        for each in waiting:
            each.result()


def test_a_reader_sees_one_state_and_changes_nothing(database: Database) -> None:
    asked = "SELECT count(*) FROM forgotten"
    with database.reading("read") as reading:
        assert reading.exec_driver_sql(asked).scalar_one() == 0
        with database.transaction("write") as connection:
            connection.exec_driver_sql("INSERT INTO forgotten VALUES (1, 2)")
        assert reading.exec_driver_sql(asked).scalar_one() == 0
    with database.reading("read again") as reading:
        assert reading.exec_driver_sql(asked).scalar_one() == 1

    def write() -> None:
        with database.reading("write") as connection:
            connection.exec_driver_sql("DELETE FROM forgotten")

    assert refused(write).slug == "storage-failing"


def test_a_lasting_writer_makes_others_busy(server: PostgresServer, database: Database) -> None:
    with opened(server, "proxy", _name_of(database)) as other, other.transaction("hold"):
        event.listen(database._engine, "checkout", impatient)
        with pytest.raises(UnavailableError) as told, database.transaction("wait"):
            pass
    assert (told.value.slug, told.value.retry_after_seconds) == ("busy", 2)
    with database.transaction("go on"):
        pass


def test_a_connection_that_breaks_in_mid_transaction_is_told_and_replaced(
    server: PostgresServer, database: Database
) -> None:
    insert = "INSERT INTO forgotten VALUES (1, 2)"
    name = _name_of(database)

    def write() -> None:
        with database.transaction("write") as connection:
            connection.exec_driver_sql(insert)
            server.break_connections(name)
            connection.exec_driver_sql(insert)

    assert refused(write).slug == "storage-failing"
    with database.transaction("write again") as connection:
        connection.exec_driver_sql(insert)
    with database.reading("count") as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM forgotten").scalar_one() == 1


def test_values_of_full_size_fit(database: Database) -> None:
    """SQLite ignores the lengths and sizes that the first schema states."""
    long, large = "x" * 5000, 2**62
    with database.transaction("write") as connection:
        connection.execute(proxy_tables.forgotten.insert().values(only=1, before=large))
        values = {"role": "owner", "name": long, "ed25519": b"", "enrolment": b""}
        connection.exec_driver_sql(
            "INSERT INTO parties (party, role, name, ed25519, enrolment, enrolled_at)"
            " VALUES ('p', %(role)s, %(name)s, %(ed25519)s, %(enrolment)s, 't')",
            values,
        )
    with database.reading("read") as connection:
        assert connection.exec_driver_sql("SELECT name FROM parties").scalar_one() == long
        assert connection.exec_driver_sql("SELECT before FROM forgotten").scalar_one() == large


# The proxy

CORE = (
    "tests/unit/proxy/test_whole_study.py",
    "tests/unit/proxy/test_resuming.py",
    "tests/unit/proxy/test_leases.py",
    "tests/unit/proxy/test_store_rules.py",
    "tests/crash/test_two_processes.py",
)
"""Whole studies of each release, restarts, steps that are cut off, and two proxies on one database."""
OTHERS = (
    *(f"tests/unit/proxy/test_{name}.py" for name in ("blinded_study", "clock", "closing", "declines")),
    *(f"tests/unit/proxy/test_{name}.py" for name in ("enrolment", "inbox", "owners_noise", "pads_study")),
    *(f"tests/unit/proxy/test_{name}.py" for name in ("rotation", "shares")),
    *(f"tests/unit/proxy/test_{name}.py" for name in ("carried_requests", "damaged_rows", "log")),
    *(f"tests/unit/proxy/test_{name}.py" for name in ("precomputation", "readiness", "requests", "trouble")),
)
CONDITIONAL = ("tests/unit/proxy/test_feature_lists.py", "tests/unit/user/test_service_chains.py")
"""Rows that several may insert at once, in the words of each engine."""
USERS = (
    *(f"tests/unit/user/test_service_{name}.py" for name in ("study", "backup")),
    "tests/unit/user/test_wide_service.py",
)
"""The data user's service."""
PROMISES = (
    "tests/crash/test_every_write.py",
    "tests/crash/test_closing_race.py",
    "tests/crash/test_restored_backups.py",
    "tests/system/test_restarts.py",
)
"""P2, P6, P9, P10 and P7. CORE has P8 and P9, and tests/crash/test_kills.py has P1."""
AUDIT = ("tests/unit/proxy/test_audit.py",)
"""P17: every row that somebody altered in the server is noticed."""
BY_DAY = ("-m", "not nightly")
AT_LENGTH = ("-m", "nightly", "-k", "not power")
"""Every act dies and fails at every point. What a power cut takes away are files, on every database alike."""
OF_SQLITE = (
    "tests/unit/proxy/test_resuming.py::test_everything_secret_is_gone_after_the_release",  # reads the file
    "tests/unit/proxy/test_resuming.py::test_a_full_database_refuses_and_recovers",  # by a PRAGMA
    "tests/unit/proxy/test_resuming.py::test_an_audit_finds_what_was_altered",  # alters the file
    "tests/unit/proxy/test_log.py::test_a_database_that_cannot_be_written_refuses_whole",  # by a PRAGMA
    "tests/unit/proxy/test_rotation.py::test_the_operators_list_says_which_keys_are_in_use",  # of the file
)


@pytest.mark.parametrize(
    ("files", "chosen", "seconds"),
    [
        pytest.param(CORE, BY_DAY, 1200, id="core"),
        pytest.param(PROMISES, BY_DAY, 1200, id="promises"),
        pytest.param(AUDIT, BY_DAY, 1200, id="audit"),
        pytest.param(CONDITIONAL, BY_DAY, 1200, id="conditional inserts"),
        pytest.param(OTHERS, BY_DAY, 1800, id="others", marks=pytest.mark.nightly),
        pytest.param(USERS, BY_DAY, 1800, id="data users", marks=pytest.mark.nightly),
        pytest.param(
            (*PROMISES, *AUDIT), AT_LENGTH, 4 * 3600, id="promises at length", marks=pytest.mark.nightly
        ),
    ],
)
def test_what_holds_on_sqlite_holds_on_postgres(
    server: PostgresServer, files: tuple[str, ...], chosen: tuple[str, ...], seconds: float
) -> None:
    environment = os.environ | {
        FOLDER_VARIABLE: str(server.folder),
        "PYTHONPATH": str(ROOT / "tests" / "support"),
    }
    environment.pop("PYTEST_XDIST_WORKER", None)
    deselected = (f"--deselect={test}" for test in OF_SQLITE)
    options = ("-q", "-p", "on_postgres", "-p", "no:cacheprovider", *chosen)
    call = [sys.executable, "-m", "pytest", *options, *files, *deselected]
    done = subprocess.run(
        call, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "passed" in done.stdout.splitlines()[-1]


@pytest.fixture
def world(server: PostgresServer, tmp_path: Path, parties: Parties) -> Iterator[ProcessWorld]:
    database = server.url(server.new_database())
    settings = {"database": database}
    with started_world(tmp_path, parties, 2, settings=settings, patience=Patience(seconds=90.0)) as made:
        yield made


def test_a_server_that_crashes_in_mid_study_loses_nothing(
    world: ProcessWorld, server: PostgresServer
) -> None:
    """Two proxies with patient clients. The server crashes while the shares come, and at the release."""
    study = world.open_study(3, closing="when-complete")
    receipts = []
    for seed, owner in enumerate(world.owners):
        with ThreadPoolExecutor(1) as pool:
            crash = pool.submit(_crash, server)
            receipts.append(study.deliver(owner, values_of(3, seed)))
        crash.result()
    _crash(server)
    study.wait_state("released")
    members = world.client(world.user).study(study.study).cohort_members
    assert {str(member.statement) for member in members} == {r.body["statement"] for r in receipts}
    check_sum(study, [values_of(3, seed) for seed in range(3)])
    wait_for(lambda: {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS})
    assert not list(world.home.glob("*.sqlite3*"))


def _crash(server: PostgresServer) -> None:
    server.stop("immediate")
    server.start()


def test_a_proxy_without_its_server_says_so_and_goes_on_with_it(
    world: ProcessWorld, server: PostgresServer
) -> None:
    def readiness() -> int:
        return world.request(None, "GET", "/readyz").status_code

    wait_for(lambda: readiness() == 200)
    server.stop()
    try:
        assert readiness() == 503
    finally:
        server.start()
    wait_for(lambda: readiness() == 200)


def test_an_older_copy_of_the_database_is_refused_until_its_loss_is_accepted(
    server: PostgresServer, tmp_path: Path, parties: Parties
) -> None:
    """As an operator restores a dump: the generation file, which is not in the database, is newer.

    One that was made of the newest state is taken as if nothing had happened.
    """
    world = ProxyWorld(tmp_path / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof)
    name = server.new_database()
    world.settings["database"] = server.url(name)
    dump = server.folder / "proxy.dump"
    world.start()
    try:
        world.enrol_all()
        study = world.open_study(3)
        world.stop()
        server.dump(name, dump)
        server.restore(name, dump)
        world.start()
        study.deliver(world.owners[0], values_of(3, 0))
        assert {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS}
        world.stop()
        server.restore(name, dump)
        world.start()
        assert world.request(None, "GET", "/readyz").status_code == 503
        told = refused(lambda: study.deliver(world.owners[1], values_of(3, 1)))
        assert told.slug == "generation-mismatch"
        wrong = [check for check in audit_study(world.proxy, study.study) if check.outcome != HOLDS]
        assert [check.what for check in wrong] == ["generation: the newest database"]
        assert accept_loss(world.proxy) == [study.study]
        assert study.state() == "failed"
        assert {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS}
        assert world.request(None, "GET", "/readyz").status_code == 200
    finally:
        world.stop()


def test_keys_of_another_proxy_are_refused(server: PostgresServer, tmp_path: Path, parties: Parties) -> None:
    """As with a file in the home: the database knows by whose keys its studies began."""
    people = (parties.user, list(parties.owners), parties.secret, parties.proof)
    database = server.url(server.new_database())
    world = ProxyWorld(tmp_path / "proxy", *people, settings={"database": database})
    world.start()
    world.enrol_all()
    world.open_study(3)
    world.stop()
    other = ProxyWorld(tmp_path / "other", *people)
    other.start()
    other.stop()
    other.settings["database"] = database
    assert refused(other.start).slug == "other-key"


# The data user's service


def test_a_whole_study_of_a_data_user(server: PostgresServer, tmp_path: Path, parties: Parties) -> None:
    people = (parties.user, list(parties.owners), parties.secret, parties.proof)
    world = ProxyWorld(tmp_path / "proxy", *people, settings={"database": server.url(server.new_database())})
    world.start()
    try:
        world.enrol_all()
        user = UserWorld(world, tmp_path / "user")
        user.settings["database"] = server.url(server.new_database())
        user.service.close()
        with pytest.raises(UsageError, match="without a seal"):
            user.open()
        write_private(user.home / "identity.pem", world.user.to_pem(b"open sesame"))
        write_private(user.home / "passphrase", b"open sesame\n")
        user.settings["passphrase_file"] = user.home / "passphrase"
        user.open()
        with closing(user.service):
            row = user.advance_to(user.create(), Stage.OPEN)
            user.deliver_all(row)
            user.reopen()
            row = user.advance_to(row, Stage.PUBLISHED)
            assert row.has_model
            assert user.service.store.blob(row.id, "secret") is None
            assert len(user.service.store.log_entries()) > 3
    finally:
        world.stop()
