"""The releases that the audit plays against the encrypted ones, with the same noise and mask."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flat_releases import open_joint_release
from numpy.typing import NDArray
from present import present
from streamed import encrypted, masked_release, with_noise
from study_parties import MakeManifest

from dpdpca_lab.audit.mechanisms import MechanismRelease
from dpdpca_lab.audit.releases import DrawnAhead, JointRelease, Law, MaskedRelease, Totals, integers
from dpdpca_lab.mechanisms import ModSulq, Wishart
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.packing import unpack
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Quantity, Setting
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.release import open_masked_release, triangle_index
from dpdpca_protocol.release.vectors import PaillierVectors


def some_records(d: int, record_bound: int, count: int = 7) -> NDArray[np.int64]:
    side = int((record_bound / d) ** 0.5)
    return np.array(
        [[OS_RANDOMNESS.below(2 * side + 1) - side for _ in range(d)] for _ in range(count)], dtype=np.int64
    )


def test_masked_views_are_what_the_encrypted_release_decrypts_to(
    make_manifest: MakeManifest, toy_key: SecretKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """v′, every T_ij that the release holds (copies left of the diagonal too), and the decoded N·S̃."""
    figures = make_manifest(release="masked").figures
    assert figures.slots == 2  # with three features the release holds some copies, and not others
    release = MaskedRelease(figures)
    z = some_records(3, figures.record_bound)
    totals = Totals.of(z, figures.record_bound)
    encryptor = Encryptor(toy_key.public, release.layout.ciphertext_count)
    shares = []
    for owner in range(3):
        part = Totals.of(z[owner::3], figures.record_bound)
        shares.append(
            encryptor.encrypt_many(list(release.layout.pack_share(part.count, part.sum, part.second_moment)))
        )
    aggregate = multiply_shares(shares, toy_key.public)
    mask, noise = release.draw_mask(1), release.draw_noise(totals.count, 1)
    released = masked_release(
        toy_key.public, release.layout, aggregate, totals.count, list(mask[0]), list(noise[0])
    )
    monkeypatch.setattr(release, "draw_mask", lambda runs: mask)
    monkeypatch.setattr(release, "draw_noise", lambda count, runs: noise)
    views = release.play(totals, 1)
    plains = [int(toy_key.decrypt(c)) for c in released]
    assert plains[:3] == list(views.veiled[0])
    blocks = iter(plains[3:])
    held: dict[tuple[int, int], int] = {}
    for i in range(3):
        for _, columns in release.layout.blocks(i):
            entries = unpack(next(blocks), figures.slot_bits, len(columns))
            held |= {(i, j): t - plains[i] * plains[j] for j, t in zip(columns, entries, strict=True)}
    coordinates = release.coordinates(totals.count)
    assert {c.entry: value for c, value in zip(coordinates, views.values[0], strict=True)} == held
    copies = {c.entry for c in coordinates if c.copy_of is not None}
    assert copies == {(i, j) for i, j in held if j < i} == {(1, 0)}
    opened = open_masked_release(toy_key, release.layout, released, totals.count)
    assert all(opened.scaled_scatter[i][j] == value for (i, j), value in held.items())


def test_masked_views_are_the_decoded_release(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = make_manifest(release="masked").figures
    release = MaskedRelease(figures)
    totals = Totals.of(some_records(3, figures.record_bound), figures.record_bound)
    noise = release.draw_noise(totals.count, 4)
    monkeypatch.setattr(release, "draw_noise", lambda count, runs: noise)
    views = release.play(totals, 4)
    truth = release.truth(totals)
    for k, coordinate in enumerate(release.coordinates(totals.count)):
        i, j = present(coordinate.entry)
        drawn = noise[:, triangle_index(3, min(i, j), max(i, j))]
        assert list(views.values[:, k] - truth[k]) == list(drawn)
        n, v, r = totals.count, totals.sum, totals.second_moment
        assert truth[k] == n * r[i][j] - v[i] * v[j]


def test_joint_views_are_what_the_encrypted_release_decrypts_to(
    make_manifest: MakeManifest, toy_key: SecretKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = make_manifest(release="joint").figures
    release = JointRelease(figures)
    totals = Totals.of(some_records(3, figures.record_bound), figures.record_bound)
    vectors = PaillierVectors(toy_key.public, figures.slot_bits)
    plain = [totals.count, *release.truth(totals)]
    noise = release.draw_noise(totals.count, 1)
    released = with_noise(vectors, encrypted(vectors, plain), list(noise[0]))
    monkeypatch.setattr(release, "draw_noise", lambda count, runs: noise)
    seen = [int(x) for x in release.play(totals, 1).values[0]]
    assert [totals.count, *seen] == vectors.decrypt_vector(toy_key, released, len(plain))
    opened = open_joint_release(vectors, toy_key, released, 3, 100)
    assert list(present(opened.sum)) == seen[:3]
    assert opened.scaled_scatter[0][2] == totals.count * seen[3 + 2] - seen[0] * seen[2]


def test_totals_are_exact_sums_in_any_order() -> None:
    z = some_records(2, 1000, count=11)
    whole = Totals.of(z, 1000)
    assert whole == Totals.of(z[::-1], 1000)
    assert whole.sum == tuple(z.sum(axis=0))
    assert np.array_equal(np.array(whole.second_moment), z.T @ z)
    with pytest.raises(UsageError):
        Totals.of(z, 10)


def test_draws_ahead_are_handed_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stock is what the sampler gave, in some order, and no draw of it comes twice."""
    given: list[Any] = []

    def sampler(variance: Fraction, count: int, bound: int) -> list[Any]:
        given.extend((variance, bound, k) for k in range(len(given), len(given) + count))
        return given[-count:]

    monkeypatch.setattr("dpdpca_lab.audit.releases.discrete_gaussian", sampler)
    sample = DrawnAhead().gaussian
    taken: list[Any] = []
    for count in (0, 1, 3, 0, 5000, 2):
        drawn = sample(Fraction(7), count, 10)
        assert len(drawn) == count
        taken += drawn
    other: list[Any] = sample(Fraction(8), 5, 10)
    assert len(set(taken)) == len(taken)
    assert {variance for variance, _, _ in taken} == {7}
    assert {variance for variance, _, _ in other} == {8}


