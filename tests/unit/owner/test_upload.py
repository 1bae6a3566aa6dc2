"""A share on its way: it resumes with the same ciphertexts, counts once, and believes no receipt unseen."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from flat_releases import open_joint_release
from owner_scene import MakeScene, Scene

from dpdpca_owner import actions, share_chunks, upload
from dpdpca_owner.upload import Outcome, Settled, Watcher
from dpdpca_protocol.errors import AuthenticationError, ConflictError, DpdpcaError, UnavailableError
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.paillier.chunks import CHUNK_CIPHERTEXTS, decode_chunk
from dpdpca_protocol.paillier.cipher import Encryptor, add_plain
from dpdpca_protocol.paillier.keys import KeyRules, PublicKey
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.terms.signed_manifest import open_manifest
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.salts import SALT_BYTES, unsalted
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.workers import WorkerProcesses


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ciphertexts a chunk, so that a small study has several chunks."""
    monkeypatch.setattr("dpdpca_owner.share_chunks.CHUNK_CIPHERTEXTS", 2)


def join(scene: Scene, watcher: Watcher | None = None) -> Settled:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    return actions.join(scene.desk, scene.address, prepared, watcher or Watcher())


def plaintexts(scene: Scene) -> list[int]:
    signed = open_manifest(scene.proxy.manifest.encoded, key_rules=KeyRules(512))
    made = actions.prepare_join(scene.desk, scene.address, scene.location).contribution
    return list(share_chunks._plaintexts(signed, made.sums, made.own_noise()))


def puts(scene: Scene) -> list[str]:
    return [line for line in scene.proxy.received if line.startswith("PUT")]


def cut_after(count: int) -> Callable[[httpx.Request], httpx.Response | None]:
    """The network fails at the chunk after `count` of them."""
    seen: list[int] = []

    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PUT":
            seen.append(1)
            if len(seen) > count:
                raise httpx.ReadError("cut")
        return None

    return interfere


@pytest.fixture(params=["joint", "masked"])
def scene(request: pytest.FixtureRequest, make_scene: MakeScene) -> Scene:
    features = [{"name": f"f{index}", "lower": 0, "upper": index + 1} for index in range(12)]
    return make_scene(release=request.param, features=features)


def add_record(scene: Scene) -> None:
    with Path(scene.location.data).open("a", encoding="utf-8") as file:
        file.write(",".join("0" * 12) + "\n")


def test_a_share_arrives_whole_with_a_receipt_and_progress(scene: Scene) -> None:
    encrypted: list[int] = []
    sent: list[int] = []
    settled = join(scene, Watcher(encrypted.append, sent.append))
    assert settled.outcome is Outcome.DONE
    assert (settled.receipt.version, settled.receipt.subject) == (1, "share")
    assert settled.sent_chunks == len(scene.proxy.chunks) == len(puts(scene))
    assert sum(sent) == settled.sent_bytes
    folder = scene.desk.home.study(scene.address.study)
    assert folder.last_receipt(scene.parties.proxy.public.ed25519) == settled.receipt
    assert not (folder.path / "chunks").exists()


def test_the_joint_share_decrypts_to_the_owner_s_integers(make_scene: MakeScene) -> None:
    scene = make_scene()
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    join(scene)
    figures = prepared.manifest.figures
    public: PublicKey = scene.parties.secret.public
    chunks = [unsalted(chunk) for _, chunk in sorted(scene.proxy.chunks.items())]
    ciphertexts = [c for chunk in chunks for c in decode_chunk(chunk, public)]
    vectors = PaillierVectors(public, figures.slot_bits)
    opened = vectors.decrypt_vector(scene.parties.secret, ciphertexts, figures.value_count)
    assert opened == list(prepared.contribution.sums.stream())
    assert open_joint_release(vectors, scene.parties.secret, ciphertexts, 3, figures.max_records).count == 40


def test_every_chunk_has_a_salt_of_its_own_and_a_new_version_has_others(scene: Scene) -> None:
    def salts() -> list[bytes]:
        return [chunk[:SALT_BYTES] for chunk in scene.proxy.chunks.values()]

    join(scene)
    seen = salts()
    add_record(scene)
    join(scene)
    seen += salts()
    assert len(set(seen)) == len(seen) > 4


