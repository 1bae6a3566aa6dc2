"""The keys to which messages are sealed: pairs of an ML-KEM-768 key and an X25519 key.

Each message is sealed with both algorithms, and stays shut as long as one of the two is unbroken. A quantum
computer could break X25519; no such attack on ML-KEM-768 is known. A public key `kem` is the ML-KEM key, then
the X25519 key. HPKE calls the pair MLKEM768-X25519 (draft-ietf-hpke-pq), and combines the two secrets as
X-Wing does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from dpdpca_protocol.errors import IntegrityError

try:
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
    from cryptography.hazmat.primitives.hpke import (
        AEAD,
        KDF,
        KEM,
        MLKEM768X25519PrivateKey,
        MLKEM768X25519PublicKey,
        Suite,
    )

    HPKE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
    MLKEM768PrivateKey.generate()  # a build against an older OpenSSL has the names, but not the algorithm
except (AttributeError, ImportError, UnsupportedAlgorithm) as error:
    raise IntegrityError(
        "unfit-cryptography",
        "the installed Python package cryptography has no ML-KEM-768",
        "install cryptography 48 or newer as a wheel, or build it with OpenSSL 3.5 or newer",
    ) from error

_ML_KEM_BYTES = 1184
KEM_KEY_BYTES = _ML_KEM_BYTES + 32
"""The length of a public key."""
ENCAPSULATION_BYTES = 1088 + 32
"""The length of the first part of a sealed message: an ML-KEM ciphertext, then an X25519 key that was made
for this message."""
PREVIEW_KEM = bytes(_ML_KEM_BYTES) + b"\xff" * 32
"""A well-formed public key for manifests that are only checked or shown. Nothing is ever sealed to it."""


@dataclass(frozen=True, slots=True)
class KemKey:
    """A private key. Its repr shows nothing."""

    ml_kem: MLKEM768PrivateKey
    x25519: X25519PrivateKey

    def __repr__(self) -> str:
        return "KemKey(…)"

    @classmethod
    def generate(cls) -> Self:
        return cls(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())

    @classmethod
    def of(cls, parts: Sequence[object]) -> Self | None:
        """The key with these `parts`, or None if they are not an ML-KEM-768 key and an X25519 key."""
        match parts:
            case [MLKEM768PrivateKey() as ml_kem, X25519PrivateKey() as x25519]:
                return cls(ml_kem, x25519)
        return None

    @property
    def parts(self) -> tuple[MLKEM768PrivateKey, X25519PrivateKey]:
        return self.ml_kem, self.x25519

    @property
    def pair(self) -> MLKEM768X25519PrivateKey:
        """The private key in the form that HPKE takes."""
        return MLKEM768X25519PrivateKey(self.ml_kem, self.x25519)

    @property
    def public(self) -> bytes:
        return self.ml_kem.public_key().public_bytes_raw() + self.x25519.public_key().public_bytes_raw()


def public_pair(kem: bytes) -> MLKEM768X25519PublicKey:
    """A public key in the form that HPKE takes. Raises ValueError if its first part is no ML-KEM-768 key."""
    return MLKEM768X25519PublicKey(
        MLKEM768PublicKey.from_public_bytes(kem[:_ML_KEM_BYTES]),
        X25519PublicKey.from_public_bytes(kem[_ML_KEM_BYTES:]),
    )
