"""The interface of all readers of records: named columns, in batches of bounded size."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpdpca_protocol.errors import InputError, UnavailableError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature
from dpdpca_runtime.file_kinds import ENCRYPTED

Listener = Callable[[Sequence[Any]], None]
"""Receives all columns of each batch, as the source has them: arrays or Python values."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an owner says about its data that decides what the values mean. None: the owner says nothing.

    Attributes:
        missing_markers: texts that stand for missing values.
        header_lines: how many lines of a text file come before the records.
    """

    missing_markers: tuple[str, ...] | None = None
    header_lines: int | None = None

    def __str__(self) -> str:
        """The options of the command line that say the same."""
        words = [f"--missing-marker '{marker}'" for marker in self.missing_markers or ()]
        if self.header_lines is not None:
            words.append(f"--header-lines {self.header_lines}")
        return " ".join(words)

    def or_else(self, other: "Reading") -> "Reading":
        """This reading, with `other` where the owner says nothing."""
        return Reading(
            other.missing_markers if self.missing_markers is None else self.missing_markers,
            other.header_lines if self.header_lines is None else self.header_lines,
        )


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
