"""The private power method: noisy orthogonal iteration (Hardt, Price 2014), in integers.

Each iteration multiplies R by the current frame and adds Gaussian noise. The frame depends only on earlier
noisy products, so ρ adds up over the iterations. The frame is first rounded to the grid 2⁻¹⁶. Then the
product is an integer matrix, the noise can be the exact discrete Gaussian, and no idealised arithmetic is
needed.

`noisy_iterations` does the same for tables that are too wide for R, with continuous noise.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.central.result import CentralResult, check_input
from dpdpca_lab.mechanisms.noise import FAST
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import TAIL_SIGMAS, ceil_sqrt, delta_of_tails, zcdp_rho
from dpdpca_protocol.privacy.mechanisms import Guarantee
from dpdpca_protocol.privacy.mechanisms.interface import HONEST_RECORDS, PUBLIC_COUNT

REFERENCE = "Hardt, Price 2014; accounting Bun, Steinke 2016"
_FRAME_GRID = 2**16
_HALF = 31


def power_components(
    second_moment: NDArray[np.int64],
    record_bound: int,
    epsilon: Fraction,
    delta: Fraction,
    k: int,
    iterations: int = 8,
) -> CentralResult:
    """k directions after a fixed number of noisy iterations from a uniform start.

    Args:
        second_moment: R about a public centre, (d, d) int64, grid² units.
        record_bound: K.
        epsilon, delta: of all iterations together; δ without the redrawn tails, which the guarantee adds.
        k: from 1 to d.
        iterations: L, chosen independently of the data; noise grows with √L.

    Raises:
        UsageError: a shape or a term is out of range, or the noise is too large for the sampler.

    Guarantee: for M = zzᵀ − xxᵀ and an integer frame X, ‖MX‖_F ≤ √2·K·‖X‖ with ‖X‖² at most the largest
        absolute row sum of XᵀX, an exact integer; noise of σ² = K²‖X‖²L/ρ makes each iteration ρ/L-zCDP.
    Tested: tests/unit/lab/test_power.py.
    """
    check_input(second_moment.astype(np.float64), record_bound, epsilon, k)
    if not 0 < delta < 1:
        raise UsageError("bad-argument", "delta must be between 0 and 1")
    if second_moment.dtype != np.int64 or iterations < 1:
        raise UsageError("bad-argument", "R must be int64, and there must be 1 or more iterations")
    rho = zcdp_rho(epsilon, delta)
    d = len(second_moment)
    frame, _ = np.linalg.qr(RealDraws().normals(d, k))
    for _ in range(iterations):
        rounded = np.rint(frame * _FRAME_GRID).astype(np.int64)
        variance = product_noise_variance(rounded, record_bound, rho / iterations)
        noise = FAST.gaussian(variance, d * k, ceil_sqrt(TAIL_SIGMAS**2 * variance))
        product = exact_product(second_moment, rounded) + np.array(noise, dtype=object).reshape(d, k)
        frame, _ = np.linalg.qr(_floats(product))
    guarantee = Guarantee(
        epsilon,
        delta + delta_of_tails(epsilon),
        f"{iterations} iterations of ρ/{iterations} each, adaptive composition, tight conversion",
        (HONEST_RECORDS, PUBLIC_COUNT),
    )
    claim = Guarantee(epsilon, delta, "as published, for one entry changed by at most 1")
    return CentralResult(
        "power-method", frame.T.copy(), guarantee, claim, "exact integers", REFERENCE, iterations
    )


def noisy_iterations(
    product: Callable[[Floats], Floats],
    d: int,
    record_bound: int,
    rho: float,
    k: int,
    iterations: int,
    draws: RealDraws | None = None,
) -> Floats:
    """k directions of a table that is too wide for R, (k, d) orthonormal rows. Arithmetic is in floats.

    Args:
        product: R·X for a frame X, (d, k).
        d: number of columns.
        record_bound: K.
        rho: of all iterations together.
        k: from 1 to d.
        iterations: L, chosen independently of the data.
        draws: for tests; by default those of the operating system.

    Guarantee: as `power_components`, but idealised: noise is continuous, and ‖X‖ = 1.
    """
    source = RealDraws() if draws is None else draws
    scale = record_bound * float(np.sqrt(iterations / rho))
    frame, _ = np.linalg.qr(source.normals(d, k))
    for _ in range(iterations):
        frame, _ = np.linalg.qr(product(frame) + scale * source.normals(d, k))
    return np.ascontiguousarray(frame.T)


def exact_product(moment: NDArray[np.int64], frame: NDArray[np.int64]) -> NDArray[np.object_]:
    """R·X in Python's integers, from two products of 64 bits: the upper and the lower halves of R.

    Args:
        moment: R, (d, d), d < 2¹⁵.
        frame: X, (d, k) with entries of at most 2¹⁶.
    """
    upper = moment >> _HALF
    lower = moment - (upper << _HALF)
    return np.array((upper @ frame).astype(object) * 2**_HALF + lower @ frame, dtype=object)


def product_noise_variance(frame: NDArray[np.int64], record_bound: int, rho: Fraction) -> Fraction:
    """σ² = K²·‖X‖²/ρ for one product R·X, ‖X‖² bounded by the largest absolute row sum of XᵀX, exactly.

    Args:
        frame: X, (d, k) integers.
        record_bound: K.
        rho: ρ of this product.
    """
    whole = frame.astype(object)
    gram = whole.T @ whole
    norm_squared = max(sum(abs(int(entry)) for entry in row) for row in gram)
    return Fraction(record_bound**2 * norm_squared) / rho


def _floats(product: NDArray[np.object_]) -> Floats:
    largest = max(abs(int(entry)) for entry in product.flat) or 1
    return np.array([[int(entry) / largest for entry in row] for row in product])
