"""The interface of all readers of records: named columns, in batches of bounded size."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dpdpca_owner.records.spool import RowSpool
from dpdpca_protocol.errors import InputError, MessageError, UnavailableError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature
from dpdpca_runtime.file_kinds import ENCRYPTED

Listener = Callable[[Sequence[Any] | NDArray[Any]], None]
"""Receives all columns of each batch, as the source has them: arrays, Python values, or one (d, n) array."""
BATCH_VALUES: Final = 1 << 21
"""The most values in a batch: 16 MiB as float64. Encoding needs several times as much memory."""
CALLS: Final = (0, 1, 2)
"""The numbers that genotypes have."""
_COUNTED_AT_ONCE: Final = 64
"""Columns whose calls are counted at once: a byte holds their number, and they fit into caches."""
MOST_RECORDS: Final = 1 << 27
"""The most records of a source that is read by columns: one column of them has to fit into memory."""


READING_MEMBERS: Final = ("header_lines", "missing_markers")
LATER_READING_MEMBERS: Final = ("names", "flip")
"""The members of a `Reading` in a file of the owner. A file of an earlier version lacks the later ones."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an owner says about its data that decides what the values mean. None: the owner says nothing.

    Attributes:
        missing_markers: texts that stand for missing values.
        header_lines: how many lines of a text file come before the records.
        names: the path of a text file with the names of the columns of a NumPy file, one a line.
        flip: count the other allele where a file of genotypes has the alleles of a site in the other order.
    """

    missing_markers: tuple[str, ...] | None = None
    header_lines: int | None = None
    names: str | None = None
    flip: bool | None = None

    def __str__(self) -> str:
        """The options of the command line that say the same."""
        words = [f"--missing-marker '{marker}'" for marker in self.missing_markers or ()]
        if self.header_lines is not None:
            words.append(f"--header-lines {self.header_lines}")
        if self.names is not None:
            words.append(f"--names '{self.names}'")
        if self.flip is not None:
            words.append("--flip" if self.flip else "--no-flip")
        return " ".join(words)

    def or_else(self, other: "Reading") -> "Reading":
        """This reading, with `other` where the owner says nothing."""
        return Reading(
            other.missing_markers if self.missing_markers is None else self.missing_markers,
            other.header_lines if self.header_lines is None else self.header_lines,
            other.names if self.names is None else self.names,
            other.flip if self.flip is None else self.flip,
        )

    def to_body(self) -> dict[str, Any]:
        """The members of a file of the owner. What came later than the others is there only if it is said."""
        markers = self.missing_markers
        body = {
            "header_lines": self.header_lines,
            "missing_markers": None if markers is None else list(markers),
        }
        later = {"names": self.names, "flip": self.flip}
        return body | {member: value for member, value in later.items() if value is not None}

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Raises MessageError for a member of another type."""
        markers, lines = body["missing_markers"], body["header_lines"]
        names, flip = body.get("names"), body.get("flip")
        if markers is not None and not (
            isinstance(markers, list) and all(isinstance(each, str) for each in markers)
        ):
            raise MessageError("malformed", "the member missing_markers is not a list of texts")
        if lines is not None and type(lines) is not int:
            raise MessageError("malformed", "the member header_lines is not an integer")
        if not isinstance(names, str | None):
            raise MessageError("malformed", "the member names is not a text")
        if not isinstance(flip, bool | None):
            raise MessageError("malformed", "the member flip is not a truth value")
        return cls(None if markers is None else tuple(markers), lines, names, flip)


AS_IT_STANDS: Final = Reading()


@dataclass(frozen=True, slots=True)
class DataLocation:
    """Where the records are, according to the command line.

    Attributes:
        data: the path of a file or of a folder with Parquet files, a pattern of paths, s3://BUCKET/PREFIX of
            Parquet files or, when there is a query, a SQLAlchemy URL.
        query: a SELECT, or None for a file.
        encoding: the encoding of a text file, or None to detect it.
        decimal: the decimal sign of a text file, "." or ",".
        reading: what else the owner says about the data.
    """

    data: str
    query: str | None = None
    encoding: str | None = None
    decimal: str = "."
    reading: Reading = AS_IT_STANDS

    def __repr__(self) -> str:
        return "DataLocation(…)"  # a URL may hold a password