def test_a_join_cut_in_the_middle_goes_on_with_the_same_bytes(scene: Scene) -> None:
    scene.proxy.interfere = cut_after(1)
    with pytest.raises(UnavailableError):
        join(scene)
    assert scene.proxy.upload is not None
    version, before = scene.proxy.upload[0], dict(scene.proxy.upload[1])
    assert (version, len(before)) == (1, 1)
    scene.proxy.interfere = lambda request: None
    scene.proxy.received.clear()
    settled = join(scene)
    assert settled.receipt.version == 1
    assert scene.proxy.chunks.items() > before.items()
    assert len(puts(scene)) == len(scene.proxy.chunks) - 1


def test_chunks_leave_a_few_at_a_time_while_later_ones_are_encrypted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdpca_owner.share_chunks.CHUNK_CIPHERTEXTS", 1)
    lock, enough = threading.Lock(), threading.Event()
    encrypted: list[int] = []
    under_way, most = 0, 0

    def interfere(request: httpx.Request) -> httpx.Response | None:
        nonlocal under_way, most
        if request.method == "PUT":
            with lock:
                under_way += 1
                most = max(most, under_way)
            look()
            assert enough.wait(20), "no chunk is encrypted while others are on their way"
            with lock:
                under_way -= 1
        return None

    def on_encrypted(count: int) -> None:
        encrypted.append(count)
        look()

    def look() -> None:
        if len(encrypted) >= 3 and most > 1:
            enough.set()

    scene.proxy.interfere = interfere
    settled = join(scene, Watcher(on_encrypted))
    assert settled.sent_chunks == len(scene.proxy.chunks) == len(encrypted) > 4
    assert 1 < most <= 4


