"""The interface of all readers of records: named columns, in batches of bounded size."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature
from dpdpca_runtime.file_kinds import ENCRYPTED

Listener = Callable[[Sequence[Any]], None]
"""Receives all columns of each batch, as the source has them: arrays or Python values."""


@dataclass(frozen=True, slots=True)
class DataLocation:
    """Where the records are, according to the command line.

    Attributes:
        data: a path, or a SQLAlchemy URL when there is a query.
        query: a SELECT, or None for a file.
        encoding: the encoding of a text file, or None to detect it.
        decimal: the decimal sign of a text file, "." or ",".
    """

    data: str
    query: str | None = None
    encoding: str | None = None
    decimal: str = "."

    def __repr__(self) -> str:
        return "DataLocation(…)"  # a URL may hold a password


class RecordSource(ABC):
    """Records with named columns."""

    names: tuple[str, ...]
    """Names of the columns, as the source has them."""

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


def encrypted_file(path: Path) -> InputError:
    """The error for data that is encrypted or protected by a password."""
    return InputError("unknown-format", f"{path} is {ENCRYPTED.name}", ENCRYPTED.advice)
