"""Each block spends its part of ρ, and all of them together what the study may."""

from fractions import Fraction
from typing import Any

import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.accounting import epsilon_of_rho, zcdp_rho
from dpdpca_protocol.privacy.mechanisms import (
    BlockGaussian,
    Gaussian,
    Laplace,
    Quantity,
    Setting,
)
from dpdpca_protocol.privacy.mechanisms import mechanism_for as find
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.privacy.sensitivity import block_sensitivity_squared

DELTA = Fraction(1, 10**6)
SHARES = (
    (BlockName.NORMS, Fraction("0.1")),
    (BlockName.SUM, Fraction("0.3")),
    (BlockName.OCTAVES, Fraction("0.6")),
)


def setting(blocks: tuple[tuple[BlockName, Fraction], ...] = SHARES, **changes: Any) -> Setting:
    return Setting(Quantity.PRE_STUDY, 3, 1000, Fraction(1), DELTA, blocks=blocks, **changes)


@pytest.mark.parametrize("rho_share", [Fraction(1), Fraction("0.05")])
def test_blocks_spend_their_parts_and_no_more(rho_share: Fraction) -> None:
    fitted = BlockGaussian.calibrated(setting(rho_share=rho_share))
    whole = rho_share * zcdp_rho(Fraction(1), DELTA)
    spent = {
        name: block_sensitivity_squared(name, 3, 1000) / (2 * fitted.variance(name)) for name, _ in SHARES
    }
    for name, share in SHARES:
        assert spent[name] == pytest.approx(share * whole, rel=1e-15)
    assert sum(spent.values()) == fitted.rho <= whole
    assert fitted.event.rho == fitted.rho
    assert fitted.guarantee.epsilon == (1 if rho_share == 1 else epsilon_of_rho(fitted.rho, DELTA))


def test_draws_come_block_by_block() -> None:
    fitted = BlockGaussian.calibrated(setting())
    asked = []

    def gaussian(variance: Fraction, count: int, bound: int) -> list[int]:
        asked.append((variance, count, bound))
        return [len(asked)] * count

    drawn = fitted.draw(1, Samplers(gaussian=gaussian))
    assert drawn == [0, *[1] * 49, *[2] * 3, *[3] * 36]
    assert [variance for variance, _, _ in asked] == [fitted.variance(name) for name, _ in SHARES]
    assert all(bound**2 >= 169 * variance for variance, _, bound in asked)
    assert fitted.variance(BlockName.PAIR_NORMS) == 0


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        ((BlockName.NORMS, Fraction("0.9")),),
        ((BlockName.NORMS, Fraction(2)), (BlockName.SUM, Fraction(-1))),
    ],
)
def test_parts_that_are_no_parts_are_refused(blocks: tuple[tuple[BlockName, Fraction], ...]) -> None:
    with pytest.raises(UsageError, match="blocks"):
        setting(blocks)


@pytest.mark.parametrize("share", [0, -1, Fraction(3, 2)])
def test_a_share_of_rho_is_a_part_of_it(share: int | Fraction) -> None:
    with pytest.raises(UsageError, match="rho_share"):
        setting(rho_share=Fraction(share))


def test_only_the_gaussian_mechanism_knows_blocks_and_pairs() -> None:
    assert find("gaussian", Quantity.PRE_STUDY) is BlockGaussian
    assert find("gaussian", Quantity.PAIRS) is Gaussian
    for quantity in (Quantity.PRE_STUDY, Quantity.PAIRS):
        with pytest.raises(UsageError, match="supports"):
            find("laplace", quantity)
    assert Quantity.PAIRS not in Laplace.quantities


def test_pairs_need_half_the_root_of_what_the_scatter_needs() -> None:
    pairs = Gaussian.calibrated(Setting(Quantity.PAIRS, 3, 1000, Fraction(1), DELTA))
    scatter = Gaussian.calibrated(Setting(Quantity.SCATTER, 3, 1000, Fraction(1), DELTA))
    assert float(scatter.scale / pairs.scale) == pytest.approx(8**0.5)  # t² = K²/ρ against 8K²/ρ
    # N matters to the noise of a scatter alone; a scatter of pairs is half their moment.
    assert pairs.law(100) == pairs.law(1)
    assert (pairs.factor(100), pairs.lift(100), scatter.factor(100)) == (2, 1, 100)
