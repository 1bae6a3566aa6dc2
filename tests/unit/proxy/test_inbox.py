"""The open studies that wait for an owner, as the proxy lists them."""

from datetime import UTC, datetime

from proxy_world import ProxyWorld, refused, slug, unlike_before, values_of
from sqlalchemy import update

from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.store.tables import studies


def listed(world: ProxyWorld, key: IdentityKey) -> set[StudyId]:
    return {facts.study for facts in world.client(key).inbox()}


def test_it_lists_what_names_the_owner_and_what_anybody_may_join(world: ProxyWorld) -> None:
    stranger = IdentityKey.generate()
    world.enrol(stranger, "owner", "Hospital of nobody")
    named = world.open_study(3, features=unlike_before(3))
    world.with_new_key()
    for_all = world.open_study(3, named=False, release="joint", noise_by="proxy", features=unlike_before(3))
    for owner in world.owners:
        assert listed(world, owner) == {named.study, for_all.study}
    assert listed(world, stranger) == {for_all.study}


def test_a_joined_study_stays_until_it_is_no_longer_open(world: ProxyWorld) -> None:
    study = world.open_study(3)
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    assert listed(world, world.owners[0]) == {study.study}
    study.cancel()
    assert listed(world, world.owners[0]) == set()


def test_a_study_that_names_an_earlier_key_is_listed_for_the_new_one(world: ProxyWorld) -> None:
    study, old, new = world.open_study(3), world.owners[0], IdentityKey.generate()
    time = time_text(datetime.now(UTC))
    world.client(old).rotate(Rotation("owner", 1, old.public.ed25519, new.public, time).sign(old, new))
    assert listed(world, new) == listed(world, old) == {study.study}


def test_it_is_for_owners(world: ProxyWorld) -> None:
    assert refused(lambda: world.client(world.user).inbox()).slug == "wrong-role"
    assert slug(world.request(None, "GET", "/v1/inbox")) == "bad-signature"


def test_a_damaged_study_does_not_hide_the_others(world: ProxyWorld) -> None:
    damaged = world.open_study(3, features=unlike_before(3))
    world.with_new_key()
    whole = world.open_study(3, features=unlike_before(3))
    with world.proxy.database.transaction("damage") as connection:
        connection.execute(
            update(studies).where(studies.c.study == damaged.study).values(release_kind="nonsense")
        )
    assert listed(world, world.owners[0]) == {whole.study}
