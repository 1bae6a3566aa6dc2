"""The private power method with the noise that Imtiaz and Sarwate 2016 publish, and its real guarantee.

Y = R V + G and V = QR(Y), L times, from a random frame. G is Gaussian noise of deviation γK, where γ = √(4kL
ln(1/δ))/ε, or Laplace noise of scale γK, where γ = 2kL√d/ε. The paper says that the variance depends on γ,
and no more. Hardt and Price, whose algorithm it is, multiply γ by the largest absolute entry of the frame and
define neighbours by one entry that changes by at most 1. `entry_norm` does so.

For one replaced record and an orthonormal frame, ‖(zzᵀ − xxᵀ)V‖ is at most √2·K in ℓ₂ and √(2dk)·K in ℓ₁.
Over L adaptive steps this gives μ = ε/√(2k ln(1/δ)) for the Gaussian, and pure ε/√(2k) for the Laplace. The
largest entry of a frame is at least 1/√d, so noise with `entry_norm` gives at most √d times these values.
"""

import math
from fractions import Fraction

import numpy as np

from dpdpca_lab.central.entropy import IDEALISED, Floats, RealDraws
from dpdpca_lab.central.result import CentralResult, check_input
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Guarantee
from dpdpca_protocol.privacy.mechanisms.analytic import real_epsilon
from dpdpca_protocol.privacy.mechanisms.interface import HONEST_RECORDS, PUBLIC_COUNT

REFERENCE = "Imtiaz, Sarwate 2016; Hardt, Price 2014"


def published_power_components(
    second_moment: Floats,
    record_bound: int,
    epsilon: Fraction,
    delta: Fraction,
    k: int,
    iterations: int,
    entry_norm: bool = False,
    draws: RealDraws | None = None,
) -> CentralResult:
    """k directions after noisy iterations from a uniform start.

    Args:
        second_moment: R about a public centre, (d, d).
        record_bound: K, in the squared units of R.
        epsilon: ε that the paper claims.
        delta: δ that the paper claims, in [0, 1); 0 for Laplace noise.
        k: from 1 to d.
        iterations: L. `published_iterations` reads it from the data, as the paper does, which leaks.
        entry_norm: whether the noise is multiplied by the largest absolute entry of the frame.
        draws: for tests; by default those of the operating system.

    Raises:
        UsageError: a shape or a term is out of range.

    Tested: tests/unit/lab/test_published_power.py.
    """
    check_input(second_moment, record_bound, epsilon, k)
    if iterations < 1:
        raise UsageError("bad-argument", "there must be 1 or more iterations")
    source = RealDraws() if draws is None else draws
    d = len(second_moment)
    scale = published_power_scale(epsilon, delta, d, k, iterations) * record_bound
    draw = source.normals if delta else source.laplaces
    frame, _ = np.linalg.qr(source.normals(d, k))
    for _ in range(iterations):
        spread = float(np.abs(frame).max()) if entry_norm else 1.0
        frame, _ = np.linalg.qr(second_moment @ frame + scale * spread * draw(d, k))
    return CentralResult(
        "power-method, published",
        frame.T.copy(),
        published_power_guarantee(epsilon, delta, d, k, entry_norm),
        Guarantee(epsilon, delta, "as published"),
        "floating point",
        REFERENCE,
        iterations,
    )


def published_power_scale(epsilon: Fraction, delta: Fraction, d: int, k: int, iterations: int) -> float:
    """γ for rows of norm at most 1: √(4kL ln(1/δ))/ε of Gaussian noise, or 2kL√d/ε of Laplace noise (δ = 0).

    Raises:
        UsageError: δ is not in [0, 1).
    """
    _check_delta(delta)
    if delta == 0:
        return 2 * k * iterations * math.sqrt(d) / float(epsilon)
    return math.sqrt(4 * k * iterations * math.log(1 / float(delta))) / float(epsilon)


def published_power_mu(epsilon: Fraction, delta: Fraction, d: int, k: int, entry_norm: bool) -> float:
    """μ of the Gaussian variant: ε/√(2k ln(1/δ)), and at most √d times that with `entry_norm`."""
    mu = float(epsilon) / math.sqrt(2 * k * math.log(1 / float(delta)))
    return mu * math.sqrt(d) if entry_norm else mu


def published_power_guarantee(
    epsilon: Fraction, delta: Fraction, d: int, k: int, entry_norm: bool = False
) -> Guarantee:
    """What all iterations together give for one replaced record, whatever their number.

    Raises:
        UsageError: δ is not in [0, 1).
    """
    _check_delta(delta)
    assumptions = (HONEST_RECORDS, PUBLIC_COUNT, IDEALISED, "the number of iterations is public")
    if delta == 0:
        pure = float(epsilon) * math.sqrt(d if entry_norm else 1) / math.sqrt(2 * k)
        basis = "Laplace noise, ℓ₁ norm √(2dk)·K, adaptive composition"
        return Guarantee(Fraction(pure), delta, basis, assumptions)
    mu = published_power_mu(epsilon, delta, d, k, entry_norm)
    basis = "Gaussian noise, ℓ₂ norm √2·K, adaptive composition"
    return Guarantee(Fraction(real_epsilon(mu, float(delta))), delta, basis, assumptions)


def published_iterations(eigenvalues: Floats, k: int) -> int:
    """L = ⌈σ_k/(σ_k − σ_{k+1})·ln d⌉ with the singular values σ = √λ of X; the paper's O(·) with constant 1.

    Args:
        eigenvalues: all d of R or R/n, in any order. They are not private, so this leaks.
        k: from 1 to d − 1.

    Raises:
        UsageError: k is out of range, or there is no gap after the k-th eigenvalue.
    """
    roots = np.sqrt(np.maximum(np.sort(np.asarray(eigenvalues, dtype=np.float64))[::-1], 0.0))
    if not 1 <= k < len(roots) or roots[k - 1] <= roots[k]:
        raise UsageError("bad-argument", "k must be below the number of features, with a gap after it")
    ratio = float(roots[k - 1] / (roots[k - 1] - roots[k]))
    return math.ceil(ratio * math.log(len(roots)))


def _check_delta(delta: Fraction) -> None:
    if not 0 <= delta < 1:
        raise UsageError("bad-argument", "delta must be 0 or more and below 1")
