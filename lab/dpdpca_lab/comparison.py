"""Compares mechanisms on one real table at equal ε: the variance that the released directions capture."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
from sklearn.datasets import load_breast_cancer

from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.central.exponential import exponential_components
from dpdpca_lab.central.power import power_components
from dpdpca_lab.central.result import captured_share
from dpdpca_lab.mechanisms import ModSulq, Wishart
from dpdpca_lab.pipelines.dppca_svm import leading_directions
from dpdpca_lab.tables import EncodedTable, encode_table
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Mechanism, Quantity, Setting

_COMPONENTS = 5

Directions = Callable[[EncodedTable, Fraction, Fraction], Floats]


def additive_directions(mechanism: type[Mechanism | Wishart]) -> Directions:
    """Leading directions of R (relative to the public centre) after adding a mechanism's noise."""

    def directions(table: EncodedTable, epsilon: Fraction, delta: Fraction) -> Floats:
        d = table.z.shape[1]
        setting = Setting(Quantity.SECOND_MOMENT, d, table.record_bound, epsilon, delta)
        noise = np.zeros((d, d))
        noise[np.triu_indices(d)] = [float(value) for value in mechanism.calibrated(setting).draw_triangle(1)]
        return leading_directions(table.second_moment + noise + np.triu(noise, 1).T, _COMPONENTS)

    return directions


def _exponential(table: EncodedTable, epsilon: Fraction, delta: Fraction) -> Floats:
    return exponential_components(table.second_moment, table.record_bound, epsilon, _COMPONENTS).vectors


def _power(table: EncodedTable, epsilon: Fraction, delta: Fraction) -> Floats:
    moment = table.moments.second_moment
    return power_components(moment, table.record_bound, epsilon, delta, _COMPONENTS, iterations=4).vectors


COMPARED: tuple[tuple[str, str, Directions], ...] = (
    ("gaussian", "(ε, δ)", additive_directions(Gaussian)),
    ("power method", "(ε, δ)", _power),
    ("mod-sulq", "(about ε/36, δ)", additive_directions(ModSulq)),
    ("laplace", "(ε, δ)", additive_directions(Laplace)),
    ("ppca, sequential", "pure ε, idealised arithmetic", _exponential),
    ("wishart (SN)", "none", additive_directions(Wishart)),
)


def captured_variance(epsilons: Sequence[Fraction], repeats: int) -> Iterator[tuple[str | float, ...]]:
    """(mechanism, guarantee, mean share at each ε) for the breast cancer table with public ranges."""
    rows = load_breast_cancer().data
    table = encode_table(rows, np.column_stack([rows.min(axis=0), rows.max(axis=0)]))
    delta = Fraction(1, len(rows) ** 2)
    for name, guarantee, directions in COMPARED:
        shares = [
            float(
                np.mean(
                    [captured_share(directions(table, epsilon, delta), table.scatter) for _ in range(repeats)]
                )
            )
            for epsilon in epsilons
        ]
        yield (name, guarantee, *shares)
