"""Whole studies by the data user's service against a real proxy: restarts, and a proxy that lies."""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from promises import Promise
from proxy_world import ProxyWorld, wait_for
from sqlalchemy import Update, text
from tampering import tampering_at
from user_world import UserWorld, share_values

from dpdpca_protocol.errors import (
    ConflictError,
    CryptographicError,
    IntegrityError,
    MessageError,
    PolicyError,
    UnavailableError,
)
from dpdpca_protocol.messages.log import EMPTY, LogEntry
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.messages.study_messages import CountChallenge, Opened, SealedComponents, StudyAct
from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.result.publication import encode_components, parse_components
from dpdpca_protocol.terms.parties import KeyTerms
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.sealing import components_info, open_sealed
from dpdpca_protocol.wire.signing import IdentityKey, Statement, verify_statement
from dpdpca_runtime.database import Database
from dpdpca_runtime.files import write_private
from dpdpca_runtime.http.answers import History
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.identity_files import IdentityFiles
from dpdpca_user.home import EnrolledProxy, passphrase_of
from dpdpca_user.offline import verify_evidence
from dpdpca_user_service.driver import Driver
from dpdpca_user_service.operations import (
    cancel_study,
    close_study,
    evidence_of,
    model_facts,
    publish_study,
    study_facts,
)
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.steps import step
from dpdpca_user_service.store.studies import StudyRow, StudyStore
from dpdpca_user_service.store.tables import chunks, studies
from dpdpca_user_service.work import MadeKey, make_key

TOY_BITS = 512


@pytest.fixture
def user(world: ProxyWorld, tmp_path: Path) -> Iterator[UserWorld]:
    made = UserWorld(world, tmp_path / "user")
    yield made
    made.service.close()


def test_a_pin_of_an_earlier_version_leads_to_the_proxys_new_keys(user: UserWorld) -> None:
    """The pin has an X25519 key, which nothing uses any more. The next study names the proxy's new `kem`."""
    pins = user.home / "proxies.json"
    listed = json.loads(pins.read_bytes())
    del listed["proxies"][0]["kem"]
    listed["proxies"][0]["x25519"] = "9f" * 32
    write_private(pins, json.dumps(listed).encode())
    user.world.stop()
    IdentityFiles(user.world.home, role="proxy").rotate(None, datetime.now(UTC), lambda statement: None)
    user.world.start()
    row = user.advance_to(user.create(release="joint"), Stage.OPEN)
    assert user.opened(row).manifest.proxy.kem == user.world.proxy.key.public.sealing_key


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_a_clock_that_jumps_between_all_steps_changes_no_study(
    user: UserWorld, release: str, promise: Promise
) -> None:
    """The times in its own log may fall; its chain and the study's papers hold."""
    row = user.advance_to(user.create(release=release), Stage.OPEN)
    user.deliver_all(row)
    jumps = cycle([timedelta(hours=2), timedelta(days=-3), timedelta(days=400), timedelta(days=-400)])
    steps = 0

    def arrived() -> bool:
        nonlocal steps
        user.clock.ahead = next(jumps)
        steps += step(user.service, user.row(row.id))
        return user.row(row.id).stage is Stage.PUBLISHED

    wait_for(arrived)
    user.clock.ahead = timedelta()
    user.reopen()
    assert user.service.model_of(row.id).components.count == 600
    assert verified(user, user.row(row.id))
    promise(
        "P32",
        counted=f"{release}: the data user's clock jumps before each of {steps} steps, up to 400 days",
        result="published, evidence holds",
    )


