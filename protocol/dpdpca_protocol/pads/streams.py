"""The pads and the salt of one chunk, derived from the keys of a share version."""

import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass

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
_PART_VALUES = 8192
_ZEROS = memoryview(bytes(VALUE_BYTES * _PART_VALUES))


@dataclass(frozen=True, slots=True, repr=False)
class PadKey:
    """A key of pads, and whether its pads are added or subtracted. Its repr shows nothing.

    Attributes:
        key: 32 bytes.
        adds: False if the pads are subtracted.
    """

    key: bytes
    adds: bool

    def __repr__(self) -> str:
        return "PadKey(…)"


def apply_pads(words: Words, keys: Iterable[PadKey], index: int, out: Words | None = None) -> None:
    """Adds to `words`, or subtracts from them, the pads of chunk `index` under each of the keys.

    Pads are the ChaCha20 stream (RFC 8439) under the key, read as little-endian 64-bit words. The nonce is
    the index, 12 bytes big-endian, and the block counter begins at 0.

    Args:
        words: (n,) at most `CHUNK_VALUES`.
        keys: each is used once.
        index: 0 or more.
        out: (n,) where to put the result; None for `words` themselves.
    """
    if len(words) > CHUNK_VALUES:
        raise UsageError("bad-argument", f"a chunk has at most {CHUNK_VALUES} values, not {len(words)}")
    # `cryptography` takes the initial counter, little-endian, before the nonce.
    nonce = bytes(_COUNTER_BYTES) + index.to_bytes(_NONCE_BYTES, "big")
    streams = [
        (np.add if each.adds else np.subtract, Cipher(ChaCha20(each.key, nonce), mode=None).encryptor())
        for each in keys
    ]
    result = words if out is None else out
    if not streams:
        np.copyto(result, words)
    pads = np.empty(_PART_VALUES, dtype="<u8")
    for start in range(0, len(words), _PART_VALUES):
        # A part stays in the processor's cache while all streams pass over it.
        part, into = words[start : start + _PART_VALUES], result[start : start + _PART_VALUES]
        of_part = pads[: len(part)]
        for apply, stream in streams:
            stream.update_into(_ZEROS[: of_part.nbytes], of_part.data.cast("B"))
            part = apply(part, of_part, out=into)


def chunk_salt(salt_key: bytes, index: int) -> bytes:
    """The salt of chunk `index`, 32 bytes. Whoever lacks the salt key cannot test guesses of the chunk."""
    return hmac.digest(salt_key, _SALT_TAG + struct.pack(">I", index), "sha256")
