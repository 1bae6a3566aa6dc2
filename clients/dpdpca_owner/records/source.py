"""What every reader of records is: named columns, given in batches of bounded size."""

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
"""Told of each batch with all columns of the source, as it has them: arrays or Python values."""


@dataclass(frozen=True, slots=True)
class DataLocation:
    """Where the records are, as the command line says it.

    Attributes:
        data: a path, or a SQLAlchemy URL when there is a query.
        query: a SELECT, or None for a file.
        encoding: of a text file; None finds out.
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
        """The columns at `positions`, one for each feature, in batches of at most about `records` records.

        With a listener all other columns are read too, for it alone; nothing in them is an error.

        Raises:
            InputError: a value does not fit its feature's kind, or the source is damaged.
        """


def encrypted_file(path: Path) -> InputError:
    """What an owner is told of data that somebody has locked."""
    return InputError("unknown-format", f"{path} is {ENCRYPTED.name}", ENCRYPTED.advice)
