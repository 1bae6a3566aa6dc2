"""Compares mechanisms on one real table at equal ε: the variance that the released directions capture."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
from sklearn.datasets import load_breast_cancer

from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.central.exponential import exponential_components
from dpdpca_lab.central.power import power_components
from dpdpca_lab.central.result import captured_share
from dpdpca_lab.mechanisms import ModSulq, Wishart, noise_matrix
from dpdpca_lab.pipelines.dppca_svm import leading_directions
from dpdpca_lab.tables import EncodedTable, encode_table
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Mechanism, Quantity, Setting

Directions = Callable[[EncodedTable, Fraction, Fraction, int], Floats]
"""(table, ε, δ, k) → (k, d) directions."""


def additive_directions(mechanism: type[Mechanism | Wishart]) -> Directions:
    """Leading directions of R (relative to the public centre) after adding a mechanism's noise."""

    def directions(table: EncodedTable, epsilon: Fraction, delta: Fraction, k: int) -> Floats:
        setting = Setting(Quantity.SECOND_MOMENT, table.z.shape[1], table.record_bound, epsilon, delta)
        noisy = table.second_moment + noise_matrix(mechanism.calibrated(setting))
        return leading_directions(noisy, k)

    return directions


def _exponential(table: EncodedTable, epsilon: Fraction, delta: Fraction, k: int) -> Floats:
    return exponential_components(table.second_moment, table.record_bound, epsilon, k).vectors


def _power(table: EncodedTable, epsilon: Fraction, delta: Fraction, k: int) -> Floats:
    moment = table.moments.second_moment
    return power_components(moment, table.record_bound, epsilon, delta, k, iterations=4).vectors


COMPARED: tuple[tuple[str, str, Directions], ...] = (
    ("gaussian", "(ε, δ)", additive_directions(Gaussian)),
    ("power method", "(ε, δ)", _power),
    ("mod-sulq", "(about ε/36, δ)", additive_directions(ModSulq)),
    ("laplace", "(ε, δ)", additive_directions(Laplace)),
    ("ppca, sequential", "pure ε, idealised arithmetic", _exponential),
    ("wishart (SN)", "none", additive_directions(Wishart)),
)


def captured_variance(
    epsilons: Sequence[Fraction], repeats: int, k: int = 5
) -> Iterator[tuple[str | float, ...]]:
    """(mechanism, guarantee, mean share at each ε) for the breast cancer table with public ranges."""
    rows = load_breast_cancer().data
    table = encode_table(rows, np.column_stack([rows.min(axis=0), rows.max(axis=0)]))
    delta = Fraction(1, len(rows) ** 2)
    for name, guarantee, directions in COMPARED:
        shares = [
            float(
                np.mean(
                    [
                        captured_share(directions(table, epsilon, delta, k), table.scatter)
                        for _ in range(repeats)
                    ]
                )
            )
            for epsilon in epsilons
        ]
        yield (name, guarantee, *shares)
