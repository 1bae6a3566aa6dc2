"""Workers in real processes, stages, settings, key storage and drafts."""

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from model_service import made_model

from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    IntegrityError,
    LimitError,
    MessageError,
    PolicyError,
    UnavailableError,
    UsageError,
)
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.paillier.keys import KeyRules, KeySearch, SecretKey
from dpdpca_protocol.result.publication import encode_components, parse_components
from dpdpca_protocol.terms.parties import KeyTerms, Party, ProxyParty
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_protocol.wire.sealing import SEALING_OVERHEAD_BYTES
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.files import write_private
from dpdpca_runtime.workers import BackgroundProcesses
from dpdpca_user.planning.lint import MOST_PARTS, TOML_MEDIA_TYPE, lint, parse_draft, plain_json
from dpdpca_user_service.driver import Driver
from dpdpca_user_service.keyring import Keyring
from dpdpca_user_service.service import open_service
from dpdpca_user_service.settings import load_settings
from dpdpca_user_service.stages import ENDED, STAGES, Stage, check_move
from dpdpca_user_service.steps import publishable
from dpdpca_user_service.store.database import service_database
from dpdpca_user_service.store.studies import StudyStore
from dpdpca_user_service.work import make_key, open_count

STUDY = StudyId(bytes(range(32)))


def test_a_worker_process_makes_a_key_and_tells_how_far_it_is() -> None:
    told: list[KeySearch] = []
    workers = BackgroundProcesses()
    made = workers.call(make_key, 512, bytes(32), KeyRules(512), progress=told.append)
    secret = SecretKey.from_bytes(made.secret)
    assert secret.public.bits == 512
    assert isinstance(made.public, KeyTerms)
    assert len(made.public.proof) == 8
    assert [told[0].primes, told[-1].primes] == [0, 2]
    assert "MadeKey(…)" in repr(made)
    workers.close()


