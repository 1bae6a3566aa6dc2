"""Exact draws from the Bingham distribution, density ∝ exp(uᵀCu) on the unit sphere of ℝᵈ.

Rejection from the angular central Gaussian (Kent, Ganeiber, Mardia 2018). With A = λ_max I − C, b the root of
Σ 1/(b + 2λ_i(A)) = 1 and Ω = I + 2A/b, a normal vector of covariance Ω⁻¹ has a direction of density
∝ (uᵀΩu)^(−d/2), and exp(−uᵀAu) ≤ M·(uᵀΩu)^(−d/2) with M = e^(−(d−b)/2)(d/b)^(d/2). So u is accepted with
probability exp(−uᵀAu)·(uᵀΩu)^(+d/2)/M. With the last factor inverted, an easy slip, the law becomes
exp(−uᵀAu)·(uᵀΩu)^(−d), which has no privacy guarantee.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_protocol.errors import LimitError

_BATCH = 64
_MOST_PROPOSALS = 20_000_000


@dataclass(frozen=True, slots=True)
class Envelope:
    """The proposal for a diagonal A, in its eigenbasis.

    Attributes:
        levels: (d,) eigenvalues of A ≥ 0, at least one of them 0.
        b: the root.
        spread: (d,) eigenvalues of Ω.
    """

    levels: Floats
    b: float
    spread: Floats

    @classmethod
    def of(cls, levels: Floats) -> "Envelope":
        d = len(levels)

        def excess(b: float) -> float:
            return float((1 / (b + 2 * levels)).sum()) - 1

        # The zero level alone gives excess(1) ≥ 0, and no level is below 0, so excess(d) ≤ 0.
        b = float(brentq(excess, 1.0, float(d), xtol=1e-12, rtol=1e-14)) if excess(float(d)) < 0 else float(d)
        return cls(levels, b, 1 + 2 * levels / b)

    def log_acceptance(self, directions: Floats) -> Floats:
        """(n,) logarithm of the acceptance probability of (n, d) unit vectors; at most 0."""
        d = len(self.levels)
        squares = directions**2
        log_bound = -(d - self.b) / 2 + d / 2 * np.log(d / self.b)
        return np.asarray(-(squares @ self.levels) + d / 2 * np.log(squares @ self.spread) - log_bound)


def sample_bingham(matrix: Floats, draws: RealDraws, count: int = 1) -> tuple[Floats, int]:
    """Independent draws u of density ∝ exp(uᵀCu).

    Args:
        matrix: C, (d, d) symmetric. Adding a multiple of I changes nothing.
        draws: source of uniform and normal values.
        count: number of vectors.

    Returns:
        (count, d) unit vectors, and the number of proposals, which depends on C.

    Raises:
        LimitError: 2·10⁷ proposals were not enough.

    Guarantee: exact in real arithmetic. In floating point, the acceptance probability is accurate to about
        10⁻¹³.
    Source: Kent, Ganeiber, Mardia 2018, section 2.
    Tested: tests/statistical/test_bingham.py (moments by quadrature and by Kummer's function).
    """
    values, basis = np.linalg.eigh(matrix)
    envelope = Envelope.of(values[-1] - values)
    d = len(values)
    if d == 1:
        return draws.signs(count, 1), count
    accepted: list[Floats] = []
    found = proposals = 0
    while found < count:
        if proposals >= _MOST_PROPOSALS:
            raise LimitError("sampler-stuck", "the sampler accepted none of its proposals")
        normal = draws.normals(_BATCH, d) / np.sqrt(envelope.spread)
        directions = normal / np.linalg.norm(normal, axis=1, keepdims=True)
        taken = np.log(draws.uniforms(_BATCH)) < envelope.log_acceptance(directions)
        positions = np.flatnonzero(taken)[: count - found]
        accepted.append(directions[positions])
        found += len(positions)
        proposals += int(positions[-1]) + 1 if found == count else _BATCH
    return np.concatenate(accepted) @ basis.T, proposals
