"""PPCA by Gibbs sampling, as published: an approximation that carries no guarantee.

The distribution of a finite chain differs from its limit. If their total variation distance were TV, the draw
would be (ε, (1 + e^ε)·TV)-DP. But TV is not known for any number of sweeps, as the authors say. Therefore no
ε may be printed for such a draw.
"""

from fractions import Fraction

import numpy as np
from scipy.special import betaincinv

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.central.exponential import orthogonal_complement
from dpdpca_lab.central.result import CentralResult, check_input
from dpdpca_lab.mechanisms import NoGuarantee
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Guarantee

REFERENCE = "Chaudhuri, Sarwate, Sinha 2013; sampler Hoff 2009"


def gibbs_components(
    second_moment: Floats,
    record_bound: int,
    epsilon: Fraction,
    k: int,
    sweeps: int = 200,
    draws: RealDraws | None = None,
) -> CentralResult:
    """A frame from a chain whose limit has density ∝ exp((ε/2)·tr V R Vᵀ/K).

    Args:
        second_moment: R about a public centre, (d, d), grid² units.
        record_bound: K.
        epsilon: the ε of the limit.
        k: from 1 to d.
        sweeps: how often each coordinate of each direction is redrawn, from a uniform start.
        draws: for tests; by default those of the operating system.

    Raises:
        UsageError: a shape or a term is out of range.
    """
    check_input(second_moment, record_bound, epsilon, k)
    if sweeps < 1:
        raise UsageError("bad-argument", "sweeps must be 1 or more")
    source = RealDraws() if draws is None else draws
    weighted = second_moment * (float(epsilon) / (2 * record_bound))
    frame = gibbs_chain(weighted, k, sweeps, source)
    guarantee = NoGuarantee(
        f"{sweeps} sweeps of a Gibbs sampler; the distance of its distribution from the limit is not known"
    )
    claim = Guarantee(epsilon, Fraction(0), "as published, for the limit of the chain")
    return CentralResult(
        "ppca-gibbs", frame, guarantee, claim, "approximate: finite chain", REFERENCE, sweeps
    )


def gibbs_chain(matrix: Floats, k: int, sweeps: int, draws: RealDraws) -> Floats:
    """(k, d) frame after `sweeps` sweeps towards density ∝ exp(tr V C Vᵀ), from a uniform frame."""
    d = len(matrix)
    start, _ = np.linalg.qr(draws.normals(d, k))
    frame = start.T * draws.signs(k, 1)
    if k == d == 1:
        return frame
    for _ in range(sweeps):
        for row in range(k):
            others = np.delete(frame, row, axis=0)
            complement = orthogonal_complement(others)
            values, basis = np.linalg.eigh(complement.T @ matrix @ complement)
            axes = complement @ basis
            point = _sweep(frame[row] @ axes, values, draws)
            direction = axes @ point
            frame[row] = direction / np.linalg.norm(direction)
    return frame


def _sweep(point: Floats, levels: Floats, draws: RealDraws) -> Floats:
    """Redraw each coordinate of a unit vector, given the ratios of the others (Hoff 2009, section 3)."""
    if len(point) == 1:
        return draws.signs(1)
    squares = point**2
    for i in range(len(point)):
        shares = squares.copy()
        shares[i] = 0
        total = shares.sum()
        shares = (
            shares / total if total > 0 else np.where(np.arange(len(point)) == i, 0.0, 1.0) / (len(point) - 1)
        )
        theta = _coordinate(float(levels[i] - shares @ levels), (len(point) - 3) / 2, draws)
        squares = shares * (1 - theta)
        squares[i] = theta
    return np.sqrt(squares) * draws.signs(len(point))


def _coordinate(slope: float, power: float, draws: RealDraws) -> float:
    """θ of density ∝ θ^(−1/2)(1 − θ)^power·exp(slope·θ) on (0, 1), by rejection from Beta(½, 1 + tilt).

    The ratio of the two is (1 − θ)^excess·exp(slope·θ) with 0 ≤ excess ≤ slope where slope > 0; its largest
    value is at 1 − excess/slope.
    """
    tilt = max(power - slope, min(power, -1 + 1 / (1 + np.log(2 + slope)))) if slope > 0 else power
    excess = power - tilt
    peak = 1 - excess / slope if slope > excess else 0.0
    most = slope * peak + (excess * np.log1p(-peak) if excess > 0 else 0.0)
    while True:
        uniform, toss = draws.uniforms(2)
        theta = float(betaincinv(0.5, 1 + tilt, uniform))
        if not 0 < theta < 1:
            continue
        if np.log(toss) < slope * theta + (excess * np.log1p(-theta) if excess > 0 else 0.0) - most:
            return theta
