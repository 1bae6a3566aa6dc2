"""Components of the correlation matrix, from a release whose noise is white in another metric.

Dividing by standard deviations after the release costs no budget, but it makes the noise of features with a
small variance large. So the noise is taken off first, in the clip metric where it is white: what stands above
the edge is kept with its estimated eigenvalue, and only that is standardised. In the clip metric itself
nothing is taken off, since it would change no component.
"""

from dataclasses import dataclass

import numpy as np

from dpdpca_protocol.components import Components, Floats, leading_pairs
from dpdpca_protocol.errors import UsageError

DENOISE_FROM = 20
"""Features from which taking the noise off first is the better choice; below, every component matters."""

_FLOOR = 2.0
_TIE = 1e-6


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
    components: Components, variances: Floats, denoise: bool | None = None
) -> CorrelationComponents:
    """Standardises a release after the fact.

    Args:
        components: of the release, in the clip metric.
        variances: (d,) of the features as released, in the metric's units (`Reliability.variances`).
        denoise: keep only what stands above the noise edge; None does so from 20 features on.

    Raises:
        UsageError: `denoise` is false, and the model does not keep all d components.

    Source: with θ̂ and v of the k̂ components above their edges, Σ θ̂ v vᵀ over √max(S̃ᵢᵢ, 2t) on both sides,
        t the noise on a diagonal entry, and 10⁻⁶ of the diagonal against ties. What a direction w captures
        is estimated inside the span of the released components alone: Σ (θ̂ − s²d/θ̂)(v · w/√S̃ᵢᵢ)².
    Tested: tests/statistical/test_reliability.py.
    """
    d = len(components.space.names)
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
