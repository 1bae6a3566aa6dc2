"""A proxy whose database was put back from a backup: nothing that it undid is done a second time."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from promises import Promise
from proxy_world import InlineWorker, OpenStudy, ProxyWorld, copy_home, refused, slug, values_of, wait_for

from dpdpca_protocol.errors import AuthenticationError, ConflictError
from dpdpca_protocol.messages.study_messages import ReleaseStatement
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement
from dpdpca_proxy import jobs
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.loss import accept_loss
from dpdpca_proxy.store.log import last_mark
from dpdpca_proxy.store.witness import START, Witness
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.marks import SeenMarks
from dpdpca_runtime.http.retry import Patience


class HeldError(RuntimeError):
    """The step is not to be done yet."""


class HoldingWorker(InlineWorker):
    """Does no step whose name is held."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if function.__name__ in self.held:
            raise HeldError
        return super().call(function, *args, **options)


@pytest.fixture
def worker(stopped_world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> HoldingWorker:
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.05)
    worker = HoldingWorker()
    stopped_world.worker = worker
    return worker


def closed_study(
    world: ProxyWorld, worker: HoldingWorker, release: str = "joint", held: str = "draw"
) -> OpenStudy:
    """Starts a proxy whose worker does not begin what is held, and closes a study there, multiplied."""
    worker.held = {held}
    world.start()
    world.enrol_all()
    study = world.open_study(3, release=release, closing="when-complete")
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    study.wait_state("closed")
    return study


def put_back(world: ProxyWorld, backup: Path) -> None:
    if world.is_running:
        world.stop()
    shutil.rmtree(world.home)
    copy_home(backup, world.home)


def ready(world: ProxyWorld) -> tuple[int, str]:
    answer = world.request(None, "GET", "/readyz")
    return answer.status_code, str(answer.json().get("reason", ""))


