"""The methods that the experiments compare, by name: each gives directions for one prepared table.

Noise on R and S is drawn by the exact integer samplers for rows of norm 1, which are 2¹² grid units long, and
then divided by K = 2²⁴. The tables themselves are not rounded to this grid: no figure shows the difference.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.central.exponential import exponential_components
from dpdpca_lab.central.gibbs import gibbs_components
from dpdpca_lab.central.power import power_components
from dpdpca_lab.mechanisms import ModSulq, PublishedGaussian, PublishedLaplace
from dpdpca_lab.papers.declared import Option
from dpdpca_lab.papers.prepared import Problem
from dpdpca_lab.pipelines.dppca_svm import leading_directions
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.gaussian import sampler_scale
from dpdpca_protocol.privacy.gaussian_draws import draw_gaussians
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Mechanism, Quantity, Setting
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers

UNIT = 2**24
"""K of rows of norm 1."""
SUM_WEIGHT = Fraction(43, 100)
"""a/K of joint releases, as in `DPPCA`."""
NO_DELTA = Fraction(1, 2**40)
"""For noise that spends no δ: a setting must have one."""


class Family(StrEnum):
    """How a method is drawn: proofs are solid, methods without any guarantee are dashed."""

    OURS = "ours"
    PUBLISHED = "published"
    NO_GUARANTEE = "no guarantee"
    BOUND = "no privacy"


@dataclass(frozen=True, slots=True)
class Point:
    """What a method is asked for.

    Attributes:
        epsilon, delta: the claim.
        k: number of directions.
        options: of the line.
    """

    epsilon: Fraction
    delta: Fraction
    k: int
    options: Mapping[str, Option] = field(default_factory=dict)

    def number(self, name: str, default: float) -> float:
        return float(self.options.get(name, default))


Draw = Callable[[Problem, Point], Floats]
RealEpsilon = Callable[[Problem, Point], float]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to get k directions.

    Attributes:
        label: for legends.
        family: see `Family`.
        guarantee: what holds under replace-one, in words.
        draw: (k, d) orthonormal rows; None for the mean over all subspaces.
        real_epsilon: the ε that its noise really gives: with the δ of the claim if it spends δ; infinite
            without any guarantee. None for methods that are no private method.
        version: changes with every change of the method, so that earlier results are not used.
        repeats: whether two draws differ.
    """

    label: str
    family: Family
    guarantee: str
    draw: Draw | None
    real_epsilon: RealEpsilon | None = None
    version: int = 1
    repeats: bool = True


def method(name: str) -> Method:
    """The method with this name.

    Raises:
        UsageError: there is none.
    """
    if name not in METHODS:
        raise UsageError(
            "unknown-method", f"there is no method {name!r}; the methods are {', '.join(METHODS)}"
        )
    return METHODS[name]


def _fast(variance: Fraction, count: int, bound: int) -> list[int]:
    drawn: list[int] = draw_gaussians(sampler_scale(variance), count, bound).tolist()
    return drawn


_FAST = Samplers(gaussian=_fast)
"""The exact distributions; the sampler for many draws also where there are few."""


@lru_cache(maxsize=256)
def _fitted(
    mechanism: type[Mechanism], quantity: Quantity, d: int, epsilon: Fraction, delta: Fraction
) -> Mechanism:
    weight = SUM_WEIGHT * UNIT if quantity is Quantity.JOINT else Fraction(0)
    return mechanism.calibrated(Setting(quantity, d, UNIT, epsilon, delta, weight))


def _noise(mechanism: Mechanism) -> Floats:
    """One draw of symmetric noise for sums over rows of norm 1, (d, d)."""
    d = mechanism.setting.encoded_features
    noise = np.zeros((d, d))
    noise[np.triu_indices(d)] = np.array(mechanism.draw_triangle(1, _FAST), dtype=np.float64)
    return (noise + np.triu(noise, 1).T) / UNIT


def _additive(mechanism: type[Mechanism], quantity: Quantity = Quantity.SECOND_MOMENT) -> Draw:
    """Leading directions of R or S after adding a mechanism's noise."""

    def draw(table: Problem, point: Point) -> Floats:
        fitted = _fitted(mechanism, quantity, table.d, point.epsilon, point.delta)
        matrix = table.moment if quantity is Quantity.SECOND_MOMENT else table.scatter
        return leading_directions(matrix + _noise(fitted), point.k)

    return draw