def test_the_noise_is_that_of_the_figures(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which parameters reach the draw functions of the protocol: N²t² and t², a; and the stated scales."""
    asked = []

    def sample(variance: Fraction, count: int, bound: int) -> list[int]:
        asked.append((variance, count))
        return [0] * count

    masked = MaskedRelease(make_manifest(release="masked").figures, 2)
    joint = JointRelease(make_manifest(release="joint").figures, 2)
    masked.sample = joint.sample = Samplers(gaussian=sample)
    masked.draw_noise(50, 1)
    t2 = masked.figures.noise_scale**2
    assert asked == [(2500 * t2, 2), (1250 * t2, 1)]
    asked.clear()
    joint.draw_noise(50, 1)
    t2, a = joint.figures.noise_scale**2, joint.figures.alpha_squared
    assert asked == [(t2 / a, 2), (t2, 2), (t2 / 2, 1)]
    scales = {c.name: c.scale for c in joint.coordinates(50)}
    assert scales["v1"] == pytest.approx(float(t2 / a) ** 0.5)
    assert scales["R1,1"] == pytest.approx(float(t2) ** 0.5)
    assert scales["R1,2"] == pytest.approx(float(t2 / 2) ** 0.5)
    assert masked.coordinates(50)[0].scale == pytest.approx(50 * float(masked.figures.noise_scale))


def test_only_features_of_the_study_are_played(make_manifest: MakeManifest) -> None:
    figures = make_manifest(release="joint").figures
    for d in (0, 4):
        with pytest.raises(UsageError):
            JointRelease(figures, d)


def test_granularity_is_claimed_only_for_noise_that_covers_it(make_manifest: MakeManifest) -> None:
    masked = make_manifest(release="masked").figures
    assert MaskedRelease(masked).granularity(60) == 60
    assert MaskedRelease(masked).granularity(1) is None
    assert JointRelease(make_manifest(release="joint").figures).granularity(60) == 16


@pytest.mark.parametrize("quantity", [*Quantity])
@pytest.mark.parametrize("mechanism", [Gaussian, Laplace, ModSulq, Wishart])
def test_a_mechanism_of_the_literature_is_played_on_its_quantity(
    mechanism: type[Gaussian] | type[Laplace] | type[Wishart], quantity: Quantity
) -> None:
    if quantity not in mechanism.quantities:
        return
    a = Fraction(430 if quantity is Quantity.JOINT else 0)
    made = mechanism.calibrated(Setting(quantity, 2, 1000, Fraction(1), Fraction(1, 2), a))
    release = MechanismRelease(made)
    totals = Totals.of(some_records(2, 1000), 1000)
    views = release.play(totals, 3)
    assert views.values.shape == (3, 5 if quantity is Quantity.JOINT else 3)
    assert len(release.truth(totals)) == len(release.coordinates(7)) == views.values.shape[1]
    assert views.veiled.shape == (3, 0)
    assert (release.law is Law.GAUSSIAN) == issubclass(mechanism, Gaussian)


def test_integers_stay_exact() -> None:
    assert integers([[2**200 + 1]])[0, 0] - 2**200 == 1
    assert integers([[10**30], [-(10**30)]]).dtype == object
