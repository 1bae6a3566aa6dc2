"""Identifiers are hashes of the identified bytes: 32 bytes, or lower-case hex as text."""

import hashlib
import re
from typing import Self

from dpdpca_protocol.errors import MessageError

Content = bytes | memoryview
"""Bytes that are only read, or a view of them, which saves a copy."""

_HEX64 = re.compile(r"[0-9a-f]{64}")


class Digest(bytes):
    """A SHA-256 value. Subclasses distinguish kinds of identifiers. The text form is `hex()`."""

    __slots__ = ()

    def __new__(cls, value: bytes) -> Self:
        if len(value) != 32:
            raise MessageError("malformed", f"a {cls.__name__} must have 32 bytes, not {len(value)}")
        return super().__new__(cls, value)

    @classmethod
    def of(cls, content: Content) -> Self:
        return cls(hashlib.sha256(content).digest())

    @classmethod
    def parse(cls, untrusted: str) -> Self:
        if not isinstance(untrusted, str) or not _HEX64.fullmatch(untrusted):
            raise MessageError("malformed", f"a {cls.__name__} must be 64 lower-case hex digits")
        return cls(bytes.fromhex(untrusted))

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()[:12]}…)"


class StudyId(Digest):
    """SHA-256 of a manifest's canonical bytes."""

    __slots__ = ()


class PartyId(Digest):
    """SHA-256 of a party's raw Ed25519 public key; the `keyid` of its requests."""

    __slots__ = ()