def test_a_worker_that_nobody_waits_for_any_more_ends_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As where what it says cannot be used."""

    def refuse(_search: KeySearch) -> None:
        raise UnavailableError("storage-full", "no room")

    with pytest.raises(UnavailableError, match="no room"):
        BackgroundProcesses().call(make_key, 512, bytes(32), KeyRules(512), progress=refuse)
    assert capfd.readouterr().err == ""


def test_what_a_worker_refuses_arrives_as_it_was_raised() -> None:
    workers = BackgroundProcesses()
    with pytest.raises(MessageError, match="stored secret key is damaged"):
        workers.call(open_count, b"\x01\x02", b"\x01")
    with pytest.raises(IntegrityError, match="TypeError"):
        workers.call(open_count, None, b"secret bytes")
    workers.close()


def test_closing_ends_what_is_under_way() -> None:
    workers = BackgroundProcesses()
    ended: list[Exception] = []

    def run() -> None:
        try:
            workers.call(make_key, 8192, bytes(32), KeyRules(512))
        except UnavailableError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 20
    while not workers._busy and time.monotonic() < deadline:
        time.sleep(0.05)
    workers.close()
    thread.join(20)
    assert not thread.is_alive()
    assert [error.slug for error in ended if isinstance(error, UnavailableError)] == ["worker-died"]
    with pytest.raises(UnavailableError):
        workers.call(make_key, 512, bytes(32), KeyRules(512))


def test_stages_only_go_forward() -> None:
    reached = {Stage.DRAFTED}
    for _ in Stage:
        reached |= {following for stage in reached for following in STAGES[stage]}
    assert reached == set(Stage)
    for stage in Stage:
        assert stage not in STAGES[stage]
        for following in Stage:
            if following in STAGES[stage]:
                check_move(stage, following)
                assert stage not in STAGES[following]
            else:
                with pytest.raises(ConflictError):
                    check_move(stage, following)
    assert all(not STAGES[stage] for stage in ENDED)


def test_every_write_names_the_stage_that_it_expects(tmp_path: Path) -> None:
    store = store_with_secret(tmp_path)
    stale = store.find("a" * 32)
    store.move(stale, Stage.OPEN, datetime.now(UTC))
    with store.database.reading("look") as connection:
        before = connection.exec_driver_sql("SELECT * FROM studies").all()
    writes: tuple[Callable[[], object], ...] = (
        lambda: store.move(stale, Stage.FAILED, datetime.now(UTC)),
        lambda: store.note(stale, publish=False),
        lambda: store.take_seconds(stale, "key", 1.0),
        lambda: store.add_chunk(stale, 0, b"chunk"),
    )
    for write in writes:
        with pytest.raises(ConflictError):
            write()
    with store.database.reading("look") as connection:
        assert connection.exec_driver_sql("SELECT * FROM studies").all() == before
    assert store.chunk(store.find("a" * 32), 0) is None
    store.database.close()


def test_keys_at_rest_open_with_their_passphrase_and_their_study_alone() -> None:
    plain, sealed = Keyring(None), Keyring(b"correct horse")
    assert plain.open(plain.close(b"p and q", STUDY), STUDY) == b"p and q"
    stored = sealed.close(b"p and q", STUDY)
    assert b"p and q" not in stored
    assert sealed.open(stored, STUDY) == b"p and q"
    for keyring, study in ((Keyring(b"wrong"), STUDY), (plain, STUDY), (sealed, StudyId(bytes(32)))):
        with pytest.raises(AuthenticationError):
            keyring.open(stored, study)
    assert "horse" not in repr(sealed)


def test_settings_keep_the_token_off_the_open_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_settings(tmp_path).check_listener()
    with pytest.raises(UsageError, match="without TLS"):
        load_settings(tmp_path, host="0.0.0.0").check_listener()
    load_settings(tmp_path, host="0.0.0.0", behind_tls=True).check_listener()
    with pytest.raises(UsageError, match="needs its key"):
        load_settings(tmp_path, tls_cert=Path("cert.pem")).check_listener()
    monkeypatch.setenv("DPDPCA_USER_KEY_BITS", "1024")
    with pytest.raises(UsageError, match="key_bits") as refusal:
        load_settings(tmp_path)
    assert "1024" not in str(refusal.value)


def test_a_database_of_a_later_version_is_refused(tmp_path: Path) -> None:
    database = service_database(tmp_path / "user.sqlite3")
    database.upgrade()
    database.upgrade()
    assert (tmp_path / "user.sqlite3").stat().st_mode & 0o777 == 0o600
    with database.transaction("pretend") as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(PolicyError, match="later version"):
        database.upgrade()
    database.close()


SECRET = b"p and q of a study " * 20


def database_files(home: Path) -> list[Path]:
    """Those that hold the secret."""
    return [path for path in home.iterdir() if SECRET in path.read_bytes()]


def store_with_secret(home: Path) -> StudyStore:
    database = service_database(home / "user.sqlite3")
    database.upgrade()
    assert database.forget_deleted()
    store, now = StudyStore(database), datetime.now(UTC)
    store.add("a" * 32, "t", "joint", b"d", "application/toml", "u", True, now)
    store.move(store.find("a" * 32), Stage.SIGNED, now, study=STUDY.hex(), manifest=b"m", secret=SECRET)
    return store


def test_a_deleted_key_is_in_no_file_and_a_reader_only_delays_that(tmp_path: Path) -> None:
    store = store_with_secret(tmp_path)
    database = store.database
    assert database_files(tmp_path)
    with database.reading("look") as connection:
        connection.exec_driver_sql("SELECT count(*) FROM studies").all()
        began = time.monotonic()
        store.move(store.find("a" * 32), Stage.CANCELLED, datetime.now(UTC))
        assert time.monotonic() - began < 5
        assert database.has_to_forget
        assert not database.forget_deleted()
        assert database_files(tmp_path)
    driver = Driver(cast(Any, SimpleNamespace(store=store, settings=SimpleNamespace(poll_seconds=1))))
    driver.forget()
    assert not database.has_to_forget
    assert database_files(tmp_path) == []
    database.close()


def test_a_key_that_was_deleted_before_a_crash_is_forgotten_at_the_next_start(tmp_path: Path) -> None:
    store = store_with_secret(tmp_path)
    with store.database.reading("look") as connection:
        connection.exec_driver_sql("SELECT count(*) FROM studies").all()
        store.move(store.find("a" * 32), Stage.CANCELLED, datetime.now(UTC))
        copy = tmp_path / "after"  # a machine that stops closes no connection
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("after"))
    store.database.close()
    assert database_files(copy)
    for name, content in (
        ("identity.pem", IdentityKey.generate().to_pem()),
        ("token", b"open sesame\n"),
        ("profile.json", b'{"name": "Institute"}'),
    ):
        write_private(copy / name, content)
    copy.chmod(0o700)
    service = open_service(load_settings(copy))
    assert database_files(copy) == []
    assert not service.store.database.has_to_forget
    service.close()


DRAFT: dict[str, Any] = {
    "title": "A",
    "purpose": "B",
    "features": [{"name": "x", "lower": 0, "upper": 1}],
    "clip_norm": 1,
    "release": "masked",
    "epsilon": 1,
    "max_records": 100,
}


def test_lint_takes_names_on_trust_and_judges_everything_else() -> None:
    user, proxy = (
        Party("u", b"\1" * 32),
        ProxyParty("p", "https://p.example", b"\2" * 32, PREVIEW_KEM),
    )
    closes_at = datetime(2030, 1, 1, tzinfo=UTC)
    named = lint(DRAFT | {"participants": ["A", "B", "C"]}, user, proxy, closes_at, 3072)
    assert [party.name for party in named.participants] == ["A", "B", "C"]
    enrolled = DRAFT | {"participants": "enrolled"}
    assert len(lint(enrolled, user, proxy, closes_at, 3072).participants) == 3
    silent = lint(DRAFT | {"release": "joint"}, user, proxy, closes_at, 3072)
    assert (silent.participants, silent.max_owners) == ((), 100)
    with pytest.raises(PolicyError, match="masked study needs named") as refusal:
        lint(DRAFT, user, proxy, closes_at, 3072)
    assert 'participants = "enrolled"' in refusal.value.next_step
    with pytest.raises(PolicyError, match="no owner is enrolled"):
        lint(enrolled, user, proxy, closes_at, 3072, participants=[])
    changes: list[dict[str, Any]] = [
        {"participants": []},
        {"participants": ["A"]},
        {"epsilon": 0},
        {"delta": 0.5},
    ]
    for change in changes:
        with pytest.raises(PolicyError):
            lint(DRAFT | change, user, proxy, closes_at, 3072)
    with pytest.raises(PolicyError, match="known owners"):
        lint(DRAFT | {"participants": ["A", "B", "C"]}, user, proxy, closes_at, 3072, participants=[])


def test_a_draft_that_does_not_parse_is_not_repeated() -> None:
    for content, media_type in ((b"secret = = 1", "application/toml"), (b'{"secret": ', "application/json")):
        with pytest.raises(MessageError) as refusal:
            parse_draft(content, media_type)
        assert "secret" not in str(refusal.value)


def test_so_many_owners_are_not_made_up() -> None:
    party, proxy = Party("u", b"\1" * 32), ProxyParty("p", "https://p", b"\2" * 32, PREVIEW_KEM)
    with pytest.raises(PolicyError, match="more than 10000"):
        lint(
            DRAFT | {"participants": "enrolled", "min_owners": 10**12},
            party,
            proxy,
            datetime(2030, 1, 1, tzinfo=UTC),
            3072,
        )


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b'{"a": 1, "a": 1}', "application/json"),
        (b'{"a": {"b": 1, "b": 2}}', "application/json"),
        (b'{"a": 1' + b"0" * 1000 + b"}", "application/json"),
        (b"a = 0x" + b"f" * 1000, "application/toml"),
        (b"a = 1." + b"0" * 1000, "application/toml"),
    ],
)
def test_drafts_that_a_parser_would_take_are_refused(content: bytes, media_type: str) -> None:
    with pytest.raises(MessageError):
        parse_draft(content, media_type)


@pytest.mark.parametrize("media_type", ["application/json", "application/toml"])
def test_a_draft_holds_no_more_than_drafts_do(media_type: str) -> None:
    content = b"a = [" if media_type.endswith("toml") else b'{"a": ['
    content += b"[]," * (MOST_PARTS // 2 - 2) + b"0]" + b"}" * media_type.endswith("json")
    assert len(parse_draft(content, media_type)["a"]) == MOST_PARTS // 2 - 1
    with pytest.raises(LimitError, match="200000 entries"):
        parse_draft(content.replace(b"0]", b"[], [], [], 0]"), media_type)


def test_as_many_components_are_published_as_have_room() -> None:
    features = [{"name": f"f{index}", "lower": -1, "upper": 1} for index in range(60)]
    model = made_model(features)
    study, whole = model.study, model.components
    assert publishable(study, whole, 3) == encode_components(study, whole)
    for owners in (600, 2000, 5000):
        plain = publishable(study, whole, owners)
        told = parse_components(plain, study)
        assert np.array_equal(told.vectors, whole.vectors[: told.component_count])
        sealed = {
            PartyId.of(b"%d" % index): bytes(len(plain) + SEALING_OVERHEAD_BYTES) for index in range(owners)
        }
        assert (
            len(SealedComponents(study, sealed).sign(IdentityKey.generate()).encoded)
            <= COMPONENTS_LIMIT_BYTES
        )
        more = encode_components(study, whole.leading(told.component_count + 1))
        if told.component_count < 60:
            sealed_more = len(more) + SEALING_OVERHEAD_BYTES
            assert owners * 2 * sealed_more > 0.97 * COMPONENTS_LIMIT_BYTES
    assert told.component_count < 10
    with pytest.raises(LimitError, match="not even one component fits"):
        publishable(study, whole, 100_000)


def test_a_store_of_the_first_version_goes_on_with_its_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its studies were not made for publication in clear, and it was said of none that they were."""
    from alembic import command

    path = tmp_path / "user.sqlite3"
    whole = command.upgrade
    monkeypatch.setattr(command, "upgrade", lambda config, _to: whole(config, "0001"))
    database = service_database(path)
    database.upgrade()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO studies (id, created_at, title, release, draft, media_type, proxy_url, stage,"
            " updated_at, publish, key_progress, facts, seconds) VALUES ('a', '2026-01-01T00:00:00Z', 't',"
            " 'joint', x'00', 'application/toml', 'u', 'drafted', '2026-01-01T00:00:00Z', 1, 0, '{}', '{}')"
        )
        connection.execute(
            "INSERT INTO studies SELECT 'b', created_at, title, release, draft, media_type, proxy_url,"
            " 'open', updated_at, publish, ?, NULL, NULL, NULL, NULL, NULL, NULL, NULL, key_progress, facts,"
            " seconds, NULL, NULL FROM studies",
            (STUDY.hex(),),
        )
    monkeypatch.undo()
    database.upgrade()
    store = StudyStore(database)
    assert store.find("a").in_clear is False
    assert [(entry.kind, entry.subject) for entry in store.log_entries()] == [("known", STUDY)]


def test_a_draft_in_toml_is_the_same_in_json() -> None:
    draft = parse_draft(b"closes_at = 2027-03-01T13:00:00+01:00\nepsilon = 0.5", TOML_MEDIA_TYPE)
    assert plain_json(draft) == {"closes_at": "2027-03-01T12:00:00Z", "epsilon": 0.5}
    with pytest.raises(MessageError, match="a date or a time of day"):
        plain_json({"closes_at": draft["closes_at"].date()})
