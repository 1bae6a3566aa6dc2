"""Machines on components of the other half of the rows."""

from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

from dpdpca_lab.papers.halves import MAJORITY, halves, scored
from dpdpca_lab.papers.methods import Point
from dpdpca_lab.papers.prepared import Problem


def split_by_the_first_axis() -> Problem:
    """1,200 rows on a line that their class decides, and noise across it."""
    labels = (np.arange(1200) % 4 > 0).astype(np.int64)
    rows = np.zeros((1200, 5))
    rows[:, 0] = np.where(labels == 0, -0.9, 0.9)
    rows[:, 1:] = 0.1 * np.sin(np.arange(4800.0)).reshape(1200, 4)
    return Problem.of(rows, 3 * labels, False, "made up")


def test_halves_are_apart_and_differ_by_permutation() -> None:
    table = split_by_the_first_axis()
    half, train, test = halves(table, 0)
    assert (half.n, len(train), len(test)) == (600, 60, 540)
    assert len({*train.tolist(), *test.tolist()}) == 600
    rest = np.concatenate([train, test])
    assert half.moment == pytest.approx(table.moment - table.rows[rest].T @ table.rows[rest])
    assert set(halves(table, 1)[1].tolist()) != set(train.tolist())
    assert halves(table, 0)[1].tolist() == train.tolist()


def test_good_components_tell_classes_apart() -> None:
    table, point = split_by_the_first_axis(), Point(Fraction(1), Fraction(1, 100), 1)
    split = halves(table, 0)
    assert list(scored("optimum", table, *split, point)) == [1]
    truth = (table.labels != 0)[split[2]]
    assert list(scored(MAJORITY, table, *split, point)) == [truth.mean()]
    shares = list(islice(scored("random", table, *split, point), 20))
    assert len(set(shares)) > 1
    assert min(shares) < 1
