"""A study under pads at the proxy: what it refuses at the door, and that it adds up exactly."""

from dataclasses import replace

import pytest
from proxy_world import OpenStudy, ProxyWorld, values_of

from dpdpca_protocol.errors import CryptographicError, MessageError
from dpdpca_protocol.privacy.mechanisms import Mechanism
from dpdpca_protocol.terms.parties import PadsKeyTerms
from dpdpca_protocol.terms.signed_manifest import sign_manifest


@pytest.fixture
def study(world: ProxyWorld) -> OpenStudy:
    return world.open_study(3, suite="pads")


def test_the_release_is_the_exact_sum_of_the_cohort(
    study: OpenStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Mechanism.draw
    noise = list(range(-4, 6))
    monkeypatch.setattr(Mechanism, "draw", lambda self, count: noise[: len(honest(self, count))])
    world, values = study.world, [values_of(3, seed) for seed in range(3)]
    for owner, value in zip(world.owners, values, strict=True):
        study.deliver(owner, value)
    study.close()
    study.wait_state("released")
    assert len(world.client(world.user).release_chunk(study.study, 0, 1000)) == 8 * 10
    opened = study.open_values()
    assert opened == [sum(column) for column in zip(noise, *(value.flat for value in values), strict=True)]


def test_a_statement_without_a_pad_is_refused_and_a_pad_under_paillier_too(
    world: ProxyWorld, study: OpenStudy
) -> None:
    owner = world.owners[0]
    chunks, pad = study.padded_chunks(owner, values_of(3, 0).flat)
    study.upload(owner, chunks)
    with pytest.raises(MessageError, match="pad"):
        study.complete(owner, chunks)
    assert study.complete(owner, chunks, pad=pad).kind == "receipt"
    other = world.open_study(3)
    plain = other.plain_chunks(values_of(3, 0))
    other.upload(owner, plain)
    with pytest.raises(MessageError, match="pad"):
        other.complete(owner, plain, pad=pad)


@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, -8), slice(32, None)])
def test_a_chunk_of_another_length_is_refused(world: ProxyWorld, study: OpenStudy, cut: slice) -> None:
    chunks, _ = study.padded_chunks(world.owners[0], values_of(3, 0).flat)
    with pytest.raises(MessageError, match="bytes instead of"):
        study.upload(world.owners[0], [chunks[0][cut]])


def test_the_key_of_another_study_is_refused(world: ProxyWorld, study: OpenStudy) -> None:
    first = world.pads
    again = world.manifest(3, suite="pads", title="Another")
    assert world.pads is not first
    copied = replace(again, key=PadsKeyTerms(first.public))
    with pytest.raises(CryptographicError, match="used in another study"):
        world.client(world.user).create_study(sign_manifest(copied, world.user).encoded)
