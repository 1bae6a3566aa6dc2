"""The noise figures of components against simulated noise: edge, captured variance, overlap, sanity checks.

A seeded generator keeps the runs repeatable; bounds are set so that a fresh seed would fail with probability
below 10⁻⁶ each. The noise is continuous here: the grid is so fine that the difference cannot be seen.
"""

import random
from fractions import Fraction

import numpy as np
import pytest

from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import (
    BELOW_THE_EDGE,
    EncodedSpace,
    check_scatter,
    finite_size_factor,
    fit_components,
)
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures, figures_of
from dpdpca_protocol.terms.terms import Terms


def make_figures(d: int, release: ReleaseKind = ReleaseKind.JOINT, max_records: int = 100_000) -> Figures:
    return figures_of(
        Terms(
            release=release,
            encoded_features=d,
            clip_norm=Fraction(1),
            fraction_bits=12,
            epsilon=Fraction(1),
            delta=Fraction(1, 10**7),
            sum_weight=Fraction(43, 100) if release is ReleaseKind.JOINT else Fraction(0),
            max_records=max_records,
            modulus_bits=3072,
        )
    )


def make_space(d: int, common: bool = False) -> EncodedSpace:
    half_range = np.full(d, 250.0) if common else np.linspace(0.5, 40.0, d)
    return EncodedSpace(tuple(f"x{j}" for j in range(d)), np.linspace(-3.0, 9.0, d), half_range, common)


def noisy_release(
    figures: Figures, n: int, spikes: np.ndarray, mean: np.ndarray, source: random.Random
) -> NoisyScatter:
    """A release of data with scatter Σ spikesᵢᵀspikesᵢ and the given mean, noise from a seeded Gaussian."""
    d = len(mean)
    t = float(figures.noise_scale)
    joint = figures.release is ReleaseKind.JOINT
    noise = np.zeros((d, d))
    for i in range(d):
        noise[i, i] = source.gauss(0, t)
        for j in range(i):
            noise[i, j] = noise[j, i] = source.gauss(0, t / 2**0.5)
    scatter = spikes.T @ spikes
    total = n * mean
    if joint:
        spread = t / float(figures.alpha_squared) ** 0.5
        total = total + np.array([source.gauss(0, spread) for _ in range(d)])
        second_moment = scatter + n * np.outer(mean, mean) + noise
        scaled = n * second_moment - np.outer(total, total)
    elif figures.release is ReleaseKind.PAIRS:
        scaled = 2 * scatter + noise  # n counts pairs, and differences know no mean
    else:
        scaled = n * (scatter + noise)
    return NoisyScatter(
        n,
        tuple(tuple(int(entry) for entry in row) for row in scaled),
        tuple(int(entry) for entry in total) if joint else None,
        figures.release is ReleaseKind.PAIRS,
    )


