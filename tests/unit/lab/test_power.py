"""The private power method: its sensitivity by brute force, its accounting, and what it finds."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpdpca_lab.central.entropy import RealDraws
from dpdpca_lab.central.power import exact_product, power_components, product_noise_variance
from dpdpca_lab.central.result import captured_share
from dpdpca_lab.tables import encode_table
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import delta_of_tails, zcdp_rho
from dpdpca_protocol.privacy.mechanisms import Guarantee

DELTA = Fraction(1, 10**6)


def test_one_record_moves_a_product_by_no_more_than_the_noise_is_made_for(draws: RealDraws) -> None:
    """‖(zzᵀ − xxᵀ)X‖² over random records of the bound: below 2K²‖X‖², and close for orthogonal ones."""
    frame = np.rint(np.linalg.qr(draws.normals(6, 2))[0] * 2**16).astype(np.int64)
    allowed = 2 * float(product_noise_variance(frame, 1, Fraction(1)))
    assert allowed == pytest.approx(2 * 2.0**32, rel=1e-3)
    worst = 0.0
    for _ in range(2000):
        pair = draws.normals(2, 6)
        z, x = pair / np.linalg.norm(pair, axis=1, keepdims=True)
        worst = max(worst, float(((np.outer(z, z) - np.outer(x, x)) @ frame).__pow__(2).sum()))
    along = frame / np.linalg.norm(frame, axis=0)
    change = np.outer(along[:, 0], along[:, 0]) - np.outer(along[:, 1], along[:, 1])
    assert worst <= allowed
    assert 0.999 * allowed <= float(((change @ frame) ** 2).sum()) <= allowed * (1 + 1e-9)


def test_a_product_in_two_halves_is_exact() -> None:
    moment = np.array([[2**62 - 1, -(2**61) + 5], [-(2**61) + 5, 2**40 + 3]])
    frame = np.array([[2**16, -1], [3, 2**16 - 7]])
    assert (exact_product(moment, frame) == moment.astype(object) @ frame.astype(object)).all()


def test_the_iterations_share_rho() -> None:
    frame = np.eye(4, 2, dtype=np.int64) * 2**16
    rho = zcdp_rho(Fraction(1), DELTA)
    variance = product_noise_variance(frame, 5, rho / 8)
    # ρ = Σ_L D²/(2σ²) with D² = 2K²‖X‖².
    assert 8 * Fraction(2 * 25 * 2**32) / (2 * variance) == rho


def test_a_strong_direction_is_found(draws: RealDraws) -> None:
    rows = np.clip(np.outer(draws.normals(4000), [0.4, 0.3, 0.0, 0.1]) + 0.02 * draws.normals(4000, 4), -1, 1)
    table = encode_table(rows, (-1.0, 1.0), clip_norm=1.0)
    result = power_components(table.moments.second_moment, table.record_bound, Fraction(3), DELTA, 2)
    assert captured_share(result.vectors[:1], table.second_moment) > 0.95
    assert np.allclose(result.vectors @ result.vectors.T, np.eye(2))
    assert isinstance(result.guarantee, Guarantee)
    assert result.guarantee.epsilon == 3
    assert result.guarantee.delta == DELTA + delta_of_tails(Fraction(3))
    assert not any("idealised" in text for text in result.guarantee.assumptions)
    assert result.sampling == "exact integers"
    assert "entry" in result.claim.basis


def test_an_empty_moment_gives_noise_alone() -> None:
    result = power_components(np.zeros((3, 3), dtype=np.int64), 1, Fraction(1), DELTA, 1, iterations=1)
    assert math.isclose(float(np.linalg.norm(result.vectors)), 1)


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": 0},
        {"delta": Fraction(0)},
        {"delta": Fraction(1)},
        {"k": 3},
        {"epsilon": Fraction(0)},
        {"second_moment": np.eye(2)},
        {"record_bound": 2**60},
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    terms: dict[str, Any] = {
        "second_moment": np.eye(2, dtype=np.int64),
        "record_bound": 4,
        "epsilon": Fraction(1),
        "delta": DELTA,
        "k": 1,
    }
    with pytest.raises(UsageError):
        power_components(**(terms | change))
