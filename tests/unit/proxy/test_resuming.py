"""Cut off anywhere, the proxy goes on from what it committed: one noise, one release, the same bytes."""

import errno
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from promises import Promise
from proxy_world import InlineWorker, OpenStudy, ProxyWorld, dump, values_of, wait_for

from dpdpca_protocol.errors import ConflictError, DpdpcaError, UnavailableError
from dpdpca_protocol.wire.sealing import seal_at_rest
from dpdpca_proxy import jobs
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.progress import JobProgress
from dpdpca_proxy.store.database import ProxyDatabase
from dpdpca_proxy.store.files import FolderStore
from dpdpca_proxy.worker import COURTESY
from dpdpca_runtime.workers import BackgroundProcesses, WorkerFailedError


class CutError(RuntimeError):
    """Stands for the end of the process at this point."""


def delivered(world: ProxyWorld, release: str) -> OpenStudy:
    study = world.open_study(3, release=release, closing="when-complete")
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    return study


def finish(study: OpenStudy) -> bytes:
    """Drives the study to its release, whatever was done before; the bytes of the bundle."""
    client = study.world.client(study.world.user)
    if study.manifest.release == "masked" and study.state() in ("closed", "open"):
        client.answer_count(study.study, study.count_answer(study.challenge()))
    study.wait_state("released")
    return client.release(study.study).release


