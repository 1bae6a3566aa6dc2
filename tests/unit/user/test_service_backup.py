"""A data user's service that is put back to an older copy of its database shows no second draw of noise."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from proxy_world import ProxyWorld
from user_world import UserWorld

from dpdpca_protocol.privacy.mechanisms.samplers import EXACT
from dpdpca_protocol.result.publication import encode_components
from dpdpca_user_service import work
from dpdpca_user_service.stages import Stage


@pytest.fixture
def user(world: ProxyWorld, tmp_path: Path) -> Iterator[UserWorld]:
    made = UserWorld(world, tmp_path / "user")
    yield made
    made.service.close()


def opened_twice(user: UserWorld) -> tuple[bytes, bytes]:
    """The components of a study, and those after the database of its collecting time was put back."""
    row = user.advance_to(user.create(in_clear=True, publish=False), Stage.OPEN)
    backup = user.backup()
    user.deliver_all(row)
    first = user.service.model_of(user.advance_to(row, Stage.FITTED).id)
    user.put_back(backup)
    assert user.row(row.id).stage is Stage.OPEN
    again = user.service.model_of(user.advance_to(row, Stage.FITTED).id)
    return encode_components(first.study, first.components), encode_components(again.study, again.components)


def test_a_release_opened_again_has_the_same_second_noise(user: UserWorld) -> None:
    """Of two draws the proxy, which knows its own noise, would take the mean."""
    first, again = opened_twice(user)
    assert first == again


def test_fresh_noise_would_show_two_draws(user: UserWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "own_samplers", lambda _secret, _chunks: EXACT)
    first, again = opened_twice(user)
    assert first != again
