"""Opens an owner's records, wherever they are, and reads them in batches of bounded size.

The first bytes of a file, not its name, decide its format. Every source lists its columns and yields batches
of the columns that a study asks for. `texts` says what a text means in a column of numbers, for every format
alike; the encoder decides what is missing and what is not a number.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
from numpy.typing import NDArray

from dpdpca_owner.records.matching import match_columns
from dpdpca_owner.records.parts import PartsSource, files_at
from dpdpca_owner.records.source import (
    AS_IT_STANDS,
    BATCH_VALUES,
    DataLocation,
    Listener,
    Reading,
    RecordSource,
)
from dpdpca_owner.records.texts import marked
from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature
from dpdpca_runtime.file_kinds import BEGINNING_BYTES, foreign_kind, is_binary
from dpdpca_runtime.home_folder import expanded
from dpdpca_runtime.text import load_text

BATCH_RECORDS = 65_536

_OBJECTS = "s3://"
_PASSWORD_IN_FRONT = re.compile(r"[\w+.-]+://[^:/]*:[^@]*@")
_PASSWORD_MEMBER = re.compile(r"(\bpass|password|passwd|passphrase|pwd|secret|token)\s*=", re.IGNORECASE)


def read_batches(
    source: RecordSource, features: Sequence[Feature], listener: Listener | None = None
) -> Iterator[Mapping[str, Column]]:
    """Like `batches_of`, and also raises InputError if the source is empty."""
    empty = True
    for columns in batches_of(source, features, listener):
        empty = False
        yield columns
    if empty:
        raise no_records()


def batches_of(
    source: RecordSource, features: Sequence[Feature], listener: Listener | None = None
) -> Iterator[Mapping[str, Column]]:
    """The features' columns by name, batch by batch. `listener` receives all columns of each batch.

    Raises:
        InputError: a column is missing or occurs twice, or the source is damaged.
    """
    positions = match_columns(source.names, features)
    width = len(features) if listener is None else max(len(features), len(source.names))
    records = max(1, min(BATCH_RECORDS, BATCH_VALUES // width))
    for columns in source.read(positions, features, records, listener):
        if len(columns[0]):
            yield {feature.name: column for feature, column in zip(features, columns, strict=True)}


def tables_of(
    source: RecordSource,
    features: Sequence[Feature],
    listener: Listener | None = None,
    order: NDArray[np.int64] | None = None,
) -> Iterator[NDArray[Any]] | None:
    """Like `batches_of`, as (n, features) arrays of numbers.

    None if a feature is categorical, or if the source does not hold its columns as numbers in one array.

    Args:
        source, features, listener: as for `batches_of`.
        order: the order in which the records of a source by columns are read.
    """
    if any(feature.is_categorical for feature in features):
        return None
    positions = match_columns(source.names, features)
    records = max(1, BATCH_VALUES // max(len(features), len(source.names)))
    tables = source.tables(positions, records, listener, order)
    return None if tables is None else (table for table in tables if len(table))


def no_records() -> InputError:
    return InputError("no-records", "the data contains no records", "give at least one record")


def locate_data(
    data: str | None,
    query: str | None,
    url_file: Path | None,
    encoding: str | None,
    decimal: str,
    environment: Mapping[str, str],
    reading: Reading = AS_IT_STANDS,
) -> DataLocation:
    """Where the data is and how it is read, according to the command line or an environment variable.

    Raises:
        UsageError: no data is named, or the command line contains a password.
    """
    if decimal not in (".", ","):
        raise UsageError("bad-option", "--decimal must be . or ,")
    if reading.header_lines is not None and reading.header_lines < 1:
        raise UsageError("bad-option", "--header-lines must be at least 1: one line has the names")
    if url_file is not None:
        data = load_text(url_file).strip()
    elif data is None:
        data = environment.get("DPDPCA_DATA_URL", "")
    elif query is not None and _shows_password(data):
        raise UsageError(
            "password-in-arguments",
            "other users of this machine can read a database password on the command line",
            "put the URL into the variable DPDPCA_DATA_URL, or into a file that --data-url-file names",
        )
    if not data:
        raise UsageError("no-data", "no data is given", "give --data FILE, or a database URL with --query")
    if query is None and data.startswith(_OBJECTS):
        from dpdpca_owner.records.objects import check_objects

        check_objects(data)
    elif query is None and "://" in data:
        raise UsageError("no-query", "a database needs a query", "add --query 'SELECT …'")
    return DataLocation(data, query, encoding, decimal, reading)


def is_in_objects(location: DataLocation) -> bool:
    """Whether the data is in object storage."""
    return location.query is None and location.data.startswith(_OBJECTS)


def _shows_password(url: str) -> bool:
    # Unquoted twice, because an ODBC connection string is itself a quoted parameter of the URL.
    _, _, members = url.partition("?")
    return bool(_PASSWORD_IN_FRONT.match(url) or _PASSWORD_MEMBER.search(unquote_plus(unquote_plus(members))))


def open_source(
    location: DataLocation, features: Sequence[Feature], folder: Path | None = None
) -> RecordSource:
    """The source at `location`.

    Args:
        location: where.
        features: what a study will ask for; they help to find the delimiter of a text file, and the allele
            that genotypes count.
        folder: for what does not fit into memory while the source is read; None means the system's folder for
            temporary files.

    Raises:
        InputError: there is no such file, or its format is unknown.
    """
    return marked(_open(location, features, folder), location.reading.missing_markers or ())


@dataclass(frozen=True, slots=True)
class Part:
    """One of the files of a table, and the number of its records."""

    location: DataLocation
    records: int


def parquet_parts(location: DataLocation) -> list[Part]:
    """The files of a table of several Parquet files, in order; empty if the data is anything else.

    Raises:
        InputError: there is no such file, or it is damaged.
    """
    if is_in_objects(location):
        from dpdpca_owner.records.objects import objects_at, open_object

        names = objects_at(location.data)
        counts = [open_object(name).records for name in names] if len(names) > 1 else []
        return [Part(replace(location, data=name), n) for name, n in zip(names, counts, strict=False)]
    files = None if location.query is not None else files_at(expanded(Path(location.data)))
    sources = [_open_file(file, location, (), None) for file in files or ()]
    from dpdpca_owner.records.arrow import ParquetColumns, ParquetSource

    parquet = [source for source in sources if isinstance(source, ParquetSource | ParquetColumns)]
    if len(parquet) < len(sources) or len(parquet) < 2:
        return []
    return [
        Part(replace(location, data=str(file)), source.records)
        for file, source in zip(files or (), parquet, strict=True)
    ]


def _open(location: DataLocation, features: Sequence[Feature], folder: Path | None) -> RecordSource:
    # Imported here, so that an owner with CSV files does not wait for a database library to load.
    if location.query is not None:
        from dpdpca_owner.records.sql import SqlSource

        return SqlSource(location.data, location.query)
    if is_in_objects(location):
        from dpdpca_owner.records.arrow import open_parquet
        from dpdpca_owner.records.objects import objects_at, open_object

        return PartsSource(objects_at(location.data), lambda name: open_parquet(open_object(name), folder))
    path = expanded(Path(location.data))
    files = files_at(path)
    if files is None:
        return _open_file(path, location, features, folder)
    return PartsSource(files, lambda file: _open_file(file, location, features, folder))


def _open_file(
    path: Path, location: DataLocation, features: Sequence[Feature], folder: Path | None
) -> RecordSource:
    beginning = _beginning(path)
    if (kind := foreign_kind(beginning)) is not None:
        raise InputError("unknown-format", f"{path} is {kind.name}", kind.advice)
    if beginning.startswith((b"\x93NUMPY", b"PK\x03\x04")):
        from dpdpca_owner.records.numpy import open_numpy

        names = location.reading.names
        return open_numpy(path, features, None if names is None else expanded(Path(names)), folder)
    if beginning.startswith(b"\x6c\x1b"):
        from dpdpca_owner.records.plink import open_genotypes

        return open_genotypes(path, beginning, features, folder, flip=location.reading.flip or False)
    from dpdpca_owner.records.arrow import ArrowSource, ParquetSource, open_parquet

    if beginning.startswith(b"PAR1") and is_binary(beginning):
        return open_parquet(ParquetSource(path), folder)
    if beginning.startswith((b"ARROW1\0\0", b"\xff\xff\xff\xff")):
        return ArrowSource(path, is_stream=not beginning.startswith(b"ARROW1"))
    from dpdpca_owner.records.csv import CsvSource

    return CsvSource(path, features, location.encoding, location.decimal, location.reading.header_lines or 1)


def _beginning(path: Path) -> bytes:
    if not path.exists():
        raise InputError("no-such-file", f"there is no file {path}", "give the path of the data")
    if not path.is_file():
        raise InputError("not-a-file", f"{path} is not a file", "give the path of one file")
    with path.open("rb") as file:
        beginning = file.read(BEGINNING_BYTES)
        size = os.fstat(file.fileno()).st_size
    if not size:
        raise InputError("no-records", f"{path} is empty", "give at least one record")
    return beginning
