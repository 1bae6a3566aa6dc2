"""Table 2 of CSS13: half of the rows give the components, and the other half a linear machine on them.

Of that other half, a tenth trains the machine, and the rest tests it. No machine here is private.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.papers.accuracy import Labels, linear_machine
from dpdpca_lab.papers.methods import Point, method
from dpdpca_lab.papers.prepared import Problem
from dpdpca_lab.reference_data import Repeatable

MAJORITY = "majority"
PENALTIES = (0.01, 1.0, 100.0)


def halves(table: Problem, permutation: int) -> tuple[Problem, NDArray[np.int64], NDArray[np.int64]]:
    """The half that gives the components, and the positions of the training and of the test rows.

    Args:
        table: all rows, prepared together.
        permutation: which one; each has a seed of its own.
    """
    order = np.argsort(RealDraws(Repeatable(f"css13-table2/{permutation}")).uniforms(table.n))
    half, tenth = table.n // 2, table.n // 2 + max(3, table.n // 20)
    first = order[:half]
    kept = Problem.of(table.rows[first], table.labels[first], table.is_centred, table.origin, table.reach)
    return kept, order[half:tenth], order[tenth:]


def scored(
    name: str, table: Problem, half: Problem, train: NDArray[np.int64], test: NDArray[np.int64], point: Point
) -> Iterator[float]:
    """The shares of test rows that machines on the components of this method get right, one after another.

    Args:
        name: of a method with draws, or `MAJORITY`.
        table: all rows; class 0 against the rest.
        half, train, test: as `halves` gives them.
        point: the terms of a draw.
    """
    labels = (table.labels != 0).astype(np.int64)
    if name == MAJORITY:
        yield float((labels[test] == int(labels[train].mean() > 0.5)).mean())
        return
    chosen = method(name)
    assert chosen.draws is not None
    for vectors in islice(chosen.draws(half, point), None if chosen.repeats else 1):
        scores = np.asarray(table.rows @ vectors.T.astype(table.rows.dtype), dtype=np.float64)
        tuned = _tuned(scores[train], labels[train], point)
        yield _accuracy(scores[train], labels[train], scores[test], labels[test], tuned)


def _tuned(rows: Floats, labels: Labels, point: Point) -> Point:
    """The point with the penalty whose machine on two thirds of the rows is best on the last third."""
    cut = 2 * len(rows) // 3
    offered = [replace(point, options={**point.options, "penalty": penalty}) for penalty in PENALTIES]
    return max(offered, key=lambda each: _accuracy(rows[:cut], labels[:cut], rows[cut:], labels[cut:], each))


def _accuracy(rows: Floats, labels: Labels, others: Floats, known: Labels, point: Point) -> float:
    normal, offset = linear_machine(rows, labels, point)
    return float(((others @ normal + offset > 0) == known).mean())
