"""When a component can be told from symmetric noise: the threshold of the spiked matrix model.

For noise with independent entries of deviation s, the largest eigenvalue of the noise is about 2s√d, and a
component of eigenvalue λ leaves a trace in the leading eigenvector only if λ > s√d. Both hold as d grows.

Source: Benaych-Georges, Nadakuditi 2011.
"""

import math


def noise_norm(deviation: float, features: int) -> float:
    """2s√d, the spectral norm of a (d, d) symmetric noise matrix in the limit."""
    return 2 * deviation * math.sqrt(features)


def least_visible(deviation: float, features: int) -> float:
    """s√d, the eigenvalue above which a component can be seen, in the units of the deviation s."""
    return deviation * math.sqrt(features)


def least_laplace_epsilon(features: int, records: int, eigenvalue: float) -> float:
    """ε* = 2√2·d^1.5/(nλ). Below it, the published Laplace noise (2d/(nε) on R/n) hides a component.

    Args:
        features: d.
        records: n.
        eigenvalue: λ of R/n, rows of norm at most 1.
    """
    return least_visible(math.sqrt(2) * 2 * features / records, features) / eigenvalue