class RecordSource(ABC):
    """Records with named columns."""

    names: tuple[str, ...]
    """Names of the columns, as the source has them."""
    is_text: bool = False
    """Whether the source is a text file."""
    by: Literal["rows", "columns"] = "rows"
    """In which order its values are stored. A source by columns is a `ColumnSource`."""
    remarks: tuple[str, ...] = ()
    """What the owner should know about how the source is read, a sentence each."""

    @abstractmethod
    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        """The columns at `positions`, one for each feature, in batches of about `records` records or fewer.

        A value that does not fit its feature's kind is passed on as it is, or as `Unusable`. For a
        listener, all other columns of the source are read too. No value causes an error.

        Raises:
            InputError: the source is damaged.
        """

    def tables(
        self,
        positions: Sequence[int],
        records: int,
        listener: Listener | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> Iterator[NDArray[Any]] | None:
        """The same as `read`, as one (n, w) array of numbers a batch, which saves a step for each column.

        None if the source does not hold its columns as numbers in one array.

        Args:
            positions, records, listener: as for `read`.
            order: the order in which all records are read; only a source by columns can change it.
        """
        return None


class ColumnSource(RecordSource):
    """Records that are stored column by column: reading a few of them costs a step for each column.

    So each column is read once, and the columns are spooled to the disk first, 2 to 64 bits for each value.

    Args:
        folder: for the spool; None means the system's folder for temporary files.
    """

    by = "columns"
    records: int
    """How many there are, at most `MOST_RECORDS`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    @abstractmethod
    def stored_columns(self, positions: Sequence[int], width: int) -> Iterator[NDArray[Any]]:
        """The columns at `positions` in this order, as they are stored: (records, w) arrays, w ≤ `width`.

        Raises:
            InputError: the source is damaged.
        """

    def stored_calls(self, positions: Sequence[int], width: int) -> Iterator[NDArray[np.int8]] | None:
        """Like `stored_columns`, for a source that has `CALLS` alone; −1 stands for a missing one.

        None for any other source.
        """
        return None

    def counted(self, values: NDArray[Any], positions: Sequence[int]) -> NDArray[Any]:
        """What a study counts in place of stored `values`, (n, w), which have the columns at `positions`."""
        return values

    def call_counts(self) -> NDArray[np.int64] | None:
        """(records, 3): how often each record has each number of `CALLS` in all its stored columns.

        None if the source has any other number. Genotypes have no other, and so a file with many sites is
        known again without a spool.
        """
        counts = np.zeros((self.records, len(CALLS)), dtype=np.int64)
        calls = self.stored_calls(range(len(self.names)), self._width_of_calls)
        if calls is not None:
            for some in calls:
                for start in range(0, some.shape[1], _COUNTED_AT_ONCE):
                    part = some[:, start : start + _COUNTED_AT_ONCE]
                    for call in CALLS:
                        marks = (part == call).view(np.uint8)
                        counts[:, call] += np.add.reduce(marks, axis=1, dtype=np.uint8)
            return counts
        for block in self.stored_columns(range(len(self.names)), self._width):
            if block.dtype.kind not in "fiub":
                return None
            found = np.stack([np.count_nonzero(block == call, axis=1) for call in CALLS], axis=1)
            missing = np.count_nonzero(np.isnan(block)) if block.dtype.kind == "f" else 0
            if found.sum() + missing != block.size:
                return None
            counts += found
        return counts

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        for table in self._tables(positions, records, listener):
            yield list(table.T)

    def tables(
        self,
        positions: Sequence[int],
        records: int,
        listener: Listener | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> Iterator[NDArray[Any]] | None:
        return self._tables(positions, records, listener, order)

    def _tables(
        self,
        positions: Sequence[int],
        records: int,
        listener: Listener | None,
        order: NDArray[np.int64] | None = None,
    ) -> Iterator[NDArray[Any]]:
        stored = positions if listener is None else range(len(self.names))
        with self._spooled(stored, order) as spool:
            for start in range(0, self.records, records):
                rows = spool.rows(start, min(start + records, self.records))
                if listener is not None:
                    listener(rows.T)
                    rows = rows[:, positions]
                yield self.counted(rows, positions)

    @property
    def _width(self) -> int:
        """How many columns of all records are in memory at once."""
        return max(1, BATCH_VALUES // max(1, self.records))

    @property
    def _width_of_calls(self) -> int:
        """The same for calls, which take a byte each."""
        return max(1, 2 * BATCH_VALUES // max(1, self.records))

    def _spooled(self, positions: Sequence[int], order: NDArray[np.int64] | None) -> RowSpool:
        spool = RowSpool(self.folder, order)
        try:
            calls = self.stored_calls(positions, self._width_of_calls)
            if calls is not None:
                for some in calls:
                    spool.add_calls(some)
                return spool
            for block in self.stored_columns(positions, self._width):
                spool.add(block)
        except BaseException:
            spool.close()
            raise
        return spool


def check_record_count(records: int, path: Path) -> None:
    """Raises InputError for more than `MOST_RECORDS`."""
    if records > MOST_RECORDS:
        raise InputError(
            "too-large",
            f"{path} says that it has {records} records; a file that is stored column by column is read up to"
            f" {MOST_RECORDS}",
            "divide the records into several files, or save them row by row",
        )


def unreadable_object(address: str) -> UnavailableError:
    """The error for object storage that fails, or refuses what was asked."""
    return UnavailableError(
        "storage-failing",
        f"the object storage does not give {address}",
        "check the endpoint, the region and the credentials in the environment, then try again",
        retry_after_seconds=10,
    )


def encrypted_file(path: Path | str) -> InputError:
    """The error for data that is encrypted or protected by a password."""
    return InputError("unknown-format", f"{path} is {ENCRYPTED.name}", ENCRYPTED.advice)
