"""Noise on a lift: t² = 2KB/ρ on L, and the Gram matrix at no further cost."""

from fractions import Fraction
from typing import Any

import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.accounting import rho_of_shares, zcdp_rho
from dpdpca_protocol.privacy.mechanisms import (
    Gaussian,
    LiftGaussian,
    Quantity,
    Setting,
    SharedGaussian,
    mechanism_for,
)
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers

DELTA = Fraction(1, 10**6)
D, K_COLUMNS, K, B = 7, 3, 10**9, 2**20


def setting(**changes: Any) -> Setting:
    terms: dict[str, Any] = {"columns": K_COLUMNS, "score_bound": B, "rho_share": Fraction(7, 10)}
    return Setting(Quantity.LIFT, D, K, Fraction(1), DELTA, **terms | changes)


def test_the_noise_is_what_the_proof_needs() -> None:
    fitted = LiftGaussian.calibrated(setting())
    rho = Fraction(7, 10) * zcdp_rho(Fraction(1), DELTA)
    assert fitted.scale**2 == pytest.approx(2 * K * B / rho, rel=1e-15)
    assert fitted.rho == Fraction(4 * K * B) / (2 * fitted.scale**2) <= rho
    assert fitted.variance(BlockName.LIFTED) == fitted.scale**2
    assert fitted.variance(BlockName.GRAM) == fitted.scale**2 * Fraction(2 * B, K)
    assert mechanism_for("gaussian", Quantity.LIFT) is LiftGaussian
    assert "Σ a² ≤ B" in "".join(fitted.guarantee.assumptions)


def test_draws_come_block_by_block() -> None:
    fitted = LiftGaussian.calibrated(setting())
    asked = []

    def gaussian(variance: Fraction, count: int, bound: int) -> list[int]:
        asked.append((variance, count, bound))
        return [len(asked)] * count

    drawn = fitted.draw(1, Samplers(gaussian=gaussian))
    assert drawn == [0, *[1] * (D * K_COLUMNS), 2, 3, 3, 2, 3, 2]
    gram = fitted.variance(BlockName.GRAM)
    assert [variance for variance, _, _ in asked] == [fitted.scale**2, gram, gram / 2]
    assert all(bound**2 >= 169 * variance for variance, _, bound in asked)


def test_owners_draw_the_same_noise_in_shares() -> None:
    alone = LiftGaussian.calibrated(setting())
    shared = SharedGaussian.calibrated(setting(shares=4))
    assert alone.scale <= shared.scale <= alone.scale * Fraction(101, 100)
    lengths: list[int] = []
    variances = []

    def gaussian(variance: Fraction, count: int, bound: int) -> list[int]:
        variances.append(variance)
        lengths.append(count)
        return [0] * count

    assert list(shared.share(Samplers(gaussian=gaussian))) == [0] * (1 + D * K_COLUMNS + 6)
    assert sum(lengths) == D * K_COLUMNS + 6
    assert set(variances) == {
        shared.scale**2 / 4,
        shared.variance(BlockName.GRAM) / 4,
        shared.variance(BlockName.GRAM) / 8,
    }
    # The least parameter of any share, here off the diagonal of G, has more than the floor of the proof.
    excess = sum(
        rho_of_shares(4, least, length)
        for least, length in (
            (shared.scale**2 / 4, D * K_COLUMNS),
            (shared.variance(BlockName.GRAM) / 8, 6),
        )
    )
    assert shared.rho == Fraction(4 * K * B) / (2 * shared.scale**2) + excess


@pytest.mark.parametrize("changes", [{"columns": 0}, {"score_bound": 0}])
def test_a_lift_has_columns_and_a_bound(changes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="columns and a score_bound"):
        setting(**changes)
    with pytest.raises(UsageError, match="columns and a score_bound"):
        Setting(Quantity.PAIRS, D, K, Fraction(1), DELTA, columns=2, score_bound=3)


def test_other_mechanisms_leave_a_lift_alone() -> None:
    for name in ("laplace",):
        with pytest.raises(UsageError, match="supports"):
            mechanism_for(name, Quantity.LIFT)
    with pytest.raises(UsageError, match="supports"):
        Gaussian.calibrated(setting())
