"""The baseline's chain: exact without noise, honest about its guarantee, and noisier with every owner."""

from fractions import Fraction

import numpy as np
import pytest

from dpdpca_lab.benchmarks.local_pca import private_local_pca
from dpdpca_lab.central.result import captured_share
from dpdpca_lab.mechanisms import Calibration
from dpdpca_lab.tables import EncodedTable, encode_table
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Gaussian

EPSILON, DELTA = Fraction(1), Fraction(1, 10**5)
D = 4
BOUNDS = np.array([[-1.0, 1.0]] * D)


def tables(count: int, records: int) -> list[EncodedTable]:
    generator = np.linspace(-1, 1, records)
    rows = np.column_stack([generator, 0.5 * generator**3, 0.1 * np.cos(9 * generator), 0 * generator])
    return [encode_table(rows, BOUNDS) for _ in range(count)]


def test_without_noise_the_chain_finds_the_pooled_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gaussian, "draw_triangle", lambda self, count, sample: [0] * (D * (D + 1) // 2))
    owners = tables(3, 200)
    chain = private_local_pca(owners, EPSILON, DELTA, D)
    pooled = sum(table.second_moment for table in owners)
    values, vectors = np.linalg.eigh(pooled)
    overlaps = np.abs(np.sum(chain.directions * vectors.T[::-1], axis=1))
    assert np.allclose(overlaps[values[::-1] > 1e-6 * values[-1]], 1, atol=1e-6)
    assert len(chain.seconds) == 3


def test_the_published_noise_promises_more_than_is_proved() -> None:
    ours = private_local_pca(tables(2, 50), EPSILON, DELTA, 2)
    published = private_local_pca(tables(2, 50), EPSILON, DELTA, 2, Calibration.AS_PUBLISHED)
    assert ours.guarantee.epsilon == EPSILON
    assert published.claim.epsilon == EPSILON
    assert published.guarantee.epsilon is None or published.guarantee.epsilon > EPSILON


def test_many_small_owners_lose_what_one_large_one_keeps() -> None:
    scatter = tables(1, 2000)[0].second_moment
    one = [private_local_pca(tables(1, 2000), EPSILON, DELTA, 1) for _ in range(10)]
    many = [private_local_pca(tables(100, 20), EPSILON, DELTA, 1) for _ in range(10)]
    kept, lost = (
        np.mean([captured_share(chain.directions, scatter) for chain in chains]) for chains in (one, many)
    )
    assert kept > 0.97
    assert lost < kept - 0.02


def test_owners_must_agree_on_the_shape() -> None:
    with pytest.raises(UsageError):
        private_local_pca([], EPSILON, DELTA, 1)
    with pytest.raises(UsageError):
        private_local_pca([*tables(1, 5), encode_table(np.zeros((5, 2)), BOUNDS[:2])], EPSILON, DELTA, 1)
