"""How well support vector machines on private components tell two classes apart.

No machine here is private: each is trained on raw projections and released without noise. Only the components
of some are. The published noise on a machine's normal vector does not change this, since its components and
its offset are exact.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.benchmarks.measure import seconds_of, steady
from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.papers.cells import Cell
from dpdpca_lab.papers.declared import Panel
from dpdpca_lab.papers.methods import METHODS, Family, Method, Point
from dpdpca_lab.papers.prepared import Problem, problem
from dpdpca_lab.pipelines.pca_dpsvm import published_output_scale
from dpdpca_lab.reference_data import Repeatable
from dpdpca_protocol.errors import UsageError

Labels = NDArray[np.int64]
Predict = Callable[[Floats], Labels]
Predictors = Callable[[Problem, Point], Iterator[Predict]]
_QUICK_TRAIN, _QUICK_TEST = 600, 300


@dataclass(frozen=True, slots=True)
class Classifier:
    """A way to tell two classes apart. `predictors` gives one fitted rule after another, without end.

    `has_components` is whether it needs the sums of the training rows.
    """

    label: str
    family: Family
    guarantee: str
    predictors: Predictors
    real_epsilon: Callable[[Problem, Point], float] | None = None
    version: int = 1
    repeats: bool = True
    has_components: bool = True


@dataclass(frozen=True, slots=True)
class Split:
    """Training rows with their sums, and test rows. If there are two classes, they are 0 and 1."""

    train: Problem
    test: Floats
    labels: Labels


def classifier(name: str) -> Classifier:
    """The classifier with this name. The name of a method means a machine on its components.

    Raises:
        UsageError: there is none.
    """
    if name in _CLASSIFIERS:
        return _CLASSIFIERS[name]
    if name not in METHODS or METHODS[name].draws is None:
        offered = ", ".join([*_CLASSIFIERS, *METHODS])
        raise UsageError("unknown-method", f"there is no classifier {name!r}; the classifiers are {offered}")
    return _on_components(METHODS[name])


def split_of(cell: Cell, folder: Path | None) -> Split:
    """The panel's two classes, shuffled with a fixed seed: first the training rows, last the test rows.

    The options of the panel are `one` and `other`, the labels of the classes, and `train` and `test`, the
    numbers of rows. An axis over records takes the place of `train`. All rows are prepared together.
    """
    options = cell.panel.options
    train = int(options["train"]) if cell.records is None else cell.records
    test = int(options["test"])
    if cell.quick:
        train, test = min(train, _QUICK_TRAIN), min(test, _QUICK_TEST)
    classes = (int(options["one"]), int(options["other"]))
    return _split(cell.panel.data, cell.panel.prepare, classes, folder, cell.quick, train, test)


@lru_cache(maxsize=4)
def _split(
    data: str, prepare: str, classes: tuple[int, int], folder: Path | None, quick: bool, train: int, test: int
) -> Split:
    table = problem(Panel(title="", data=data, prepare=prepare), folder, quick)
    chosen = np.flatnonzero(np.isin(table.labels, classes))
    order = np.argsort(RealDraws(Repeatable(f"{data}/split")).uniforms(len(chosen)))
    rows = table.rows[chosen[order]].astype(np.float64)
    labels = (table.labels[chosen[order]] == classes[1]).astype(np.int64)
    test = min(test, len(rows) // 3)
    train = min(train, len(rows) - test)
    kept = Problem.of(rows[:train], labels[:train], table.is_centred, table.origin, table.reach)
    return Split(kept, rows[len(rows) - test :], labels[len(rows) - test :])


def scored(cell: Cell, split: Split, point: Point) -> tuple[float, ...]:
    """The share of test rows that each fitted rule gets right."""
    chosen = classifier(cell.line.method)
    rules = islice(chosen.predictors(split.train, point), cell.repetitions if chosen.repeats else 1)
    return tuple(float((rule(split.test) == split.labels).mean()) for rule in rules)


def fit_and_predict_seconds(chosen: Classifier, split: Split, point: Point) -> tuple[float, float]:
    """Seconds of the processor to fit one rule to the training rows, and to apply it to all test rows.

    Fitting begins with the rows. It includes their sums and components where the classifier has them.
    """
    given = split.train
    begin = time.process_time()
    if chosen.has_components:
        given = Problem.of(given.rows, given.labels, given.is_centred, given.origin, given.reach)
    rule = next(chosen.predictors(given, point))
    taken = time.process_time() - begin
    return taken, steady(lambda: seconds_of(lambda: rule(split.test), time.process_time))


def linear_machine(rows: Floats, labels: Labels, point: Point) -> tuple[Floats, float]:
    """w and b of a linear machine: with squared hinge loss, or with hinge loss by libsvm if the line asks."""
    from sklearn.svm import SVC, LinearSVC

    penalty = point.number("penalty", 1.0)
    libsvm = point.options.get("solver") == "libsvm"
    chosen = SVC(C=penalty, kernel="linear") if libsvm else LinearSVC(C=penalty, dual=False)
    fitted = chosen.fit(rows, labels)
    return np.asarray(fitted.coef_[0]), float(fitted.intercept_[0])


def _rule(vectors: Floats | None, normal: Floats, offset: float) -> Predict:
    def predict(rows: Floats) -> Labels:
        scores = rows if vectors is None else rows @ vectors.T
        return np.asarray(scores @ normal + offset > 0, dtype=np.int64)

    return predict


def _on_components(method: Method) -> Classifier:
    def predictors(train: Problem, point: Point) -> Iterator[Predict]:
        assert method.draws is not None
        for vectors in method.draws(train, point):
            fitted = linear_machine(train.rows @ vectors.T, train.labels, point)
            yield _rule(vectors, *fitted)

    private = f"components: {method.guarantee}; machine: none"
    return Classifier(
        f"{method.label}, SVM",
        method.family,
        private if method.real_epsilon else "none",
        predictors,
        method.real_epsilon,
        method.version,
        method.repeats,
    )


def _on_all(train: Problem, point: Point) -> Iterator[Predict]:
    fitted = linear_machine(np.asarray(train.rows), train.labels, point)
    while True:
        yield _rule(None, *fitted)


def _majority(train: Problem, point: Point) -> Iterator[Predict]:
    most = int(train.labels.mean() > 0.5)
    while True:
        yield lambda rows: np.full(len(rows), most, dtype=np.int64)


def _pca_dpsvm(train: Problem, point: Point) -> Iterator[Predict]:
    """w + Lap(2Cnd/ε) on each coordinate, with exact components and an exact offset."""
    vectors, penalty = train.axes[: point.k], point.number("penalty", 1.0)
    normal, offset = linear_machine(train.rows @ vectors.T, train.labels, point)
    dimension = point.k if point.options.get("dimension") == "k" else train.d
    scale = published_output_scale(train.n, dimension, float(point.epsilon), penalty)
    while True:
        yield _rule(vectors, normal + scale * RealDraws().laplaces(point.k), offset)


def _never(train: Problem, point: Point) -> float:
    return float("inf")


_CLASSIFIERS = {
    "svm": Classifier(
        "SVM on all columns", Family.BOUND, "not private", _on_all, repeats=False, has_components=False
    ),
    "majority": Classifier(
        "majority class", Family.BOUND, "not private", _majority, repeats=False, has_components=False
    ),
    "pca-dpsvm": Classifier(
        "PCA-DPSVM", Family.NO_GUARANTEE, "none: components and offset are exact", _pca_dpsvm, _never
    ),
}
