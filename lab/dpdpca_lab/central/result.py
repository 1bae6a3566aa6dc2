"""The result of a central mechanism, and the measure of its utility."""

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
    return float(np.trace(vectors @ scatter @ vectors.T) / best)


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
