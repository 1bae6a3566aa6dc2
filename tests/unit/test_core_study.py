"""The whole core in one process with the noise left out: what remains is plain PCA of the pooled records.

Leaving the noise out is possible here because releases take their noise as an argument; no setting of the
product reaches it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flat_releases import open_joint_release
from gmpy2 import mpz
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from dpdpca_protocol.layout.packing import BlockLayout, symmetric_rows
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.release import (
    NoisyScatter,
    answer_count,
    draw_mask,
    make_flat_release,
    make_masked_release,
    open_masked_release,
)
from dpdpca_protocol.release.suite import PaillierSuite
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_protocol.terms.manifest import Manifest

Floats = NDArray[np.float64]
FEATURES = [
    {"name": "a", "lower": -10, "upper": 30},
    {"name": "b", "lower": 0, "upper": 1, "centre": "0.25"},
    {"name": "c", "lower": 1000, "upper": 5000},
    {"name": "d", "lower": "-0.5", "upper": 0.5},
]


def records(seed: int, count: int) -> Floats:
    rng = np.random.default_rng(seed)  # noqa: TID251 - made-up records, not noise, masks or keys
    latent = rng.normal(size=(count, 2))
    raw = latent @ rng.normal(size=(2, 4)) + 0.3 * rng.normal(size=(count, 4)) + rng.normal(size=4)
    return raw * [6, 0.2, 700, 0.2] + [8, 0.4, 3000, 0.05]  # some lie out of bounds and are clipped


@pytest.mark.parametrize("release", ["joint", "masked"])
@pytest.mark.parametrize("scaling", ["range", "common"])
def test_noiseless_core_equals_pca_of_the_pooled_encoded_records(
    make_manifest: Callable[..., Manifest], toy_key: SecretKey, release: str, scaling: str
) -> None:
    manifest = make_manifest(
        features=FEATURES, release=release, scaling=scaling, clip_norm="1.2", max_records=500
    )
    figures = manifest.figures
    suite = PaillierSuite(toy_key.public, manifest.slot_bits)
    layout = BlockLayout(4, figures.slot_bits, figures.slots)
    encryptor = Encryptor(toy_key.public, figures.ciphertext_count)
    pooled: list[NDArray[np.int64]] = []
    shares: list[Sequence[mpz]] = []
    for seed, count in enumerate((60, 25, 90)):
        raw = records(seed, count)
        columns: dict[str, Any] = {name: raw[:, j] for j, name in enumerate("abcd")}
        z = RecordEncoder(manifest).encode(columns).z
        pooled.append(z)
        moments = SecondMoments(4, figures.record_bound)
        moments.add(z)
        if release == "joint":
            shares.append(suite.encrypt_vector(moments.values(), encryptor))
        else:
            count_, sums, upper = moments.values()[0], moments.values()[1:5], moments.values()[5:]
            plains = layout.pack_share(count_, sums, symmetric_rows(4, upper))
            shares.append(encryptor.encrypt_many(list(plains)))
        assert len(shares[-1]) == figures.ciphertext_count
    aggregate = multiply_shares(shares, toy_key.public)
    silence = [0] * 10

    opened: NoisyScatter
    if release == "joint":
        released = make_flat_release(suite, aggregate, [0] * figures.value_count)
        opened = open_joint_release(suite, toy_key, released, 4, manifest.max_records)
    else:
        n, _ = answer_count(toy_key, aggregate[0])
        mask = draw_mask(4, figures.mask_bits, OS_RANDOMNESS)
        released = make_masked_release(toy_key.public, layout, aggregate, n, mask, silence, OS_RANDOMNESS)
        opened = open_masked_release(toy_key, layout, released, n)

    space = EncodedSpace.of(manifest)
    components = fit_components(opened, figures, space)
    encoded = np.concatenate(pooled) / figures.grid * space.unit
    plain = PCA().fit(encoded)
    assert opened.count == len(encoded) == 175
    np.testing.assert_allclose(components.eigenvalues, plain.explained_variance_, rtol=1e-9)
    signs = np.sign(np.sum(components.vectors * plain.components_, axis=1))[:, None]
    np.testing.assert_allclose(components.vectors, signs * plain.components_, atol=1e-9)
    if release == "joint":
        assert components.mean is not None
        expected = space.centre + space.half_range * np.concatenate(pooled).mean(axis=0) / figures.grid
        np.testing.assert_allclose(components.mean, expected, rtol=1e-9)
