"""The pads and the salt of one chunk, derived from the keys of a share version."""

import hmac
import struct
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from dpdpca_protocol.errors import UsageError

Words = NDArray[np.uint64]
"""Integers modulo 2⁶⁴. Numpy adds and subtracts them exactly, without floating point."""

KEY_BYTES = 32
CHUNK_VALUES = 98_304
"""The values of a full chunk. Their pads take 12,288 ChaCha20 blocks, so the block counter never wraps."""
VALUE_BYTES = 8

_SALT_TAG = b"dpdpca/salt/v2\x00"
_COUNTER_BYTES, _NONCE_BYTES = 4, 12


def chunk_pads(pad_key: bytes, index: int, count: int) -> Words:
    """The first `count` pads of chunk `index`.

    They are the ChaCha20 stream (RFC 8439) under the pad key, read as little-endian 64-bit words. The nonce
    is the index, 12 bytes big-endian, and the block counter begins at 0.

    Args:
        pad_key: 32 bytes.
        index: 0 or more.
        count: at most `CHUNK_VALUES`.
    """
    if not 0 <= count <= CHUNK_VALUES:
        raise UsageError("bad-argument", f"a chunk has at most {CHUNK_VALUES} values, not {count}")
    # `cryptography` takes the initial counter, little-endian, before the nonce.
    nonce = bytes(_COUNTER_BYTES) + index.to_bytes(_NONCE_BYTES, "big")
    stream = Cipher(ChaCha20(pad_key, nonce), mode=None).encryptor()
    pads = np.empty(count, dtype="<u8")
    stream.update_into(_zeros(VALUE_BYTES * count), pads.data.cast("B"))
    return pads


def chunk_salt(salt_key: bytes, index: int) -> bytes:
    """The salt of chunk `index`, 32 bytes. Whoever lacks the salt key cannot test guesses of the chunk."""
    return hmac.digest(salt_key, _SALT_TAG + struct.pack(">I", index), "sha256")


@lru_cache(maxsize=2)
def _zeros(count: int) -> bytes:
    return bytes(count)
