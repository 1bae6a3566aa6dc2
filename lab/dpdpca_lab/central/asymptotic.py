"""The asymptotic calibration of Yun and Dudeja, with its utility curve: an advisory figure, never a
guarantee.

Density ∝ exp((pβ/2)·tr Vᵀ Σ V), Σ = XᵀX/n, rows with |x|² ≤ p (entries in [−1, 1]). As n and p grow at fixed
θ = n/p^1.5 the privacy loss of one record tends to a Gaussian of standard deviation σ, and squared overlaps
to closed forms. The formulas for add-or-remove come from the authors' public figure scripts and were derived
again; the formulas for replace-one are ours.
The limits of this calibration: it is asymptotic in p, it describes one data set and not the worst case, and
it reads the exact eigenvalues. For p = 400, n = 16000 and β = 4, the standard deviation σ of the privacy loss
is 0.93, but the pure ε of the worst case is 40. None of our sources contains the sampler with which the
authors of this calibration drew directions. `draw_direction` therefore uses the exact sampler.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdpca_lab.central.bingham import sample_bingham
from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_protocol.errors import PolicyError, UsageError

REFERENCE = "Yun, Dudeja 2025 (arXiv 2511.07270); sampler replaced by Kent, Ganeiber, Mardia 2018"
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
    # The parabola t²A + t(1−t)B has its top inside [0, 1] once B ≥ 2A.
    top = cross**2 / (4 * (cross - own)) if cross > 2 * own else own
    return float(np.sqrt(top) / theta)


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


def draw_direction(covariance: Floats, beta: float, draws: RealDraws | None = None, count: int = 1) -> Floats:
    """(count, p) draws for k = 1 with density ∝ exp((pβ/2)·vᵀΣv), by the exact sampler, not the authors'.

    The worst-case guarantee of a draw is `worst_case_epsilon`; σ says nothing about the worst case.
    """
    _check_positive(beta, "beta")
    drawn, _ = sample_bingham(len(covariance) * beta / 2 * covariance, draws or RealDraws(), count)
    return drawn


def worst_case_epsilon(p: int, n: int, beta: float) -> Fraction:
    """Pure ε under replace-one of a draw at β, for any data: p²β/n, with rows |x|² ≤ p.

    (pβ/2)·(x·v)²/n lies in [0, p²β/(2n)] for each record, and the exponential mechanism pays twice its range.
    """
    _check_positive(beta, "beta")
    if p < 1 or n < 1:
        raise UsageError("bad-argument", "p and n must be 1 or more")
    return Fraction(beta) * p * p / n


def _check_positive(value: float, what: str) -> None:
    if not (np.isfinite(value) and value > 0):
        raise UsageError("bad-argument", f"{what} must be a finite number above 0")


def _check_relation(relation: str) -> None:
    if relation not in RELATIONS:
        raise UsageError("bad-argument", f"relation must be one of {', '.join(RELATIONS)}")
