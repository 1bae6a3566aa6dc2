"""Which software runs here: its version, and a digest that anybody can compute from the published wheel.

The digest of a wheel is the SHA-256 of a list with one line for each file, sorted by path: the SHA-256 of the
file, two spaces, and its path. The list names all files of the packages, and the file METADATA, which holds
the version. What an installer adds is left out. `sha256sum` writes such a list (docs/operations.md).
"""

import base64
import binascii
import csv
import email
import zipfile
from collections.abc import Iterable
from functools import cache
from hashlib import file_digest, sha256
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from dpdpca_protocol.errors import IntegrityError, UsageError
from dpdpca_protocol.messages.software import Software, SoftwareKind

_NAME = "dpdpca"
_METADATA = "METADATA"
_RECORD = "RECORD"
_INFO = ".dist-info"
_COMPILED = "__pycache__"
_MOST_BYTES = 64 * 1024 * 1024
"""The largest file of a wheel that is read; ours are far below."""


def running_software(image: str | None = None) -> Software:
    """The software of this process. The files are read once, by the first call in a process.

    Args:
        image: the digest of the container image, if the operator has given it. A container cannot know it.
    """
    software = _installed()
    if image is not None and software.kind is not SoftwareKind.ALTERED:
        return Software(software.version, SoftwareKind.IMAGE, image)
    return software


def wheel_software(path: Path) -> Software:
    """The software in a wheel: what `running_software` gives where this wheel is installed.

    Raises:
        UsageError: `not-a-wheel`, the file is no wheel of this program.
        IntegrityError: `wheel-damaged`, a file in it differs from the list in the wheel.
    """
    not_a_wheel = UsageError(
        "not-a-wheel", f"{path} is no wheel of {_NAME}", f"give a file such as {_NAME}-1.0.0-py3-none-any.whl"
    )
    try:
        with zipfile.ZipFile(path) as wheel:
            names = [each.filename for each in wheel.infolist() if not each.is_dir()]
            metadata = [
                name for name in names if name.endswith(f"{_INFO}/{_METADATA}") and name.count("/") == 1
            ]
            if len(metadata) != 1 or not metadata[0].startswith(f"{_NAME}-"):
                raise not_a_wheel
            if any(each.file_size > _MOST_BYTES for each in wheel.infolist()):
                raise not_a_wheel
            info, _, _ = metadata[0].partition("/")
            version = email.message_from_bytes(wheel.read(metadata[0]))["Version"]
            found = {name: sha256(wheel.read(name)).hexdigest() for name in names if _counts(name)}
            listed = _listed(wheel.read(f"{info}/{_RECORD}").decode())
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError) as error:
        raise not_a_wheel from error
    if found != listed:
        name = min(found.items() ^ listed.items())[0]
        raise IntegrityError(
            "wheel-damaged", f"{name} is not as the wheel's list says", "get the wheel again", place=str(path)
        )
    return Software(str(version), SoftwareKind.WHEEL, _digest(found))


@cache
def _installed() -> Software:
    return installed_software(distribution(_NAME), Path(__file__))


def installed_software(installed: Distribution, running: Path) -> Software:
    """The software of an installation.

    Args:
        installed: the distribution.
        running: a file of the code that runs. If it does not belong to the distribution, nothing is known of
            the code, as for an editable installation.
    """
    record = installed.read_text(_RECORD) or ""
    listed = _listed(record)
    root = Path(str(installed.locate_file("")))
    packages = {path.parts[0] for name in listed if (path := PurePosixPath(name)).suffix == ".py"}
    if not packages or not any(
        running.resolve().is_relative_to((root / each).resolve()) for each in packages
    ):
        return Software(installed.version, SoftwareKind.EDITABLE)
    found = {name: _file_digest(root / name) for name in _present(root, packages, listed)}
    kind = SoftwareKind.WHEEL if found == listed else SoftwareKind.ALTERED
    return Software(installed.version, kind, _digest(found))


def _listed(record: str) -> dict[str, str]:
    """Path → SHA-256 in hex, of the files that count in a wheel's list."""
    rows = [row for row in csv.reader(record.splitlines()) if len(row) == 3]
    return {name: _hex(digest) for name, digest, _ in rows if _counts(name)}


def _hex(digest: str) -> str:
    """A digest in a wheel's list, in hex; "" if it is none."""
    name, _, text = digest.partition("=")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return ""
    return raw.hex() if name == "sha256" else ""


def _counts(name: str) -> bool:
    """Whether a file is part of the software: a file of its packages, or METADATA."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == ".." or name.startswith("/") or _COMPILED in parts:
        return False
    if parts[0].endswith(_INFO):
        return parts[1:] == (_METADATA,)
    return len(parts) > 1 and not parts[0].endswith(".data")


def _present(root: Path, packages: Iterable[str], listed: Iterable[str]) -> set[str]:
    """The files of an installation that count: those in the folders of its packages, and METADATA."""
    walked = {
        path.relative_to(root).as_posix()
        for package in packages
        for path in (root / package).rglob("*")
        if path.is_file()
    }
    kept = {name for name in listed if name.endswith(f"{_INFO}/{_METADATA}") and (root / name).is_file()}
    return {name for name in walked if _counts(name)} | kept


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _digest(files: dict[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return f"sha256:{sha256(lines.encode()).hexdigest()}"
