"""What an owner does with published components: open them with its key, save them, project its records."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from dpdpca_owner.home import Owner
from dpdpca_owner.records.open import open_source, read_batches
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.errors import MessageError, NotFoundError, UsageError
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.records.columns import levels_of, numbers_of, pick_columns
from dpdpca_protocol.result.components import Components, EncodedSpace
from dpdpca_protocol.result.outliers import OutlierScores
from dpdpca_protocol.result.publication import read_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import SignedManifest
from dpdpca_protocol.terms.terms import may_shorten
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.files import replacing, write_private


def open_components(untrusted: bytes, signed: SignedManifest, owner: Owner) -> Components:
    """The components in a published statement, opened with this owner's key.

    Raises:
        AuthenticationError: the study's data user did not sign the components.
        NotFoundError: there is no copy for this owner.
        CryptographicError, MessageError: the copy cannot be opened, belongs to another study, or has other
            features than the manifest.
    """
    statement = verify_statement("components", untrusted, signed.manifest.user.ed25519)
    published = SealedComponents.parse(statement)
    study = signed.study_id
    plain = None
    if published.study == study:
        plain = published.open(owner.key.public.party_id, owner.key.opening_key)
    if plain is None:
        raise NotFoundError(
            "no-copy",
            "the published components contain no copy for this owner",
            "only owners in the cohort get a copy",
        )
    opened = read_components(plain, signed.manifest)
    _check_terms(opened, signed.manifest)
    return opened


def _check_terms(components: Components, manifest: Manifest) -> None:
    """Check that the components agree with the manifest: the data user must not change what is in it."""
    space, agreed = components.space, EncodedSpace.of(manifest)
    fits = (
        space.names == agreed.names
        and space.common == agreed.common
        and np.array_equal(space.centre, agreed.centre)
        and np.array_equal(space.half_range, agreed.half_range)
        and (components.mean is not None) == (manifest.rules.has_mean)
        and components.component_count <= (manifest.columns or len(agreed.names))
        and components.count <= manifest.figures.most_counted
        # The proxy enforces min_records for a masked release only; other releases reveal the count later.
        and (not manifest.rules.is_masked or components.count >= manifest.min_records)
    )
    if not fits:
        raise MessageError(
            "components-differ",
            "the published components do not match the manifest: features, units or counts differ",
            "do not use these components; ask the data user",
        )


def record_count(components: Components, manifest: Manifest) -> int:
    """N, the number of records, also for a study that counts pairs of records."""
    return components.count * (2 if manifest.rules.of_pairs else 1)


def save_model(components: Components, records: int, path: Path) -> None:
    """Save components and the number of records as a private .npz file with plain arrays."""
    space = components.space
    arrays = {
        "components": components.vectors,
        "explained_variance": components.eigenvalues,
        "noise_edges": components.noise_edges,
        "noise_edge": np.array(components.noise_edge),
        "trusted_components": np.array(components.trusted_count),
        "origin": components.origin,
        "scale": space.scale,
        "names": np.array(space.names),
        "records": np.array(records),
    }
    if components.mean is not None:
        arrays["mean"] = components.mean
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    write_private(path, content.getvalue())


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to write about each record besides its scores on the components.

    Attributes:
        t2, spe: its outlier scores.
        contributions: what each feature adds to these.
    """

    t2: bool = False
    spe: bool = False
    contributions: bool = False

    def of(self, components: Components, manifest: Manifest) -> OutlierScores | None:
        """Raises ConflictError if the components allow no outlier scores."""
        if not (self.t2 or self.spe):
            return None
        return OutlierScores.of(components, are_shortened=may_shorten(manifest))

    def columns(self, outliers: OutlierScores, rows: NDArray[np.float64]) -> Iterator[tuple[str, Any]]:
        """Names and (n,) values of the further columns."""
        names = outliers.components.space.names
        for name, is_wanted, score, contributions in (
            ("t2", self.t2, outliers.t2, outliers.t2_contributions),
            ("spe", self.spe, outliers.spe, outliers.spe_contributions),
        ):
            if is_wanted:
                yield name, score(rows)
                if self.contributions:
                    added = contributions(rows)
                    yield from ((f"{name} from {feature}", added[:, j]) for j, feature in enumerate(names))


SCORES_ONLY = Wanted()


@dataclass(frozen=True, slots=True)
class Projected:
    """What was written: for how many records, and the outlier scores, if any."""

    records: int
    outliers: OutlierScores | None


def project(
    location: DataLocation,
    manifest: Manifest,
    components: Components,
    out: Path,
    wanted: Wanted = SCORES_ONLY,
) -> Projected:
    """Project the owner's own records onto the components. Writes the scores to `out`, in the records' order.

    Nothing leaves the machine. A missing value is treated as in the study: either the feature's centre
    replaces it, or, if the study drops such records, the record gets empty scores.

    Args:
        location: the records to project; columns are matched to the study's features by name.
        manifest: the study's manifest.
        components: the opened components.
        out: .parquet or .csv; private to this user, and present only when complete.
        wanted: outlier scores in further columns.

    Raises:
        ConflictError: outlier scores are wanted, but the components allow none.
    """
    names = [f"component_{index + 1}" for index in range(components.component_count)]
    if (outliers := wanted.of(components, manifest)) is not None:
        names += [name for name, _ in wanted.columns(outliers, components.origin[None, :])]
    schema = pa.schema([(name, pa.float64()) for name in names])
    count = 0
    with replacing(out) as file, _writer(file, out, schema) as write:
        source = open_source(location, manifest.features, out.parent)
        for columns in read_batches(source, manifest.features):
            rows = _encoded_rows(pick_columns(columns, manifest.features), manifest, count)
            scores = components.scores(rows)
            values = list(scores.T)
            if outliers is not None:
                values += [column for _, column in wanted.columns(outliers, rows)]
            arrays = [pa.array(np.ascontiguousarray(column), from_pandas=True) for column in values]
            write.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(scores)
    return Projected(count, outliers)


def _encoded_rows(
    columns: list[NDArray[np.generic]], manifest: Manifest, first_record: int
) -> NDArray[np.float64]:
    """(n, d) in original units, not clipped, as projection needs no privacy. NaN for a dropped record."""
    drops = manifest.missing == "reject"
    blocks = []
    for column, feature in zip(columns, manifest.features, strict=True):
        if feature.is_categorical:
            positions = levels_of(column, feature, first_record)
            absent = positions < 0
            block = (positions[:, None] == np.arange(feature.width)).astype(np.float64)
        else:
            block = numbers_of(column, feature, first_record)[:, None]
            absent = np.isnan(block[:, 0])
        block[absent] = np.nan if drops else [float(origin) for origin in feature.origins]
        blocks.append(block)
    return np.concatenate(blocks, axis=1)


@contextmanager
def _writer(file: IO[bytes], out: Path, schema: pa.Schema) -> Iterator[pa.RecordBatchFileWriter]:
    if out.suffix == ".parquet":
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            yield writer
    elif out.suffix == ".csv":
        with pyarrow.csv.CSVWriter(file, schema) as writer:
            yield writer
    else:
        raise UsageError(
            "bad-option",
            f"--out is '{out.name}', which ends in neither .parquet nor .csv",
            "use one of these",
        )
