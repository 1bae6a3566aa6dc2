"""The methods that the experiments compare, by name: each gives directions for one prepared table.

Noise on R and S is drawn by the exact integer samplers. Our mechanisms get the sums of the rows on a study's
grid. The papers' mechanisms get those of the rows themselves, with noise as in `mechanisms.noise`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpdpca_lab.benchmarks.local_pca import pass_on
from dpdpca_lab.benchmarks.played_chains import chain
from dpdpca_lab.central.covariance import adaptive_cov, separate_cov
from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.central.exponential import exponential_components
from dpdpca_lab.central.gibbs import Step, frame_draws, gibbs_components, uniform_frame
from dpdpca_lab.central.power import power_components
from dpdpca_lab.central.published_power import (
    published_iterations,
    published_power_components,
    published_power_guarantee,
)
from dpdpca_lab.mechanisms import ModSulq, PublishedGaussian, PublishedLaplace, Wishart
from dpdpca_lab.mechanisms.noise import FAST, UNIT, noise_matrix, unit_setting
from dpdpca_lab.papers.declared import Option
from dpdpca_lab.papers.prepared import Problem
from dpdpca_lab.pipelines.dppca_svm import leading_directions
from dpdpca_lab.reference_data import Table
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import zcdp_rho
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Mechanism, Quantity, Setting

SUM_WEIGHT = Fraction(43, 100)
"""a/K of joint releases, as in `DPPCA`."""
NO_DELTA = Fraction(1, 2**40)
"""For noise that spends no δ: a setting must have one."""
_MOST_ITERATIONS = 60
"""Of the published power method. Where the gap after k is at noise level, its rule asks for thousands."""


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
Draws = Callable[[Problem, Point], Iterator[Floats]]
RealEpsilon = Callable[[Problem, Point], float]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to get k directions.

    Attributes:
        label: for legends.
        family: see `Family`.
        guarantee: what holds under replace-one, in words.
        draws: (k, d) orthonormal rows, without end; None for the mean over all subspaces.
        real_epsilon: the ε that its noise really gives: with the δ of the claim if it spends δ; infinite
            without any guarantee. None for methods that are no private method.
        version: changes with every change of the method, so that earlier results are not used.
        repeats: whether two draws differ.
    """

    label: str
    family: Family
    guarantee: str
    draws: Draws | None
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


def independent(draw: Draw) -> Draws:
    """The same draw again and again."""

    def draws(table: Problem, point: Point) -> Iterator[Floats]:
        while True:
            yield draw(table, point)

    return draws


@lru_cache(maxsize=256)
def fitted(
    mechanism: type[Mechanism],
    quantity: Quantity,
    d: int,
    epsilon: Fraction,
    delta: Fraction,
    record_bound: int = UNIT,
) -> Mechanism:
    """A mechanism for rows whose squared norms are at most K in grid units."""
    alpha_squared = SUM_WEIGHT * record_bound if quantity is Quantity.JOINT else Fraction(0)
    return mechanism.calibrated(Setting(quantity, d, record_bound, epsilon, delta, alpha_squared))


def _additive(mechanism: type[Mechanism], quantity: Quantity = Quantity.SECOND_MOMENT) -> Draws:
    """Leading directions of R or S after adding a mechanism's noise."""

    def draw(table: Problem, point: Point) -> Floats:
        noise = noise_matrix(fitted(mechanism, quantity, table.d, point.epsilon, point.delta)) / UNIT
        matrix = table.moment if quantity is Quantity.SECOND_MOMENT else table.scatter
        return leading_directions(matrix + noise, point.k)

    return independent(draw)


def _proved(mechanism: type[Mechanism], quantity: Quantity = Quantity.SECOND_MOMENT) -> Draws:
    """The same for the sums of a study and a mechanism of ours."""

    def draw(table: Problem, point: Point) -> Floats:
        sums = table.on_grid
        noise = noise_matrix(
            fitted(mechanism, quantity, table.d, point.epsilon, point.delta, sums.record_bound)
        )
        matrix = sums.moment if quantity is Quantity.SECOND_MOMENT else sums.scatter
        return leading_directions(matrix + noise, point.k)

    return independent(draw)


def _joint(table: Problem, point: Point) -> Floats:
    """(v, R) with noise on both. S is computed from them where the table's centre is wanted."""
    sums = table.on_grid
    mechanism = fitted(Gaussian, Quantity.JOINT, table.d, point.epsilon, point.delta, sums.record_bound)
    noisy = sums.moment + noise_matrix(mechanism)
    if table.is_centred:
        total = sums.total + np.array(mechanism.draw_sum(FAST), dtype=np.float64)
        noisy = noisy - np.outer(total, total) / sums.count
    return leading_directions(noisy, point.k)


