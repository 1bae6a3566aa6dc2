"""Continuous Gaussian noise: the ε that noise of a given strength spends.

The results are exact for real numbers, so they are only for comparison and display. Privacy promises for
integer noise are computed from ρ.
"""

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import gaussian_delta


def real_epsilon(sensitivity_over_scale: float, delta: float) -> float:
    """The least ε at which continuous Gaussian noise of this strength spends no more than δ.

    Args:
        sensitivity_over_scale: D/σ > 0.
        delta: δ in (0, 1).

    Returns:
        ε ≥ 0, relative error about 10⁻⁹; 0 if even ε = 0 spends less than δ.

    Source: Balle, Wang 2018, theorem 8: exact for one worst-case pair, hence for the Gaussian mechanism.
    """
    mu = sensitivity_over_scale
    if not mu > 0 or not 0 < delta < 1:
        raise UsageError("bad-argument", "the ratio must be above 0 and δ between 0 and 1")
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    # Φ(μ/2 − ε/μ) alone is below δ at the upper end: δ > 10⁻³⁰⁰ needs fewer than 40 standard deviations.
    low, high = 0.0, mu * (mu / 2 + 40)
    for _ in range(200):
        middle = (low + high) / 2
        if gaussian_delta(middle, mu) > delta:
            low = middle
        else:
            high = middle
    return high
