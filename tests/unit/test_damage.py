"""Damaged state names its file and what to do, to whoever runs the role; peers learn neither."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from proxy_world import OpenStudy, ProxyWorld, refused, values_of, wait_for
from starlette.testclient import TestClient
from user_world import DRAFT, UserWorld

from dpdpca_cli import main as cli
from dpdpca_protocol.errors import IntegrityError
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.store.database import ProxyDatabase
from dpdpca_proxy.store.files import FolderStore
from dpdpca_proxy.store.log import append_entry
from dpdpca_runtime.asgi.observe import AllowListFormatter
from dpdpca_user_service.app import make_app
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.database import service_database

Damage = Callable[[Path], object]


def overwrite(start: float, length: int, byte: bytes) -> Damage:
    """Writes `length` bytes over the file, from `start` of its length on."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        at = int(start * len(content))
        content[at : at + length] = byte * min(length, len(content) - at)
        path.write_bytes(content)

    return damage


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_another_role_s(path: Path) -> None:
    """A database whose schema has the newest version's number, and other tables."""
    with closing(sqlite3.connect(path)) as database, database:
        (version,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
    path.unlink()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES (?)", (version,))
    path.chmod(0o600)


DAMAGES: list[tuple[Damage, str, str]] = [
    (overwrite(0, 16, b"x"), "is no longer a database", "newest backup"),
    (overwrite(0, 4096, b"\0"), "is no longer a database", "newest backup"),
    (overwrite(0.3, 10**9, b"\xff"), "is damaged", "newest backup"),
    (lambda path: path.write_bytes(b"age,size\n1,2\n" * 900), "is no longer a database", "newest backup"),
    (become_a_folder, "cannot be opened", "owner and mode"),
    (become_another_role_s, "refused a statement", "belongs to this role"),
]


def settled(path: Path) -> Path:
    """The database as one file, as a clean end leaves it."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("PRAGMA journal_mode=DELETE")
    return path


@pytest.mark.parametrize(("damage", "problem", "advice"), DAMAGES)
def test_a_proxy_s_database_that_is_damaged_is_named_with_what_to_do(
    world: ProxyWorld,
    capsys: pytest.CaptureFixture[str],
    damage: Damage,
    problem: str,
    advice: str,
) -> None:
    world.open_study(3)
    world.stop()
    path = settled(world.home / "proxy.sqlite3")
    damage(path)
    with pytest.raises(SystemExit) as left:
        cli.main(["proxy", "studies", "--home", str(world.home)])
    said = capsys.readouterr().err
    assert (left.value.code, said.count("\n")) == (1, 1), said
    assert f"the database {problem} ({path}); " in said
    assert advice in said


@pytest.mark.parametrize(("damage", "problem", "advice"), DAMAGES)
def test_a_data_user_s_database_that_is_damaged_is_named_with_what_to_do(
    world: ProxyWorld, tmp_path: Path, damage: Damage, problem: str, advice: str
) -> None:
    user = UserWorld(world, tmp_path / "user")
    user.create()
    user.service.close()
    path = settled(user.home / "user.sqlite3")
    damage(path)

    def opened() -> object:
        user.open()
        return user.service.store.all()

    refusal = refused(opened)
    assert f"the database {problem} ({path}); " in str(refusal)
    assert advice in refusal.next_step
    assert str(tmp_path) not in refusal.public_text


@pytest.mark.parametrize("asked", ["SELECT 1 WHERE 0", "SELECT 1 UNION SELECT 2"], ids=["none", "two"])
@pytest.mark.parametrize("role", ["proxy", "user"])
def test_a_row_that_its_index_does_not_find_once_is_damage(tmp_path: Path, role: str, asked: str) -> None:
    """One bit of a key is enough: a walk over the table meets the row, a search for it does not."""
    path = tmp_path / f"{role}.sqlite3"
    database = ProxyDatabase(path) if role == "proxy" else service_database(path)
    database.upgrade()
    with (
        pytest.raises(IntegrityError, match="contradicts itself") as caught,
        database.reading("test") as connection,
    ):
        connection.exec_driver_sql(asked).scalar_one()
    assert (caught.value.slug, caught.value.place) == ("state-corrupt", str(path))
    database.close()


def damage_rows(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, timeout=120)) as database, database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        assert database.execute(statement).rowcount, statement


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE studies SET cohort_digest = 'no digest'",
        "UPDATE studies SET created_at = 'yesterday'",
        "UPDATE studies SET state = 'lost'",
        "UPDATE studies SET release_kind = 'lost'",
        "UPDATE shares SET state = 'lost'",
    ],
)
def test_what_is_damaged_is_no_fault_of_the_client_and_names_no_place_to_it(
    world: ProxyWorld, statement: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    study = world.open_study(3)
    study.deliver(world.owners[0], values_of(3, 0))
    damage_rows(world.home / "proxy.sqlite3", statement)
    answer = world.request(world.user, "GET", study.path)
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:dpdpca:problem:state-corrupt")
    assert answer.json()["detail"] == "a stored row is damaged: this program did not write its content"
    assert answer.json()["next_step"] == "ask the operator of this service to look into this error"
    assert str(tmp_path) not in answer.text
    shown = [json.loads(AllowListFormatter().format(record)) for record in caplog.records]
    assert {line["file"] for line in shown if line["event"] == "integrity"} == {
        str(world.home / "proxy.sqlite3")
    }


def test_a_stored_file_that_is_missing_or_altered_is_named_to_the_operator(
    world: ProxyWorld, tmp_path: Path
) -> None:
    study = released(world)
    folder = next(path for path in (world.home / "studies" / study.study.hex()).iterdir())
    (folder / "0").unlink()
    answer = world.request(world.user, "GET", f"{study.path}/release/chunks/0")
    assert (answer.status_code, answer.json()["detail"]) == (500, "a stored file is missing")
    assert "studies" not in answer.text
    with pytest.raises(IntegrityError) as missing:
        world.proxy.files.read(f"{study.study.hex()}/{folder.name}/0")
    assert str(folder / "0") in str(missing.value)
    assert "newest backup" in str(missing.value)
    store = FolderStore(tmp_path)
    store.write("a/sealed", bytes(64))
    with pytest.raises(IntegrityError) as altered:
        store.read_sealed("a/sealed", bytes(32))
    assert str(tmp_path / "a" / "sealed") in str(altered.value)


def released(world: ProxyWorld) -> OpenStudy:
    study = world.open_study(3, closing="when-complete")
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    study.wait_state("released")
    wait_for(study.is_swept)
    return study


def be_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def have_a_file_for_a_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("")


def be_open_to_others(path: Path) -> None:
    path.chmod(0o644)


def have_an_open_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def hold_something_else(path: Path) -> None:
    path.write_bytes(b"{}")


def enrol_here(world: ProxyWorld) -> None:
    """What a command at the proxy's own machine is told."""
    with world.proxy.database.transaction("test") as connection:
        append_entry(connection, "enrolment", Digest.of(b"x"), datetime.now(UTC))


@pytest.mark.parametrize(
    ("damage", "status", "problem"),
    [
        (be_a_folder, 503, "the generation file cannot be read: Is a directory"),
        (have_a_file_for_a_folder, 503, "the generation file cannot be read: Not a directory"),
        (
            be_open_to_others,
            503,
            "the generation file cannot be read: other users may read or change a private file",
        ),
        (
            have_an_open_folder,
            503,
            "the generation file cannot be written: other users may write into a private folder",
        ),
        (hold_something_else, 409, "the generation file does not contain a generation"),
    ],
)
def test_a_generation_file_that_cannot_be_used_is_called_so(
    world: ProxyWorld,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Damage,
    status: int,
    problem: str,
) -> None:
    path = world.proxy.settings.witness_path
    damage(path)
    key = IdentityKey.generate()
    error = refused(lambda: world.enrol(key, "owner", "Hospital D"))
    assert (type(error).status, error.problem.startswith(problem)) == (status, True), error.problem
    assert error.next_step == "ask the operator of this service to look into this error"
    ready = world.request(None, "GET", "/readyz")
    assert (ready.status_code, str(tmp_path) in ready.text) == (503, False)
    assert "generation" in ready.json()["reason"]
    seen = refused(lambda: enrol_here(world))
    assert f"({path}); " in str(seen)
    assert "try again later" not in str(seen)
    shown = [json.loads(AllowListFormatter().format(record)) for record in caplog.records]
    events = {line["event"] for line in shown if line.get("file") == str(path)}
    assert events == ({"generation"} if status == 503 else set())
    assert not any(record.msg == "database" for record in caplog.records)


def test_a_full_disk_under_the_generation_file_is_507(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpdpca_proxy.store.witness.write_private", full)
    answer = world.request(world.user, "POST", "/v1/studies", b"{}")
    assert answer.status_code == 400
    error = refused(lambda: world.open_study(3))
    assert (error.slug, error.problem) == (
        "storage-full",
        "the generation file cannot be written: No space left on device",
    )


@pytest.fixture
def user(world: ProxyWorld, tmp_path: Path) -> Iterator[UserWorld]:
    user = UserWorld(world, tmp_path / "user")
    yield user
    user.service.close()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (
            lambda home: (home / "proxies.json").write_text("{"),
            "a file of the home is damaged, or was not written by this program",
        ),
        (lambda home: (home / "proxies.json").chmod(0o644), "other users may read or change a private file"),
        (
            lambda home: damage_rows(home / "user.sqlite3", "UPDATE studies SET study = 'no digest'"),
            "a stored row is damaged: this program did not write its content",
        ),
        (
            lambda home: damage_rows(home / "user.sqlite3", "UPDATE studies SET facts = '{'"),
            "a stored row is damaged: this program did not write its content",
        ),
        (
            lambda home: damage_rows(home / "user.sqlite3", "UPDATE log SET digest = 'no digest'"),
            "a stored row is damaged: this program did not write its content",
        ),
        (
            lambda home: damage_rows(home / "user.sqlite3", "UPDATE studies SET manifest = NULL"),
            "the stored manifest of a study is missing",
        ),
    ],
)
def test_a_data_user_s_applications_learn_no_place_either(
    user: UserWorld, tmp_path: Path, damage: Damage, problem: str
) -> None:
    row = user.advance_to(user.create(), Stage.OPEN)
    client = TestClient(make_app(user.service, drive=False), headers={"authorization": "Bearer open sesame"})
    damage(user.home)
    user.driver.advance(row)
    study = f"/v1/studies/{row.id}"
    answers = [client.get(path) for path in (study, f"{study}/evidence", "/v1/studies", "/readyz")]
    answers += [client.post("/v1/studies", json=DRAFT), client.delete(study)]
    assert any(problem in answer.text for answer in answers), [answer.text for answer in answers]
    assert not any(str(tmp_path) in answer.text for answer in answers)


def test_errors_keep_their_place_for_this_machine() -> None:
    error = IntegrityError("state-corrupt", "a file is gone", "look at /home/me/x", place="/home/me/x")
    assert str(error) == "a file is gone (/home/me/x); look at /home/me/x"
    assert error.public_text == "a file is gone; ask the operator of this service to look into this error"
    plain = IntegrityError("state-corrupt", "a file is gone", "look")
    assert (str(plain), plain.public_text, plain.public_advice) == (
        "a file is gone; look",
        "a file is gone; look",
        "look",
    )
