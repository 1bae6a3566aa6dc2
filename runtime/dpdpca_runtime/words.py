"""A key as twelve words, to be compared over the telephone."""

import hashlib

from dpdpca_protocol.errors import UsageError


def fingerprint_words(ed25519: bytes) -> str:
    """Twelve words of the BIP 39 English list for a raw Ed25519 public key.

    They encode the first 16 bytes of its SHA-256, that is of the party's id: 128 bits, enough against a
    second key with the same words.

    Raises:
        UsageError: not a 32-byte key.
    """
    from mnemonic import Mnemonic  # only where words are shown: the list takes a moment to read

    if len(ed25519) != 32:
        raise UsageError("wrong-shape", f"a raw Ed25519 key has 32 bytes, not {len(ed25519)}")
    return str(Mnemonic("english").to_mnemonic(hashlib.sha256(ed25519).digest()[:16]))
