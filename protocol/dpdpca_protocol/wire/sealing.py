"""Sealing to a party's key (HPKE), at rest under a data key, and under a passphrase.

HPKE (RFC 9180) is used in base mode, single shot, with ML-KEM-768 and X25519, HKDF-SHA256, ChaCha20-Poly1305
and empty associated data. A sealed message is enc ‖ ciphertext. Data sealed at rest begin with a random
96-bit nonce. The context of sealed data (what they are, of which study) is the associated data, so that a
swapped file does not open.
"""

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from dpdpca_protocol.errors import AuthenticationError, CryptographicError, IntegrityError
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.wire.identifiers import Content, PartyId, StudyId
from dpdpca_protocol.wire.kem import ENCAPSULATION_BYTES, HPKE, KemKey, public_pair
from dpdpca_protocol.wire.signing import FORMAT

SEALING_OVERHEAD_BYTES = ENCAPSULATION_BYTES + 16
DATA_KEY_BYTES = 32
_NONCE_BYTES = 12
_SALT_BYTES = 16
_SCRYPT_LOG2_COST = 16


def chunk_info(study: StudyId, owner: PartyId, version: int, index: int) -> bytes:
    """The HPKE `info` of chunk `index` of an owner's share version.

    The chunk only opens at this position. `info` names the owner, so that nobody can submit another owner's
    sealed chunks as their own.
    """
    return f"dpdpca/chunk/v{FORMAT}".encode() + study + owner + struct.pack(">II", version, index)


def components_info(study: StudyId) -> bytes:
    """The HPKE `info` of components that are published to one owner."""
    return f"dpdpca/components/v{FORMAT}".encode() + study


def seal(plaintext: Content, kem: bytes, info: bytes) -> bytes:
    """Seals `plaintext` to a public key `kem`: only the holder of the private key can read the result.

    Raises:
        CryptographicError: `unfit-sealing-key`, nothing can be sealed to this key.
    """
    try:
        return HPKE.encrypt(plaintext, public_pair(kem), info)
    except ValueError as error:
        raise CryptographicError(
            "unfit-sealing-key", "nothing can be sealed to a key", "ask its holder to enrol with a valid key"
        ) from error


def open_sealed(untrusted: bytes, key: KemKey, info: bytes) -> bytes:
    """Opens what was sealed to `key` with the same `info`.

    Raises:
        CryptographicError: the message was sealed to another key or for another place, or it was altered.
    """
    try:
        return HPKE.decrypt(untrusted, key.pair, info)
    except Exception as error:  # the library raises several kinds of errors; all mean the same here
        raise CryptographicError(
            "sealed-body-does-not-open",
            "a sealed body cannot be decrypted: it was sealed to another key or for another place, or it was "
            "altered",
            "fetch the recipient's key and the study again, then seal and send it again",
        ) from error


def seal_at_rest(plaintext: bytes, key: bytes, context: bytes, randomness: Randomness) -> bytes:
    """Seals `plaintext` under a 32-byte data key.

    `context` says what the plaintext is. The sealed bytes can only be opened with the same context.
    """
    nonce = randomness.bytes(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, context)


def open_at_rest(sealed: bytes, key: bytes, context: bytes) -> bytes:
    """Raises IntegrityError if stored bytes do not open under this key and context."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
    except (InvalidTag, ValueError) as error:
        raise IntegrityError(
            "state-corrupt",
            "stored bytes cannot be decrypted with their key",
            "keep a copy of the home, then restore the home from the newest backup",
        ) from error


def seal_with_passphrase(
    plaintext: bytes, passphrase: bytes, context: bytes, randomness: Randomness
) -> bytes:
    """Seals `plaintext` under scrypt(passphrase), salt in front (RFC 7914; N = 2¹⁶, r = 8, p = 1)."""
    salt = randomness.bytes(_SALT_BYTES)
    return salt + seal_at_rest(plaintext, _passphrase_key(passphrase, salt), context, randomness)


def open_with_passphrase(sealed: bytes, passphrase: bytes, context: bytes) -> bytes:
    """Raises AuthenticationError for a wrong passphrase or altered bytes, which look the same."""
    key = _passphrase_key(passphrase, sealed[:_SALT_BYTES])
    try:
        return open_at_rest(sealed[_SALT_BYTES:], key, context)
    except IntegrityError as error:
        raise AuthenticationError(
            "wrong-passphrase",
            "a sealed key cannot be decrypted",
            "give the passphrase with which the key was sealed",
        ) from error


def _passphrase_key(passphrase: bytes, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=DATA_KEY_BYTES, n=1 << _SCRYPT_LOG2_COST, r=8, p=1).derive(passphrase)
