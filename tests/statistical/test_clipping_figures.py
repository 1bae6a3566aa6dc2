"""Variances before clipping on a real table, with the study's own noise.

The factor has a deviation of about 1 % here, and the limits are 15 %, so noise alone breaks them in fewer
than one of 10⁶ runs.
"""

import numpy as np
import pytest

from dpdpca_lab.benchmarks.played_chains import base_of, chain, complete, owners_of
from dpdpca_lab.reference_data import terrain
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Components, EncodedSpace, Floats, fit_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.results.clipping import ClippingFigures, assess_clipping

TABLE = terrain()
EPSILON = 1.0


def scatter_of(components: Components) -> Floats:
    """The covariance of the records within their bounds, before any clipping to the norm."""
    rows = np.clip(TABLE.rows, TABLE.lower, TABLE.upper) / components.space.scale
    return np.asarray(np.cov(rows, rowvar=False))


def figures_of(manifest: Manifest, noisy: NoisyScatter, components: Components) -> ClippingFigures:
    found = assess_clipping(noisy, manifest.figures, components, owners=3)
    assert found is not None
    assert found.factor is not None
    return found


@pytest.mark.parametrize("clip_norm", ["0.5", "1.1"])
def test_a_draft_that_clips_every_record_shows_it_and_finds_the_variances(clip_norm: str) -> None:
    base = base_of(TABLE, EPSILON) | {"release": "joint", "clip_norm": clip_norm, "clip_share": "0.005"}
    manifest = complete(base)
    noisy = run_study(manifest, owners_of(TABLE), OS_RANDOMNESS, EXACT, UNENCRYPTED)
    assert isinstance(noisy, NoisyScatter)
    components = fit_components(noisy, manifest.figures, EncodedSpace.of(manifest))
    found, scatter = figures_of(manifest, noisy, components), scatter_of(components)
    assert found.share > 0.95
    first = float(np.linalg.eigvalsh(scatter)[-1])
    assert components.captured[0] < 0.5 * first
    assert 0.85 * first < found.variances[0] < 1.15 * first
    assert found.low[0] < first < found.high[0]
    assert found.total_variance == pytest.approx(np.trace(scatter), rel=0.15)


def test_a_chain_finds_the_first_variance() -> None:
    played = chain(TABLE, EPSILON)
    noisy = played.rounds[-1].result
    assert isinstance(noisy, NoisyScatter)
    assert played.main.clip_norm < played.main.clip_cap
    found = figures_of(played.main, noisy, played.components)
    first = float(np.linalg.eigvalsh(scatter_of(played.components))[-1])
    assert 0.85 * first < found.variances[0] < 1.15 * first
    assert 0 < found.share < 0.5
