"""A table through the owners' encoding: public units, integers, and what is refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdpca_lab.tables import encode_table
from dpdpca_user.estimator import ParameterError

ROWS = np.array([[1.0, 20.0], [3.0, 40.0], [2.0, 30.0]])
BOUNDS = [(1.0, 3.0), (0.0, 40.0)]


def test_records_are_half_ranges_from_the_middle_on_a_grid() -> None:
    table = encode_table(ROWS, BOUNDS)
    assert table.centre.tolist() == [2.0, 20.0]
    assert table.half_range.tolist() == [1.0, 20.0]
    assert np.allclose(table.z / table.grid, (ROWS - table.centre) / table.half_range, atol=2 / table.grid)
    assert ((table.z**2).sum(axis=1) <= table.record_bound).all()
    assert table.record_bound <= 2 * table.grid**2
    assert np.array_equal(table.second_moment, table.z.T @ table.z)
    centred = table.z - table.z.mean(axis=0)
    assert np.allclose(table.scatter, centred.T @ centred)


def test_long_records_are_clipped() -> None:
    table = encode_table(ROWS, (0.0, 1.0), clip_norm=0.5)
    assert ((table.z**2).sum(axis=1) <= table.record_bound).all()
    assert table.record_bound == table.grid**2 // 4


@pytest.mark.parametrize(
    ("rows", "bounds", "clip_norm"),
    [
        (ROWS, None, None),
        (ROWS, (1, 0), None),
        (ROWS, [(0, 1)] * 3, None),
        (ROWS, (0, float("inf")), None),
        (ROWS, BOUNDS, 0.0),
        (ROWS, BOUNDS, 1.5),
        (ROWS, BOUNDS, float("nan")),
        (ROWS[0], BOUNDS, None),
        (ROWS[:0], BOUNDS, None),
        (ROWS * np.nan, BOUNDS, None),
    ],
)
def test_what_does_not_fit_is_refused(
    rows: NDArray[np.float64], bounds: object, clip_norm: float | None
) -> None:
    with pytest.raises(ParameterError):
        encode_table(rows, bounds, clip_norm)
