"""The keys of the pads: an owner's for one version of its share, and the data user's for one study."""

import struct
from dataclasses import dataclass
from typing import Self

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.pads.streams import KEY_BYTES
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.kem import KemKey
from dpdpca_protocol.wire.sealing import SEALING_OVERHEAD_BYTES, open_sealed, seal

SEALED_KEY_BYTES = KEY_BYTES + SEALING_OVERHEAD_BYTES
"""The length of a sealed pad key, the member `pad` of a share statement."""

_INFO = b"dpdpca/pad/v2"
_SEED_BYTES = 64
_SECRET_BYTES = _SEED_BYTES + 2 * KEY_BYTES


@dataclass(frozen=True, slots=True, repr=False)
class ShareKeys:
    """An owner's secrets for one version of its share. Its repr shows nothing.

    One version has one plaintext. Two plaintexts under one pad key would show their difference to the proxy.

    Args:
        pad: k, the key of the pads, 32 bytes.
        salt: the key of the salts, 32 bytes.
    """

    pad: bytes
    salt: bytes

    def __repr__(self) -> str:
        return "ShareKeys(…)"

    @classmethod
    def draw(cls, randomness: Randomness) -> Self:
        """New keys."""
        return cls(randomness.bytes(KEY_BYTES), randomness.bytes(KEY_BYTES))

    def to_bytes(self) -> bytes:
        return self.pad + self.salt

    @classmethod
    def from_bytes(cls, stored: bytes) -> Self:
        """Raises MessageError unless there are 64 bytes."""
        _check_length(stored, 2 * KEY_BYTES, "the secrets of a share")
        return cls(stored[:KEY_BYTES], stored[KEY_BYTES:])


@dataclass(frozen=True, slots=True, repr=False)
class PadsSecret:
    """The data user's secret for one study. Its repr shows nothing.

    Args:
        kem: opens the pad keys of the owners.
        second_noise: 32 bytes, from which the data user's own draw of noise is derived.
    """

    kem: KemKey
    second_noise: bytes

    def __repr__(self) -> str:
        return "PadsSecret(…)"

    @classmethod
    def generate(cls, randomness: Randomness) -> Self:
        """A new secret, for one study only."""
        return cls.from_bytes(randomness.bytes(_SECRET_BYTES))

    @property
    def public(self) -> bytes:
        """The manifest's `key.kem`."""
        return self.kem.public

    def to_bytes(self) -> bytes:
        """The ML-KEM seed, the X25519 key, then `second_noise`."""
        ml_kem, x25519 = self.kem.parts
        return ml_kem.private_bytes_raw() + x25519.private_bytes_raw() + self.second_noise

    @classmethod
    def from_bytes(cls, stored: bytes) -> Self:
        """Raises MessageError unless there are 128 bytes."""
        _check_length(stored, _SECRET_BYTES, "the secret of a study")
        ml_kem = MLKEM768PrivateKey.from_seed_bytes(stored[:_SEED_BYTES])
        x25519 = X25519PrivateKey.from_private_bytes(stored[_SEED_BYTES:-KEY_BYTES])
        return cls(KemKey(ml_kem, x25519), stored[-KEY_BYTES:])


def seal_pad_key(pad: bytes, kem: bytes, study: StudyId, owner: PartyId, version: int) -> bytes:
    """The pad key of one share version, sealed to the study's key.

    Raises:
        CryptographicError: nothing can be sealed to `kem`.
    """
    return seal(pad, kem, _info(study, owner, version))


def open_pad_key(untrusted: bytes, secret: PadsSecret, study: StudyId, owner: PartyId, version: int) -> bytes:
    """The pad key that this owner sealed for this version of its share in this study.

    Raises:
        CryptographicError: it was sealed to another key, or for another study, owner or version.
        MessageError: what was sealed is not a key.
    """
    pad = open_sealed(untrusted, secret.kem, _info(study, owner, version))
    _check_length(pad, KEY_BYTES, "a pad key")
    return pad


def _info(study: StudyId, owner: PartyId, version: int) -> bytes:
    return _INFO + study + owner + struct.pack(">I", version)


def _check_length(content: bytes, expected: int, what: str) -> None:
    if len(content) != expected:
        raise MessageError("malformed", f"{what} must have {expected} bytes, not {len(content)}")
