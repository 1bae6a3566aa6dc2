"""How near the first variance of a chain comes: with a large ε, it is that of the records."""

import numpy as np

from dpdpca_lab.benchmarks.variances import first_variance, made_up
from dpdpca_lab.reference_data import Table

ROWS = np.random.default_rng(1).normal(size=(2000, 3)) * [2.0, 1.0, 0.5]  # noqa: TID251 - made-up records
TABLE = Table("small", ROWS, np.full(3, -10.0), np.full(3, 10.0))


def test_a_chain_with_little_noise_finds_the_first_variance() -> None:
    by_largest, by_captured, total, inside = first_variance(TABLE, "numeric", 1.0, 20.0)
    assert 0.9 < by_largest < 1.1
    assert 0.9 < by_captured < 1.1
    assert 0.9 < total < 1.1
    assert inside


def test_a_chain_with_nothing_above_the_noise_has_the_first_variance_zero() -> None:
    few = Table("few", ROWS[:9], TABLE.lower, TABLE.upper)
    by_largest, _, _, inside = first_variance(few, "numeric", 1.0, 0.01)
    assert by_largest == 0
    assert inside is None


def test_the_made_up_tables_are_always_the_same_and_within_their_bounds() -> None:
    first, again = made_up(50), made_up(50)
    for table, other in zip(first, again, strict=True):
        assert (table.rows == other.rows).all()
        assert table.rows.shape == (50, 40)
        assert (table.lower <= table.rows).all()
        assert (table.rows <= table.upper).all()
