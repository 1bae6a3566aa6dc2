"""How near the figures of a chain come: with a large ε, the first variance is that of the records."""

import numpy as np

from dpdpca_lab.benchmarks.grid import case_of
from dpdpca_lab.benchmarks.variances import contained, made_up, played
from dpdpca_lab.reference_data import Table
from dpdpca_protocol.result.components import Floats, leading_pairs
from dpdpca_user.results.reliability import Reliability

ROWS = np.random.default_rng(1).normal(size=(2000, 3)) * [2.0, 1.0, 0.5]  # noqa: TID251 - made-up records
TABLE = Table("small", ROWS, np.full(3, -10.0), np.full(3, 10.0))


def test_a_chain_with_little_noise_finds_the_first_variance() -> None:
    found = played(case_of(TABLE, "numeric", 1.0), 20.0)
    assert 0.9 < found.of_largest < 1.1
    assert 0.9 < found.of_captured < 1.1
    assert 0.9 < found.total < 1.1
    assert found.is_inside
    assert len(found.shares) == len(found.cosines) == 3


def test_a_chain_with_nothing_above_the_noise_has_the_first_variance_zero() -> None:
    few = Table("few", ROWS[:9], TABLE.lower, TABLE.upper)
    found = played(case_of(few, "numeric", 1.0), 0.01)
    assert found.of_largest == 0
    assert found.is_inside is None
    assert found.shares == found.cosines == ()


def test_percentiles_are_compared_with_the_complete_records() -> None:
    """The true components capture as much as the best. In another order, only the first two together do."""
    case = case_of(TABLE, "numeric", 1.0)
    axes = leading_pairs(case.scatter, 3)[1]

    def told(vectors: Floats, low: float) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        lower, upper = np.full(2, low), np.full(2, 1 + 1e-9)
        reliability = Reliability(40, lower, upper, lower, upper, True, 0.1, np.ones(3))
        return contained(reliability, vectors, case)

    assert told(axes, 0.999) == ((True, True), (True, True))
    assert told(axes[[1, 0, 2]], 0.999) == ((False, True), (False, False))
    assert told(axes[[1, 0, 2]], -1e-9) == ((True, True), (True, True))


def test_the_made_up_tables_are_always_the_same_and_within_their_bounds() -> None:
    first, again = made_up(50), made_up(50)
    for table, other in zip(first, again, strict=True):
        assert (table.rows == other.rows).all()
        assert table.rows.shape == (50, 40)
        assert (table.lower <= table.rows).all()
        assert (table.rows <= table.upper).all()
