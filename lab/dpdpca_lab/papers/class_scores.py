"""Precision, recall and F1 of a machine with a radial kernel on components, as Wang and Chang compare them.

No machine here is private. Only the components of some methods are.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np

from dpdpca_lab.central.entropy import RealDraws
from dpdpca_lab.papers.accuracy import Split
from dpdpca_lab.papers.cells import Cell
from dpdpca_lab.papers.declared import Panel
from dpdpca_lab.papers.methods import Method, Point
from dpdpca_lab.papers.prepared import Problem, problem
from dpdpca_lab.pipelines import ClassScores, class_scores
from dpdpca_lab.reference_data import Repeatable

MACHINE_ROWS = 2000
"""The most rows that train a machine. The components are those of all training rows."""
_PENALTY = 10.0


def split_by_owners(cell: Cell, folder: Path | None) -> Split:
    """All classes of the panel's table: training rows by a fixed shuffle, and test rows.

    The options of the panel are `test`, the number of test rows, and `from_end`: whether these are the last
    rows of the file, and not those of a shuffle. All rows are prepared together.
    """
    options = cell.panel.options
    return _split(
        cell.panel.data,
        cell.panel.prepare,
        folder,
        cell.quick,
        int(options["test"]),
        bool(options.get("from_end", False)),
    )


@lru_cache(maxsize=2)
def _split(data: str, prepare: str, folder: Path | None, quick: bool, test: int, from_end: bool) -> Split:
    table = problem(Panel(title="", data=data, prepare=prepare), folder, quick)
    shuffle = RealDraws(Repeatable(f"{data}/owners"))
    test = min(test, table.n // 3)
    if from_end:
        order = np.argsort(shuffle.uniforms(table.n - test))
        order = np.append(order, np.arange(table.n - test, table.n))
    else:
        order = np.argsort(shuffle.uniforms(table.n))
    rows, labels = table.rows[order].astype(np.float64), table.labels[order]
    train = Problem.of(rows[:-test], labels[:-test], table.is_centred, table.origin, table.reach)
    return Split(train, rows[-test:], labels[-test:])


def point_by_owners(cell: Cell, train: Problem, point: Point) -> Point:
    """The point with k from the records of an owner: the panel's option `rank_share` of min(records, d)."""
    records = min(cell.records or train.n, train.n)
    k = max(1, round(float(cell.panel.options["rank_share"]) * min(records, train.d)))
    return replace(point, k=k, options={**point.options, "owner_records": records})


def scores_on_components(method: Method, split: Split, point: Point, count: int) -> Iterator[ClassScores]:
    """The scores on the test rows, for each draw of the method."""
    from sklearn.svm import SVC

    assert method.draws is not None
    train = split.train
    for vectors in islice(method.draws(train, point), count if method.repeats else 1):
        rows, labels = train.rows[:MACHINE_ROWS], train.labels[:MACHINE_ROWS]
        machine = SVC(C=_PENALTY).fit(rows @ vectors.T, labels)
        yield class_scores(split.labels, machine.predict(split.test @ vectors.T))
