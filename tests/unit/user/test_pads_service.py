"""A data user's service under pads: its model, one opening a study, and no secret that is left."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from proxy_world import ProxyWorld, wait_for
from user_world import UserWorld, share_values

from dpdpca_protocol.pads.keys import SEALED_KEY_BYTES, PadsSecret
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_runtime.files import write_private
from dpdpca_runtime.http.answers import History
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_user_service import steps
from dpdpca_user_service.operations import cancel_study
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow


@pytest.fixture
def user(world: ProxyWorld, tmp_path: Path) -> Iterator[UserWorld]:
    made = UserWorld(world, tmp_path / "user")
    yield made
    made.service.close()


def opened(user: UserWorld) -> tuple[StudyRow, bytes]:
    """A study that is open at the proxy, and its stored secret."""
    row = user.advance_to(user.create(suite="pads", publish=False), Stage.OPEN)
    stored = user.service.store.need(row.id, "secret")
    PadsSecret.from_bytes(user.service.secret(row))
    return row, stored


def is_left(user: UserWorld, stored: bytes) -> bool:
    return any(stored in path.read_bytes() for path in user.home.glob("user.sqlite3*"))


def test_a_study_is_fitted_and_its_secret_is_gone(user: UserWorld) -> None:
    row, stored = opened(user)
    assert is_left(user, stored)
    values = user.deliver_all(row)
    row = user.advance_to(row, Stage.FITTED)
    model = user.service.model_of(row.id)
    assert model.components.count == sum(value.count for value in values)
    assert user.service.store.blob(row.id, "secret") is None
    assert not is_left(user, stored)


def test_a_pad_that_does_not_open_ends_the_study_by_its_owners_name(user: UserWorld) -> None:
    row, stored = opened(user)
    study = user.opened(row)
    for seed, owner in enumerate(user.world.owners):
        chunks, pad = study.padded_chunks(owner, share_values(study, seed).flat)
        study.upload(owner, chunks)
        study.complete(owner, chunks, pad=bytes(SEALED_KEY_BYTES) if seed == 1 else pad)

    def failed() -> bool:
        user.driver.advance(user.row(row.id))
        return user.row(row.id).stage is Stage.FAILED

    wait_for(failed)
    row = user.row(row.id)
    assert row.problem_slug == "sealed-body-does-not-open"
    assert str(PartyId.of(user.world.owners[1].public.ed25519)) in (row.problem or "")
    assert user.service.store.blob(row.id, "secret") is None
    assert not is_left(user, stored)


def test_a_cancelled_study_leaves_no_secret(user: UserWorld) -> None:
    row, stored = opened(user)
    cancel_study(user.service, row.id)
    assert user.row(row.id).stage is Stage.CANCELLED
    assert not is_left(user, stored)


@pytest.fixture
def restored(user: UserWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyRow:
    """A data user that has read a release of three owners, and was then put back to an older state.

    Meanwhile its proxy was forked before the third owner delivered. The fork has a release of the other two,
    and shows what the data user has stated about the first release.
    """
    row = user.advance_to(user.create(suite="pads", closing="at-time", publish=False), Stage.OPEN)
    study = user.opened(row)
    for seed, owner in enumerate(user.world.owners[:2]):
        study.deliver(owner, share_values(study, seed))
    user.service.close()
    backup = (user.home / "user.sqlite3").read_bytes()
    user.open()
    user.world.stop()
    fork = user.world.on_copy(tmp_path / "fork")
    user.world.start()
    study.deliver(user.world.owners[2], share_values(study, 2))
    study.close()
    row = user.advance_to(row, Stage.FITTED)
    assert user.service.model_of(row.id).components.count == 3 * 200
    shown = study.world.client(study.world.user).history(study.study).opened
    assert shown is not None

    user.service.close()
    for path in user.home.glob("user.sqlite3*"):
        path.unlink()
    write_private(user.home / "user.sqlite3", backup)
    user.world.stop()
    fork.start()
    user.world = fork
    user.open()
    user.opened(row).close()
    user.opened(row).wait_state("released")
    history = ProxyClient.history

    def history_of_both(self: ProxyClient, study: StudyId) -> History:
        return replace(history(self, study), opened=shown)

    monkeypatch.setattr(ProxyClient, "history", history_of_both)
    return user.row(row.id)


def test_a_second_release_of_fewer_owners_is_not_opened_after_a_restore(
    user: UserWorld, restored: StudyRow
) -> None:
    wait_for(lambda: user.advance(restored).stage is Stage.FAILED)
    row = user.row(restored.id)
    assert row.problem_slug == "opened-differs"
    assert "open_release" not in user.workers.calls
    assert user.service.store.blob(row.id, "opened") is None
    assert user.service.store.blob(row.id, "secret") is None
    user.world.stop()


def test_a_second_opening_would_show_one_owner_by_subtraction(
    user: UserWorld, restored: StudyRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack above, with the defence taken out."""
    monkeypatch.setattr(steps, "check_opened", lambda *_: None)
    row = user.advance_to(restored, Stage.FITTED)
    assert user.service.model_of(row.id).components.count == 2 * 200
    user.world.stop()


def test_another_release_is_not_opened_once_one_is_stated(user: UserWorld) -> None:
    """A proxy that is asked again for its release answers with another one."""
    row, _ = opened(user)
    user.deliver_all(row)
    user.workers.before = lambda name: stop_before(name)
    with pytest.raises(StoppedError):
        user.advance_to(row, Stage.FITTED)
    row = user.row(row.id)
    assert user.service.store.blob(row.id, "opened") is not None
    bundle = steps.decode_bundle(user.service.store.need(row.id, "bundle"))
    fewer = steps.encode_bundle(replace(bundle, shares=bundle.shares[1:]))
    user.service.store.note(row, bundle=fewer)
    user.workers.before = lambda name: None
    row = user.advance(row)
    assert (row.stage, row.problem_slug) == (Stage.FETCHED, "state-corrupt")
    user.service.store.note(row, bundle=steps.encode_bundle(bundle))
    assert user.advance_to(row, Stage.FITTED).stage is Stage.FITTED


class StoppedError(BaseException):
    """The process ends here."""


def stop_before(name: str) -> None:
    if name == "open_release":
        raise StoppedError(name)
