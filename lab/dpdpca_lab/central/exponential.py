"""PPCA: principal components by the exponential mechanism (Chaudhuri, Sarwate, Sinha 2013), exactly.

The score of a direction u is uᵀRu/K, which is in [0, 1] for each record. So one replaced record changes the
score by at most 1, and density ∝ exp((ε/2)·uᵀRu/K) has pure ε. For k = 1 this is a Bingham distribution,
which can be drawn exactly. For k > 1 the published distribution is on whole frames, and there is no practical
exact sampler for it. Instead, directions are drawn exactly one after another, each in the orthogonal
complement of those before it and each with ε/k.
"""

from fractions import Fraction

import numpy as np

from dpdpca_lab.central.bingham import sample_eigenbasis
from dpdpca_lab.central.entropy import IDEALISED, Floats, RealDraws
from dpdpca_lab.central.result import CentralResult, check_input
from dpdpca_protocol.privacy.mechanisms import Guarantee
from dpdpca_protocol.privacy.mechanisms.interface import HONEST_RECORDS, PUBLIC_COUNT

REFERENCE = "Chaudhuri, Sarwate, Sinha 2013 (PPCA); sampler Kent, Ganeiber, Mardia 2018"
_TIMING = "nobody sees how long a draw takes: the number of rejected proposals depends on the data"


def exponential_components(
    second_moment: Floats, record_bound: int, epsilon: Fraction, k: int, draws: RealDraws | None = None
) -> CentralResult:
    """k directions, one after another, by exact Bingham draws at ε/k each.

    Args:
        second_moment: R about a public centre, (d, d), grid² units.
        record_bound: K ≥ Σ z² of every record.
        epsilon: ε of all k draws together.
        k: from 1 to d.
        draws: for tests; by default those of the operating system.

    Returns:
        Directions in the order in which they were drawn. Pure ε under replace-one, in idealised arithmetic.

    Raises:
        UsageError: a shape or a term is out of range.
        LimitError: the sampler did not finish.

    Guarantee: ε/k for each direction, given those before it; by adaptive composition, ε in total. The
        complement depends on earlier draws and not on the data.
    Source: McSherry, Talwar 2007; exponent ε/2 because one record changes the score by up to 1 in either
        direction.
    Tested: tests/unit/lab/test_exponential.py (loss by quadrature), tests/statistical/test_bingham.py.
    """
    check_input(second_moment, record_bound, epsilon, k)
    source = RealDraws() if draws is None else draws
    values, basis = np.linalg.eigh(second_moment * (float(epsilon) / (2 * k * record_bound)))
    found = np.zeros((0, len(values)))
    proposals = 0
    for _ in range(k):
        drawn, tried = sample_eigenbasis(values, source, found)
        found = np.vstack([found, drawn])
        proposals += tried
    guarantee = Guarantee(
        epsilon,
        Fraction(0),
        f"exponential mechanism, {k} exact Bingham draws at ε/{k} in the orthogonal complement",
        (HONEST_RECORDS, PUBLIC_COUNT, IDEALISED, _TIMING),
    )
    claim = Guarantee(epsilon, Fraction(0), "as published, for one draw of the whole frame")
    return CentralResult("ppca", found @ basis.T, guarantee, claim, "exact: rejection", REFERENCE, proposals)