@pytest.mark.parametrize(
    ("release", "noise_by", "suite"),
    [
        ("joint", "proxy", "paillier"),
        ("joint", "owners", "paillier"),
        ("joint", "proxy", "pads"),
        ("joint", "owners", "pads"),
        ("masked", "proxy", "paillier"),
    ],
)
def test_a_study_goes_from_draft_to_published_components(
    user: UserWorld, release: str, noise_by: str, suite: str
) -> None:
    row = user.create(release=release, noise_by=noise_by, suite=suite)
    assert study_facts(user.service, row)["state"] == "drafted"
    row = user.advance_to(row, Stage.OPEN)
    assert row.study is not None
    values = user.deliver_all(row)
    row = user.advance_to(row, Stage.PUBLISHED)

    model = user.service.model_of(row.id)
    assert model.components.count == sum(value.count for value in values)
    total = np.sum([value.sums for value in values], axis=0)
    second = np.sum([value.upper for value in values], axis=0)
    n, q = model.components.count, model.manifest.figures.grid
    exact = np.zeros((3, 3))
    exact[np.triu_indices(3)] = second
    exact = exact + np.triu(exact, 1).T - np.outer(total, total) / n
    noise = float(model.manifest.figures.noise_scale)
    assert np.abs(model.components.total_variance * (n - 1) * q * q - np.trace(exact)) < 60 * noise
    owners = 3 if noise_by == "owners" else None
    deviation = float(model.manifest.figures.law(1, owners).diagonal) ** 0.5
    assert model.components.noise_scale * (n - 1) * q * q == pytest.approx(deviation)
    assert (model.components.mean is None) == (release == "masked")
    told = user.world.client(user.world.user).study(row.known_study)
    assert Digest.parse(model.provenance.cohort) == told.cohort
    assert sorted(owner.name for owner in model.provenance.owners) == [
        "Hospital A",
        "Hospital B",
        "Hospital C",
    ]

    published = user.world.client(user.world.owners[0]).components(row.known_study)
    copies = SealedComponents.parse(verify_statement("components", published, user.world.user.public.ed25519))
    assert len(copies.sealed) == 3
    for owner in user.world.owners:
        plain = open_sealed(
            copies.sealed[owner.public.party_id], owner.opening_key, components_info(row.known_study)
        )
        received = parse_components(plain, row.known_study)
        assert encode_components(row.known_study, received) == encode_components(
            row.known_study, model.components
        )
    assert user.service.store.blob(row.id, "secret") is None
    assert set(row.seconds) >= {"key", "fetch", "decrypt", "fit"}


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_the_service_may_stop_after_every_single_step(user: UserWorld, release: str) -> None:
    """Every stage is reached by one step, then everything in memory is lost."""
    row = user.create(release=release)
    row = user.advance_to(row, Stage.OPEN)
    user.reopen()
    user.deliver_all(row)
    seen = set()

    def ended() -> bool:
        now = user.row(row.id)
        seen.add(now.stage)
        step(user.service, now)
        user.reopen()
        return user.row(row.id).stage is Stage.PUBLISHED

    wait_for(ended)
    assert {Stage.OPEN, Stage.FETCHED, Stage.FITTED} <= seen
    assert (Stage.ANSWERED in seen) == (release == "masked")


def test_a_lost_answer_is_sent_again_as_it_was(user: UserWorld, monkeypatch: pytest.MonkeyPatch) -> None:

    row = user.advance_to(user.create(release="masked"), Stage.OPEN)
    user.deliver_all(row)
    sent: list[bytes] = []
    original = ProxyClient.answer_count

    def lose(self: ProxyClient, study: Any, statement: Any) -> None:
        sent.append(statement.encoded)
        if len(sent) == 1:
            raise UnavailableError("unreachable", "the answer was lost on the way")
        original(self, study, statement)

    monkeypatch.setattr(ProxyClient, "answer_count", lose)
    row = user.advance_to(row, Stage.ANSWERED)
    assert user.service.store.need(row.id, "answer") == sent[0]
    user.reopen()
    user.advance_to(row, Stage.PUBLISHED)
    assert len(sent) == 2
    assert sent[0] == sent[1]
    assert user.workers.calls.count("open_count") == 0


def test_an_unreachable_proxy_is_waited_for(user: UserWorld) -> None:
    row = user.create()
    user.world.stop()
    row = user.advance(row)
    assert row.stage is Stage.DRAFTED
    assert row.problem_slug == "unreachable"
    assert study_facts(user.service, row)["problem"]["type"] == "unreachable"
    assert study_facts(user.service, row)["failure"] is None
    user.world.start()
    row = user.advance_to(row, Stage.OPEN)
    assert row.problem is None


def test_a_draft_that_names_an_unknown_owner_is_refused_at_once(user: UserWorld) -> None:
    with pytest.raises(PolicyError, match="name of 0 known owners"):
        user.create(participants=["Hospital A", "Nobody"])
    assert user.service.store.all() == []


def test_a_named_owner_that_rotates_before_the_manifest_is_signed_is_named_by_its_new_key(
    user: UserWorld,
) -> None:
    """As between the rounds of a chain, which all name the owners that its first answer showed."""
    row = user.create()
    old, new = user.world.owners[0], IdentityKey.generate()
    said = Rotation("owner", 1, old.public.ed25519, new.public, time_text(datetime.now(UTC))).sign(old, new)
    user.world.client(old).rotate(said)
    row = user.advance_to(row, Stage.OPEN)
    named = [party.ed25519 for party in user.opened(row).manifest.participants]
    owners = [new, *user.world.owners[1:]]
    assert sorted(named) == sorted(owner.public.ed25519 for owner in owners)


def test_a_study_goes_by_the_name_that_the_operator_gave(user: UserWorld) -> None:
    (user.home / "profile.json").write_text('{"name": "Our own name"}')
    user.reopen()
    row = user.advance_to(user.create(), Stage.OPEN)
    assert user.opened(row).manifest.user.name == "Institute"


