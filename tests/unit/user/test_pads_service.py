"""A data user's service under pads: its model, and no secret that is left."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from proxy_world import ProxyWorld, wait_for
from user_world import UserWorld, share_values

from dpdpca_protocol.pads.keys import SEALED_KEY_BYTES, PadsSecret
from dpdpca_protocol.wire.identifiers import PartyId
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
