"""The owner's own small files: canonical JSON, private, written all at once.

What does not read back as we wrote it is corrupt and refused, never guessed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpdpca_protocol.errors import AuthenticationError, IntegrityError, MessageError, PolicyError
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.signing import FORMAT, check_members
from dpdpca_runtime.files import private_dir, read_private, write_private


def save(path: Path, body: Mapping[str, Any]) -> None:
    """Put `body`, with the format version, at `path`; its folder is made if it is not there."""
    private_dir(path.parent)
    write_private(path, canonical_json({**body, "format": FORMAT}))


def load(path: Path, *members: str, optional: str | None = None) -> dict[str, Any]:
    """The body at `path` with exactly these members (and `format`), and perhaps an `optional` one.

    Raises:
        NotFoundError: no such file.
        PolicyError: others can reach it.
        IntegrityError: it is not what we wrote.
    """
    with own_file(path):
        body = parse_canonical(read_private(path))
        check_members(body, *members, *([optional] if optional in body else []))
    return body


@contextmanager
def own_file(path: Path) -> Iterator[None]:
    """What would be a peer's fault in a message is corruption in a file of our own."""
    try:
        yield
    except (MessageError, AuthenticationError) as error:
        raise IntegrityError(
            "state-corrupt",
            "a file of the home is not what this program wrote",
            "put it back from a backup, or move it away",
            place=str(path),
        ) from error
    except PolicyError as error:
        if error.slug == "manifest-refused":
            raise IntegrityError(
                "state-corrupt",
                "a file of the home holds what this version refuses",
                "use the version that wrote it",
                place=str(path),
            ) from error
        raise
