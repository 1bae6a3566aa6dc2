"""A data user writes the manifest, names included; the proxy holds it to the names that the operator gave."""

from dataclasses import replace

import pytest
from proxy_world import ProxyWorld, dump, refused
from sqlalchemy import update

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.messages.rotation import Rotation
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import Participant
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement
from dpdpca_proxy.store.tables import parties


def participant(world: ProxyWorld, owner: int, name: str) -> Participant:
    return Participant(name, world.owners[owner].public.ed25519)


def refusal(world: ProxyWorld, manifest: Manifest) -> str:
    """Why the proxy does not open a study on this manifest; nothing changed."""
    before = dump(world.proxy)
    statement = sign_statement("manifest", manifest.to_body(), world.user)
    error = refused(lambda: world.client(world.user).create_study(statement.encoded))
    assert (type(error), error.slug) == (PolicyError, "manifest-refused")
    assert dump(world.proxy) == before
    return error.problem


def masked(world: ProxyWorld, *participants: Participant) -> Manifest:
    manifest = world.manifest(3, release="masked")
    return replace(manifest, participants=participants)


def test_a_puppet_under_anothers_name_is_refused(world: ProxyWorld) -> None:
    """Owner A would agree to sum up with Hospital B, and sum up with Hospital C, the data user's own."""
    manifest = masked(world, participant(world, 0, "Hospital A"), participant(world, 2, "Hospital B"))
    assert refusal(world, manifest) == (
        "participant 2 of the manifest is enrolled at this proxy under another name, 'Hospital C'"
    )


@pytest.mark.parametrize("name", ["hospital b", "Hospital  B", "Hospital \u0412", "Hospital B."])
def test_a_name_is_the_operators_to_the_letter(world: ProxyWorld, name: str) -> None:
    manifest = masked(world, participant(world, 0, "Hospital A"), participant(world, 1, name))
    assert "participant 2 of the manifest is enrolled at this proxy under another name" in refusal(
        world, manifest
    )


def test_a_key_that_nobody_enrolled_is_refused(world: ProxyWorld) -> None:
    puppet = Participant("Hospital B", IdentityKey.generate().public.ed25519)
    manifest = masked(world, participant(world, 0, "Hospital A"), puppet)
    assert "not enrolled at this proxy as an owner" in refusal(world, manifest)


def test_a_data_user_is_no_participant(world: ProxyWorld) -> None:
    other = IdentityKey.generate()
    world.enrol(other, "user", "Hospital B")
    manifest = masked(
        world, participant(world, 0, "Hospital A"), Participant("Hospital B", other.public.ed25519)
    )
    assert "not enrolled at this proxy as an owner" in refusal(world, manifest)


def test_an_owner_without_a_kem_is_not_named(world: ProxyWorld) -> None:
    """After an upgrade, an owner has keys from the earlier version until it rotates them."""
    old, new = world.owners[0], IdentityKey.generate()
    with world.proxy.database.transaction("keys of an earlier version") as connection:
        connection.execute(update(parties).where(parties.c.party == old.public.party_id).values(kem=None))
    assert "has keys of an earlier version" in refusal(world, world.manifest(3))
    rotation = Rotation("owner", 1, old.public.ed25519, new.public, time_text(world.clock()))
    world.client(old).rotate(rotation.sign(old, new))
    world.owners[0] = new
    assert world.open_study(3).manifest.participants[0].ed25519 == new.public.ed25519


def test_joint_studies_name_owners_by_the_same_rule(world: ProxyWorld) -> None:
    names = (participant(world, 0, "Hospital A"), participant(world, 2, "Hospital B"))
    assert "under another name" in refusal(world, replace(world.manifest(3), participants=names))


def test_the_data_user_is_who_the_operator_says(world: ProxyWorld) -> None:
    manifest = world.manifest(3)
    renamed = replace(manifest, user=replace(manifest.user, name="Ministry of Health"))
    assert "under another name, 'Institute'" in refusal(world, renamed)


def test_the_operators_names_are_taken(world: ProxyWorld) -> None:
    manifest = masked(world, participant(world, 0, "Hospital A"), participant(world, 2, "Hospital C"))
    statement = sign_manifest(manifest, world.user)
    assert world.client(world.user).create_study(statement.encoded) == manifest.study_id
