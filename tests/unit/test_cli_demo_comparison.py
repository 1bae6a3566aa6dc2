"""The demo's measurement against PCA as scikit-learn does it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from sklearn.decomposition import PCA
from study_parties import MakeManifest

from dpdpca_cli.demo.comparison import compare, metric_rows
from dpdpca_protocol.result.components import Components, EncodedSpace, Floats
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.results.model import Model, Provenance

RECORDS = 400


@pytest.fixture(scope="module")
def pooled() -> pa.Table:
    """Correlated columns, one value out of bounds, a column that nobody asked for, one record incomplete."""
    steps = np.linspace(0, 1, RECORDS)
    age = 20 + 60 * steps
    systolic = 100 + 90 * steps + 8 * np.sin(40 * steps)
    weight = 70 + 20 * np.cos(9 * steps)
    weight[0] = 400.0
    age[1] = np.nan
    return pa.table({"extra": steps, "weight": weight, "age": age, "systolic": systolic})


def model_with(vectors: Floats, manifest: Manifest) -> Model:
    """A model of these components; what else a release brings is of no account here."""
    zeros = np.zeros(len(vectors))
    components = Components(
        space=EncodedSpace.of(manifest),
        count=RECORDS,
        vectors=vectors,
        eigenvalues=zeros,
        noise_edges=zeros,
        captured=zeros,
        signals=zeros,
        overlaps=zeros,
        noise_scale=0.0,
        noise_edge=0.0,
        total_variance=1.0,
        mean=None,
    )
    return Model(manifest.study_id, manifest, components, Provenance("", "", "", (), (), {}))


def test_rows_are_clipped_centred_and_scaled(pooled: pa.Table, make_manifest: MakeManifest) -> None:
    rows = metric_rows(pooled, make_manifest(missing="reject"))
    assert rows.shape == (RECORDS - 1, 3)
    assert rows[0] == pytest.approx([-0.6, (100 - 120) / 100, 1.0])
    assert metric_rows(pooled, make_manifest(missing="midpoint")).shape == (RECORDS, 3)


def test_optimum_is_that_of_scikit_learn(pooled: pa.Table, make_manifest: MakeManifest) -> None:
    manifest = make_manifest()
    plain = PCA().fit(metric_rows(pooled, manifest))
    found = compare(model_with(plain.components_, manifest), pooled, (1, 2, 3, 5))
    assert found.counts == (1, 2, 3)
    assert found.best == pytest.approx(np.cumsum(plain.explained_variance_ratio_))
    assert found.private == pytest.approx(found.best)
    assert found.overlaps == pytest.approx((1, 1, 1))


def test_other_components_capture_less(pooled: pa.Table, make_manifest: MakeManifest) -> None:
    manifest = make_manifest()
    axes = model_with(np.eye(3), manifest)
    rows = metric_rows(pooled, manifest)
    found = compare(axes, pooled, (1,))
    assert found.private[0] == pytest.approx(rows[:, 0].var() / rows.var(axis=0).sum())
    assert found.private[0] < found.best[0]


def test_categories_are_spread_over_their_levels(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(
        features=[{"name": "age", "lower": 0, "upper": 100}, {"name": "smoker", "levels": ["no", "yes"]}]
    )
    table = pa.table({"age": [50.0, 100.0, 0.0], "smoker": ["yes", "no", None]})
    assert metric_rows(table, replace(manifest, missing="midpoint")).tolist() == [
        [0, 0, 1],
        [1, 1, 0],
        [-1, 0, 0],
    ]
    assert len(metric_rows(table, manifest)) == 2