def test_a_count_out_of_range_is_not_answered(user: UserWorld) -> None:
    row = user.advance_to(user.create(release="masked", min_records=4000), Stage.OPEN)
    user.deliver_all(row)

    wait_for(lambda: user.advance(row).stage is Stage.FAILED)
    row = user.row(row.id)
    assert row.problem_slug == "count-out-of-range"
    assert user.service.store.blob(row.id, "answer") is None
    assert user.service.store.blob(row.id, "secret") is None
    assert "600" not in (row.problem or "")
    assert user.opened(row).state() == "cancelled"


def test_a_count_of_another_cohort_is_refused(user: UserWorld, monkeypatch: pytest.MonkeyPatch) -> None:

    row = user.advance_to(user.create(release="masked"), Stage.OPEN)
    study = user.opened(row)
    user.deliver_all(row)
    real = study.challenge()

    def another(self: ProxyClient, _study: Any) -> Statement:
        asked = CountChallenge.parse(real, study.world.secret.public.ciphertext_bytes)
        forged = CountChallenge(asked.study, Digest.of(b"another"), asked.ciphertext)
        return forged.sign(user.world.proxy.key)

    monkeypatch.setattr(ProxyClient, "count_challenge", another)
    row = user.advance(row)
    assert row.stage is Stage.FAILED
    assert row.problem_slug == "cohort-differs"
    assert "open_count" not in user.workers.calls


def test_a_release_with_an_altered_chunk_is_refused(user: UserWorld, monkeypatch: pytest.MonkeyPatch) -> None:

    row = user.advance_to(user.create(), Stage.OPEN)
    user.deliver_all(row)
    original = ProxyClient.release_chunk

    def altered(self: ProxyClient, study: Any, index: int, length: int) -> bytes:
        chunk = bytearray(original(self, study, index, length))
        chunk[-1] ^= 1
        return bytes(chunk)

    monkeypatch.setattr(ProxyClient, "release_chunk", altered)

    wait_for(lambda: user.advance(row).stage is Stage.FAILED)
    assert user.row(row.id).problem_slug == "chunk-differs"
    assert not any(call == "open_release" for call in user.workers.calls)


def test_an_implausible_release_fails_instead_of_being_served(user: UserWorld) -> None:
    row = user.advance_to(user.create(), Stage.OPEN)
    study = user.opened(row)

    for seed, owner in enumerate(user.world.owners):
        values = share_values(study, seed)
        values.upper[0] = -1500 * study.manifest.figures.record_bound
        study.deliver(owner, values)

    wait_for(lambda: user.advance(row).stage is Stage.FAILED)
    assert user.row(row.id).problem_slug == "release-implausible"
    with pytest.raises(ConflictError, match="no model"):
        model_facts(user.service, row.id)


def test_a_joint_study_of_too_few_records_is_not_served(user: UserWorld) -> None:
    row = user.advance_to(user.create(min_records=4000), Stage.OPEN)
    user.deliver_all(row)
    wait_for(lambda: user.advance(row).stage is Stage.FAILED)
    row = user.row(row.id)
    assert row.problem_slug == "cohort-too-small"
    assert "does not protect against the data user" in (row.problem or "")
    assert user.service.store.modelled() == []


def test_closing_cancelling_and_late_publishing(user: UserWorld) -> None:
    row = user.advance_to(user.create(publish=False), Stage.OPEN)
    study = user.opened(row)
    with pytest.raises(ConflictError, match="owners"):
        close_study(user.service, row.id)

    for seed, owner in enumerate(user.world.owners[:2]):
        study.deliver(owner, share_values(study, seed))
    close_study(user.service, row.id)
    row = user.advance_to(row, Stage.FITTED)
    assert user.service.store.unfinished() == []
    with pytest.raises(ConflictError):
        cancel_study(user.service, row.id)
    publish_study(user.service, row.id)
    user.advance_to(row, Stage.PUBLISHED)


def test_a_cancelled_study_is_over_for_all(user: UserWorld) -> None:
    row = user.advance_to(user.create(), Stage.OPEN)
    assert cancel_study(user.service, row.id)["state"] == "cancelled"
    assert cancel_study(user.service, row.id)["state"] == "cancelled"
    assert user.opened(row).state() == "cancelled"
    assert user.service.store.unfinished() == []
    assert user.service.store.blob(row.id, "secret") is None
    early = user.create(title="Never sent")
    assert cancel_study(user.service, early.id)["state"] == "cancelled"


