"""The exact sampler against known moments, the chain against the sampler, and the asymptotic figures.

Moments: E u₁² of density ∝ exp(κu₁²) is M(3/2, d/2+1, κ)/(d·M(1/2, d/2, κ)), Kummer's M. Values of u₁² lie in
[0, 1], so Hoeffding's bound gives rates that hold for every sample size.
"""

import math
from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import hyp1f1

from dpdpca_lab.central.asymptotic import Spectrum, privacy_sigma, utility
from dpdpca_lab.central.bingham import Envelope, sample_bingham, sample_eigenbasis
from dpdpca_lab.central.coordinates import redrawn_shares
from dpdpca_lab.central.entropy import RealDraws
from dpdpca_lab.central.gibbs import Step, gibbs_chains, uniform_frame

from .alpha import level


def mean_rate(values: NDArray[np.float64], expected: float) -> float:
    """Hoeffding: how rarely a mean of values in [0, 1] is this far from its expectation, both sides."""
    return 2 * math.exp(-2 * len(values) * (float(np.mean(values)) - expected) ** 2)


def difference_rate(values: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Hoeffding: how rarely means of two independent samples of one law in [0, 1] are this far apart."""
    difference = float(np.mean(values) - np.mean(others))
    return 2 * math.exp(-2 * difference**2 / (1 / len(values) + 1 / len(others)))


def axial_moment(d: int, concentration: float) -> float:
    top = hyp1f1(1.5, d / 2 + 1, concentration)
    return float(top / hyp1f1(0.5, d / 2, concentration) / d)


def test_the_notes_value_on_the_circle_and_the_inverted_factor() -> None:
    """λ = (0, 1): E u₁² is 0.621. With the factor of the acceptance inverted it would be 0.791."""
    count = 40_000
    expected = axial_moment(2, 1.0)
    assert expected == pytest.approx(0.621, abs=1e-3)
    drawn, _ = sample_bingham(np.diag([0.0, -1.0]), RealDraws(), count)
    assert mean_rate(drawn[:, 0] ** 2, expected) > level()

    envelope = Envelope.of(np.array([0.0, 1.0]))
    source = RealDraws()
    squares = envelope.propose(source, 4 * count) ** 2
    levels = envelope.subspace.levels
    inverted = -(squares @ levels) - np.log(squares @ (envelope.shift + 2 * levels))
    kept = np.log(source.uniforms(4 * count)) < inverted - inverted.max()
    wrong = squares[kept, 0]
    assert float(wrong.mean()) == pytest.approx(0.791, abs=0.01)
    assert mean_rate(wrong, expected) < level()


@pytest.mark.parametrize(
    ("d", "concentration"), [(2, 12.0), (5, 3.0), (30, 0.5), (30, 40.0), (64, 50.0), (100, 200.0)]
)
def test_moments_along_an_axis(d: int, concentration: float) -> None:
    matrix = np.zeros((d, d))
    matrix[0, 0] = concentration
    drawn, _ = sample_bingham(matrix, RealDraws(), 6000)
    assert mean_rate(drawn[:, 0] ** 2, axial_moment(d, concentration)) > level()


def test_acceptance_is_what_the_notes_measured() -> None:
    """0.95 to 0.74 at d = 2 and 0.11 to 0.57 at d = 64 there; never so low that the sampler is of no use."""
    for d, least in ((2, 0.65), (64, 0.11)):
        for concentration in (0.1, 5.0, 200.0):
            matrix = np.zeros((d, d))
            matrix[0, 0] = concentration
            _, proposals = sample_bingham(matrix, RealDraws(), 2000)
            # 2000 successes took that many trials: below `least` only by bad luck.
            assert stats.binom.cdf(2000, proposals, least) > level()


@pytest.mark.parametrize(("d", "m", "concentration"), [(3, 1, 6.0), (12, 3, 30.0), (40, 5, 300.0)])
def test_moments_in_a_subspace(d: int, m: int, concentration: float) -> None:
    """On the subspace, κu₁² is κ'w² along one axis, with κ' = κ·|projection of e₁|²."""
    others = np.linalg.qr(RealDraws().normals(d, m))[0].T
    values = np.zeros(d)
    values[0] = concentration
    drawn, _ = sample_eigenbasis(values, RealDraws(), others, 6000)
    axis = np.eye(d)[0] - others.T @ others[:, 0]
    length = float(axis @ axis)
    expected = axial_moment(d - m, concentration * length)
    assert mean_rate((drawn @ axis) ** 2 / length, expected) > level()


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("tilt", [0.0, 0.05])
def test_moments_where_given_directions_take_the_leading_places(m: int, tilt: float) -> None:
    """The law of the matrix in a basis of the rest, although the given ones have levels far above."""
    values = np.array([900.0, 500.0, 7.0, 0.0, 0.0, 0.0])
    bent = np.eye(6) + tilt * np.sin(np.arange(36.0)).reshape(6, 6)
    full, _ = np.linalg.qr(bent)
    given, rest = full[:, :m].T, full[:, m:]
    drawn, _ = sample_eigenbasis(values, RealDraws(), given, 6000)
    inner, axes = np.linalg.eigh(rest.T @ np.diag(values) @ rest)
    exact, _ = sample_bingham(np.diag(inner), RealDraws(), 100_000)
    assert mean_rate(((drawn @ rest) @ axes[:, -1]) ** 2, float((exact[:, -1] ** 2).mean())) > level()


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("k", [1, 2])
def test_a_long_chain_agrees_with_the_exact_law_on_a_small_problem(k: int, step: Step) -> None:
    """k = 1: with the exact sampler. k = 2 of 3: the missing direction has the law of −C, drawn exactly."""
    values = np.array([4.0, 1.0, 0.0])
    matrix = np.diag(values)
    exact, _ = sample_bingham(matrix if k == 1 else -matrix, RealDraws(), 20_000)
    expected = exact**2 if k == 1 else 1 - exact**2
    source, sweeps, chains = RealDraws(), *((4, 700) if step is Step.EXACT else (12, 20_000))
    starts = np.array([uniform_frame(k, 3, source) for _ in range(chains)])
    frames = next(islice(gibbs_chains(values, starts, source, step), sweeps - 1, None))
    shares = (frames**2).sum(axis=1)
    for axis in range(3):
        assert difference_rate(shares[:, axis], expected[:, axis]) > level()


SLOPES = [
    *((-0.5, slope) for slope in (-30.0, 1.0, 2.5, 40.0)),
    *((0.0, slope) for slope in (-50.0, -0.5, 3.0, 500.0)),
    *((2.5, slope) for slope in (-800.0, 1.2, 2.0, 20.0)),
    *((60.0, slope) for slope in (-5000.0, 29.0, 80.0, 3000.0)),
]


@pytest.mark.parametrize(("power", "slope"), SLOPES)
def test_a_redrawn_share_has_its_law(power: float, slope: float) -> None:
    """θ ∝ θ^(−1/2)(1 − θ)^power·exp(slope·θ), through its distribution function, with θ = sin² a."""
    angles = np.linspace(0, np.pi / 2, 400_001)[:-1]
    logs = (2 * power + 1) * np.log(np.cos(angles)) + slope * np.sin(angles) ** 2
    heights = np.exp(logs - logs.max())
    sums = np.cumsum((heights[1:] + heights[:-1]) / 2)
    source, count = RealDraws(), 40_000
    normals, tosses = source.normals(count), np.log(source.uniforms(count))
    drawn = np.arcsin(np.sqrt(redrawn_shares(np.full(count, slope), power, normals, tosses, source)))
    quantiles = np.interp(drawn, angles[1:], sums / sums[-1])
    assert mean_rate(quantiles, 0.5) > level()
    assert mean_rate(np.abs(2 * quantiles - 1), 0.5) > level()


def test_a_sweep_of_coordinates_keeps_the_exact_law() -> None:
    """Chains that start with exact draws have the same law after one sweep over the coordinates."""
    values = np.array([30.0, 12.0, 10.0, 4.0, 1.0, 0.0, 0.0, 0.0])
    source, count = RealDraws(), 20_000
    before, fresh = (sample_eigenbasis(values, source, count=count)[0] for _ in range(2))
    after = next(gibbs_chains(values, before[:, None, :], source, Step.COORDINATES))[:, 0]
    for axis in range(len(values)):
        assert difference_rate(after[:, axis] ** 2, fresh[:, axis] ** 2) > level()
    assert mean_rate((after[:, 0] * before[:, 0] > 0).astype(float), 0.5) > level()


def beyond(ratio: float, standard_error: float, tolerance: float = 0.05) -> float:
    """How rarely a ratio that is truly within `tolerance` of 1 is found this far off."""
    return 2 * float(stats.norm.sf(max(0.0, abs(ratio - 1) - tolerance) / standard_error))


@pytest.mark.parametrize(("p", "n", "beta"), [(100, 2000, 4.0), (200, 5657, 10.0)])
def test_asymptotic_figures_against_exact_draws(p: int, n: int, beta: float) -> None:
    """1 − overlap² and the spread of the privacy loss; 5 % is left to p, which is far from infinite."""
    levels = np.concatenate([[3.0, 2.0], np.linspace(0.895, 1.495, p - 2)])
    spectrum, theta, count = Spectrum.of(levels, 1), n / p**1.5, 1500
    drawn, _ = sample_bingham(p * beta / 2 * np.diag(levels), RealDraws(), count)
    lost = 1 - drawn[:, 0] ** 2
    limit = utility(spectrum, beta).operator_squared
    assert beyond(float(lost.mean()) / limit, float(lost.std()) / limit / count**0.5) > level()
    own, cross = -spectrum.slope / 2, (beta - spectrum.last) / spectrum.gap
    t = cross / (2 * (cross - own)) if cross > 2 * own else 1.0
    record = np.zeros(p)
    record[0], record[1] = np.sqrt(p * t), np.sqrt(p * (1 - t))
    losses = {
        "add-or-remove": p * beta / (2 * n) * (drawn @ record) ** 2,
        "replace-one": p * beta / n * p * drawn[:, 0] * drawn[:, 1],
    }
    for relation, loss in losses.items():
        centred = loss - loss.mean()
        kurtosis = float((centred**4).mean() / (centred**2).mean() ** 2)
        error = ((kurtosis - 1) / count) ** 0.5 / 2
        assert beyond(float(loss.std()) / privacy_sigma(spectrum, beta, theta, relation), error) > level()
