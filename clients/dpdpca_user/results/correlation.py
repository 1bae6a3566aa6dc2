"""Components of the correlation matrix, from a release whose noise is white in another metric.

Dividing by standard deviations after the release costs no budget, but it amplifies the noise of features with
a small variance. Therefore the noise is removed first, in the clip metric, where it is white: components
above the noise edge are kept with their estimated eigenvalues, and only these are standardised. Components in
the clip metric itself are left as they are, because removing the noise would not change their directions.

If the data do not vary, there is nothing to standardise, and the result would be pure noise of size 1. Up to
two releases in a hundred exceed their noise edge by chance, so a stricter condition applies here: the largest
eigenvalue must be one that noise alone practically never reaches.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.result.components import Components, Floats, finite_size_factor, leading_pairs
from dpdpca_user.results.reliability import Reliability

DENOISE_FROM = 20
"""Number of features from which it is better to remove the noise first; below it, every component matters."""

_FLOOR = 2.0
_TIE = 1e-6
_NEVER = math.sqrt(2 * math.log(1e9))
"""Deviations by which a Gaussian exceeds its mean in fewer than one of 10⁹ cases, by concentration."""


@dataclass(frozen=True, slots=True)
class CorrelationComponents:
    """Components of standardised features, best first.

    Attributes:
        denoised: whether the noise was removed first. With noise removed there are k̂ components, else d.
        deviations: (d,) standard deviations of the features as released, in the metric's units. If noise
            dominates, the floor √(2 · noise scale) is used.
        scale: (d,) what a centred row is divided by, in original units.
        vectors: (k, d) orthonormal rows in the standardised metric.
        explained: (k,) estimate of the variance that each component captures, out of a total of d.
    """

    denoised: bool
    deviations: Floats
    scale: Floats
    vectors: Floats
    explained: Floats


def correlation_components(
    components: Components, reliability: Reliability, denoise: bool | None = None
) -> CorrelationComponents | None:
    """Standardise a release after the fact.

    Args:
        components: the components of the release, in the clip metric.
        reliability: of the same release: its variances, and how far noise moves their total.
        denoise: keep only components above the noise edge. If `denoise` is None, this happens if there are
            20 or more features.

    Returns:
        The standardised components. None if no component is above its noise edge and above what noise alone
        can produce. If the data do not vary and the noise is Gaussian, all but one in 10⁹ releases give None.

    Raises:
        UsageError: `denoise` is false, and the model does not contain all d components.

    Source: θ̂ and v belong to the k̂ components above their edges. The matrix is Σ θ̂ v vᵀ, divided by
        √max(S̃ᵢᵢ, 2t) on both sides, with t the noise of a diagonal entry, plus 10⁻⁶ of the diagonal against
        ties. What a direction w captures is estimated within the span of the released components only:
        Σ (θ̂ − s²d/θ̂)(v · w/√S̃ᵢᵢ)².
    Tested: tests/statistical/test_reliability.py.
    """
    d, variances = len(components.space.names), reliability.variances
    if not components.trusted_count or components.eigenvalues[0] <= never_noise(components, reliability):
        return None
    if denoise is None:
        denoise = d >= DENOISE_FROM
    if not denoise and components.component_count < d:
        raise UsageError(
            "components-missing",
            f"the model contains only {components.component_count} of {d} components, too few for the matrix",
            "do not set denoise to False",
        )
    floored = np.maximum(variances, _FLOOR * components.noise_scale)
    deviations = np.sqrt(np.where(floored > 0, floored, 1.0))
    k = components.trusted_count if denoise else d
    values = components.signals if denoise else components.eigenvalues
    scaled = components.vectors[:k] / deviations
    matrix = (scaled.T * values[:k]) @ scaled
    matrix[np.diag_indices(d)] += _TIE * np.maximum(variances, 0) / deviations**2
    vectors = leading_pairs(matrix, k)[1] if k else np.zeros((0, d))
    within = (vectors / deviations) @ components.vectors.T
    return CorrelationComponents(
        denoised=denoise,
        deviations=deviations,
        scale=components.space.scale * deviations,
        vectors=vectors,
        explained=(within**2) @ components.captured,
    )


def never_noise(components: Components, reliability: Reliability) -> float:
    """An eigenvalue that the noise of a release alone exceeds in fewer than one of 10⁹ cases.

    Source: H is the noise of the covariance, with deviations t on and s off the diagonal, and e is the noise
        of the sum. The noise alone is H − (μeᵀ + eμᵀ) minus a positive term. The mean of the largest
        eigenvalue of the noise is at most 2s√d + |μ|·E|e|. As a function of the underlying standard normals,
        this eigenvalue is convex, and Lipschitz with constant L = √(t² + 4|μ|²var(e)). So for every x, it
        exceeds its mean by x·L no more often than a standard normal exceeds x. The square of the
        reliability's `total_variance_deviation` is d·t² + 4|μ|²var(e).
    """
    d, t = len(components.space.names), components.noise_scale
    edge = components.noise_edge / finite_size_factor(d)
    entry = max(t, edge / math.sqrt(2 * d))  # √2·s if all entries have the same deviation
    # Variances may be near the largest double, so they are never squared.
    along_mean = t * math.sqrt(max((reliability.total_variance_deviation / t) ** 2 - d, 0.0)) if t else 0.0
    return float(edge + math.sqrt(d) * along_mean / 2 + _NEVER * math.hypot(entry, along_mean))