def _joint(table: Problem, point: Point) -> Floats:
    """(v, R) with noise on both. S is computed from them where the table's centre is wanted."""
    fitted = _fitted(Gaussian, Quantity.JOINT, table.d, point.epsilon, point.delta)
    noisy = table.moment + _noise(fitted)
    if table.is_centred:
        grid = UNIT**0.5
        total = table.total + np.array(fitted.draw_sum(_FAST), dtype=np.float64) / grid
        noisy = noisy - np.outer(total, total) / table.n
    return leading_directions(noisy, point.k)


def _wishart(table: Problem, point: Point) -> Floats:
    """SN: the factors are drawn as normals, as in the publication."""
    factors = RealDraws().normals(table.d, table.d + 1) / (2 * float(point.epsilon)) ** 0.5
    return leading_directions(table.target + factors @ factors.T, point.k)


def _sequential(table: Problem, point: Point) -> Floats:
    return exponential_components(table.target, 1, point.epsilon, point.k).vectors


def _gibbs(table: Problem, point: Point) -> Floats:
    sweeps = int(point.number("sweeps", 50))
    return gibbs_components(table.target, 1, point.epsilon, point.k, sweeps).vectors


def _power(table: Problem, point: Point) -> Floats:
    whole = np.rint(table.target * UNIT).astype(np.int64)
    iterations = int(point.number("iterations", 4))
    return power_components(whole, UNIT, point.epsilon, point.delta, point.k, iterations).vectors


def _optimum(table: Problem, point: Point) -> Floats:
    return leading_directions(table.target, point.k)


def _as_asked(table: Problem, point: Point) -> float:
    return float(point.epsilon)


def _never(table: Problem, point: Point) -> float:
    return float("inf")


def _continuous(mechanism: type[Mechanism], quantity: Quantity = Quantity.SECOND_MOMENT) -> RealEpsilon:
    """The exact ε of continuous Gaussian noise of this strength."""

    def real(table: Problem, point: Point) -> float:
        found = _fitted(mechanism, quantity, table.d, point.epsilon, point.delta).real_epsilon
        assert found is not None
        return found

    return real


def _published_laplace(table: Problem, point: Point) -> float:
    fitted = _fitted(PublishedLaplace, Quantity.SECOND_MOMENT, table.d, point.epsilon, NO_DELTA)
    return float(fitted.guarantee.epsilon)


_BOTH = "(ε, δ), proved"
METHODS: dict[str, Method] = {
    "gaussian": Method("proved Gaussian on R", Family.OURS, _BOTH, _additive(Gaussian), _as_asked),
    "joint": Method("joint (v, R)", Family.OURS, _BOTH, _joint, _as_asked),
    "masked": Method("masked, S", Family.OURS, _BOTH, _additive(Gaussian, Quantity.SCATTER), _as_asked),
    "laplace": Method("proved Laplace on R", Family.OURS, "pure ε, proved", _additive(Laplace), _as_asked),
    "ppca-sequential": Method(
        "PPCA, one direction after another",
        Family.OURS,
        "pure ε in idealised arithmetic",
        _sequential,
        _as_asked,
    ),
    "power": Method("power method, our calibration", Family.OURS, _BOTH, _power, _as_asked),
    "published-gaussian": Method(
        "AG as published, on R",
        Family.PUBLISHED,
        "(ε, δ) with another ε",
        _additive(PublishedGaussian),
        _continuous(PublishedGaussian),
    ),
    "published-gaussian-centred": Method(
        "Gaussian as published, on S",
        Family.PUBLISHED,
        "(ε, δ) with another ε",
        _additive(PublishedGaussian, Quantity.SCATTER),
        _continuous(PublishedGaussian, Quantity.SCATTER),
    ),
    "mod-sulq": Method(
        "MOD-SULQ as published",
        Family.PUBLISHED,
        "(ε, δ) with a far smaller ε",
        _additive(ModSulq),
        _continuous(ModSulq),
    ),
    "published-laplace": Method(
        "DPPCA (Laplace) as published",
        Family.PUBLISHED,
        "pure ε, smaller than claimed",
        _additive(PublishedLaplace),
        _published_laplace,
    ),
    "wishart": Method("SN", Family.NO_GUARANTEE, "none", _wishart, _never),
    "ppca-gibbs": Method(
        "PPCA, Gibbs sampler", Family.NO_GUARANTEE, "none for a finite chain", _gibbs, _never
    ),
    "floor": Method("random subspace, expected", Family.BOUND, "reads no data", None),
    "optimum": Method("without noise", Family.BOUND, "not private", _optimum, repeats=False),
}