@pytest.mark.parametrize("release", [pytest.param("joint", marks=pytest.mark.nightly), "masked"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["multiply_chunks", "rerandomized_count", "draw", "make_release"])
def test_a_step_that_is_cut_off_is_done_again(
    stopped_world: ProxyWorld, release: str, step: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (release, step) == ("joint", "rerandomized_count"):
        pytest.skip("a joint study asks for no count")
    world = stopped_world
    cut: list[str] = []

    class Cutting(InlineWorker):
        def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            if function.__name__ != step or cut:
                return super().call(function, *args, **options)
            cut.append(step)
            if moment == "after":
                super().call(function, *args, **options)
            raise CutError

    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 3600.0)
    world.worker = worker = Cutting()
    world.start()
    world.enrol_all()
    study = delivered(world, release)
    if release == "masked" and step in ("draw", "make_release"):
        client = world.client(world.user)
        client.answer_count(study.study, study.count_answer(study.challenge()))
    wait_for(lambda: bool(cut))
    world.restart()
    first = finish(study)
    world.restart()
    assert finish(study) == first
    assert worker.calls.count("draw") == (2 if (step, moment) == ("draw", "after") else 1)
    assert {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS}


@pytest.mark.parametrize("name", ["store product", "ask count", "draw noise", "store release"])
def test_a_commit_that_fails_leaves_the_step_to_do_again(
    stopped_world: ProxyWorld, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stopped_world
    failed: list[str | None] = []
    real = ProxyDatabase.transaction

    def failing(self: ProxyDatabase, given: str, *about: bytes) -> Any:
        if given == name and not failed:
            failed.append(name)
            raise UnavailableError("storage-full", "no room")
        return real(self, given, *about)

    monkeypatch.setattr(ProxyDatabase, "transaction", failing)
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.1)
    world.start()
    world.enrol_all()
    study = delivered(world, "masked")
    finish(study)
    assert failed == [name]
    draws = [call for call in world.worker.calls if call == "draw"]  # type: ignore[attr-defined] # Inline
    assert len(draws) == (2 if name == "draw noise" else 1)


def test_noise_that_was_committed_is_the_noise_of_the_release(
    stopped_world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often making the release fails, the file of the draw stays the one that was committed."""
    world, tries = stopped_world, []
    tokens: set[str] = set()

    class Failing(InlineWorker):
        def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            if function.__name__ == "make_release":
                tokens.add(args[-1])
                tries.append(1)
                if len(tries) < 4:
                    raise CutError
            return super().call(function, *args, **options)

    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.05)
    world.worker = worker = Failing()
    world.start()
    world.enrol_all()
    finish(delivered(world, "joint"))
    assert (len(tries), len(tokens), worker.calls.count("draw")) == (4, 1, 1)


def test_everything_secret_is_gone_after_the_release(world: ProxyWorld) -> None:
    chunks: list[bytes] = []
    study = world.open_study(3, release="masked")
    for seed, owner in enumerate(world.owners):
        share = study.plain_chunks(values_of(3, seed))
        study.upload(owner, share)
        world.client(owner).complete_share(study.study, study.claim(owner, share))
        chunks += share
    key = world.proxy.data_key(study.study)
    with world.proxy.database.reading("key") as connection:
        sealed = connection.exec_driver_sql("SELECT sealed FROM data_keys").scalar_one()
    study.close()
    finish(study)
    wait_for(study.is_swept)
    world.stop()
    windows = {chunk[at : at + 32] for chunk in chunks for at in range(0, len(chunk) - 32, 16)}
    windows |= {key, bytes(sealed)[:32], bytes(sealed)[-32:]}
    searched = 0
    for file in world.home.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            searched += len(content)
            assert not [window for window in windows if window in content], file.name
    assert searched > 100_000


def test_the_store_holds_chunks_only_sealed(world: ProxyWorld) -> None:
    study = world.open_study(3)
    (chunk,) = study.plain_chunks(values_of(3, 0))
    study.upload(world.owners[0], [chunk])
    (file,) = (world.home / "studies").rglob("0-*")
    stored = file.read_bytes()
    assert not [at for at in range(0, len(chunk) - 32, 32) if chunk[at : at + 32] in stored]
    assert file.stat().st_mode & 0o777 == 0o600
    assert not [path for path in world.home.rglob("*") if path.is_dir() and path.stat().st_mode & 0o077]


def test_a_refused_chunk_leaves_no_file(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    study = world.open_study(3)
    owner, real = world.owners[0], ProxyDatabase.transaction
    late, newer = (study.plain_chunks(values_of(3, seed)) for seed in (0, 1))

    def overtaken(self: ProxyDatabase, name: str, *about: bytes) -> Any:
        if name == "take chunk":
            monkeypatch.undo()
            study.upload(owner, newer, 2)
        return real(self, name, *about)

    monkeypatch.setattr(ProxyDatabase, "transaction", overtaken)
    with pytest.raises(ConflictError) as told:
        study.upload(owner, late)
    assert told.value.slug == "share-version-not-newer"
    folder = world.home / "studies" / study.study.hex() / "sealed" / "shares" / owner.public.party_id.hex()
    assert [path.parent.name for path in folder.rglob("0-*")] == ["2"]


def test_a_chunk_that_cannot_be_recorded_now_is_taken_when_it_comes_again(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = world.open_study(3)
    chunks, real = study.plain_chunks(values_of(3, 0)), ProxyDatabase.transaction

    def failing(self: ProxyDatabase, name: str, *about: bytes) -> Any:
        if name == "take chunk":
            raise UnavailableError("storage-full", "no room")
        return real(self, name, *about)

    monkeypatch.setattr(ProxyDatabase, "transaction", failing)
    with pytest.raises(UnavailableError):
        study.upload(world.owners[0], chunks)
    monkeypatch.undo()
    study.upload(world.owners[0], chunks)
    assert world.client(world.owners[0]).share(study.study).chunks == {0}


def test_fifty_equal_requests_change_the_state_once(world: ProxyWorld) -> None:
    study, owner = world.open_study(3), world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    claim = study.claim(owner, chunks)
    client = world.client(owner)
    sealed = study.seal(owner, chunks[0], 1, 0)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: client.put_chunk(study.study, 1, 0, sealed), range(50)))
        receipts = list(pool.map(lambda _: client.complete_share(study.study, claim), range(50)))
    assert len({receipt.encoded for receipt in receipts}) == 1
    assert len(client.transcript(study.study)) == 2


def test_completing_and_closing_at_once_agree(world: ProxyWorld) -> None:
    study = world.open_study(3, min_owners=1)
    study.deliver(world.owners[0], values_of(3, 0))
    late = world.owners[1]
    chunks = study.plain_chunks(values_of(3, 1))
    study.upload(late, chunks)

    def complete() -> str:
        try:
            world.client(late).complete_share(study.study, study.claim(late, chunks))
        except DpdpcaError as error:
            return error.slug
        return "receipt"

    with ThreadPoolExecutor(2) as pool:
        receipt = pool.submit(complete)
        pool.submit(study.close).result()
    study.wait_state("released")
    members = world.client(late).study(study.study).cohort_members
    is_in = late.public.party_id in [member.owner for member in members]
    assert receipt.result() == ("receipt" if is_in else "study-closed")


def test_the_real_worker_is_a_process_of_its_own_and_tells_how_far_it_is(
    stopped_world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, told = stopped_world, []

    def noted(phase: str, done: int, total: int) -> JobProgress:
        told.append((done, total))
        return JobProgress(phase, done, total)

    monkeypatch.setattr(jobs, "JobProgress", noted)
    world.worker = BackgroundProcesses(keep=True, niceness=COURTESY)
    world.start()
    world.enrol_all()
    study = delivered(world, "masked")
    first = finish(study)
    assert finish(study) == first
    total = told[-1][1]
    assert told == sorted(told)
    assert told[-1] == (total, total)


def test_a_bug_in_the_worker_is_tried_again_and_does_not_accuse_the_store(
    stopped_world: ProxyWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = stopped_world
    failed: list[str | None] = []

    class Failing(InlineWorker):
        def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            if function.__name__ == "draw" and len(failed) < 2:
                failed.append(world.app.state.jobs.trouble)
                raise WorkerFailedError("ZeroDivisionError")
            return super().call(function, *args, **options)

    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.05)
    world.worker = Failing()
    world.start()
    world.enrol_all()
    finish(delivered(world, "joint"))
    assert failed == [None, None]
    classes = [getattr(record, "error_class", None) for record in caplog.records]
    assert classes.count("ZeroDivisionError") == 2


# The store


def test_the_migrations_make_the_schema_of_the_tables(tmp_path: Path, promise: Promise) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from dpdpca_proxy.store.tables import metadata

    database = ProxyDatabase(tmp_path / "x.sqlite3")
    database.upgrade()
    database.upgrade()
    with database.reading("compare") as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert connection.exec_driver_sql("PRAGMA secure_delete").scalar() == 1
    database.close()
    promise("P3", counted="a connection's settings", result="write-ahead log, synchronous FULL")


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    database = ProxyDatabase(tmp_path / "x.sqlite3")
    database.upgrade()
    database.close()
    with sqlite3.connect(tmp_path / "x.sqlite3") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DpdpcaError) as refused:
        ProxyDatabase(tmp_path / "x.sqlite3").upgrade()
    assert refused.value.slug == "newer-store"


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (sqlite3.SQLITE_FULL, "storage-full"),
        (sqlite3.SQLITE_BUSY, "busy"),
        (sqlite3.SQLITE_IOERR, "storage-failing"),
    ],
)
def test_a_failing_disk_is_said_in_our_words(tmp_path: Path, error: int, slug: str) -> None:
    from sqlalchemy import exc

    database = ProxyDatabase(tmp_path / "x.sqlite3")
    database.upgrade()
    original = sqlite3.OperationalError("4711")
    original.sqlite_errorcode = error
    with pytest.raises(UnavailableError) as refused, database.transaction("fail"):
        raise exc.OperationalError("SELECT 4711", None, original)
    assert refused.value.slug == slug
    assert refused.value.retry_after_seconds
    assert "4711" not in str(refused.value)


def test_a_full_database_refuses_and_recovers(world: ProxyWorld) -> None:
    study = world.open_study(3)
    before = dump(world.proxy, without=("nonces",))
    engine = world.proxy.database._engine
    from sqlalchemy import event

    def tight(connection: sqlite3.Connection, *_: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")

    event.listen(engine, "checkout", tight)
    client = world.client(world.owners[0])

    def ask_until_it_is_full() -> None:
        for _ in range(200):
            client.studies()

    with pytest.raises(UnavailableError) as refused:
        ask_until_it_is_full()
    assert refused.value.slug == "storage-full"
    assert world.request(None, "GET", "/readyz").status_code == 503
    event.remove(engine, "checkout", tight)

    def wide(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute("PRAGMA max_page_count=1000000")

    event.listen(engine, "checkout", wide)
    assert dump(world.proxy, without=("nonces",)) == before
    study.deliver(world.owners[0], values_of(3, 0))
    assert world.request(None, "GET", "/readyz").status_code == 200


def test_a_full_disk_refuses_a_chunk_and_recovers(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    study, owner = world.open_study(3), world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "4711")

    before = dump(world.proxy)
    with monkeypatch.context() as patch:
        patch.setattr("dpdpca_proxy.store.files.write_private", full)
        sealed = study.seal(owner, chunks[0], 1, 0)
        path = f"{study.path}/share/chunks/0?version=1"
        response = world.request(owner, "PUT", path, sealed, "application/octet-stream")
        assert (response.status_code, "4711" in response.text) == (507, False)
        assert response.headers["retry-after"]
        assert world.request(None, "GET", "/readyz").status_code == 503
    assert dump(world.proxy) == before
    study.upload(owner, chunks)
    assert world.request(None, "GET", "/readyz").status_code == 200


def test_a_swapped_file_does_not_open(tmp_path: Path) -> None:
    from dpdpca_protocol.randomness import OS_RANDOMNESS

    files = FolderStore(tmp_path)
    key = bytes(32)
    files.write_sealed("a/1", b"one", key, OS_RANDOMNESS)
    files.write("a/2", files.read("a/1"))
    assert files.read_sealed("a/1", key) == b"one"
    with pytest.raises(DpdpcaError):
        files.read_sealed("a/2", key)
    with pytest.raises(DpdpcaError):
        files.read("a/3")
    assert seal_at_rest(b"", key, b"", OS_RANDOMNESS) != seal_at_rest(b"", key, b"", OS_RANDOMNESS)


def test_an_audit_finds_what_was_altered(world: ProxyWorld) -> None:
    study = delivered(world, "joint")
    finish(study)
    (chunk,) = (world.home / "studies").rglob("release-*/0")
    chunk.chmod(0o600)
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"\0")
    wrong = [check for check in audit_study(world.proxy, study.study) if check.outcome != HOLDS]
    assert [check.what for check in wrong] == ["release: signature, cohort and chunks"]
    world.stop()
    with sqlite3.connect(world.home / "proxy.sqlite3") as connection:
        connection.execute("DELETE FROM events WHERE position = 1")
    world.start()
    wrong = [check for check in audit_study(world.proxy, study.study) if check.outcome != HOLDS]
    assert "transcript: every signature and link" in [check.what for check in wrong]
