"""The published power method: its two noise scales, its number of iterations, and what they really give."""

import math
from copy import deepcopy
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpdpca_lab.central.entropy import RealDraws
from dpdpca_lab.central.published_power import (
    published_iterations,
    published_power_components,
    published_power_guarantee,
    published_power_mu,
    published_power_scale,
)
from dpdpca_lab.central.result import captured_share
from dpdpca_protocol.errors import UsageError

ONE, DELTA = Fraction(1), Fraction(1, 50)


def test_both_scales() -> None:
    assert published_power_scale(ONE, DELTA, 54, 10, 4) == pytest.approx(25.0185, abs=6e-5)
    assert published_power_scale(ONE, Fraction(0), 54, 10, 4) == pytest.approx(587.878, abs=6e-4)
    assert published_power_scale(ONE / 2, DELTA, 54, 10, 4) == pytest.approx(2 * 25.0185, abs=2e-4)


def test_the_real_guarantee() -> None:
    assert published_power_mu(ONE, DELTA, 54, 10, False) == pytest.approx(0.11305, abs=6e-6)
    assert published_power_mu(ONE, DELTA, 54, 10, True) == pytest.approx(0.8308, abs=6e-5)
    for entry_norm, real in ((False, 0.0668), (True, 1.557)):
        guarantee = published_power_guarantee(ONE, DELTA, 54, 10, entry_norm)
        assert float(guarantee.epsilon) == pytest.approx(real, abs=6e-4)
        assert guarantee.delta == DELTA
    assert float(published_power_guarantee(ONE, Fraction(0), 54, 10).epsilon) == pytest.approx(
        0.2236, abs=6e-5
    )
    assert float(published_power_guarantee(ONE, Fraction(0), 54, 10, True).epsilon) == pytest.approx(
        math.sqrt(54 / 20)
    )


def test_the_scale_gives_the_stated_guarantee(draws: RealDraws) -> None:
    """√2 and √(2dk) over random records and frames, and L steps of √2/γ or √(2dk)/γ."""
    d, k, iterations = 6, 2, 4
    most = np.zeros(2)
    for _ in range(500):
        frame, _ = np.linalg.qr(draws.normals(d, k))
        pair = draws.normals(2, d)
        pair[:, :k] *= 4
        z, x = pair / np.linalg.norm(pair, axis=1, keepdims=True)
        change = (np.outer(z, z) - np.outer(x, x)) @ frame
        most = np.maximum(most, [np.linalg.norm(change), np.abs(change).sum()])
    assert most[0] <= math.sqrt(2)
    assert most[1] <= math.sqrt(2 * d * k)
    steps = math.sqrt(iterations) * math.sqrt(2) / published_power_scale(ONE, DELTA, d, k, iterations)
    assert steps == pytest.approx(published_power_mu(ONE, DELTA, d, k, False))
    pure = iterations * math.sqrt(2 * d * k) / published_power_scale(ONE, Fraction(0), d, k, iterations)
    assert pure == pytest.approx(float(published_power_guarantee(ONE, Fraction(0), d, k).epsilon))


def test_the_published_number_of_iterations() -> None:
    """Covertype, centred, largest norm 1. L only depends on λ₂, λ₃ and on λ₁₀, λ₁₁."""
    values = np.concatenate(
        [[1711.651, 797.31502, 47.176829, 22.5, 8.1, 1.25, 0.65, 0.28, 0.0212], np.zeros(45)]
    )
    values[9:11] = 1.10301e-3, 2.37451e-4
    assert published_iterations(values, 10) == 8
    assert published_iterations(values, 2) == 6
    for wrong in (0, 54, 20):
        with pytest.raises(UsageError):
            published_iterations(values, wrong)


@pytest.mark.parametrize("delta", [DELTA, Fraction(0)])
@pytest.mark.parametrize("entry_norm", [False, True])
def test_the_directions_at_little_noise_and_at_much(
    draws: RealDraws, delta: Fraction, entry_norm: bool
) -> None:
    moment = np.diag([500.0, 200.0, 1.0, 1.0, 1.0, 1.0])

    def share(epsilon: Fraction) -> float:
        found = published_power_components(moment, 1, epsilon, delta, 2, 5, entry_norm, draws)
        assert np.allclose(found.vectors @ found.vectors.T, np.eye(2))
        assert found.claim.epsilon == epsilon
        return captured_share(found.vectors, moment)

    assert share(Fraction(100)) > 0.999
    assert np.mean([share(Fraction(1, 10)) for _ in range(20)]) < 0.8


def test_the_record_bound_scales_the_noise(draws: RealDraws) -> None:
    """The same bytes, records four times as long: the same frame."""
    moment = np.diag([50.0, 20.0, 1.0])
    seeds = [draws, deepcopy(draws)]
    first, second = (
        published_power_components(moment * bound, bound, ONE, DELTA, 1, 3, draws=source).vectors
        for bound, source in zip((1, 16), seeds, strict=True)
    )
    assert np.allclose(first, second)


@pytest.mark.parametrize("change", [{"iterations": 0}, {"delta": ONE}, {"k": 3}, {"epsilon": Fraction(0)}])
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    terms: dict[str, Any] = {"record_bound": 1, "epsilon": ONE, "delta": DELTA, "k": 1, "iterations": 2}
    with pytest.raises(UsageError):
        published_power_components(np.eye(2), **(terms | change))