def test_the_first_chunk_that_is_refused_stops_the_share(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdpca_owner.share_chunks.CHUNK_CIPHERTEXTS", 1)

    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("chunks/1"):
            return httpx.Response(409, json={"type": "urn:dpdpca:problem:study-closed", "detail": "late"})
        return None

    scene.proxy.interfere = interfere
    with pytest.raises(ConflictError):
        join(scene)
    assert not [line for line in scene.proxy.received if line.endswith("complete")]
    before = list(scene.proxy.received)
    assert len(puts(scene)) <= 2 + 4
    time.sleep(0.1)
    assert scene.proxy.received == before
    scene.proxy.interfere = lambda request: None
    assert join(scene).receipt.version == 1


def by_processes(monkeypatch: pytest.MonkeyPatch, kind: type[WorkerProcesses]) -> None:
    monkeypatch.setattr(upload, "WORTH_A_WORKER", 1)
    monkeypatch.setattr(upload, "core_count", lambda: 3)
    monkeypatch.setattr(upload, "WorkerProcesses", kind)


def test_workers_in_other_processes_make_the_same_share(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_processes(monkeypatch, WorkerProcesses)
    encrypted: list[int] = []
    join(scene, Watcher(encrypted.append))
    assert decrypted(scene) == plaintexts(scene)
    assert sum(encrypted) == len(plaintexts(scene))


class DyingWorkers(WorkerProcesses):
    """The third slice kills its worker."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().submit(os._exit, 9) if self.calls == 3 else super().submit(fn, *args, **kwargs)


def test_a_worker_that_dies_leaves_whole_chunks_and_the_next_join_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_processes(monkeypatch, DyingWorkers)
    with pytest.raises(UnavailableError) as died:
        join(scene)
    assert died.value.slug == "worker-died"
    folder = scene.desk.home.study(scene.address.study)
    width = 2 * scene.parties.secret.public.ciphertext_bytes
    kept = {folder.chunk(int(path.stem)) for path in (folder.path / "chunks").iterdir()}
    assert {len(chunk) for chunk in kept if chunk} == {SALT_BYTES + width}
    by_processes(monkeypatch, WorkerProcesses)
    assert join(scene).receipt.version == 1
    assert kept <= set(scene.proxy.chunks.values())


def flip_one_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_kept_ciphertext_that_the_disk_has_altered_is_never_part_of_a_share(scene: Scene) -> None:
    """It would be as fit as the first, and its plaintext anything."""
    scene.proxy.interfere = cut_after(1)
    with pytest.raises(UnavailableError):
        join(scene)
    folder = scene.desk.home.study(scene.address.study)
    for file in (folder.path / "chunks").iterdir():
        flip_one_bit(file)
    scene.proxy.interfere = lambda request: None
    assert join(scene).receipt.version == 2
    assert decrypted(scene) == plaintexts(scene)


def test_altered_randomizers_are_made_anew(scene: Scene) -> None:
    actions.work_ahead(scene.desk, scene.address, lambda count: None)
    folder = scene.desk.home.study(scene.address.study)
    for file in (folder.path / "randomizers").iterdir():
        flip_one_bit(file)
    assert join(scene).receipt.version == 1
    assert decrypted(scene) == plaintexts(scene)


def decrypted(scene: Scene) -> list[int]:
    secret = scene.parties.secret
    chunks = [chunk for _, chunk in sorted(scene.proxy.chunks.items())]
    return [int(secret.decrypt(c)) for chunk in chunks for c in decode_chunk(unsalted(chunk), secret.public)]


def test_a_share_that_was_prepared_only_adds_plaintexts_and_each_randomizer_serves_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = scene.desk.home.study(scene.address.study)
    made: list[int] = []
    ahead = actions.work_ahead(scene.desk, scene.address, made.append)
    assert ahead.made == ahead.total == sum(made)
    assert actions.work_ahead(scene.desk, scene.address, made.append).made == 0
    randomizers = {path.name: path.read_bytes()[32:] for path in (folder.path / "randomizers").iterdir()}
    assert {path.stat().st_mode & 0o777 for path in (folder.path / "randomizers").iterdir()} == {0o600}

    def never(self: Encryptor) -> None:
        raise AssertionError("all of it was made ahead")

    with monkeypatch.context() as patch:
        patch.setattr(Encryptor, "comb", property(never))
        join(scene)
    assert not list((folder.path / "randomizers").iterdir())
    public = scene.parties.secret.public
    plains = iter(plaintexts(scene))
    for index, chunk in sorted(scene.proxy.chunks.items()):
        kept = decode_chunk(randomizers[f"{index}.bin"], public)
        for ciphertext, blinding in zip(decode_chunk(unsalted(chunk), public), kept, strict=True):
            plain = next(plains)
            assert scene.parties.secret.decrypt(ciphertext) == plain
            assert ciphertext == add_plain(public, blinding, plain)
    add_record(scene)
    first = dict(scene.proxy.chunks)
    join(scene)
    assert not set(first.values()) & set(scene.proxy.chunks.values())


def test_a_join_cut_after_preparing_uses_no_blinding_twice(scene: Scene) -> None:
    actions.work_ahead(scene.desk, scene.address, lambda count: None)
    scene.proxy.interfere = cut_after(1)
    with pytest.raises(UnavailableError):
        join(scene)
    folder = scene.desk.home.study(scene.address.study)
    taken = {path.name for path in (folder.path / "chunks").iterdir()}
    assert taken
    assert not taken & {path.name for path in (folder.path / "randomizers").iterdir()}
    scene.proxy.interfere = lambda request: None
    assert join(scene).receipt.version == 1


def test_nothing_is_prepared_for_a_study_that_takes_no_shares(scene: Scene) -> None:
    scene.proxy.state = "closed"
    with pytest.raises(ConflictError) as refused:
        actions.work_ahead(scene.desk, scene.address, lambda count: None)
    assert refused.value.slug == "study-closed"


def test_a_join_whose_receipt_was_lost_gets_it_without_sending_again(scene: Scene) -> None:
    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("complete"):
            scene.proxy.interfere = lambda request: None
            scene.proxy.answer(request)
            raise httpx.ReadError("cut")
        return None

    scene.proxy.interfere = interfere
    with pytest.raises(UnavailableError):
        join(scene)
    scene.proxy.received.clear()
    settled = join(scene)
    assert settled.outcome is Outcome.ALREADY
    assert not puts(scene)
    assert scene.desk.home.study(scene.address.study).last_receipt(scene.parties.proxy.public.ed25519)


def test_the_same_data_again_sends_nothing_and_other_data_replaces_it(scene: Scene) -> None:
    first = join(scene)
    scene.proxy.received.clear()
    again = join(scene)
    assert (again.outcome, again.receipt) == (Outcome.ALREADY, first.receipt)
    assert not puts(scene)
    add_record(scene)
    replaced = join(scene)
    assert (replaced.outcome, replaced.receipt.version) == (Outcome.DONE, 2)


def test_other_data_after_an_interruption_goes_under_a_new_version(scene: Scene) -> None:
    scene.proxy.interfere = cut_after(1)
    with pytest.raises(UnavailableError):
        join(scene)
    scene.proxy.interfere = lambda request: None
    add_record(scene)
    assert join(scene).receipt.version == 2


def test_ciphertexts_lost_on_this_side_are_made_anew_under_a_new_version(scene: Scene) -> None:
    scene.proxy.interfere = cut_after(1)
    with pytest.raises(UnavailableError):
        join(scene)
    scene.proxy.interfere = lambda request: None
    folder = scene.desk.home.study(scene.address.study)
    folder.drop_chunks()
    assert join(scene).receipt.version == 2


def test_a_lost_home_of_the_study_does_not_stop_a_new_share(scene: Scene) -> None:
    join(scene)
    shutil.rmtree(scene.desk.home.study(scene.address.study).path)
    assert join(scene).receipt.version == 2


def test_a_chunk_that_differs_at_the_proxy_leads_to_a_new_version(scene: Scene) -> None:
    shown: list[int] = []

    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PUT" and not shown:
            shown.append(1)
            return httpx.Response(409, json={"type": "urn:dpdpca:problem:chunk-differs", "detail": "other"})
        return None

    scene.proxy.interfere = interfere
    assert join(scene).receipt.version == 2


def test_withdrawing_and_joining_again_raise_the_version(scene: Scene) -> None:
    join(scene)
    taken = actions.withdraw(scene.desk, scene.address)
    assert (taken.outcome, taken.receipt.subject, taken.receipt.version) == (Outcome.DONE, "withdrawal", 2)
    assert actions.withdraw(scene.desk, scene.address).outcome is Outcome.ALREADY
    assert join(scene).receipt.version == 3


def test_a_closed_study_takes_nothing_and_leaves_nothing_behind(scene: Scene) -> None:
    scene.proxy.close()
    with pytest.raises(ConflictError) as refusal:
        join(scene)
    assert refusal.value.slug == "study-closed"
    folder = scene.desk.home.study(scene.address.study)
    assert folder.plan() is None
    assert folder.chunk(0) is None
    assert not any(received.startswith("PUT") for received in scene.proxy.received)


@pytest.mark.parametrize("lie", ["statement", "owner", "version", "subject", "study", "signer"])
def test_a_receipt_for_something_else_is_refused(make_scene: MakeScene, lie: str) -> None:
    scene = make_scene()
    honest = scene.proxy._acknowledge

    def contrary(subject: str, version: int, statement: Any) -> httpx.Response:
        honest(subject, version, statement)
        told: dict[str, Any] = {
            "study": scene.proxy.study, "owner": scene.proxy.owner, "version": version,
            "subject": subject, "statement": statement.digest,
        }  # fmt: skip
        other = Digest.of(b"another")
        lies = {"version": 9, "subject": "withdrawal", "study": StudyId(other), "owner": PartyId(other)}
        if lie in told:
            told[lie] = lies.get(lie, other)
        key = IdentityKey.generate() if lie == "signer" else scene.proxy.key
        return httpx.Response(200, content=Receipt(time="2026-01-01T00:00:00Z", **told).sign(key).encoded)

    vars(scene.proxy)["_acknowledge"] = contrary
    with pytest.raises(AuthenticationError):
        join(scene)
    assert scene.desk.home.study(scene.address.study).last_receipt(scene.proxy.key.public.ed25519) is None


def test_a_proxy_that_forgets_or_rolls_back_a_receipt_is_reported(make_scene: MakeScene) -> None:
    scene = make_scene()
    join(scene)
    first = scene.proxy.receipt
    Path(scene.location.data).write_text("age,systolic,weight\n1,100,9\n", encoding="utf-8")
    join(scene)
    for receipt in (None, first):
        scene.proxy.receipt = receipt
        with pytest.raises(AuthenticationError, match="receipt"):
            join(scene)


def test_two_joins_at_once_do_not_mix(make_scene: MakeScene) -> None:
    scene = make_scene()
    with (
        scene.desk.home.study(scene.address.study).locked(),
        pytest.raises(ConflictError, match="another command"),
    ):
        join(scene)
    assert not puts(scene)


def test_an_interrupt_stops_at_once_and_leaves_a_share_that_can_go_on(make_scene: MakeScene) -> None:
    scene = make_scene()

    def interrupt(_count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        join(scene, Watcher(on_sent=interrupt))
    assert join(scene).receipt.version == 1


def test_chunks_hold_what_the_protocol_says(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdpca_owner.share_chunks.CHUNK_CIPHERTEXTS", CHUNK_CIPHERTEXTS)
    scene = make_scene()
    join(scene)
    assert len(scene.proxy.chunks) == 1


def test_a_full_disk_stops_before_anything_is_sent(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = make_scene()

    def full(*_arguments: Any, **_more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpdpca_owner.study_folder.write_private", full)
    with pytest.raises((OSError, DpdpcaError)):
        join(scene)
    assert not puts(scene)