def test_a_refused_cancellation_ends_the_study_here_all_the_same(
    user: UserWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise was drawn before the `cancel` arrived. The secret is gone, so nobody opens the release."""
    row = user.advance_to(user.create(), Stage.OPEN)
    keys: list[bytes | None] = []

    def refuse(self: ProxyClient, _study: StudyId, _statement: Statement) -> None:
        keys.append(user.service.store.blob(row.id, "secret"))
        assert not user.service.store.database.has_to_forget
        raise ConflictError("noise-already-drawn", "the noise was drawn")

    with monkeypatch.context() as patch:
        patch.setattr(ProxyClient, "cancel_study", refuse)
        facts = cancel_study(user.service, row.id)
    assert (facts["state"], facts["problem"]["type"], keys) == ("cancelled", "noise-already-drawn", [None])
    assert user.service.store.unfinished() == []
    user.deliver_all(row)
    study = user.opened(row)
    study.wait_state("released")
    assert user.advance(row).stage is Stage.CANCELLED
    assert user.world.client(user.world.user).history(study.study).opened is None


def test_a_cancellation_reaches_the_proxy_later(user: UserWorld) -> None:
    row = user.advance_to(user.create(), Stage.OPEN)
    user.world.stop()
    with pytest.raises(UnavailableError):
        cancel_study(user.service, row.id)
    assert user.row(row.id).stage is Stage.OPEN  # whether there is a release could not be asked
    user.world.start()
    cancel = ProxyClient.cancel_study
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProxyClient, "cancel_study", lose)
        assert cancel_study(user.service, row.id)["state"] == "cancelled"
        assert user.advance(row).cancel_due
    assert ProxyClient.cancel_study is cancel
    user.reopen()
    assert not user.advance(row).cancel_due
    assert user.opened(row).state() == "cancelled"
    history = user.world.client(user.world.user).history(row.known_study)
    assert verify_statement("cancel", history.cancel or b"", user.world.user.public.ed25519)


def lose(*_: Any) -> None:
    raise UnavailableError("unreachable", "it was lost on the way")


def unopened(user: UserWorld) -> StudyRow:
    """A study whose release is here, and whose service has not said yet that it opens the release."""
    row = user.advance_to(user.create(), Stage.OPEN)
    user.deliver_all(row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProxyClient, "history", lose)
        wait_for(lambda: user.advance(row).stage is Stage.FETCHED)
    return user.row(row.id)


def test_a_restored_store_opens_nothing_but_what_it_has_opened(user: UserWorld) -> None:
    row = unopened(user)
    backup = user.backup()
    user.advance_to(row, Stage.PUBLISHED)
    client = user.world.client(user.world.user)
    opened = client.history(row.known_study).opened
    user.put_back(backup)
    assert user.service.store.blob(row.id, "opened") is None
    user.advance(row)  # other components were published before
    assert user.row(row.id).stage is Stage.FITTED
    assert user.service.store.blob(row.id, "opened") == opened


@pytest.mark.parametrize("before", ["another release", "cancelled"])
def test_a_restored_store_that_opened_another_release_or_cancelled_opens_nothing(
    user: UserWorld, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = unopened(user)
    study = row.known_study
    if before == "cancelled":
        said = History((), StudyAct("cancel", study).sign(user.world.user).encoded, None)
    else:
        another = Opened(study, Digest.of(b"cohort"), Digest.of(b"release")).sign(user.world.user)
        said = History((), None, another.encoded)
    monkeypatch.setattr(ProxyClient, "history", lambda *_: said)
    row = user.advance(row)
    slug = "cancelled-before" if before == "cancelled" else "opened-differs"
    assert (row.stage, row.problem_slug) == (Stage.FAILED, slug)
    assert user.service.store.blob(row.id, "secret") is None
    assert "open_release" not in user.workers.calls


def test_a_stored_statement_about_another_release_opens_nothing(user: UserWorld) -> None:
    row = unopened(user)
    another = Opened(row.known_study, Digest.of(b"cohort"), Digest.of(b"release")).sign(user.world.user)
    user.service.store.keep_opened(row, another, datetime.now(UTC))
    with pytest.raises(ConflictError):
        user.service.store.keep_opened(row, another, datetime.now(UTC))
    row = user.advance(row)
    assert (row.stage, row.problem_slug) == (Stage.FETCHED, "state-corrupt")
    assert "open_release" not in user.workers.calls


class DiedError(BaseException):
    """The process ends here."""


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """[n]: the process dies after n more writes to the database."""
    left, original = [-1], Database.transaction

    @contextmanager
    def counted(self: Database, name: str, *about: bytes) -> Iterator[Any]:
        if self._role == "data user":
            if left[0] == 0:
                raise DiedError(name)
            left[0] -= 1
        with original(self, name, *about) as connection:
            yield connection

    monkeypatch.setattr(Database, "transaction", counted)
    yield left
    left[0] = -1


def test_a_service_that_dies_at_any_write_opens_one_release(
    user: UserWorld, writes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = unopened(user)
    backup, told = user.backup(), set[bytes]()
    original = ProxyClient.send_opened

    def send(self: ProxyClient, study: StudyId, statement: Statement) -> None:
        assert user.service.store.blob(row.id, "opened") == statement.encoded
        told.add(statement.encoded)
        original(self, study, statement)

    monkeypatch.setattr(ProxyClient, "send_opened", send)
    deaths = 0
    for number in range(20):
        user.put_back(backup)
        user.service.store.note(row, publish=False)
        user.workers.before = lambda name: told_before(user, row)
        writes[0] = number
        try:
            user.advance_to(row, Stage.FITTED)
            break
        except DiedError:
            deaths += 1
        finally:
            writes[0] = -1
        user.reopen()
        user.advance_to(row, Stage.FITTED)
    assert deaths >= 3
    assert len(told) == 1


def told_before(user: UserWorld, row: StudyRow) -> None:
    """The proxy has the statement before anything is opened."""
    assert user.world.client(user.world.user).history(row.known_study).opened is not None


def test_a_service_that_dies_at_any_write_signs_no_cancel_while_it_has_the_secret(
    user: UserWorld, writes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = user.advance_to(user.create(), Stage.OPEN)
    backup, secret = user.backup(), user.world.secret.to_bytes()
    original, sent = ProxyClient.cancel_study, 0

    def send(self: ProxyClient, study: StudyId, statement: Statement) -> None:
        nonlocal sent
        files = b"".join(path.read_bytes() for path in user.home.glob("user.sqlite3*"))
        assert secret[: len(secret) // 2] not in files
        sent += 1
        original(self, study, statement)

    monkeypatch.setattr(ProxyClient, "cancel_study", send)
    deaths = 0
    for number in range(10):
        user.put_back(backup)
        writes[0] = number
        try:
            cancel_study(user.service, row.id)
            break
        except DiedError:
            deaths += 1
        finally:
            writes[0] = -1
        user.reopen()
        if user.row(row.id).stage is Stage.OPEN:
            cancel_study(user.service, row.id)
        user.advance(row)
        assert (user.row(row.id).stage, user.row(row.id).cancel_due) == (Stage.CANCELLED, False)
    assert deaths >= 2
    assert sent > deaths


def fetched(user: UserWorld) -> StudyRow:
    """A study whose release is here, and whose service stopped before it read it."""

    def stop(name: str) -> None:
        if name == "open_release":
            raise UnavailableError("worker-died", "the service stops here")

    row = user.advance_to(user.create(), Stage.OPEN)
    user.deliver_all(row)
    user.workers.before = stop
    wait_for(lambda: user.advance(row).stage is Stage.FETCHED)
    user.reopen()
    return user.row(row.id)


def damage(user: UserWorld, change: Update) -> None:
    """As a disk that forgets a bit: SQLite has no checksums of its own."""
    with tampering_at(user.place) as connection:
        assert connection.execute(change).rowcount == 1


def test_a_key_is_made_ahead_while_nothing_else_is_to_do(user: UserWorld) -> None:
    """Not while a release is being opened. The next study uses this key."""
    go_on = threading.Event()

    def wait(name: str) -> None:
        if name == "open_release":
            assert go_on.wait(60)

    row = fetched(user)
    identity = user.world.user.public.ed25519
    user.workers.keys[:] = [make_key(TOY_BITS, identity, KeyRules(TOY_BITS))]
    user.workers.before = wait
    driver = Driver(user.service, idle_seconds=0)
    driver.start()
    wait_for(lambda: "open_release" in user.workers.calls)
    time.sleep(0.5)  # ten turns of the driver
    assert "make_key" not in user.workers.calls
    go_on.set()
    wait_for(lambda: user.row(row.id).stage is Stage.PUBLISHED)
    wait_for(lambda: user.service.study_keys.has_one_ahead)
    driver.stop()
    assert user.workers.calls.count("make_key") == 1
    user.advance_to(user.create(features=[{"name": "other", "lower": 0, "upper": 1}]), Stage.OPEN)
    assert user.workers.calls.count("make_key") == 1
    assert not user.service.study_keys.has_one_ahead


def test_no_key_is_made_ahead_before_the_service_has_been_idle_for_some_time(user: UserWorld) -> None:
    driver = Driver(user.service, idle_seconds=3600)
    driver.start()
    time.sleep(0.3)
    driver.stop()
    assert user.workers.calls == []


def test_an_idle_driver_survives_a_key_that_cannot_be_made(user: UserWorld) -> None:
    def die(name: str) -> None:
        raise UnavailableError("worker-died", "gone") if name == "make_key" else AssertionError(name)

    user.workers.before = die
    driver = Driver(user.service, idle_seconds=0)
    driver.start()
    wait_for(lambda: "make_key" in user.workers.calls)
    time.sleep(0.3)
    assert driver.is_alive
    assert user.workers.calls == ["make_key"]  # it waits before it tries again
    user.workers.before = lambda _name: None
    driver.wake()
    wait_for(lambda: user.service.study_keys.has_one_ahead)
    driver.stop()


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_stored_chunk_that_was_damaged_is_fetched_again(user: UserWorld, is_cut: bool) -> None:
    row = fetched(user)
    stored = user.service.store.chunk(row, 0)
    assert stored is not None
    zeros = bytes(1 if is_cut else len(stored))
    damage(user, chunks.update().where(chunks.c.position == 0).values(content=zeros))
    row = user.advance_to(row, Stage.PUBLISHED)
    assert verified(user, row)


@pytest.mark.parametrize("found", ['"version":1', "{", '"release":{', '"shares":['])
def test_a_stored_bundle_that_was_damaged_ends_no_study(user: UserWorld, found: str) -> None:
    """The proxy is not to blame; with the right bytes back the study goes on, and its key is still there."""
    row = fetched(user)
    bundle = user.service.store.need(row.id, "bundle")
    assert found.encode() in bundle
    changed = found.replace("1", "2").replace("{", "5").replace("[", "6")
    damage(user, studies.update().values(bundle=bundle.replace(found.encode(), changed.encode())))
    row = user.advance(row)
    assert (row.stage, row.problem_slug) == (Stage.FETCHED, "state-corrupt")
    assert "is damaged now" in (row.problem or "")
    assert user.service.store.blob(row.id, "secret") is not None
    user.service.store.note(row, bundle=bundle)
    row = user.advance_to(row, Stage.PUBLISHED)
    assert verified(user, row)


def verified(user: UserWorld, row: StudyRow) -> list[str]:
    """What holds of a study's evidence."""
    ours = user.world.user.public.ed25519

    def chunk(index: int) -> bytes:
        return user.service.store.chunk(row, index) or b""

    evidence, proxy = json.loads(evidence_of(user.service, row.id)), user.world.proxy_key
    return list(
        verify_evidence(row.known_study, evidence, chunk, [proxy], [ours], key_rules=KeyRules(TOY_BITS))
    )


def test_a_driver_that_hears_first_of_a_cancellation_is_no_error(user: UserWorld) -> None:
    """It asks the proxy between the proxy's yes and our own note."""
    row = user.advance_to(user.create(), Stage.OPEN)
    connect = user.service.connect

    def watched(proxy: EnrolledProxy, key: IdentityKey) -> ProxyClient:
        client = connect(proxy, key)
        cancel = client.cancel_study

        def cancel_and_look(study: StudyId, statement: Statement) -> None:
            cancel(study, statement)
            user.driver.advance(user.row(row.id))

        client.cancel_study = cancel_and_look  # type: ignore[method-assign] # for this test alone
        return client

    assert cancel_study(replace(user.service, connect=watched), row.id)["state"] == "cancelled"
    assert user.row(row.id).stage is Stage.CANCELLED


def test_the_evidence_verifies_offline_and_any_alteration_shows(user: UserWorld) -> None:
    row = user.advance_to(user.create(release="masked"), Stage.OPEN)
    user.deliver_all(row)
    row = user.advance_to(row, Stage.PUBLISHED)
    assert row.study is not None
    evidence = json.loads(evidence_of(user.service, row.id))
    proxy, ours = user.world.proxy_key, user.world.user.public.ed25519

    def chunk(index: int) -> bytes:
        return user.service.store.chunk(row, index) or b""

    def verify(given: dict[str, Any]) -> list[str]:
        assert row.study is not None
        return list(verify_evidence(row.study, given, chunk, [proxy], [ours], key_rules=KeyRules(TOY_BITS)))

    assert len(verify(evidence)) == 11
    text = json.dumps(evidence)
    release_parts = ("release.release", "release.shares.0", "release.transcript.1")
    for path in ("manifest", *release_parts, "challenge", "answer", "opened", "components"):
        altered = json.loads(text)
        part: Any = altered
        for name in path.split("."):
            part = part[int(name) if name.isdigit() else name]
        part["signature"] = "00" * 64
        with pytest.raises(Exception, match="signature"):
            verify(altered)
    missing = json.loads(text)
    del missing["release"]["shares"][0]
    with pytest.raises(CryptographicError, match="cohort"):
        verify(missing)
    shorter = json.loads(text)
    del shorter["release"]["transcript"][-1]
    with pytest.raises(CryptographicError, match="transcript"):
        verify(shorter)

    log = [LogEntry.parse(entry) for entry in evidence["log"]]
    assert [entry.kind for entry in log] == [
        "signed", "open", "counted", "released", "opened", "fitted", "published",
    ]  # fmt: skip
    broken = [entry.to_body() for entry in log if entry.kind != "open"]
    with pytest.raises(IntegrityError, match="does not follow"):
        verify(evidence | {"log": broken})
    for left_out in ("signed", "counted", "released", "published"):
        with pytest.raises(IntegrityError, match="lacks"):
            verify(evidence | {"log": chained_again(entry for entry in log if entry.kind != left_out)})
    for other in (
        [entry for entry in log if entry.kind != "open"],
        [replace(log[0], kind="known")],
        [replace(log[0], kind="known"), *log],
    ):
        with pytest.raises(IntegrityError, match="the log was replaced"):
            verify(evidence | {"log": chained_again(other)})
    nothing: tuple[Any, ...] = (None, {}, [{}])
    for none in nothing:
        with pytest.raises(MessageError):
            verify(evidence | {"log": none})
    for state in Stage:
        if state is not Stage.PUBLISHED:
            with pytest.raises(IntegrityError, match="the log of the service is invalid"):
                verify(evidence | {"state": str(state)})
    twice = [*log, replace(log[-1], kind="fitted"), log[-1]]
    for other in (twice, [*log, replace(log[0], kind="failed")]):
        with pytest.raises(IntegrityError, match="the log's entries are not those of a study"):
            verify(evidence | {"log": chained_again(other)})
    with pytest.raises(MessageError, match="no components"):
        verify(evidence | {"components": None})
    with pytest.raises(IntegrityError, match="nothing says which release was opened"):
        verify(evidence | {"opened": None})
    with pytest.raises(MessageError, match="answered no count"):
        verify(evidence | {"answer": None})
    whole = json.loads(text)
    client = user.world.client(user.world.user)
    whole["release"]["transcript"] = [json.loads(event) for event in client.transcript(row.study)]
    assert whole["release"]["transcript"][-1]["body"]["kind"] == "components"
    with pytest.raises(CryptographicError, match="does not end with the release"):
        verify(whole)


@pytest.mark.parametrize("stage", [Stage.OPEN, Stage.ANSWERED, Stage.FITTED])
def test_a_study_that_was_under_way_before_the_log_goes_on_and_verifies(
    user: UserWorld, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StudyStore, "log_head", lambda self: None)  # statements named none
        row = user.advance_to(user.create(release="masked", publish=False), Stage.OPEN)
        if stage is not Stage.OPEN:
            user.deliver_all(row)
            row = user.advance_to(row, stage)
    opened = user.service.store.blob(row.id, "opened")
    user.service.close()
    with tampering_at(user.place) as connection:
        for statement in (
            "DROP TABLE log",
            "ALTER TABLE studies DROP COLUMN opened",
            "ALTER TABLE studies DROP COLUMN cancel_due",
            "ALTER TABLE studies ADD COLUMN key_progress FLOAT NOT NULL DEFAULT 1",
            "UPDATE alembic_version SET version_num = '0003'",
        ):
            connection.execute(text(statement))
    user.open()
    user.service.store.note(user.row(row.id), opened=opened)
    if stage is Stage.OPEN:
        user.deliver_all(row)
    publish_study(user.service, row.id)
    row = user.advance_to(row, Stage.PUBLISHED)
    given = verify_evidence(
        row.known_study,
        json.loads(evidence_of(user.service, row.id)),
        lambda index: user.service.store.chunk(row, index) or b"",
        [user.world.proxy_key],
        [user.world.user.public.ed25519],
        key_rules=KeyRules(TOY_BITS),
    )
    assert "of the log's heads" in list(given)[-1]
    assert user.service.store.log_entries()[0].kind == "known"


def test_evidence_from_before_the_log_and_without_a_signed_head_says_so(user: UserWorld) -> None:
    row = user.advance_to(user.create(release="joint", publish=False), Stage.OPEN)
    user.deliver_all(row)
    row = user.advance_to(row, Stage.FITTED)
    evidence = json.loads(evidence_of(user.service, row.id))

    def said_of(log: list[dict[str, Any]]) -> str:
        given = verify_evidence(
            row.known_study,
            evidence | {"log": log},
            lambda index: user.service.store.chunk(row, index) or b"",
            [user.world.proxy_key],
            [user.world.user.public.ed25519],
            key_rules=KeyRules(TOY_BITS),
        )
        return list(given)[-1]

    assert said_of(evidence["log"]).endswith(
        "5 entries and contains this study; no signed statement of the study names the log"
    )
    first = LogEntry.parse(evidence["log"][0])
    assert "1 entries" in said_of(chained_again([replace(first, kind="known")]))
    foreign = SealedComponents(StudyId(bytes(32)), {}, EMPTY).sign(user.world.user)
    evidence["components"] = json.loads(foreign.encoded)
    with pytest.raises(MessageError, match="another study"):
        said_of(evidence["log"])
    own = SealedComponents(row.known_study, {}, EMPTY).sign(user.world.user)
    evidence["components"] = json.loads(own.encoded)
    with pytest.raises(IntegrityError, match="the log was replaced"):
        said_of(evidence["log"])


def chained_again(entries: Iterable[LogEntry]) -> list[dict[str, Any]]:
    """A log of these entries whose every link is right."""
    again: list[LogEntry] = []
    for entry in entries:
        previous = again[-1].digest if again else EMPTY
        again.append(replace(entry, position=len(again) + 1, previous=previous))
    return [entry.to_body() for entry in again]


def test_a_stored_key_of_another_study_stops_before_anybody_encrypts(
    user: UserWorld, promise: Promise
) -> None:
    row = user.create()
    assert step(user.service, row)
    row = user.row(row.id)
    store, study = user.service.store, row.known_study
    other = generate_secret_key(TOY_BITS, OS_RANDOMNESS, rules=KeyRules(TOY_BITS))
    mine = store.need(row.id, "secret")
    store.note(row, secret=user.service.keyring.close(other.to_bytes(), study))
    stopped = user.advance(user.row(row.id))
    assert (stopped.stage, stopped.problem_slug) == (Stage.SIGNED, "state-corrupt")
    assert user.world.client(user.world.user).studies() == ()
    store.note(user.row(row.id), secret=mine)
    user.advance_to(row, Stage.OPEN)
    promise(
        "P23", counted="a stored secret key that is not the manifest's", result="stopped, no study was opened"
    )


def test_a_study_outlives_its_users_key(user: UserWorld) -> None:
    """Rotated while a study is open: it ends with the old key, and the next one begins with the new."""
    row = user.advance_to(user.create(release="masked"), Stage.OPEN)
    old = user.world.user
    with user.world.client(old) as client:
        passphrase = passphrase_of(user.service.home, user.settings.get("passphrase_file"))
        keys = user.service.home.rotate(
            passphrase, datetime.now(UTC), lambda said: (client.rotate(said), None)[1]
        )
    user.reopen()
    assert user.service.key.public == keys.current.public
    user.deliver_all(row)
    row = user.advance_to(row, Stage.PUBLISHED)
    assert user.opened(row).manifest.user.ed25519 == old.public.ed25519
    secret = generate_secret_key(TOY_BITS, OS_RANDOMNESS, rules=KeyRules(TOY_BITS))
    proof = prove_key(secret, keys.current.public.ed25519)
    user.workers.keys[:] = [MadeKey(secret.to_bytes(), KeyTerms.of(secret.public, proof))]
    following = user.advance_to(user.create(title="The next one"), Stage.OPEN)
    assert user.opened(following).manifest.user.ed25519 == keys.current.public.ed25519


def test_the_secret_key_is_sealed_under_the_passphrase(world: ProxyWorld, tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_text("correct horse\n")
    user = UserWorld(world, tmp_path / "user")
    user.service.close()

    write_private(user.home / "identity.pem", world.user.to_pem(b"correct horse"))
    user.settings = {"passphrase_file": file}
    user.open()
    row = user.advance_to(user.create(), Stage.OPEN)
    stored = user.service.store.need(row.id, "secret")
    assert world.secret.to_bytes() not in stored
    database = b"".join(path.read_bytes() for path in user.home.glob("user.sqlite3*"))
    half = world.secret.to_bytes()
    assert half[: len(half) // 2] not in database
    user.deliver_all(row)
    user.advance_to(row, Stage.PUBLISHED)
    user.service.close()


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_a_study_made_for_publication_in_clear_shows_nothing_but_the_sum_of_both_noises(
    user: UserWorld, release: str
) -> None:
    row = user.create(release=release, in_clear=True)
    row = user.advance_to(row, Stage.OPEN)
    user.deliver_all(row)
    row = user.advance_to(row, Stage.PUBLISHED)
    first = user.service.store.need(row.id, "model")
    user.reopen()
    assert user.service.store.need(row.id, "model") == first
    model = user.service.model_of(row.id)
    law = model.manifest.figures.law(model.components.count)
    factor = model.manifest.figures.mechanism.factor(model.components.count)
    unit = 1 / (model.components.count - 1) / model.manifest.figures.grid**2
    assert model.components.noise_scale == pytest.approx(float(2 * law.diagonal) ** 0.5 / factor * unit)
    facts = model_facts(user.service, row.id)
    assert (facts["privacy"]["in_clear"], facts["privacy"]["noise_draws"]) == (True, 2)
    assert "against the proxy too" in facts["claim"]
    assert "may be published in clear" in facts["claim"]
    assert any(
        "keeps neither its own draw nor any result without it" in line for line in facts["assumptions"]
    )
    # and what owners get is the same
    published = user.world.client(user.world.owners[0]).components(row.known_study)
    copies = SealedComponents.parse(verify_statement("components", published, user.world.user.public.ed25519))
    owner = user.world.owners[0]
    plain = open_sealed(
        copies.sealed[owner.public.party_id], owner.opening_key, components_info(row.known_study)
    )
    assert plain == encode_components(row.known_study, model.components)


def test_owners_noise_is_enough_for_publication_in_clear(user: UserWorld) -> None:
    row = user.advance_to(user.create(noise_by="owners", in_clear=True), Stage.OPEN)
    user.deliver_all(row)
    row = user.advance_to(row, Stage.PUBLISHED)
    facts = model_facts(user.service, row.id)
    assert (facts["privacy"]["in_clear"], facts["privacy"]["noise_draws"]) == (True, 1)
