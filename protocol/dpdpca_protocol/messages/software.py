"""Which software a proxy says that it runs. The proxy signs this in its card and in each release.

It is a statement of the proxy's operator, and no proof: a proxy that lies can name any digest.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.wire.fields import text_problem
from dpdpca_protocol.wire.schemas import object_schema

DIGEST_PATTERN: Final = "^sha256:[0-9a-f]{64}$"
"""A digest of software, as operators of images write it."""
MOST_VERSION: Final = 100
"""The most letters of a version."""
MOST_SOFTWARE: Final = 1000
"""The most digests of a list of accepted software."""

_DIGEST = re.compile(DIGEST_PATTERN.strip("^$"))
_IN_DETAIL = "software_"


class SoftwareKind(StrEnum):
    """How the software came to the machine."""

    WHEEL = "wheel"
    """Installed from a wheel, and all files are as in it. The digest is that of these files."""
    IMAGE = "image"
    """A container image. The digest is that of the image, as the operator gave it."""
    ALTERED = "altered"
    """Installed from a wheel, but the files differ from it. The digest is that of the files as they are."""
    EDITABLE = "editable"
    """Runs from a source folder. There is no digest, because the files may change at any time."""


_VERSION_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MOST_VERSION}
SOFTWARE_SCHEMA: Final = {
    "oneOf": [
        object_schema(
            {
                "digest": {"type": "string", "pattern": DIGEST_PATTERN},
                "kind": {"enum": [str(kind) for kind in SoftwareKind if kind is not SoftwareKind.EDITABLE]},
                "version": _VERSION_SCHEMA,
            }
        ),
        object_schema({"kind": {"enum": [str(SoftwareKind.EDITABLE)]}, "version": _VERSION_SCHEMA}),
    ]
}


@dataclass(frozen=True, slots=True)
class Software:
    """The version of a party's software, and the digest by which others recognise it.

    Attributes:
        version: as `dpdpca version` prints it.
        kind: what the digest is of.
        digest: "sha256:" and 64 hex digits; None only if `kind` is `editable`.
    """

    version: str
    kind: SoftwareKind
    digest: str | None = None

    def __str__(self) -> str:
        told = {
            SoftwareKind.WHEEL: f"wheel {self.digest}",
            SoftwareKind.IMAGE: f"image {self.digest}",
            SoftwareKind.ALTERED: f"altered after the installation, now {self.digest}",
            SoftwareKind.EDITABLE: "editable: it has no digest",
        }
        return f"dpdpca {self.version} ({told[self.kind]})"

    def to_body(self) -> dict[str, str]:
        body = {"kind": str(self.kind), "version": self.version}
        return body if self.digest is None else body | {"digest": self.digest}

    @classmethod
    def parse(cls, untrusted: Any) -> Self:
        """Raises MessageError `malformed`."""
        kinds = tuple(SoftwareKind)
        if not isinstance(untrusted, dict) or untrusted.get("kind") not in kinds:
            raise MessageError(
                "malformed", f"software must be an object whose kind is one of {', '.join(kinds)}"
            )
        kind = SoftwareKind(untrusted["kind"])
        names = {"kind", "version"} | (set() if kind is SoftwareKind.EDITABLE else {"digest"})
        if set(untrusted) != names:
            raise MessageError(
                "malformed", f"software of kind {kind} must have exactly {', '.join(sorted(names))}"
            )
        version = untrusted["version"]
        if not isinstance(version, str) or text_problem(version, MOST_VERSION):
            raise MessageError(
                "malformed", f"the version of software must be 1 to {MOST_VERSION} plain letters"
            )
        return cls(version, kind, read_software_digest(untrusted["digest"]) if "digest" in names else None)


def read_software_digest(untrusted: Any) -> str:
    """Raises MessageError `malformed` unless `untrusted` is a digest of software."""
    if not isinstance(untrusted, str) or _DIGEST.fullmatch(untrusted) is None:
        raise MessageError("malformed", "a digest of software is sha256: and 64 lower-case hex digits")
    return untrusted


def naming_software(body: dict[str, Any], software: Software | None) -> dict[str, Any]:
    """The body with the software of its signer, if that is known."""
    return body if software is None else body | {"software": software.to_body()}


def named_software(body: Mapping[str, Any]) -> Software | None:
    """The software that a body names, or None. Bodies of earlier versions name none."""
    return Software.parse(body["software"]) if "software" in body else None


def telling_software(detail: dict[str, Any], software: Software | None) -> dict[str, Any]:
    """The detail of an event with the software of its signer, if that is known. A detail has no objects."""
    told = {} if software is None else software.to_body()
    return detail | {_IN_DETAIL + name: value for name, value in told.items()}


def told_software(detail: Mapping[str, Any]) -> Software | None:
    """The software that the detail of an event names, or None. Events of earlier versions name none."""
    names = [name for name in detail if name.startswith(_IN_DETAIL)]
    return Software.parse({name.removeprefix(_IN_DETAIL): detail[name] for name in names}) if names else None
