"""The result of a central mechanism, and the measures of its utility."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.mechanisms import NoGuarantee
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Guarantee


@dataclass(frozen=True, slots=True)
class CentralResult:
    """Directions found by a central mechanism.

    Attributes:
        mechanism: its name.
        vectors: (k, d) orthonormal rows.
        guarantee: what is proved and under which assumptions, or why nothing is proved.
        claim: what its paper claims.
        sampling: "exact", "approximate" or "exact integers", with the reason.
        reference: the paper.
        steps: number of proposals, sweeps or iterations. A rejection sampler needs a number of proposals that
            depends on the data, and nothing hides how long a draw takes.
    """

    mechanism: str
    vectors: Floats
    guarantee: Guarantee | NoGuarantee
    claim: Guarantee
    sampling: str
    reference: str
    steps: int


def captured_share(vectors: Floats, scatter: Floats) -> float:
    """tr V S Vᵀ as a share of the largest value that k directions can reach."""
    best = np.linalg.eigvalsh(scatter)[::-1][: len(vectors)].sum()
    return captured_energy(vectors, scatter) / float(best)


def captured_energy(vectors: Floats, moment: Floats) -> float:
    """q_F = tr V A Vᵀ of (k, d) orthonormal rows."""
    return float(np.sum((vectors @ moment) * vectors))


@dataclass(frozen=True, slots=True)
class SubspaceErrors:
    """How far two k-dimensional subspaces with the projectors P and P* are apart.

    Attributes:
        frobenius_squared: ‖P − P*‖_F² = 2(k − tr P P*), from 0 to 2k.
        operator_squared: ‖P − P*‖₂² = 1 − σ_min²(V*ᵀV), from 0 to 1.
    """

    frobenius_squared: float
    operator_squared: float


def subspace_errors(vectors: Floats, reference: Floats) -> SubspaceErrors:
    """The errors of (k, d) orthonormal rows against (k, d) orthonormal rows."""
    cosines = np.linalg.svd(vectors @ reference.T, compute_uv=False)
    sines_squared = np.maximum(1 - cosines**2, 0.0)
    return SubspaceErrors(float(2 * sines_squared.sum()), float(sines_squared[-1]))


def explained_rank(eigenvalues: Floats, share: float) -> int:
    """The smallest k whose leading eigenvalues are at least this share of the trace.

    The exact eigenvalues are read, so the result is not private.

    Args:
        eigenvalues: all d, in any order, none below 0 but by rounding.
        share: α in (0, 1].

    Raises:
        UsageError: the share is out of range, or all eigenvalues are 0.

    Source: Huang et al. 2021, equation 3.
    """
    values = np.maximum(np.sort(np.asarray(eigenvalues, dtype=np.float64))[::-1], 0.0)
    sums = np.cumsum(values)
    if not 0 < share <= 1 or sums[-1] <= 0:
        raise UsageError("bad-argument", "the share must be in (0, 1], and some eigenvalue above 0")
    return int(np.argmax(sums >= share * sums[-1])) + 1


def check_input(second_moment: Floats, record_bound: int, epsilon: Fraction, k: int) -> None:
    """Check the second moment and the terms.

    Raises:
        UsageError: the matrix is not square and symmetric, or a term is out of range.
    """
    if second_moment.ndim != 2 or second_moment.shape[0] != second_moment.shape[1]:
        raise UsageError("wrong-shape", "the second moment must be a square matrix")
    if not np.isfinite(second_moment).all() or not (second_moment == second_moment.T).all():
        raise UsageError("wrong-shape", "the second moment must be finite and symmetric")
    if record_bound < 1:
        raise UsageError("bad-argument", "record_bound must be 1 or more")
    if epsilon <= 0:
        raise UsageError("bad-argument", "epsilon must be above 0")
    if not 1 <= k <= len(second_moment):
        raise UsageError("bad-argument", f"the number of components must be from 1 to {len(second_moment)}")
