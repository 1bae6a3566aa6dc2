"""PostgreSQL without a server: which addresses are accepted, who may see them, and what its errors mean."""

import logging
from pathlib import Path

import psycopg.errors
import pytest
from sqlalchemy.exc import DBAPIError

from dpdpca_cli import main
from dpdpca_protocol.errors import DpdpcaError, UsageError
from dpdpca_proxy.settings import load_settings as load_proxy_settings
from dpdpca_runtime.database import Database
from dpdpca_runtime.postgres import Postgres, postgres_url
from dpdpca_user_service.settings import load_settings as load_user_settings

SECRET = "4711-secret"
FAR = "postgresql://u:4711-secret@db.example.org:5433/facts?sslmode=verify-full&sslrootcert=/etc/ca.pem"
LOCAL = "postgresql://u@localhost/facts"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        (LOCAL, "localhost"),
        ("postgres://u@127.0.0.1/facts", "127.0.0.1"),
        ("postgresql+psycopg://u@[::1]/facts?sslmode=prefer", "::1"),
        ("postgresql://u@/facts?host=/run/postgresql&passfile=/etc/pgpass", None),
        (FAR, "db.example.org"),
        (FAR.replace("verify-full", "verify-ca"), "db.example.org"),
    ],
)
def test_addresses_that_are_accepted(address: str, host: str | None) -> None:
    url = postgres_url(address)
    assert (url.drivername, url.host, url.database) == ("postgresql+psycopg", host, "facts")


@pytest.mark.parametrize(
    ("address", "slug", "said"),
    [
        ("facts", "bad-settings", "is not the address of a database"),
        (f"postgresql://u:{SECRET}@localhost:no/facts", "bad-settings", "is not the address of a database"),
        (f"sqlite:///{SECRET}", "bad-settings", "not the address of a PostgreSQL database"),
        (f"postgresql+psycopg2://u:{SECRET}@localhost/f", "bad-settings", "not the address of a PostgreSQL"),
        (f"postgresql://u:{SECRET}@localhost", "bad-settings", "does not name a database"),
        (f"postgresql://u:{SECRET}@/facts", "bad-settings", "exactly one host"),
        (f"postgresql://u:{SECRET}@localhost/facts?host=db.example.org", "bad-settings", "exactly one host"),
        ("postgresql:///facts?host=/a&host=db.example.org", "bad-settings", "exactly one host"),
        (f"{LOCAL}?options=-csynchronous_commit%3Doff", "bad-settings", "'options'"),
        (f"{LOCAL}?hostaddr=192.0.2.1", "bad-settings", "'hostaddr'"),
        (f"postgresql://u:{SECRET}@db.example.org/facts", "tls-required", "without verified TLS"),
        (FAR.replace("verify-full", "require"), "tls-required", "without verified TLS"),
        ("postgresql:///facts?host=db.example.org", "tls-required", "without verified TLS"),
    ],
)
def test_addresses_that_are_refused(address: str, slug: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        postgres_url(address)
    assert refused.value.slug == slug
    assert said in refused.value.problem
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("load", [load_proxy_settings, load_user_settings], ids=["proxy", "user"])
def test_a_password_is_in_no_text_of_the_settings(
    load: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = "DPDPCA_PROXY_" if load is load_proxy_settings else "DPDPCA_USER_"
    monkeypatch.setenv(f"{prefix}DATABASE", FAR)
    settings = load(tmp_path)
    place = settings.database_or(tmp_path / "file")
    assert place.password == SECRET
    database = Database(place, tmp_path, "proxy")
    assert database.place == "postgresql://u@db.example.org:5433/facts"
    for text in (repr(settings), str(settings), settings.model_dump_json(), repr(place), repr(database)):
        assert SECRET not in text
    monkeypatch.setenv(f"{prefix}DATABASE", FAR.replace("verify-full", "prefer"))
    with pytest.raises(UsageError, match=f"database: .*{prefix}DATABASE") as refused:
        load(tmp_path)
    assert SECRET not in str(refused.value)
    monkeypatch.setenv(f"{prefix}DATABASE", "")
    assert load(tmp_path).database_or(tmp_path / "file") == tmp_path / "file"


@pytest.mark.parametrize(
    ("state", "slug", "said"),
    [
        ("40001", "busy", "is busy"),
        ("40P01", "busy", "is busy"),
        ("55P03", "busy", "is busy"),
        ("53300", "busy", "has no free connection"),
        ("57P03", "busy", "is starting or stopping"),
        ("53100", "storage-full", "disk of the database is full"),
        ("53200", "storage-failing", "no memory left"),
        ("58030", "storage-failing", "cannot be read or written"),
        ("25006", "storage-failing", "cannot be written"),
        ("57P01", "storage-failing", "has ended the connection"),
        ("08006", "storage-failing", "cannot be reached"),
        ("28P01", "storage-failing", "does not accept this user"),
        ("3D000", "storage-failing", "does not exist"),
        ("42501", "storage-failing", "does not let this user do this"),
        ("23505", "state-corrupt", "contradicts itself"),
        ("23503", "state-corrupt", "contradicts itself"),
        ("XX001", "state-corrupt", "is damaged"),
        ("XX002", "state-corrupt", "is damaged"),
        ("42P01", "state-corrupt", "refused a statement"),
        ("22P05", "state-corrupt", "refused a statement"),
    ],
)
def test_errors_of_the_server_in_our_words(
    state: str, slug: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Postgres(postgres_url(FAR))
    original = psycopg.errors.lookup(state)(SECRET)
    with pytest.raises(DpdpcaError) as refused, store.errors_translated():
        raise DBAPIError(SECRET, None, original)
    assert refused.value.slug == slug
    assert said in refused.value.problem
    assert SECRET not in str(refused.value)
    assert SECRET not in str([vars(record) | {"exc_info": None} for record in caplog.records])


def test_a_connection_that_breaks_in_our_words(caplog: pytest.LogCaptureFixture) -> None:
    store = Postgres(postgres_url(FAR))
    with pytest.raises(DpdpcaError) as refused, store.errors_translated():
        raise DBAPIError(SECRET, None, psycopg.OperationalError(SECRET))
    assert (refused.value.slug, refused.value.retry_after_seconds) == ("storage-failing", 5)
    assert "cannot be reached" in refused.value.problem
    assert refused.value.place == "postgresql://u@db.example.org:5433/facts"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_without_the_driver_a_command_says_how_to_install_it() -> None:
    missing = ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
    line, status = main._explain(missing, ["proxy", "studies"])
    assert status == 1
    assert "psycopg is not installed" in line
    assert "pip install '.[postgres]'" in line


def test_an_error_that_is_not_wrapped_is_translated_too() -> None:
    store = Postgres(postgres_url(FAR))
    with pytest.raises(DpdpcaError) as refused, store.errors_translated():
        raise psycopg.OperationalError("the connection is closed")
    assert refused.value.slug == "storage-failing"


def test_a_text_that_the_driver_refuses_is_no_broken_connection() -> None:
    store = Postgres(postgres_url(FAR))
    with pytest.raises(DpdpcaError) as refused, store.errors_translated():
        raise DBAPIError(SECRET, None, psycopg.DataError("NUL"))
    assert refused.value.slug == "state-corrupt"
