"""The law of the sum of what owners draw out of their ledgers' keys; rates from `alpha.level`."""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpdpca_protocol.layout.blocks import TRIANGLES, BlockName, block_length, matrix_size
from dpdpca_protocol.privacy.gaussian import sampler_scale
from dpdpca_protocol.privacy.mechanisms import Quantity, Setting, SharedGaussian
from dpdpca_protocol.records.seeded_noise import owners_noise_seed, seeded_samplers
from dpdpca_protocol.wire.identifiers import Digest, StudyId

from .alpha import level

K, D, COLUMNS = 2**24, 40, 39
ASSURED = 3
BLOCKS = ("norms", "pair-norms", "sum", "octaves", "far-pairs")
Integers = NDArray[np.int64]


def fitted(quantity: Quantity, clip_share: Fraction = Fraction(0)) -> SharedGaussian:
    blocks = tuple((BlockName(name), Fraction(1, 5)) for name in BLOCKS)
    return SharedGaussian.calibrated(
        Setting(
            quantity,
            D,
            K,
            Fraction(1),
            Fraction(1, 10**6),
            Fraction(43, 100) * K if quantity is Quantity.JOINT else Fraction(0),
            shares=ASSURED,
            blocks=blocks if quantity is Quantity.PRE_STUDY else (),
            clip_share=clip_share,
            clip_bound=3 * K if clip_share else 0,
            columns=COLUMNS if quantity is Quantity.LIFT else 0,
            score_bound=K // 16 if quantity is Quantity.LIFT else 0,
        )
    )


def seed_of(owner: int, study: int = 0) -> bytes:
    """Owners with other keys and other sums, as in a study."""
    return owners_noise_seed(bytes([owner]) * 32, StudyId.of(bytes([study])), Digest.of(bytes([owner])))


def drawn(mechanism: SharedGaussian, seeds: list[bytes]) -> Integers:
    """The noise of a cohort, in the order of a share."""
    shares = [np.fromiter(mechanism.share(seeded_samplers(seed)), dtype=np.int64) for seed in seeds]
    total: Integers = np.sum(shares, axis=0)
    return total


def parts(mechanism: SharedGaussian, noise: Integers, owners: int) -> Iterator[tuple[Integers, float]]:
    """The values with one variance, and that variance by the law of so many owners."""
    start = 1
    for name in mechanism.setting.noisy_blocks:
        values = noise[start : start + block_length(name, D, mechanism.setting.columns)]
        start += len(values)
        variance = float(mechanism.variance(name, owners))
        if name in TRIANGLES:
            size = matrix_size(name, D, mechanism.setting.columns)
            on = np.cumsum([0, *range(size, 1, -1)])
            yield values[on], variance
            yield np.delete(values, on), variance / 2
        else:
            yield values, variance
    assert start == len(noise)


def rate(values: Integers, variance: float) -> float:
    energy = float((values.astype(float) ** 2).sum()) / variance
    return float(2 * min(stats.chi2.sf(energy, len(values)), stats.chi2.cdf(energy, len(values))))


@pytest.mark.parametrize(
    ("quantity", "clip_share"),
    [
        (Quantity.JOINT, Fraction(0)),
        (Quantity.PAIRS, Fraction(0)),
        (Quantity.PRE_STUDY, Fraction(0)),
        (Quantity.LIFT, Fraction(0)),
        (Quantity.JOINT, Fraction(1, 200)),
        (Quantity.PAIRS, Fraction(1, 10)),
    ],
)
@pytest.mark.parametrize("owners", [3, 8])
def test_what_owners_draw_adds_up_to_the_law_of_their_number(
    quantity: Quantity, clip_share: Fraction, owners: int
) -> None:
    """Three of them are assured; more of them add their part on top."""
    mechanism = fitted(quantity, clip_share)
    noise = drawn(mechanism, [seed_of(owner) for owner in range(owners)])
    assert noise[0] == 0
    found = list(parts(mechanism, noise, owners))
    for values, variance in found:
        assert rate(values, variance) > level()
    # Where an owner's part is missing, and where all draw the same, the largest part shows it.
    values, variance = max(found, key=lambda part: len(part[0]))
    assert rate(values, 2 * variance) < level()
    same = drawn(mechanism, [seed_of(0)] * owners)
    place = max(range(len(found)), key=lambda index: len(found[index][0]))
    values, variance = list(parts(mechanism, same, owners))[place]
    assert rate(values, variance) < level()


def law_of_sum(variance: Fraction, shares: int, reach: int) -> NDArray[np.float64]:
    """P(x) of the sum, x from −reach to reach: the law of one draw, convolved with itself."""
    support = np.arange(-reach, reach + 1)
    one = np.exp(-(support**2) / (2 * sampler_scale(variance) ** 2))
    one /= one.sum()
    whole = one
    for _ in range(shares - 1):
        whole = np.convolve(whole, one)[reach : 3 * reach + 1]
    return whole


def fit(counts: NDArray[np.float64], law: NDArray[np.float64]) -> float:
    expected = counts.sum() * law
    kept = expected >= 20
    cells = [np.append(each[kept], each[~kept].sum()) for each in (counts, expected)]
    cells = [each[:-1] if cells[1][-1] < 1 else each for each in cells]
    statistic = float(((cells[0] - cells[1]) ** 2 / cells[1]).sum())
    return float(stats.chi2.sf(statistic, len(cells[0]) - 1))


@pytest.mark.parametrize("count", [20_000, pytest.param(2_000_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("variance", "owners"), [("0.25", 2), ("1", 5), ("1.5", 20)])
def test_small_shares_add_up_to_their_exact_law(variance: str, owners: int, count: int) -> None:
    """Histograms have little noise, so that the sum is far enough from one Gaussian to tell them apart."""
    parameter = Fraction(variance)
    bound = math.ceil(13 * math.sqrt(parameter))
    total = np.zeros(count, dtype=np.int64)
    for owner in range(owners):
        sample = seeded_samplers(seed_of(owner, study=1))
        total += np.array(sample.gaussian(parameter, count, bound), dtype=np.int64)
    reach = 12 * math.ceil(math.sqrt(parameter * owners))
    counts = np.bincount(np.clip(total, -reach, reach) + reach, minlength=2 * reach + 1).astype(float)
    assert fit(counts, law_of_sum(parameter, owners, reach)) > level()
    assert fit(counts, law_of_sum(parameter, 2 * owners, reach)) < level()
    if parameter < 1:
        assert fit(counts, law_of_sum(owners * parameter, 1, reach)) < level()
