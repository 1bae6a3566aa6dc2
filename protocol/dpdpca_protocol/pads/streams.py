"""The pads and the salt of one chunk, derived from the keys of a share version."""

import hmac
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
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
PART_VALUES = 32_768
_ZEROS = memoryview(bytes(VALUE_BYTES * PART_VALUES))


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


def open_stream(key: bytes, index: int) -> CipherContext:
    """The pads of chunk `index` under a key, from the first one.

    Pads are the ChaCha20 stream (RFC 8439) under the key, read as little-endian 64-bit words. The nonce is
    the index, 12 bytes big-endian, and the block counter begins at 0.

    Args:
        key: 32 bytes.
        index: 0 or more.
    """
    # `cryptography` takes the initial counter, little-endian, before the nonce.
    nonce = bytes(_COUNTER_BYTES) + index.to_bytes(_NONCE_BYTES, "big")
    return Cipher(ChaCha20(key, nonce), mode=None).encryptor()


def write_next(stream: CipherContext, out: Words) -> None:
    """Writes the next pads of a stream to `out`, (n,) with n at most `PART_VALUES`."""
    stream.update_into(_ZEROS[: out.nbytes], out.data.cast("B"))


def parts(count: int) -> Iterator[slice]:
    """The places of a chunk of `count` values in parts that fit into the processor's cache."""
    if count > CHUNK_VALUES:
        raise UsageError("bad-argument", f"a chunk has at most {CHUNK_VALUES} values, not {count}")
    return (slice(start, start + PART_VALUES) for start in range(0, count, PART_VALUES))


class PadStreams:
    """The pads of chunk `index` under each of some keys, taken part by part."""

    def __init__(self, keys: Iterable[PadKey], index: int) -> None:
        self._streams = [
            (np.add if each.adds else np.subtract, open_stream(each.key, index)) for each in keys
        ]
        self._pads = np.empty(PART_VALUES, dtype="<u8")

    def apply(self, part: Words, out: Words) -> None:
        """Writes `part` to `out`, (n,) with n at most `PART_VALUES`, with the next pads of all keys.

        The part stays in the processor's cache while all streams pass over it.
        """
        if not self._streams and out is not part:
            np.copyto(out, part)
        pads = self._pads[: len(part)]
        for apply, stream in self._streams:
            write_next(stream, pads)
            part = apply(part, pads, out=out)


def apply_pads(words: Words, keys: Iterable[PadKey], index: int, out: Words | None = None) -> None:
    """Adds to `words`, or subtracts from them, the pads of chunk `index` under each of the keys.

    Args:
        words: (n,) at most `CHUNK_VALUES`.
        keys: each is used once.
        index: 0 or more.
        out: (n,) where to put the result; None for `words` themselves.
    """
    streams, result = PadStreams(keys, index), words if out is None else out
    for place in parts(len(words)):
        streams.apply(words[place], result[place])


def chunk_salt(salt_key: bytes, index: int) -> bytes:
    """The salt of chunk `index`, 32 bytes. Whoever lacks the salt key cannot test guesses of the chunk."""
    return hmac.digest(salt_key, _SALT_TAG + struct.pack(">I", index), "sha256")
