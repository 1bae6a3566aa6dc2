"""Measures of utility, and the number of components that a share of the variance needs."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from reference_data import Table, covtype, musk

from dpdpca_lab.central.entropy import RealDraws
from dpdpca_lab.central.result import explained_rank, subspace_errors
from dpdpca_protocol.errors import UsageError

Floats = NDArray[np.float64]


def test_errors_of_subspaces(draws: RealDraws) -> None:
    frame, _ = np.linalg.qr(draws.normals(6, 4))
    one, other = frame.T[:2], frame.T[2:]
    turned = np.array([[0.6, 0.8], [-0.8, 0.6]]) @ one
    assert subspace_errors(turned, one).frobenius_squared == pytest.approx(0, abs=1e-12)
    assert subspace_errors(one, other).frobenius_squared == pytest.approx(4)
    assert subspace_errors(one, other).operator_squared == pytest.approx(1)
    mixed = np.vstack([one[0], 0.6 * one[1] + 0.8 * other[0]])
    errors, apart = subspace_errors(mixed, one), mixed.T @ mixed - one.T @ one
    assert errors.frobenius_squared == pytest.approx(np.linalg.norm(apart) ** 2)
    assert errors.operator_squared == pytest.approx(np.linalg.norm(apart, 2) ** 2) == pytest.approx(0.64)


def test_the_rank_of_a_share() -> None:
    values = np.array([1.0, 5.0, 3.0, 1.0])
    assert [explained_rank(values, share) for share in (0.5, 0.51, 0.8, 0.81, 1.0)] == [1, 2, 2, 3, 4]
    for wrong in (0.0, 1.1, -1.0):
        with pytest.raises(UsageError):
            explained_rank(values, wrong)
    with pytest.raises(UsageError):
        explained_rank(np.zeros(3), 0.5)


def as_it_is(rows: Floats) -> Floats:
    return rows


def centred(rows: Floats) -> Floats:
    return np.asarray(rows - rows.mean(axis=0))


def standardised(rows: Floats) -> Floats:
    return np.asarray(centred(rows) / rows.std(axis=0))


def ten_columns() -> Table:
    table = covtype()
    return Table("covtype", table.rows[:, :10], table.lower[:10], table.upper[:10])


@pytest.mark.parametrize(
    ("load", "prepare", "rank"),
    [
        (musk, standardised, 19),
        (musk, centred, 15),
        (musk, as_it_is, 8),
        (ten_columns, standardised, 6),
        (covtype, centred, 2),
        (covtype, standardised, 37),
    ],
)
def test_the_ranks_of_the_papers_data(
    load: Callable[[], Table], prepare: Callable[[Floats], Floats], rank: int
) -> None:
    """At 85 %. The paper has 20 for Musk and 6 for Covertype."""
    rows = load().rows
    rows = prepare(rows[:, rows.std(axis=0) > 0])
    values: Floats = np.linalg.eigvalsh(rows.T @ rows)[::-1].astype(np.float64)
    assert explained_rank(values, 0.85) == rank
    if load is musk and prepare is standardised:
        assert values[:20].sum() / values.sum() == pytest.approx(0.8651, abs=6e-5)
    if load is ten_columns:
        assert values[:6].sum() / values.sum() == pytest.approx(0.886, abs=6e-4)
