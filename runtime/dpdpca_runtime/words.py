"""A key as twelve words, which people can compare by telephone."""

import hashlib

from dpdpca_protocol.errors import UsageError


def fingerprint_words(ed25519: bytes) -> str:
    """Twelve words of the BIP 39 English list for a raw Ed25519 public key.

    The words encode the first 16 bytes of the key's SHA-256, which is the party's id. 128 bits are enough to
    prevent a second key with the same words.

    Raises:
        UsageError: the key does not have 32 bytes.
    """
    from mnemonic import (
        Mnemonic,
    )  # imported only when words are shown, because reading the list takes a moment

    if len(ed25519) != 32:
        raise UsageError("wrong-shape", f"a raw Ed25519 key must have 32 bytes, not {len(ed25519)}")
    return str(Mnemonic("english").to_mnemonic(hashlib.sha256(ed25519).digest()[:16]))