def _chain(table: Problem, point: Point) -> Floats:
    """A chain of studies of three owners, as the data user's planner chooses its rounds.

    Sums and noise are real, and nothing is encrypted. All columns have the same public bounds, ± the table's
    reach, so that directions in scaled units are those of the rows.

    Raises:
        UsageError: the components of R are wanted. Those of a chain are about the mean.
    """
    if not table.is_centred:
        raise UsageError("bad-argument", "a chain finds components about the mean, and not those of R")
    ends = np.full(table.d, table.reach)
    rows = Table(table.origin, table.rows.astype(np.float64), -ends, ends)
    played = chain(rows, float(point.epsilon), delta=float(point.delta))
    return played.components.vectors[: point.k]


def _local_chain(mechanism: type[Gaussian]) -> Draws:
    """PrivateLocalPCA: owners of `owner_records` rows each, one after the other. Rows that are left over
    belong to nobody."""

    def draw(table: Problem, point: Point) -> Floats:
        size = int(point.options["owner_records"])
        found = fitted(mechanism, Quantity.SECOND_MOMENT, table.d, point.epsilon, point.delta)
        assert isinstance(found, Gaussian)
        parts = (table.rows[end - size : end] for end in range(size, table.n + 1, size))
        return pass_on((part.T @ part * UNIT for part in parts), found, point.k)[0]

    return independent(draw)


def _wishart(table: Problem, point: Point) -> Floats:
    mechanism = Wishart.calibrated(unit_setting(Quantity.SECOND_MOMENT, table.d, point.epsilon))
    return leading_directions(table.moment + noise_matrix(mechanism) / UNIT, point.k)


# These are calibrated for the change of R by one record. The change of S can be four times as large. If the
# mean of the data is taken as public, R about this mean is S.


def _sequential(table: Problem, point: Point) -> Floats:
    return exponential_components(table.moment, 1, point.epsilon, point.k).vectors


def _frames(table: Problem, point: Point) -> Iterator[Floats]:
    """Draws of one chain with exact conditionals: exact and independent for k = 1 only."""
    levels, columns = np.linalg.eigh(table.moment)
    levels, axes = levels[::-1] * (float(point.epsilon) / 2), columns[:, ::-1].T
    burn_in, every = int(point.number("burn_in", 20)), int(point.number("every", 5))
    for frame in frame_draws(levels, point.k, RealDraws(), burn_in, every):
        yield frame @ axes


def _gibbs(table: Problem, point: Point) -> Floats:
    """A chain of coordinates from a random start, as published."""
    sweeps = int(point.number("sweeps", 50))
    found = gibbs_components(table.moment, 1, point.epsilon, point.k, sweeps, step=Step.COORDINATES)
    return found.vectors


def _power(table: Problem, point: Point) -> Floats:
    whole = np.rint(table.moment * UNIT).astype(np.int64)
    iterations = int(point.number("iterations", 4))
    return power_components(whole, UNIT, point.epsilon, point.delta, point.k, iterations).vectors


def _published_power(entry_norm: bool, pure: bool = False) -> Draws:
    def draw(table: Problem, point: Point) -> Floats:
        rounds = point.options.get("iterations")
        iterations = min(
            published_iterations(table.levels, point.k) if rounds is None else int(rounds),
            _MOST_ITERATIONS,
        )
        delta = Fraction(0) if pure else point.delta
        return published_power_components(
            table.moment, 1, point.epsilon, delta, point.k, iterations, entry_norm
        ).vectors

    return independent(draw)


def _published_power_epsilon(entry_norm: bool, pure: bool = False) -> RealEpsilon:
    def real(table: Problem, point: Point) -> float:
        delta = Fraction(0) if pure else point.delta
        guarantee = published_power_guarantee(point.epsilon, delta, table.d, point.k, entry_norm)
        return float(guarantee.epsilon)

    return real


def _random(table: Problem, point: Point) -> Floats:
    return uniform_frame(point.k, table.d, RealDraws())


def _separate_cov(table: Problem, point: Point) -> Floats:
    rho = float(zcdp_rho(point.epsilon, point.delta))
    return leading_directions(separate_cov(table.moment, rho, RealDraws()), point.k)


def _adaptive_cov(table: Problem, point: Point) -> Floats:
    rho = float(zcdp_rho(point.epsilon, point.delta))
    return leading_directions(adaptive_cov(table.rows, rho, RealDraws()).matrix, point.k)


def _optimum(table: Problem, point: Point) -> Floats:
    return table.axes[: point.k]


