"""Small private files of a role: canonical JSON, written atomically.

A file that cannot be read back is treated as damaged and refused.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dpdpca_protocol.errors import AuthenticationError, IntegrityError, MessageError, PolicyError
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.signing import FILE_FORMAT, check_members
from dpdpca_runtime.files import private_dir, read_private, write_private

_OF_ANOTHER_VERSION: Final = frozenset({"manifest-refused", "unsupported-version"})


def save(path: Path, body: Mapping[str, Any]) -> None:
    """Writes `body`, with the format version, to `path`. Creates the folder of the file if it is missing."""
    private_dir(path.parent)
    write_private(path, canonical_json({**body, "format": FILE_FORMAT}))


def load(path: Path, *members: str, optional: Collection[str] = ()) -> dict[str, Any]:
    """The body at `path` with exactly these members, `format`, and possibly `optional` ones.

    Raises:
        NotFoundError: there is no such file.
        PolicyError: others can access the file.
        IntegrityError: it is damaged.
    """
    with own_file(path):
        body = parse_canonical(read_private(path))
        check_members(body, *members, optional=optional, formats=(FILE_FORMAT,))
    return body


@contextmanager
def own_file(path: Path) -> Iterator[None]:
    """Reports errors in the content of our own files as damage instead of errors of a peer."""
    try:
        yield
    except (MessageError, AuthenticationError, PolicyError) as error:
        if error.slug in _OF_ANOTHER_VERSION:
            raise IntegrityError(
                "state-corrupt",
                "a file of the home has content that this version refuses",
                "use the version that wrote it",
                place=str(path),
            ) from error
        if isinstance(error, PolicyError):
            raise
        raise IntegrityError(
            "state-corrupt",
            "a file of the home is damaged: this program did not write its content",
            "restore the file from a backup, or move it away",
            place=str(path),
        ) from error
