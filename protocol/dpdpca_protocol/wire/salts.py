"""Salts: random bytes at the beginning of each chunk of a share. The chunk's digest covers its salt.

Only the owner and the proxy ever know a salt. Without salts, the public digests would tell whoever has the
release and the other shares whether a guess of the noise is right.
"""

from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.wire.identifiers import Content

SALT_BYTES = 32


def salted_chunk(encoded: bytes, randomness: Randomness) -> bytes:
    """A chunk of a share: a salt of its own, then its content."""
    return draw_salt(randomness) + encoded


def draw_salt(randomness: Randomness) -> bytes:
    return randomness.bytes(SALT_BYTES)


def unsalted(chunk: Content) -> bytes:
    """The content of a share's chunk."""
    return bytes(chunk[SALT_BYTES:])
