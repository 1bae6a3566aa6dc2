"""Measures how good the private components are, on the pooled records.

Only a demo can measure this, because it has the records of all owners. In a real study nobody has all
records, and what is known about the components follows from the release alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdpca_protocol.result.components import Floats
from dpdpca_protocol.terms.features import column_key
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.results.model import Model
from dpdpca_user.results.tables import rows_of_table

COMPONENT_COUNTS = (1, 2, 3, 5)


@dataclass(frozen=True, slots=True)
class CapturedVariance:
    """Shares of the pooled records' variance, each in [0, 1], for k = `counts`.

    Attributes:
        counts: numbers k of components, ascending.
        private: the share that the first k components of the release capture.
        best: the share that the first k components of PCA without privacy capture, which is the optimum.
        overlaps: (d,) squared cosine between the i-th components of both.
    """

    counts: tuple[int, ...]
    private: tuple[float, ...]
    best: tuple[float, ...]
    overlaps: tuple[float, ...]


def metric_rows(pooled: pa.Table, manifest: Manifest) -> Floats:
    """(n, d) pooled records in the study's metric: clipped to the bounds, centred, scaled, norms not clipped.

    Args:
        pooled: columns by name. Other columns are ignored. Incomplete records are left out if the manifest
            rejects them.
        manifest: has the features, bounds and scaling.
    """
    wanted = {column_key(feature.name) for feature in manifest.features}
    table = pooled.select([name for name in pooled.column_names if column_key(name) in wanted])
    if manifest.missing == "reject":
        table = table.filter(_complete(table))
    rows = rows_of_table(table, manifest)
    column = 0
    for feature in manifest.features:
        if feature.lower is not None and feature.upper is not None:
            np.clip(rows[:, column], float(feature.lower), float(feature.upper), out=rows[:, column])
        column += feature.width
    units = np.array([[float(origin), float(scale)] for origin, scale in manifest.feature_units])
    scaled: Floats = (rows - units[:, 0]) / units[:, 1]
    return scaled


def compare(model: Model, pooled: pa.Table, counts: Sequence[int] = COMPONENT_COUNTS) -> CapturedVariance:
    """Compare the private components with PCA without privacy, both on the pooled records."""
    rows = metric_rows(pooled, model.manifest)
    covariance = np.atleast_2d(np.cov(rows, rowvar=False))
    values, columns = np.linalg.eigh(covariance)
    best_values, best_vectors = values[::-1], columns[:, ::-1].T
    total = float(values.sum())
    vectors = model.components.vectors
    captured = np.einsum("ki,ij,kj->k", vectors, covariance, vectors)
    used = tuple(k for k in counts if k <= len(vectors))
    return CapturedVariance(
        counts=used,
        private=tuple(float(captured[:k].sum()) / total for k in used),
        best=tuple(float(best_values[:k].sum()) / total for k in used),
        overlaps=tuple(
            float(private @ best) ** 2 for private, best in zip(vectors, best_vectors, strict=False)
        ),
    )


def _complete(table: pa.Table) -> pa.ChunkedArray:
    whole = pa.chunked_array([pa.repeat(pa.scalar(True), table.num_rows)])
    for column in table.columns:
        fits = pc.is_finite(column) if pa.types.is_floating(column.type) else pc.is_valid(column)
        whole = pc.and_(whole, pc.fill_null(fits, False))
    return whole
