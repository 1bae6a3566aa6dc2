"""Exact draws from the Bingham distribution, density ∝ exp(uᵀCu) on the unit sphere, also in a subspace.

Rejection from the angular central Gaussian (Kent, Ganeiber, Mardia 2018), in the eigenbasis of C. There, A =
λ_max I − C is diagonal. Let u be orthogonal to m given directions W, and q = d − m. For D = cI + 2A with a
shift c, a normal vector of the subspace whose precision is D has a direction of density ∝ s^(−q/2), where s =
uᵀDu. Since uᵀAu = (s − c)/2, the target is ∝ exp(−s/2), and exp(−s/2)·s^(q/2) is largest at s = q. So u is
accepted with probability exp((q/2)(ln(s/q) + 1 − s/q)), where s^(q/2) undoes the proposal. If s^(−q/2) stands
there instead, an easy slip, the law becomes exp(−uᵀAu)·s^(−q), which has no privacy guarantee. Every c for
which D is positive on the subspace gives the exact law. The c at which the trace of the covariance is 1
accepts most.

No basis of the subspace is needed. D may be negative along the leading directions if W takes their place.
Therefore the m lowest levels of A are first raised to the next one. The normal vector of that precision,
conditioned on Wᵀx = 0, then gets what it lacks as an independent normal vector of rank m.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_protocol.errors import LimitError

_FIRST_BATCH = 4
_LARGEST_BATCH = 2**22
"""Numbers in a batch of proposals. Batches double until then, so at most as many again are wasted."""
_MOST_PROPOSALS = 20_000_000


@dataclass(frozen=True, slots=True)
class Covariance:
    """The covariance C₊ + L Lᵀ of a normal vector of the subspace.

    Attributes:
        variances: (d,) of independent coordinates. C₊ is theirs under the condition Wᵀx = 0.
        corrections: (m, d) what the condition takes away, for each of the m values Wᵀx.
        factor: (d, m) L.
        trace: of the whole.
    """

    variances: Floats
    corrections: Floats
    factor: Floats
    trace: float


@dataclass(frozen=True, slots=True)
class Subspace:
    """The diagonal A on what is orthogonal to m directions.

    Attributes:
        levels: (d,) eigenvalues of A ≥ 0.
        others: (m, d) orthonormal rows W, m < d.
        lowest: (m,) positions of the m lowest levels.
        raised: (d,) the levels, the lowest raised to the next one.
    """

    levels: Floats
    others: Floats
    lowest: NDArray[np.intp]
    raised: Floats

    @classmethod
    def of(cls, levels: Floats, others: Floats) -> "Subspace":
        order, m = np.argsort(levels), len(others)
        return cls(levels, others, order[:m], np.maximum(levels, levels[order[m]]))

    @property
    def dimension(self) -> int:
        """q."""
        return len(self.levels) - len(self.others)

    def covariance(self, shift: float) -> Covariance | None:
        """The inverse of D = cI + 2A on the subspace; None if D is not positive there."""
        m, lowest = len(self.others), self.lowest
        variances = 1 / (shift + 2 * self.raised)
        scaled = self.others * variances
        corrections: Floats = np.asarray(np.linalg.solve(scaled @ self.others.T, scaled), dtype=np.float64)
        lacking = np.sqrt(2 * (self.raised - self.levels)[lowest])
        columns = -scaled.T @ corrections[:, lowest]
        columns[lowest, np.arange(m)] += variances[lowest]
        columns *= lacking
        rest = np.eye(m) - lacking[:, None] * columns[lowest]
        values, basis = np.linalg.eigh((rest + rest.T) / 2)
        if m and values[0] <= 0:
            return None
        factor = columns @ (basis / np.sqrt(values))
        trace = variances.sum() - (corrections * scaled).sum() + (factor**2).sum()
        return Covariance(variances, corrections, factor, float(trace))

    def best_shift(self) -> float:
        """The c at which the trace is 1, to about 0.001. Any c near it does as well."""

        def excess(shift: float) -> float:
            covariance = self.covariance(shift)
            return -1.0 if covariance is None else 1 / covariance.trace - 1

        # The lowest level on the subspace is at most the (m+1)-th of all. At the lower end, it alone has a
        # variance of 1 or more. At the upper end, q variances are 1/q or less.
        lower = 1 - 2 * float(self.raised.min())
        upper = float(self.dimension)
        if excess(lower) >= 0:
            return lower
        if excess(upper) <= 0:
            return upper
        return float(brentq(excess, lower, upper, xtol=1e-3))


@dataclass(frozen=True, slots=True)
class Envelope:
    """The proposal, in the eigenbasis of C.

    Attributes:
        subspace: A and the given directions.
        shift: c.
        covariance: that of the normal vector, D⁻¹ on the subspace.
    """

    subspace: Subspace
    shift: float
    covariance: Covariance

    @classmethod
    def of(cls, levels: Floats, others: Floats | None = None) -> "Envelope":
        subspace = Subspace.of(levels, np.zeros((0, len(levels))) if others is None else others)
        shift = subspace.best_shift()
        covariance = subspace.covariance(shift)
        assert covariance is not None
        return cls(subspace, shift, covariance)

    def propose(self, draws: RealDraws, count: int) -> Floats:
        """(count, d) unit vectors of density ∝ s^(−q/2), orthogonal to the given directions."""
        others = self.subspace.others
        m, d = others.shape
        found = draws.normals(count, d) * np.sqrt(self.covariance.variances)
        found -= (found @ others.T) @ self.covariance.corrections
        found += draws.normals(count, m) @ self.covariance.factor.T
        found -= (found @ others.T) @ others  # what rounding has left
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))

    def log_acceptance(self, directions: Floats) -> Floats:
        """(n,) logarithm of the acceptance probability of (n, d) unit vectors; at most 0."""
        q = self.subspace.dimension
        share = (directions**2 @ (self.shift + 2 * self.subspace.levels)) / q
        return np.asarray(q / 2 * (np.log(share) + 1 - share))


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
    drawn, proposals = sample_eigenbasis(values, draws, count=count)
    return drawn @ basis.T, proposals


def sample_eigenbasis(
    values: Floats, draws: RealDraws, others: Floats | None = None, count: int = 1
) -> tuple[Floats, int]:
    """`sample_bingham` for a diagonal C, and orthogonal to directions that are given.

    Args:
        values: (d,) the diagonal of C, in any order.
        draws: source of uniform and normal values.
        others: (m, d) orthonormal rows, m < d; None for none.
        count: number of vectors.

    Returns:
        (count, d) unit vectors orthogonal to the others, and the number of proposals.

    Raises:
        LimitError: 2·10⁷ proposals were not enough.
    """
    envelope = Envelope.of(values.max() - values, others)
    accepted: list[Floats] = []
    found = proposals = 0
    batch = _FIRST_BATCH
    while found < count:
        if proposals >= _MOST_PROPOSALS:
            raise LimitError("sampler-stuck", "the sampler accepted none of its proposals")
        directions = envelope.propose(draws, batch)
        taken = np.log(draws.uniforms(batch)) < envelope.log_acceptance(directions)
        positions = np.flatnonzero(taken)[: count - found]
        accepted.append(directions[positions])
        found += len(positions)
        proposals += int(positions[-1]) + 1 if found == count else batch
        batch = max(batch, min(2 * batch, _LARGEST_BATCH // len(values)))
    return np.concatenate(accepted), proposals
