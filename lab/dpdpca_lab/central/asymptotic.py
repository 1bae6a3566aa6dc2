"""The asymptotic calibration of Yun and Dudeja, with its utility curve: an advisory figure, never a
guarantee.

Density ∝ exp((pβ/2)·tr Vᵀ Σ V), Σ = XᵀX/n, rows with |x|² ≤ p (entries in [−1, 1]). As n and p grow at fixed
θ = n/p^1.5 the privacy loss of one record tends to a Gaussian of standard deviation σ, and squared overlaps
to closed forms. The formulas for add-or-remove come from the authors' public figure scripts and were derived
again; the formulas for replace-one are ours.
The limits of this calibration: it is asymptotic in p, it describes one data set and not the worst case, and
it reads the exact eigenvalues. For p = 400, n = 16000 and β = 4, the standard deviation σ of the privacy loss
is 0.93, but the pure ε of the worst case is 40. None of our sources contains the sampler with which the
authors of this calibration drew directions. `draw_frames` therefore uses the exact sampler for k = 1, and a
Gibbs chain of exact conditionals for more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import numpy as np

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.central.gibbs import frame_draws
from dpdpca_protocol.errors import PolicyError, UsageError

ADVISORY = "asymptotic, for this data set: an advisory figure, not a guarantee"
RELATIONS = ("add-or-remove", "replace-one")


@dataclass(frozen=True, slots=True)
class Spectrum:
    """What the formulas need from the eigenvalues of Σ.

    Attributes:
        sums: (k,) H_i = (1/p) Σ_{j>k} 1/(l_i − l_j).
        slope: H′ = −(1/p) Σ_{j>k} 1/(l_k − l_j)² ≤ 0.
        gap: l_k − l_{k+1} > 0.
    """

    sums: Floats
    slope: float
    gap: float

    @classmethod
    def of(cls, eigenvalues: Floats, k: int) -> "Spectrum":
        """Computed from all p eigenvalues, in any order.

        Raises:
            UsageError: k is not in [1, p − 1], or there is no gap after the k-th eigenvalue.
        """
        levels = np.sort(np.asarray(eigenvalues, dtype=np.float64))[::-1]
        p = len(levels)
        if not 1 <= k < p or not np.isfinite(levels).all():
            raise UsageError(
                "bad-argument", f"k must be from 1 to {p - 1}, and the eigenvalues must be finite"
            )
        gap = float(levels[k - 1] - levels[k])
        if gap <= 0:
            raise UsageError("bad-argument", "there is no gap after the k-th eigenvalue")
        distances = levels[:k, None] - levels[None, k:]
        return cls((1 / distances).sum(axis=1) / p, float(-(1 / distances[-1] ** 2).sum() / p), gap)

    @property
    def last(self) -> float:
        """H = H_k, the largest of the sums. The k-th direction is visible only if β exceeds it."""
        return float(self.sums[-1])


@dataclass(frozen=True, slots=True)
class Utility:
    """The values to which the errors converge, at one β.

    Attributes:
        lost_overlaps: (k,) 1 − squared overlap of each direction: min(1, H_i/β).
        frobenius_squared: ‖P − P*‖_F²: 2 Σ min(1, H_i/β).
        operator_squared: min(1, H/β).
    """

    lost_overlaps: Floats
    frobenius_squared: float
    operator_squared: float


def utility(spectrum: Spectrum, beta: float) -> Utility:
    """The utility of a draw at β in the limit. Direction i becomes visible at β = H_i."""
    _check_positive(beta, "beta")
    lost = np.minimum(1.0, spectrum.sums / beta)
    return Utility(lost, float(2 * lost.sum()), float(lost[-1]))


def privacy_sigma(spectrum: Spectrum, beta: float, theta: float, relation: str = "replace-one") -> float:
    """σ of the Gaussian to which the privacy loss of the worst record converges: σ-GDP in the limit.

    Args:
        spectrum: the spectrum of Σ.
        beta: β > H.
        theta: n/p^1.5 > 0.
        relation: "replace-one" (ours) or "add-or-remove" (the authors').

    Raises:
        UsageError: β ≤ H, for which the formulas do not apply, or the relation is unknown.

    With A = −H′/2 and B = (β − H)/gap: θ²σ² is max(A, B) for replace-one and max_t [t²A + t(1−t)B] otherwise.
    """
    _check_positive(theta, "theta")
    _check_relation(relation)
    if not beta > spectrum.last:
        raise UsageError("bad-argument", f"beta must be above H = {spectrum.last:.6g}")
    own, cross = -spectrum.slope / 2, (beta - spectrum.last) / spectrum.gap
    if relation == "replace-one":
        return float(np.sqrt(max(own, cross)) / theta)
    t = worst_record(spectrum, beta)
    return float(np.sqrt(t**2 * own + t * (1 - t) * cross) / theta)


def calibrate(spectrum: Spectrum, theta: float, target_sigma: float, relation: str = "replace-one") -> float:
    """The largest β whose σ is at most the target.

    Args:
        spectrum: the spectrum of Σ.
        theta: n/p^1.5 > 0.
        target_sigma: the wanted σ > 0.
        relation: as for `privacy_sigma`.

    Raises:
        PolicyError: the target is below the plateau √A/θ, and no β above H gives a smaller σ. (There the
            authors' scripts clamp a root at 0 and return a meaningless β.)
        UsageError: an argument is out of range.
    """
    _check_positive(theta, "theta")
    _check_positive(target_sigma, "target_sigma")
    _check_relation(relation)
    square = (theta * target_sigma) ** 2
    own = -spectrum.slope / 2
    if square < own:
        raise PolicyError(
            "target-unattainable",
            f"a σ of {target_sigma:.6g} is below {np.sqrt(own) / theta:.6g}, the least of this data set",
            "raise the target, or use more records",
        )
    if relation == "replace-one":
        return float(spectrum.last + spectrum.gap * square)
    return float(spectrum.last + 2 * spectrum.gap * (square + np.sqrt(square * (square - own))))


def utility_curve(
    eigenvalues: Floats, k: int, n: int, targets: list[float], relation: str = "replace-one"
) -> list[dict[str, float | None]]:
    """One row for each wanted σ: the β that gives this σ, and the errors in the limit.

    If no β gives a wanted σ, the other members of its row are None.
    """
    spectrum = Spectrum.of(eigenvalues, k)
    theta = n / len(eigenvalues) ** 1.5
    rows: list[dict[str, float | None]] = []
    for target in targets:
        try:
            beta = calibrate(spectrum, theta, target, relation)
        except PolicyError:
            rows.append({"sigma": target, "beta": None, "operator_squared": None, "frobenius_squared": None})
            continue
        worth = utility(spectrum, beta)
        rows.append(
            {
                "sigma": target,
                "beta": beta,
                "operator_squared": worth.operator_squared,
                "frobenius_squared": worth.frobenius_squared,
            }
        )
    return rows


def kernel_basis(rows: Floats) -> tuple[Floats, Floats]:
    """The eigenvalues of Σ = XᵀX/n, and the rows in its eigenbasis, from the (n, n) kernel XXᵀ.

    No (p, p) matrix is needed, so p may be far above n. The last p − n eigenvalues are 0. All rows are
    orthogonal to their directions.

    Args:
        rows: X, (n, p).

    Returns:
        (p,) eigenvalues, largest first, and (n, min(n, p)) coordinates. With a frame V of `draw_frames`,
        the scores of the rows are `coordinates @ V[:, :r].T` with r = min(n, p).
    """
    n, p = rows.shape
    values, left = np.linalg.eigh(rows @ rows.T)
    kept = min(n, p)
    leading = np.maximum(values[::-1][:kept], 0.0)
    return np.concatenate([leading / n, np.zeros(p - kept)]), left[:, ::-1][:, :kept] * np.sqrt(leading)


def draw_frames(
    eigenvalues: Floats,
    beta: float,
    k: int,
    draws: RealDraws | None = None,
    burn_in: int = 30,
    every: int = 5,
) -> Iterator[Floats]:
    """Draws of density ∝ exp((pβ/2)·tr V Σ Vᵀ), without end, in the eigenbasis of Σ.

    Exact and independent for k = 1. For k > 1, draws of a chain (see `frame_draws`). This is not the authors'
    sampler. The worst-case guarantee of an exact draw is `worst_case_epsilon`; σ says nothing about it.

    Args:
        eigenvalues: all p of Σ, in any order.
        beta: β > 0.
        k: from 1 to p.
        draws: for tests; by default those of the operating system.
        burn_in, every: numbers of sweeps of the chain.

    Yields:
        (k, p) orthonormal rows.
    """
    _check_positive(beta, "beta")
    p = len(eigenvalues)
    if not 1 <= k <= p:
        raise UsageError("bad-argument", f"k must be from 1 to {p}")
    source = RealDraws() if draws is None else draws
    return frame_draws(p * beta / 2 * eigenvalues, k, source, burn_in, every)


def worst_record(spectrum: Spectrum, beta: float) -> float:
    """t* of the record √p(√t·v_k + √(1−t)·v_{k+1}) whose presence the draw shows most, in the limit.

    B/(2(B − A)) if B > 2A, else 1 (see `privacy_sigma`, add-or-remove).
    """
    own, cross = -spectrum.slope / 2, (beta - spectrum.last) / spectrum.gap
    return cross / (2 * (cross - own)) if cross > 2 * own else 1.0


def loss_statistics(
    eigenvalues: Floats,
    k: int,
    n: int,
    beta: float,
    count: int,
    draws: RealDraws | None = None,
    burn_in: int = 30,
    every: int = 5,
) -> tuple[Floats, Floats]:
    """(pβ/2)·tr V(Σ′ − Σ)Vᵀ of draws from both data sets, where Σ′ = Σ + x xᵀ/n has the worst record x more.

    The privacy loss is this statistic plus a constant, so that the errors of a threshold on it are those of
    the best test. `measured_tradeoff` gives its trade-off function.

    Args:
        eigenvalues: all p of Σ, in any order.
        k: number of components.
        n: number of records, the same in both data sets.
        beta: β > H.
        count: number of draws from each data set.
        draws: for tests; by default those of the operating system.
        burn_in, every: numbers of sweeps of the chain.

    Returns:
        (count,) values of draws without the record, and with it.
    """
    source = RealDraws() if draws is None else draws
    levels = np.sort(np.asarray(eigenvalues, dtype=np.float64))[::-1]
    p, pair = len(levels), slice(k - 1, k + 1)
    share = worst_record(Spectrum.of(levels, k), beta)
    record = np.sqrt(p * np.array([share, 1 - share]))
    values, turned = np.linalg.eigh(np.diag(levels[pair]) + np.outer(record, record) / n)
    with_record = levels.copy()
    with_record[pair] = values

    def statistic(spectrum: Floats, onto: Floats) -> Floats:
        frames = islice(draw_frames(spectrum, beta, k, source, burn_in, every), count)
        return np.array([p * beta / (2 * n) * ((frame[:, pair] @ onto) ** 2).sum() for frame in frames])

    return statistic(levels, record), statistic(with_record, turned.T @ record)


def worst_case_epsilon(p: int, n: int, beta: float, relation: str = "replace-one") -> Fraction:
    """Pure ε of an exact draw at β, for any data with rows |x|² ≤ p: p²β/n, or half for add-or-remove.

    (pβ/2)·|Vx|²/n lies in [0, p²β/(2n)] for each record. The exponential mechanism pays twice its range if a
    record is replaced. If one more record only raises the score, it pays the range once.
    """
    _check_positive(beta, "beta")
    _check_relation(relation)
    if p < 1 or n < 1:
        raise UsageError("bad-argument", "p and n must be 1 or more")
    whole = Fraction(beta) * p * p / n
    return whole if relation == "replace-one" else whole / 2


def _check_positive(value: float, what: str) -> None:
    if not (np.isfinite(value) and value > 0):
        raise UsageError("bad-argument", f"{what} must be a finite number above 0")


def _check_relation(relation: str) -> None:
    if relation not in RELATIONS:
        raise UsageError("bad-argument", f"relation must be one of {', '.join(RELATIONS)}")
