"""Components of the correlation matrix, from a release whose noise is white in another metric.

Dividing by standard deviations after the release costs no budget, but it makes the noise of features with a
small variance large. So the noise is taken off first, in the clip metric where it is white: what stands above
the edge is kept with its estimated eigenvalue, and only that is standardised. In the clip metric itself
nothing is taken off, since it would change no component.

Where nothing varies there is nothing to standardise, and what would come out is noise of size 1. One release
in a hundred passes its edge by chance, so this takes more: a largest eigenvalue that noise alone never has.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.result.components import Components, Floats, leading_pairs
from dpdpca_user.results.reliability import Reliability

DENOISE_FROM = 20
"""Features from which taking the noise off first is the better choice; below, every component matters."""

_FLOOR = 2.0
_TIE = 1e-6
_NEVER = math.sqrt(2 * math.log(1e9))
"""Deviations by which a Gaussian passes its mean in fewer than one of 10⁹ cases, by concentration."""


@dataclass(frozen=True, slots=True)
class CorrelationComponents:
    """Components of standardised features, best first.

    Attributes:
        denoised: whether the noise was taken off first; then there are k̂ of them, else d.
        deviations: (d,) standard deviations of the features as released, in the metric's units; where the
            noise rules, the floor √(2 · its scale).
        scale: (d,) what a centred row is divided by, in original units.
        vectors: (k, d) orthonormal rows in the standardised metric.
        explained: (k,) estimate of the variance that each captures, where all features together have d.
    """

    denoised: bool
    deviations: Floats
    scale: Floats
    vectors: Floats
    explained: Floats


def correlation_components(
    components: Components, reliability: Reliability, denoise: bool | None = None
) -> CorrelationComponents | None:
    """Standardises a release after the fact.

    Args:
        components: of the release, in the clip metric.
        reliability: of the same release: its variances, and how far noise moves their total.
        denoise: keep only what stands above the noise edge; None does so from 20 features on.

    Returns:
        None where no component stands above its noise edge and above what noise alone can make: of data that
        do not vary that is certain but for one release in 10⁹, if the noise is Gaussian.

    Raises:
        UsageError: `denoise` is false, and the model does not keep all d components.

    Source: with θ̂ and v of the k̂ components above their edges, Σ θ̂ v vᵀ over √max(S̃ᵢᵢ, 2t) on both sides,
        t the noise on a diagonal entry, and 10⁻⁶ of the diagonal against ties. What a direction w captures
        is estimated inside the span of the released components alone: Σ (θ̂ − s²d/θ̂)(v · w/√S̃ᵢᵢ)².
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
            f"only {components.component_count} of {d} components are kept, too few for the whole matrix",
            "leave denoise on",
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
    """An eigenvalue that the noise of a release has by itself in fewer than one of 10⁹ cases.

    Source: with H the noise on the covariance, t and s its deviations on and off the diagonal, and e that of
        the sum, the noise alone is H − (μeᵀ + eμᵀ) less something positive. Its largest eigenvalue has a mean
        of at most 2s√d + |μ|·E|e|, and moves by at most √(t² + 4|μ|²var(e)) for each unit in the space of the
        standard normals behind it, so it is that many deviations from its mean at most as often as a normal.
        The reliability holds d·t² + 4|μ|²var(e).
    """
    d, t = len(components.space.names), components.noise_scale
    edge = components.noise_edge / (1 + d ** (-2 / 3))
    entry = max(t, edge / math.sqrt(2 * d))  # √2·s where all entries have one deviation
    # Variances may be as large as doubles are: their squares are never formed.
    along_mean = t * math.sqrt(max((reliability.total_variance_deviation / t) ** 2 - d, 0.0)) if t else 0.0
    return float(edge + math.sqrt(d) * along_mean / 2 + _NEVER * math.hypot(entry, along_mean))