def released(study: OpenStudy) -> list[int]:
    """What the data user decrypts: the sums with the noise in them."""
    world = study.world
    study.wait_state("released")
    client = world.client(world.user)
    said = ReleaseStatement.parse(
        verify_statement("release", client.release(study.study).release, world.proxy_key)
    )
    vectors = PaillierVectors(world.secret.public, study.manifest.figures.slot_bits)
    ciphertexts = [
        c
        for k in range(len(said.chunk_digests))
        for c in decode_chunk(client.release_chunk(study.study, k, 2_000_000), world.secret.public)
    ]
    return vectors.decrypt_vector(world.secret, ciphertexts, 1 + study.d + study.d * (study.d + 1) // 2)


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_a_backup_of_a_closed_study_makes_no_second_draw(
    stopped_world: ProxyWorld, worker: HoldingWorker, tmp_path: Path, release: str, promise: Promise
) -> None:
    world = stopped_world
    study = closed_study(world, worker, release)
    if release == "masked":
        answer = study.count_answer(study.challenge())
        world.client(world.user).answer_count(study.study, answer)
    world.stop()
    backup = copy_home(world.home, tmp_path / "backup")
    worker.held = set()
    world.start()
    study.wait_state("released")
    assert worker.calls.count("draw") == 1
    put_back(world, backup)
    world.start()
    paths = ("release", "release/chunks/0")
    answers = [world.request(world.user, "GET", f"{study.path}/{path}") for path in paths]
    assert [(answer.status_code, slug(answer)) for answer in answers] == [(409, "generation-mismatch")] * 2
    status, reason = ready(world)
    assert status == 503
    assert "older copy" in reason
    late = IdentityKey.generate()
    assert refused(lambda: world.enrol(late, "owner", "Hospital D")).slug == "generation-mismatch"
    assert refused(study.cancel).slug == "generation-mismatch"
    assert accept_loss(world.proxy) == [study.study]
    assert refused(lambda: accept_loss(world.proxy)).slug == "nothing-lost"
    assert ready(world) == (200, "")
    world.restart()
    assert study.state() == "failed"
    for path in paths:
        answer_now = world.request(world.user, "GET", f"{study.path}/{path}")
        assert (answer_now.status_code, slug(answer_now)) == (409, "wrong-state")
    assert worker.calls.count("draw") == 1
    wait_for(lambda: {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS})
    world.enrol(late, "owner", "Hospital D")
    moment = "counted" if release == "masked" else "closed"
    promise(
        "P10",
        counted=f"{release} study, backup at {moment}, put back after release",
        result="409 on 2 routes, readiness false, study failed by the operator, 1 draw in all",
    )


def test_with_the_counter_taken_out_each_restore_draws_again(
    stopped_world: ProxyWorld,
    worker: HoldingWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    promise: Promise,
) -> None:
    """A3 and A6: the mean of k draws has an error of 1/√k. Without the file it works, with it never."""
    world, tries = stopped_world, 4
    study = closed_study(world, worker)
    world.stop()
    backup = copy_home(world.home, tmp_path / "backup")
    worker.held = set()
    seen: dict[bool, set[tuple[int, ...]]] = {False: set(), True: set()}
    for guarded in (False, True):
        with monkeypatch.context() as patch:
            if not guarded:
                patch.setattr(Witness, "read", lambda self: START)
                patch.setattr(Witness, "raise_to", lambda self, mark: None)
            for _ in range(tries):
                put_back(world, backup)
                world.start()
                wait_for(lambda: study.state() == "released" or ready(world)[0] == 503)
                if study.state() == "released":
                    seen[guarded].add(tuple(released(study)))
    assert len(seen[False]) == tries
    assert len(seen[True]) == 1  # nothing had been drawn when the backup was first put back
    promise(
        "P10",
        counted=f"{tries} restores of one backup, each way",
        result=f"{len(seen[False])} noises without the counter, {len(seen[True])} with it",
    )


def test_a_crash_between_commit_and_mark_is_no_loss(
    stopped_world: ProxyWorld, worker: HoldingWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stopped_world
    world.start()
    world.enrol_all()
    with monkeypatch.context() as patch:
        patch.setattr(Witness, "raise_to", lambda self, mark: None)
        study = world.open_study(3)
        study.deliver(world.owners[0], values_of(3, 0))
    behind = json.loads(world.proxy.settings.witness_path.read_text())["generation"]
    world.restart()
    assert ready(world) == (200, "")
    assert json.loads(world.proxy.settings.witness_path.read_text())["generation"] == behind + 2


def test_a_mark_that_cannot_be_written_keeps_the_release_back(
    stopped_world: ProxyWorld, worker: HoldingWorker
) -> None:
    world = stopped_world
    study = closed_study(world, worker, held="make_release")
    wait_for(lambda: worker.calls.count("draw") == 1)
    folder = world.proxy.settings.witness_path.parent
    hidden = folder.with_name("hidden")
    folder.rename(hidden)
    folder.write_text("")  # a folder cannot be made where a file is
    worker.held = set()
    answer = world.request(world.user, "GET", f"{study.path}/release")
    assert answer.status_code in (409, 503)
    assert ready(world)[0] == 503
    folder.unlink()
    hidden.rename(folder)
    study.wait_state("released")
    assert world.request(world.user, "GET", f"{study.path}/release").status_code == 200


def test_a_receipt_that_the_mark_does_not_know_is_not_given_at_the_second_asking_either(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share is in, and an older copy of the database would not be seen to lack it."""
    study, owner = world.open_study(3), world.owners[0]
    chunks = study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks)
    claim = study.claim(owner, chunks).encoded
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> None:
            raise OSError(errno.EIO, "no")

        patch.setattr(Witness, "_write", fail)
        answers = [world.request(owner, "POST", f"{study.path}/share/complete", claim) for _ in range(2)]
        answers.append(world.request(owner, "GET", f"{study.path}/share"))
        assert study.state() == "open"
    assert [(answer.status_code, slug(answer)) for answer in answers] == [(503, "storage-failing")] * 3
    assert world.request(owner, "POST", f"{study.path}/share/complete", claim).status_code == 200
    with world.proxy.database.reading("look") as connection:
        assert Witness(world.proxy.settings.witness_path).read() == last_mark(connection)


def test_a_missing_or_foreign_file_is_a_loss_too(
    stopped_world: ProxyWorld, worker: HoldingWorker, tmp_path: Path
) -> None:
    world = stopped_world
    study = closed_study(world, worker)
    path = world.proxy.settings.witness_path
    genuine = path.read_bytes()
    mark = json.loads(genuine)
    for content in (
        None,
        b"",
        b"{}",
        json.dumps({"generation": mark["generation"], "head": Digest.of(b"x").hex()}).encode(),
        json.dumps({"generation": 10**6, "head": mark["head"]}).encode(),
    ):
        world.stop()
        if content is None:
            path.unlink()
        else:
            path.touch(0o600)
            path.write_bytes(content.replace(b": ", b":").replace(b", ", b","))
        world.start()
        assert ready(world)[0] == 503, content
        assert refused(lambda: world.client(world.user).release(study.study)).slug == "generation-mismatch"
    path.write_bytes(genuine)
    assert ready(world) == (200, "")


def test_the_other_parties_see_the_generation_fall(
    stopped_world: ProxyWorld, worker: HoldingWorker, tmp_path: Path, promise: Promise
) -> None:
    """Where the file was put back with the database, those who ask remember."""
    world = stopped_world
    study = closed_study(world, worker)
    world.stop()
    backup = copy_home(world.home, tmp_path / "backup")
    mark = world.proxy.settings.witness_path.read_bytes()
    worker.held = set()
    world.start()
    study.wait_state("released")
    clients = {}
    for name, key in (("owner", world.owners[0]), ("user", world.user)):
        marks = SeenMarks(tmp_path / name / "marks.json")
        clients[name] = ProxyClient(
            world.url, key, world.proxy_key, patience=Patience(seconds=0.0), marks=marks
        )
        assert clients[name].study(study.study).state == "released"
    put_back(world, backup)
    world.proxy.settings.witness_path.write_bytes(mark)
    worker.held = {"draw"}
    world.start()
    for client in clients.values():
        with pytest.raises(AuthenticationError) as alarm:
            client.study(study.study)
        assert alarm.value.slug == "generation-fell"
    promise("P10", counted="a backup put back together with its mark", result="2 of 2 clients refuse")


def test_the_log_goes_on_above_what_was_lost(
    stopped_world: ProxyWorld, worker: HoldingWorker, tmp_path: Path
) -> None:
    world = stopped_world
    study = closed_study(world, worker)
    world.stop()
    backup = copy_home(world.home, tmp_path / "backup")
    worker.held = set()
    world.start()
    study.wait_state("released")
    client = ProxyClient(
        world.url,
        world.user,
        world.proxy_key,
        patience=Patience(seconds=0.0),
        marks=SeenMarks(tmp_path / "marks.json"),
    )
    client.study(study.study)
    put_back(world, backup)
    world.start()
    accept_loss(world.proxy)
    assert client.study(study.study).state == "failed"  # no alarm: the operator's word is in the log
    with pytest.raises(ConflictError):
        accept_loss(world.proxy)