def _as_asked(table: Problem, point: Point) -> float:
    return float(point.epsilon)


def _never(table: Problem, point: Point) -> float:
    return float("inf")


def _continuous(mechanism: type[Mechanism], quantity: Quantity = Quantity.SECOND_MOMENT) -> RealEpsilon:
    """The exact ε of continuous Gaussian noise of this strength."""

    def real(table: Problem, point: Point) -> float:
        found = fitted(mechanism, quantity, table.d, point.epsilon, point.delta).real_epsilon
        assert found is not None
        return found

    return real


def _published_laplace(table: Problem, point: Point) -> float:
    mechanism = fitted(PublishedLaplace, Quantity.SECOND_MOMENT, table.d, point.epsilon, NO_DELTA)
    return float(mechanism.guarantee.epsilon)


_BOTH = "(ε, δ), proved"
_ZCDP = "(ε, δ) by zCDP, in floats"
METHODS: dict[str, Method] = {
    "gaussian": Method("proved Gaussian on R", Family.OURS, _BOTH, _proved(Gaussian), _as_asked, 2),
    "joint": Method("joint (v, R)", Family.OURS, _BOTH, independent(_joint), _as_asked, 2),
    "masked": Method("masked, S", Family.OURS, _BOTH, _proved(Gaussian, Quantity.SCATTER), _as_asked, 2),
    "laplace": Method("proved Laplace on R", Family.OURS, "pure ε, proved", _proved(Laplace), _as_asked, 2),
    "ppca-sequential": Method(
        "PPCA, one direction after another",
        Family.OURS,
        "pure ε in idealised arithmetic",
        independent(_sequential),
        _as_asked,
    ),
    "power": Method("power method, our calibration", Family.OURS, _BOTH, independent(_power), _as_asked),
    "published-gaussian": Method(
        "AG as published, on R",
        Family.PUBLISHED,
        "(ε, δ) with another ε",
        _additive(PublishedGaussian),
        _continuous(PublishedGaussian),
    ),
    "published-gaussian-centred": Method(
        "AG as published, on centred S",
        Family.PUBLISHED,
        "(ε, δ) with another ε",
        _additive(PublishedGaussian, Quantity.SCATTER),
        _continuous(PublishedGaussian, Quantity.SCATTER),
    ),
    "chain": Method(
        "chain of studies",
        Family.OURS,
        "(ε, δ) of all rounds, proved",
        independent(_chain),
        _as_asked,
    ),
    "local-chain": Method(
        "PrivateLocalPCA, proved noise",
        Family.OURS,
        _BOTH,
        _local_chain(Gaussian),
        _as_asked,
    ),
    "local-chain-published": Method(
        "PrivateLocalPCA as published",
        Family.PUBLISHED,
        "(ε, δ) with another ε",
        _local_chain(PublishedGaussian),
        _continuous(PublishedGaussian),
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
    "separate-cov": Method("SeparateCov", Family.PUBLISHED, _ZCDP, independent(_separate_cov), _as_asked),
    "adaptive-cov": Method(
        "AdaptiveCov, for directions", Family.PUBLISHED, _ZCDP, independent(_adaptive_cov), _as_asked
    ),
    "ppm": Method(
        "PPM as published",
        Family.PUBLISHED,
        "(ε, δ) with another ε",
        _published_power(entry_norm=False),
        _published_power_epsilon(entry_norm=False),
    ),
    "ppm-entry-norm": Method(
        "PPM, noise times the largest entry",
        Family.PUBLISHED,
        "(ε, δ) with another ε",
        _published_power(entry_norm=True),
        _published_power_epsilon(entry_norm=True),
    ),
    "ppm-laplace": Method(
        "PPM with Laplace noise",
        Family.PUBLISHED,
        "pure ε, smaller than claimed",
        _published_power(entry_norm=False, pure=True),
        _published_power_epsilon(entry_norm=False, pure=True),
    ),
    "ppca-frames": Method(
        "PPCA, Gibbs over columns",
        Family.NO_GUARANTEE,
        "none for a finite chain",
        _frames,
        _never,
    ),
    "wishart": Method("SN", Family.NO_GUARANTEE, "none", independent(_wishart), _never),
    "ppca-gibbs": Method(
        "PPCA, Gibbs sampler", Family.NO_GUARANTEE, "none for a finite chain", independent(_gibbs), _never
    ),
    "floor": Method("random subspace, expected", Family.BOUND, "reads no data", None),
    "random": Method("random subspace", Family.BOUND, "reads no data", independent(_random)),
    "optimum": Method("without noise", Family.BOUND, "not private", independent(_optimum), repeats=False),
}
