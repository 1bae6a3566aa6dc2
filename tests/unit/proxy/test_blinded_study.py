"""A blinded study at the proxy: all owners or nobody, one version each, judged before anybody pays."""

from dataclasses import replace
from datetime import timedelta

import pytest
from proxy_world import OpenStudy, ProxyWorld, values_of, wait_for

from dpdpca_protocol.errors import ConflictError, DpdpcaError, PolicyError
from dpdpca_protocol.layout.blocks import whole_numbers
from dpdpca_protocol.messages.parties import signed_keys
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.messages.transcript import verify_transcript
from dpdpca_protocol.release.suite import CohortShare
from dpdpca_protocol.terms.parties import Participant
from dpdpca_protocol.terms.signed_manifest import sign_manifest, suite_of
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement
from dpdpca_proxy.studies import summaries


@pytest.fixture
def study(world: ProxyWorld) -> OpenStudy:
    return world.open_study(3, blinding="pairwise", min_owners=None, fraction_bits=12)


def failure(study: OpenStudy) -> tuple[str, str | None]:
    facts = study.world.client(study.world.user).study(study.study)
    return facts.state, facts.failure


def test_the_release_opens_to_the_sum_of_all_owners(study: OpenStudy) -> None:
    world, values = study.world, [values_of(3, seed) for seed in range(3)]
    for owner, value in zip(world.owners, values, strict=True):
        assert failure(study)[0] == "open"
        study.deliver(owner, value)
    study.wait_state("released")
    client = world.client(world.user)
    shares = [
        ShareStatement.parse(verify_statement("share", each)) for each in client.release(study.study).shares
    ]
    cohort = [CohortShare(PartyId.of(share.owner), share.version, share.pad) for share in shares]
    chunk = client.release_chunk(study.study, 0, 1000)
    opened = whole_numbers(suite_of(study.manifest).open_sum(world.pads.to_bytes(), [chunk], cohort))
    exact = [sum(column) for column in zip(*(value.flat for value in values), strict=True)]
    assert opened[0] == exact[0]
    bounds = [0, *(block.tail for block in study.manifest.figures.blocks[1:] for _ in range(block.length))]
    assert all(abs(x - y) <= most for x, y, most in zip(opened, exact, bounds, strict=True))


def test_a_study_without_one_owner_fails_at_its_closing_time(study: OpenStudy) -> None:
    world = study.world
    for owner in world.owners[:2]:
        study.deliver(owner, values_of(3, 0))
    with pytest.raises(ConflictError, match="requires 3"):
        study.close()
    world.clock.ahead = timedelta(seconds=3601)
    world.proxy.wake()
    name = study.study.hex()
    wait_for(lambda: {one["study"]: one["state"] for one in summaries(world.proxy)}[name] == "failed")
    world.clock.ahead = timedelta()
    assert failure(study) == ("failed", "cohort-incomplete")
    events = verify_transcript(
        world.client(world.user).transcript(study.study), study.study, world.proxy.key.public.ed25519
    )
    assert (events[-1].kind, events[-1].detail) == ("failed", {"reason": "cohort-incomplete"})
    states = {owner.name: owner.state for owner in world.client(world.user).study(study.study).owners}
    assert [name for name, state in states.items() if state == "absent"] == ["Hospital C"]


def test_a_share_is_final(study: OpenStudy) -> None:
    world, owner = study.world, study.world.owners[0]
    chunks, pad = study.padded_chunks(owner, values_of(3, 0).flat, 2)
    with pytest.raises(ConflictError, match="cannot be replaced") as caught:
        study.upload(owner, chunks, 2)
    assert caught.value.slug == "blinded-share-is-final"
    with pytest.raises(ConflictError, match="cannot be replaced"):
        study.complete(owner, chunks, 2, pad)
    study.deliver(owner, values_of(3, 0))
    with pytest.raises(ConflictError):
        study.upload(owner, chunks, 1)
    plain = world.open_study(3, suite="pads", title="Another")
    plain.deliver(owner, values_of(3, 0), 2)


def test_a_withdrawal_ends_the_study_for_all(study: OpenStudy) -> None:
    owner = study.world.owners[0]
    for each in study.world.owners[:2]:
        study.deliver(each, values_of(3, 0))
    receipt = study.withdraw(owner, 2)
    assert failure(study) == ("failed", "cohort-incomplete")
    assert study.withdraw(owner, 2).encoded == receipt.encoded
    with pytest.raises(ConflictError, match="accepts no more"):
        study.deliver(study.world.owners[2], values_of(3, 0))


def test_the_distance_of_cohorts_is_judged_when_the_study_is_created(world: ProxyWorld) -> None:
    blinded = {"blinding": "pairwise", "min_owners": None}
    world.open_study(3, **blinded)
    world.open_study(3, **blinded, title="The same owners")
    two = ["Hospital A", "Hospital B"]
    with pytest.raises(DpdpcaError, match="differs by 1 owner") as caught:
        world.open_study(3, **blinded, participants=two)
    assert caught.value.slug == "cohort-too-close"
    other = [{"name": "another", "lower": 0, "upper": 1}]
    world.open_study(3, **blinded, participants=two, features=other)


def test_a_participant_under_another_blinding_key_is_refused(world: ProxyWorld) -> None:
    manifest = world.manifest(3, blinding="pairwise", min_owners=None)
    first, *others = manifest.participants
    forged = Participant(first.name, first.ed25519, IdentityKey.generate().public.blinding_key)
    changed = replace(manifest, participants=(forged, *others))
    with pytest.raises(PolicyError, match="another x25519"):
        world.client(world.user).create_study(sign_manifest(changed, world.user).encoded)


def test_the_list_of_parties_proves_their_keys(world: ProxyWorld) -> None:
    client = world.client(world.user)
    assert {party.statement for party in client.parties()} == {None}
    listed = {party.ed25519: party.statement for party in client.parties(with_statements=True)}
    for owner in world.owners:
        proof = listed[owner.public.ed25519]
        assert proof is not None
        assert signed_keys(proof, owner.public.ed25519) == owner.public
