"""A whole joint study whose owners draw the noise: the proxy adds none, and knows none of it."""

import pytest
from flat_releases import open_joint_release
from proxy_world import OpenStudy, ProxyWorld, values_of

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.privacy.mechanisms import Mechanism
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.result.components import EncodedSpace, check_scatter, fit_components
from dpdpca_protocol.wire.salts import unsalted

D = 4


@pytest.fixture
def study(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> OpenStudy:
    def forbidden(*_: object) -> None:
        raise AssertionError("the proxy drew noise")

    monkeypatch.setattr(Mechanism, "draw", forbidden)
    return world.open_study(D, noise_by="owners", max_colluding=1)


def released(study: OpenStudy) -> list[int]:
    client = study.world.client(study.world.user)
    count = study.manifest.figures.chunk_count
    chunks = [client.release_chunk(study.study, position, 2_000_000) for position in range(count)]
    return [c for chunk in chunks for c in decode_chunk(chunk, study.world.secret.public)]


def test_the_release_is_the_aggregate_as_it_is(study: OpenStudy) -> None:
    public = study.world.secret.public
    sent = []
    for seed, owner in enumerate(study.world.owners):
        chunks = study.plain_chunks(values_of(D, seed))
        study.upload(owner, chunks)
        study.world.client(owner).complete_share(study.study, study.claim(owner, chunks))
        sent.append([c for chunk in chunks for c in decode_chunk(unsalted(chunk), public)])
    study.close()
    assert study.wait_state("released") == "released"
    assert released(study) == multiply_shares(sent, public)


def test_the_user_reads_the_sums_under_all_owners_noise(study: OpenStudy) -> None:
    world, figures = study.world, study.manifest.figures
    shares = [values_of(D, seed) for seed in range(3)]
    for owner, share in zip(world.owners, shares, strict=True):
        study.deliver(owner, share)
    study.close()
    study.wait_state("released")
    vectors = PaillierVectors(world.secret.public, figures.slot_bits)
    ciphertexts = released(study)
    opened = open_joint_release(vectors, world.secret, ciphertexts, D, 5000)
    assert opened.count == 15
    flat = vectors.decrypt_vector(world.secret, ciphertexts, figures.value_count)
    exact = [sum(parts) for parts in zip(*(share.flat for share in shares), strict=True)]
    noise = [seen - true for seen, true in zip(flat, exact, strict=True)]
    law = figures.law(15, owners=3)
    assert noise[0] == 0
    assert all(0 < abs(x) <= law.sum_bound for x in noise[1 : 1 + D])
    assert all(0 < abs(x) <= law.triangle_bound for x in noise[1 + D :])
    space = EncodedSpace.of(study.manifest)
    check_scatter(opened, figures, 3)
    fitted = fit_components(opened, figures, space, owners=3)
    more = fit_components(opened, figures, space, owners=6)
    assert more.noise_scale == pytest.approx(fitted.noise_scale * 2**0.5)
    assert more.noise_edge == pytest.approx(fitted.noise_edge * 2**0.5)
    with pytest.raises(UsageError, match="the number of owners is needed"):
        fit_components(opened, figures, space)