@pytest.mark.parametrize("d", [1, 5, pytest.param(30, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("release", "offset"),
    [
        (ReleaseKind.MASKED, 0.0),
        pytest.param(ReleaseKind.JOINT, 0.0, marks=pytest.mark.nightly),
        pytest.param(ReleaseKind.PAIRS, 0.0, marks=pytest.mark.nightly),
        (ReleaseKind.JOINT, 0.9),
    ],
)
def test_noise_alone_rarely_captures_anything(d: int, release: ReleaseKind, offset: float) -> None:
    """At most 2 of 100 releases, at every size: more than 28 of 400 has probability below 10⁻⁷.

    Without the factor of a finite size, 7 (d = 1) to 16 (large d) of 100 releases exceed 2s√d: at 7 of 100,
    fewer than 6 of 400 has probability below 10⁻⁶. With an offset, the bare edge ignores the mean's part of
    the noise.
    """
    n, source = 20_000, random.Random(11)
    figures, space = make_figures(d, release), make_space(d)
    mean = np.zeros(d)
    mean[d // 2] = offset * figures.grid
    alarms = infinite_size = bare = 0
    for _ in range(400):
        fitted = fit_components(noisy_release(figures, n, np.zeros((1, d)), mean, source), figures, space)
        assert (fitted.captured > 0).sum() == (fitted.signals > 0).sum() == fitted.trusted_count
        alarms += fitted.trusted_count > 0
        infinite_size += bool(fitted.eigenvalues[0] > fitted.noise_edges[0] / finite_size_factor(d))
        bare += bool(fitted.eigenvalues[0] > fitted.noise_edge)
    assert alarms <= 28
    if not offset:
        assert infinite_size >= 6
    elif d == 30:
        assert bare > 200


@pytest.mark.parametrize(
    ("release", "offset"), [(ReleaseKind.MASKED, 0.0), (ReleaseKind.JOINT, 0.3), (ReleaseKind.JOINT, 0.9)]
)
def test_captured_variance_and_overlap_are_estimated(release: ReleaseKind, offset: float) -> None:
    """Means over 60 releases; the standard error is below a third of each tolerance of the test."""
    d, n, source = 60, 20_000, random.Random(13)
    figures, space = make_figures(d, release), make_space(d)
    strength = 3 * float(figures.noise_scale) * (d / 2) ** 0.5
    spike = np.zeros((1, d))
    spike[0, 5] = strength**0.5
    mean = np.zeros(d)
    mean[20] = offset * figures.grid
    unit = figures.grid**-2 / (n - 1)
    captured, estimated, raw, overlap, predicted = [], [], [], [], []
    for _ in range(60):
        fitted = fit_components(noisy_release(figures, n, spike, mean, source), figures, space, 1)
        cosine_squared = float(fitted.vectors[0, 5] ** 2)
        captured.append(strength * cosine_squared * unit)
        estimated.append(float(fitted.captured[0]))
        raw.append(float(fitted.eigenvalues[0]))
        overlap.append(cosine_squared)
        predicted.append(float(fitted.overlaps[0]))
    assert np.mean(estimated) == pytest.approx(np.mean(captured), rel=0.06)
    assert np.mean(raw) > 1.15 * np.mean(captured)
    assert np.mean(predicted) == pytest.approx(np.mean(overlap), abs=0.06)


def test_the_edge_is_the_published_formula() -> None:
    d = 30
    figures, space = make_figures(d, ReleaseKind.MASKED), make_space(d)
    source = random.Random(3)
    fitted = fit_components(
        noisy_release(figures, 1001, np.zeros((1, d)), np.zeros(d), source), figures, space
    )
    s = float(figures.noise_scale) / 2**0.5 / figures.grid**2 / 1000
    assert fitted.noise_edge == pytest.approx(2 * s * d**0.5 * (1 + d ** (-2 / 3)))
    assert np.allclose(fitted.noise_edges, fitted.noise_edge)
    assert fitted.noise_scale == pytest.approx(s * 2**0.5)


def test_components_below_the_edge_are_kept_and_labelled() -> None:
    d = 12
    figures, space = make_figures(d, ReleaseKind.MASKED), make_space(d)
    spike = np.zeros((1, d))
    spike[0, 0] = (8 * float(figures.noise_scale) * d**0.5) ** 0.5
    fitted = fit_components(
        noisy_release(figures, 5000, spike, np.zeros(d), random.Random(5)), figures, space
    )
    assert fitted.component_count == d
    assert fitted.trusted_count == 1
    assert fitted.label(0) == ""
    assert fitted.label(1) == BELOW_THE_EDGE == "not distinguishable from noise"
    estimate, is_estimate = fitted.captured_share(1)
    bound, is_estimate_of_three = fitted.captured_share(3)
    assert (is_estimate, is_estimate_of_three) == (True, False)
    assert 0.8 < estimate < 1
    assert bound <= estimate


def test_an_honest_noisy_release_passes_the_sanity_checks() -> None:
    source = random.Random(17)
    for release in (ReleaseKind.JOINT, ReleaseKind.MASKED, ReleaseKind.PAIRS):
        figures = make_figures(8, release)
        mean = np.full(8, 0.3 * figures.grid)
        spikes = np.eye(8)[:2] * figures.grid * 20
        check_scatter(noisy_release(figures, 5000, spikes, mean, source), figures)
        check_scatter(noisy_release(figures, 1, spikes * 0, mean, source), figures)
