"""Components in clear would undo the noise towards the proxy, who knows its own draw; sealed ones do not, and
neither do those under a second noise that it does not know."""

import random
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from study_parties import MakeManifest

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.blocks import BlockName, Values
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.privacy.mechanisms import BlockGaussian
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, Floats, fit_components
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures, figures_of
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import Terms
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.sealing import components_info, open_sealed, seal
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.results.second_noise import with_second_draw, with_second_noise

D, N = 12, 400
STUDY = StudyId(bytes(range(32)))


def masked_release() -> tuple[Floats, Floats, NoisyScatter, EncodedSpace, Figures]:
    figures = figures_of(
        Terms(
            ReleaseKind.MASKED, D, Fraction(1), 12, Fraction(1), Fraction(1, 10**7), Fraction(0), 1000, 3072
        )
    )
    source = random.Random(1)
    z = np.array([[round(source.gauss(0, 300)) for _ in range(D)] for _ in range(N)], dtype=object)
    total = z.sum(axis=0)
    scaled = N * z.T.dot(z) - np.outer(total, total)
    noise = np.zeros((D, D), dtype=object)
    noise[np.triu_indices(D)] = figures.mechanism.draw(N)
    noise = noise + np.triu(noise, 1).T
    noisy = NoisyScatter(N, tuple(tuple(int(entry) for entry in row) for row in scaled + noise), None)
    space = EncodedSpace(tuple("abcdefghijkl"), np.zeros(D), np.ones(D), False)
    return scaled.astype(float) / N, noise.astype(float) / N, noisy, space, figures


def test_components_in_clear_give_the_proxy_exact_sums() -> None:
    """The attack: S·V = V·Λ − H·V/N. It must work, or the sealing would stop nothing."""
    scatter, own_noise, noisy, space, figures = masked_release()
    published = fit_components(noisy, figures, space, 3)
    unit = published.noise_scale / float(figures.noise_scale)
    vectors, values = published.vectors.T, published.eigenvalues / unit
    found = vectors * values - own_noise @ vectors
    truth = scatter @ vectors
    assert np.abs(found - truth).max() < 1e-9 * np.abs(own_noise).max()
    assert np.abs(own_noise @ vectors).max() > 1e3 * np.abs(found - truth).max()


def test_a_second_noise_of_the_data_users_own_stops_the_same_attack() -> None:
    """In clear the proxy finds the sums no better than under fresh noise of the study's own strength."""
    scatter, own_noise, noisy, space, figures = masked_release()
    again, both = with_second_noise(noisy, figures)
    published = fit_components(again, both, space, 3)
    unit = published.noise_scale / (2**0.5 * float(figures.noise_scale))
    vectors, values = published.vectors.T, published.eigenvalues / unit
    error = vectors * values - own_noise @ vectors - scatter @ vectors
    # |E u|² for a unit vector u: about t²(d + 1)/2, E the noise that the proxy does not know
    expected = float(figures.noise_scale) * ((D + 1) / 2) ** 0.5
    assert (np.linalg.norm(error, axis=0) > expected / 5).all()
    drawn = np.array(again.scaled_scatter, dtype=object) - np.array(noisy.scaled_scatter, dtype=object)
    assert np.abs(error - drawn.astype(float) / N @ vectors).max() < 1e-9 * np.abs(own_noise).max()


def test_what_passes_through_the_proxy_opens_for_owners_alone() -> None:
    _, _, noisy, space, figures = masked_release()
    published = fit_components(noisy, figures, space, 3)
    plain = encode_components(STUDY, published)
    user, proxy, owners = (
        IdentityKey.generate(),
        IdentityKey.generate(),
        [IdentityKey.generate() for _ in range(3)],
    )
    info = components_info(STUDY)
    sealed = {owner.public.party_id: seal(plain, owner.public.sealing_key, info) for owner in owners}
    wire = SealedComponents(STUDY, sealed).sign(user).encoded
    for number in (*published.vectors.ravel(), *published.eigenvalues, *published.captured):
        assert np.float64(number).tobytes().hex().encode() not in wire
    for copy in sealed.values():
        with pytest.raises(CryptographicError):
            open_sealed(copy, proxy.opening_key, info)
    assert open_sealed(sealed[owners[1].public.party_id], owners[1].opening_key, info) == plain
    with pytest.raises(CryptographicError):
        open_sealed(sealed[owners[1].public.party_id], owners[0].opening_key, info)


def pre_study_sum(make_manifest: MakeManifest) -> tuple[Manifest, list[int], list[int]]:
    """A pre-study's manifest, its exact sum, and the noise that the proxy drew for it."""
    manifest = make_manifest(release="pre-study", blocks={"sum": "1"})
    return manifest, [123_456, -7_890, 0], manifest.figures.mechanism.draw(1)[1:]


def denoised(manifest: Manifest, released: Mapping[BlockName, Values], own: list[int]) -> list[float]:
    """The attack: the next manifest's centres are a pre-study's mean, and the proxy reads manifests."""
    mean = PreStudyResult.of(manifest, released, 3).total
    assert mean is not None
    return [value * N * manifest.figures.grid - noise for value, noise in zip(mean.mean, own, strict=True)]


def test_centres_out_of_the_first_noise_alone_would_give_the_proxy_the_exact_sum(
    make_manifest: MakeManifest,
) -> None:
    manifest, total, own = pre_study_sum(make_manifest)
    noisy = [value + noise for value, noise in zip(total, own, strict=True)]
    found = denoised(manifest, {BlockName.COUNT: [N], BlockName.SUM: noisy}, own)
    assert found == pytest.approx(total, abs=1e-3)


def test_the_data_users_own_noise_hides_it(make_manifest: MakeManifest) -> None:
    manifest, total, own = pre_study_sum(make_manifest)
    noisy = [value + noise for value, noise in zip(total, own, strict=True)]
    released, _ = with_second_draw({BlockName.COUNT: [N], BlockName.SUM: noisy}, manifest.figures)
    found = denoised(manifest, released, own)
    mechanism = manifest.figures.mechanism
    assert isinstance(mechanism, BlockGaussian)
    # As far off as under fresh noise of the study's own strength; all three close by has a chance of 10⁻¹².
    assert np.abs(np.subtract(found, total)).max() > 1e-4 * float(mechanism.variance(BlockName.SUM)) ** 0.5
