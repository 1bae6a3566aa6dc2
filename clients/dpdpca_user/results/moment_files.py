"""Tables of covariances, correlations and means as JSON, as Arrow tables, and as files.

In Arrow, CSV and Parquet, each figure has a row of its own, with its deviation beside it. A matrix has no
place for both.
"""

import io
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dpdpca_protocol.errors import LimitError, UsageError
from dpdpca_runtime.files import write_private
from dpdpca_user.results.moments import MeanTable, MomentTable

ENDINGS = (".csv", ".parquet", ".npz")
MOST_FEATURES = 1000
"""Of a table with a row, or a JSON number, for each pair of features. A `.npz` file has no limit."""


def moment_facts(table: MomentTable | MeanTable) -> dict[str, Any]:
    """A table as plain JSON; null for a correlation that the noise hides. Raises like `arrow_table`."""
    if isinstance(table, MeanTable):
        return {
            "features": list(table.names),
            "values": table.values.tolist(),
            "deviations": table.deviations.tolist(),
        }
    check_size(len(table.names))
    return {
        "kind": table.kind,
        "features": list(table.names),
        "values": _with_nulls(table.values),
        "deviations": _with_nulls(table.deviations),
        "in_noise": table.in_noise.tolist(),
        "kept": table.kept,
        "factor": table.factor,
        "present": table.present,
    }


def check_size(features: int) -> None:
    """Raises LimitError `too-large` if a table of so many features may only be a `.npz` file."""
    if features > MOST_FEATURES:
        raise LimitError(
            "too-large",
            f"a table of {features} features has too many rows: {MOST_FEATURES} features are the most",
            "write a .npz file: dpdpca user result STUDY --covariance FILE.npz",
        )


def arrow_table(table: MomentTable | MeanTable) -> pa.Table:
    """A row for each figure: (d²) with the columns row, column, value, deviation and in_noise, or (d) with
    feature, value and deviation.

    Raises:
        LimitError: `too-large`, there are more than `MOST_FEATURES` features.
    """
    if isinstance(table, MeanTable):
        return pa.table({"feature": list(table.names), "value": table.values, "deviation": table.deviations})
    check_size(len(table.names))
    d, names = len(table.names), pa.array(table.names)
    return pa.table(
        {
            "row": names.take(pa.array(np.repeat(np.arange(d), d))),
            "column": names.take(pa.array(np.tile(np.arange(d), d))),
            "value": pa.array(table.values.ravel(), from_pandas=True),
            "deviation": pa.array(table.deviations.ravel(), from_pandas=True),
            "in_noise": table.in_noise.ravel(),
        }
    )


def check_ending(path: Path) -> None:
    """Raises UsageError if the name of a file does not end with one of `ENDINGS`."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            "unknown-format",
            f"the format of {path.name} is not known",
            f"let the name end with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}",
        )


def save_moments(path: Path, table: MomentTable | MeanTable) -> None:
    """Write a table to a CSV, Parquet or `.npz` file (mode 0600). A `.npz` file has the arrays of the table.

    Raises:
        UsageError: `unknown-format`.
        LimitError: `too-large`, a CSV or Parquet file would have too many rows.
    """
    check_ending(path)
    file = io.BytesIO()
    match path.suffix.lower():
        case ".csv":
            pa.csv.write_csv(arrow_table(table), file)
        case ".parquet":
            pa.parquet.write_table(arrow_table(table), file)
        case _:
            arrays = {"names": np.array(table.names), "values": table.values, "deviations": table.deviations}
            if isinstance(table, MomentTable):
                arrays["in_noise"] = table.in_noise
            np.savez_compressed(file, allow_pickle=False, **arrays)
    write_private(path, file.getvalue())


def _with_nulls(values: "np.ndarray[Any, np.dtype[np.float64]]") -> list[list[float | None]]:
    return [[None if isnan(value) else value for value in row] for row in values.tolist()]
