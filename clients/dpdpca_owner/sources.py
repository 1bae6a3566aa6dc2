"""Sources of records that this owner has registered under a name.

A registered source says where the records are, how to read them, and in which data set of the ledger they
count. It holds no records, and no password: a database URL with a password stays in its own file or in the
environment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from glob import has_magic
from pathlib import Path
from typing import Any, Self

from dpdpca_owner.accounts.spending import check_data_set
from dpdpca_owner.policy import Policy
from dpdpca_owner.records.open import is_in_objects, locate_data
from dpdpca_owner.records.source import (
    AS_IT_STANDS,
    LATER_READING_MEMBERS,
    READING_MEMBERS,
    DataLocation,
    Reading,
)
from dpdpca_protocol.errors import ConflictError, InputError, MessageError, NotFoundError, UsageError
from dpdpca_runtime.files import remove_private
from dpdpca_runtime.home_folder import expanded
from dpdpca_runtime.own_files import load, own_file, save

_NAME = re.compile("[a-z0-9][a-z0-9._-]{0,63}")
_TEXTS = ("data", "data_set", "decimal", "encoding", "query", "url_file")
_MEMBERS = (*_TEXTS, *READING_MEMBERS)


@dataclass(frozen=True, slots=True)
class RegisteredSource:
    """Where some records are, and the data set in which they count.

    Attributes:
        name: under which it is registered.
        data: a path, or a database URL without a password; None if the URL is somewhere else.
        query: a SELECT statement, or None for files.
        url_file: the file with the database URL, or None.
        encoding: the encoding of a text file, or None to detect it.
        decimal: the decimal sign of a text file.
        reading: what the owner says about the meaning of values.
        data_set: as given at registration, or None.
    """

    name: str
    data: str | None
    query: str | None = None
    url_file: str | None = None
    encoding: str | None = None
    decimal: str = "."
    data_set: str | None = None
    reading: Reading = AS_IT_STANDS

    def location(self, environment: Mapping[str, str]) -> DataLocation:
        """Where the records are now. Raises UsageError, for example if a database URL is missing."""
        url_file = None if self.url_file is None else Path(self.url_file)
        return locate_data(
            self.data, self.query, url_file, self.encoding, self.decimal, environment, self.reading
        )

    def counts_in(self, policy: Policy) -> str:
        """The data set of the ledger: the registered one, else the policy's, else one named like the
        source."""
        return self.data_set or policy.dataset or self.name

    def to_body(self) -> dict[str, Any]:
        return {member: getattr(self, member) for member in _TEXTS} | self.reading.to_body()

    @classmethod
    def parse(cls, name: str, body: Mapping[str, Any]) -> Self:
        """Raises MessageError for a member of another type."""
        for member in _TEXTS:
            if not isinstance(body[member], str if member == "decimal" else str | None):
                raise MessageError("malformed", f"the member {member} is not a text")
        return cls(name, **{member: body[member] for member in _TEXTS}, reading=Reading.parse(body))


class Sources:
    """The registered sources in an owner's home, one private file for each.

    Args:
        folder: created with the first source.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, source: RegisteredSource, environment: Mapping[str, str]) -> RegisteredSource:
        """Register a source. The same source may be registered again.

        Returns:
            The source as it is kept, with absolute paths.

        Raises:
            UsageError: `bad-name`, the name of the source or of the data set cannot be used; like
                `locate_data`.
            ConflictError: `source-differs`, another source has this name.
            InputError: `no-such-file`.
        """
        path = self._path(source.name)
        if source.data_set is not None:
            check_data_set(source.data_set)
        kept = _absolute(source)
        location = kept.location(environment)
        is_path = kept.query is None and kept.data is not None and not has_magic(kept.data)
        is_path = is_path and not is_in_objects(location)
        if is_path and not Path(kept.data or "").exists():
            raise InputError(
                "no-such-file", f"there is no file or folder {kept.data}", "give the path of the data"
            )
        if path.exists() and self.find(source.name) != kept:
            raise ConflictError(
                "source-differs",
                f"another source is registered as '{source.name}'",
                f"choose another name, or run: dpdpca owner data remove {source.name}",
            )
        save(path, kept.to_body())
        return kept

    def find(self, name: str) -> RegisteredSource:
        """Raises NotFoundError `no-such-source`."""
        path = self._path(name)
        if not path.exists():
            raise _unknown(name)
        body = load(path, *_MEMBERS, optional=LATER_READING_MEMBERS)
        with own_file(path):
            return RegisteredSource.parse(name, body)

    def all(self) -> list[RegisteredSource]:
        """The registered sources, sorted by name."""
        names = sorted(path.stem.removeprefix("source-") for path in self._folder.glob("source-*.json"))
        return [self.find(name) for name in names]

    def only_data_set(self, policy: Policy) -> str | None:
        """The data set in which all registered sources count; None if there are several, or no source."""
        names = {source.counts_in(policy) for source in self.all()}
        return names.pop() if len(names) == 1 else None

    def remove(self, name: str) -> None:
        """Forget where the records are. The records stay. Raises NotFoundError `no-such-source`."""
        path = self._path(name)
        if not path.exists():
            raise _unknown(name)
        remove_private(path)

    def _path(self, name: str) -> Path:
        if _NAME.fullmatch(name) is None:
            raise UsageError(
                "bad-name",
                "the name of a source has 1 to 64 lower-case letters, digits and the signs . _ -",
                "give a name such as: patients",
            )
        return self._folder / f"source-{name}.json"


def _absolute(source: RegisteredSource) -> RegisteredSource:
    """The same source from whatever folder a command is called."""
    data, url_file = source.data, source.url_file
    if data is not None and source.query is None and "://" not in data:
        data = str(expanded(Path(data)).absolute())
    if url_file is not None:
        url_file = str(expanded(Path(url_file)).absolute())
    reading = source.reading
    if reading.names is not None:
        reading = replace(reading, names=str(expanded(Path(reading.names)).absolute()))
    return replace(source, data=data, url_file=url_file, reading=reading)


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(
        "no-such-source", f"no source of records is registered as '{name}'", "see: dpdpca owner data list"
    )
