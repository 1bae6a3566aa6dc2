"""Several files that are one table: a folder of Parquet files, or the files that a pattern finds."""

from collections.abc import Callable, Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import Generic, TypeVar

from dpdpca_owner.records.matching import match_columns
from dpdpca_owner.records.source import Listener, RecordSource
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature, column_key

_ENDINGS = (".parquet", ".parq", ".pq")
_File = TypeVar("_File", Path, str)


def is_part(name: str) -> bool:
    """Whether a file of this name is a part of a table: programs that write tables keep notes in files whose
    names begin with . or _."""
    return name.lower().endswith(_ENDINGS) and not name.startswith((".", "_"))


def files_at(path: Path) -> list[Path] | None:
    """The files of a folder or of a pattern in the order of their names, or None if `path` is neither.

    Files and folders whose name begins with . or _ are left out, because programs that write tables keep
    notes in them.

    Raises:
        InputError: there is no file.
    """
    if path.is_dir():
        found = [each for each in path.iterdir() if is_part(each.name)]
        what, next_step = f"the folder {path} has no file NAME.parquet", f"name the files: {path / '*.csv'}"
    elif has_magic(str(path)) and not path.exists():
        found = list(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        what, next_step = f"no file has a name like {path}", "put the pattern in quotes, and check the folder"
    else:
        return None
    files = sorted(each for each in found if each.is_file() and not each.name.startswith((".", "_")))
    if not files:
        raise InputError("no-such-file", what, next_step)
    return files


class PartsSource(RecordSource, Generic[_File]):
    """The records of several files, one file after the other. All files have the same column names.

    Args:
        files: at least one: paths, or addresses in object storage.
        open_file: opens one of them.

    Raises:
        InputError: `parts-differ`, the files have different columns; or a file cannot be read.
    """

    def __init__(self, files: Sequence[_File], open_file: Callable[[_File], RecordSource]) -> None:
        self._files: Sequence[_File] = files
        self._open_file: Callable[[_File], RecordSource] = open_file
        first = open_file(files[0])
        self.names, self.is_text, self.remarks = first.names, first.is_text, first.remarks
        for file in files[1:]:
            names = open_file(file).names
            if sorted(map(column_key, names)) != sorted(map(column_key, self.names)):
                raise InputError(
                    "parts-differ",
                    f"{file} does not have the same columns as {files[0]}",
                    "export all parts with the same columns, or name a pattern that leaves this file out",
                )

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        for file in self._files:
            part = self._open_file(file)
            yield from part.read(match_columns(part.names, features), features, records, listener)
