"""Closed forms of the papers, by name, for experiments without data."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdpca_lab.central.bounds import (
    least_records,
    modsulq_overlap_bound,
    modsulq_records_order,
    ppca_records,
)
from dpdpca_lab.central.tradeoff import approximate_tradeoff, gaussian_tradeoff, renyi_tradeoff
from dpdpca_lab.mechanisms.gaussian import published_scale
from dpdpca_lab.mechanisms.modsulq import modsulq_scale
from dpdpca_lab.mechanisms.noise import UNIT, unit_setting
from dpdpca_lab.mechanisms.visibility import noise_norm
from dpdpca_lab.papers.methods import Family
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import gaussian_delta
from dpdpca_protocol.privacy.mechanisms import Gaussian, Quantity

Options = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Formula:
    """A closed form. `value` gets the value on the axis and the options of panel and line."""

    label: str
    family: Family
    value: Callable[[float, Options], float]
    version: int = 1


def formula(name: str) -> Formula:
    """The formula with this name.

    Raises:
        UsageError: there is none.
    """
    if name not in FORMULAS:
        raise UsageError(
            "unknown-formula", f"there is no formula {name!r}; the formulas are {', '.join(FORMULAS)}"
        )
    return FORMULAS[name]


def _exact(value: float) -> Fraction:
    return Fraction(str(value))


def _overlap_bound(n: float, given: Options) -> float:
    epsilon, delta = _exact(given["epsilon"]), _exact(given["delta"])
    return modsulq_overlap_bound(int(given["d"]), int(n), epsilon, delta).overlap


def _enough_for_ppca(d: float, given: Options) -> float:
    return ppca_records(
        int(d), given["epsilon"], given["gap"], given["overlap"], given["failure"], given["largest"]
    )


def _too_few(corrected: bool) -> Callable[[float, Options], float]:
    def value(d: float, given: Options) -> float:
        return least_records(
            int(d), given["epsilon"], given["gap"], given["overlap"], corrected=corrected
        ).records

    return value


def _order_for_modsulq(d: float, given: Options) -> float:
    return modsulq_records_order(int(d), given["epsilon"], given["delta"])


def _tradeoff(curve: Callable[[np.ndarray, Options], np.ndarray]) -> Callable[[float, Options], float]:
    return lambda level, given: float(curve(np.array([level]), given)[0])


def _holds_at(epsilon: float, level: np.ndarray, sigma: float) -> np.ndarray:
    """(ε, δ) of Gaussian noise with D/sd = σ, with the least δ for this ε."""
    return approximate_tradeoff(level, epsilon, gaussian_delta(epsilon, sigma))


def _norm(deviation: Callable[[Fraction, Fraction, int], float]) -> Callable[[float, Options], float]:
    """2·sd·√d of noise on R/n, at δ = 1/n²."""

    def value(epsilon: float, given: Options) -> float:
        n, d = int(given["n"]), int(given["d"])
        return noise_norm(deviation(_exact(epsilon), Fraction(1, n * n), d) / n, d)

    return value


def _gaussian_deviation(epsilon: Fraction, delta: Fraction, d: int) -> float:
    return float(published_scale(epsilon, delta))


def _modsulq_deviation(epsilon: Fraction, delta: Fraction, d: int) -> float:
    return float(modsulq_scale(epsilon, delta, d))


def _proved_deviation(epsilon: Fraction, delta: Fraction, d: int) -> float:
    """Off the diagonal, which decides about the norm."""
    fitted = Gaussian.calibrated(unit_setting(Quantity.SECOND_MOMENT, d, epsilon, delta))
    return float(fitted.scale) / UNIT / math.sqrt(2)


def _laplace_deviation(epsilon: Fraction, delta: Fraction, d: int) -> float:
    return math.sqrt(2) * 2 * d / float(epsilon)


FORMULAS = {
    "modsulq-overlap": Formula("MOD-SULQ, theorem 15", Family.PUBLISHED, _overlap_bound),
    "ppca-records": Formula("PPCA: more are enough (theorem 7)", Family.OURS, _enough_for_ppca),
    "least-records": Formula("pure ε: fewer are too few (theorem 8)", Family.BOUND, _too_few(False)),
    "least-records-corrected": Formula("theorem 8, proof corrected", Family.BOUND, _too_few(True)),
    "modsulq-records": Formula("MOD-SULQ: order only (theorem 9)", Family.PUBLISHED, _order_for_modsulq),
    "tradeoff-exact": Formula(
        "exact, and σ-GDP", Family.OURS, _tradeoff(lambda a, given: gaussian_tradeoff(a, given["sigma"]))
    ),
    "tradeoff-epsilon-delta": Formula(
        "(ε, δ), least δ",
        Family.PUBLISHED,
        _tradeoff(lambda a, given: _holds_at(given["epsilon"], a, given["sigma"])),
    ),
    "tradeoff-renyi": Formula(
        "Rényi",
        Family.PUBLISHED,
        _tradeoff(
            lambda a, given: renyi_tradeoff(a, given["order"], given["order"] * given["sigma"] ** 2 / 2)
        ),
    ),
    "tradeoff-none": Formula("pure ε: none holds", Family.BOUND, lambda level, given: 0.0),
    "norm-gaussian": Formula("AG", Family.PUBLISHED, _norm(_gaussian_deviation)),
    "norm-proved": Formula("proved Gaussian on R", Family.OURS, _norm(_proved_deviation)),
    "norm-modsulq": Formula("MOD-SULQ", Family.PUBLISHED, _norm(_modsulq_deviation)),
    "norm-laplace": Formula("DPPCA (Laplace)", Family.PUBLISHED, _norm(_laplace_deviation)),
}
"""Without guarantees of their own: families only say how lines are drawn."""
