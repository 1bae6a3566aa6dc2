"""Chunks of padded values: how they are cut, encoded, made, checked, added up and opened.

The values of a share or release are one list. Each chunk has `CHUNK_VALUES` of them, and the last chunk has
the rest. A value has 8 bytes, little-endian. A chunk of a share begins with a salt; a chunk of a release has
none. All arithmetic is exact, modulo 2⁶⁴.
"""

from collections.abc import Iterable, Sequence
from operator import index as exact

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import MessageError, UsageError
from dpdpca_protocol.pads.keys import ShareKeys
from dpdpca_protocol.pads.streams import (
    CHUNK_VALUES,
    VALUE_BYTES,
    PadKey,
    PadStreams,
    Words,
    apply_pads,
    chunk_salt,
    open_stream,
    parts,
    write_next,
)
from dpdpca_protocol.wire.identifiers import Content

Integers = NDArray[np.int64]

MAGNITUDE_LIMIT = 1 << 62
"""Each value of a share is below this in absolute value."""


def chunk_count(value_count: int) -> int:
    """The number of chunks of a list of values."""
    return -(-value_count // CHUNK_VALUES)


def chunk_range(value_count: int, index: int) -> range:
    """The positions of the values in chunk `index`.

    Raises:
        MessageError: no chunk has this index.
    """
    chunks = chunk_count(value_count)
    if not 0 <= index < chunks:
        raise MessageError(
            "malformed", f"there is no chunk {index}: chunks are numbered from 0 to {chunks - 1}"
        )
    return range(index * CHUNK_VALUES, min((index + 1) * CHUNK_VALUES, value_count))


def check_chunk(untrusted: bytes, value_count: int, index: int, salt_bytes: int = 0) -> None:
    """Raises MessageError unless the chunk has its length. Every 8 bytes are a valid value.

    Args:
        untrusted: a chunk.
        value_count: the number of values in the whole share or release.
        index: the position of the chunk.
        salt_bytes: the length of its salt.
    """
    expected = salt_bytes + VALUE_BYTES * len(chunk_range(value_count, index))
    if len(untrusted) != expected:
        raise MessageError("malformed", f"chunk {index} has {len(untrusted)} bytes instead of {expected}")


def share_chunk(keys: ShareKeys, index: int, values: Integers, pairs: Sequence[PadKey] = ()) -> Content:
    """Chunk `index` of a share: its salt, then each value plus its pad, and plus its masks if blinded.

    The same keys and values always give the same bytes. Use keys for one list of values only.

    Args:
        keys: of this version of the share.
        index: the position of the chunk.
        values: (n,) int64, each below 2⁶² in absolute value.
        pairs: the keys that this owner shares with the others in a blinded study.

    Raises:
        UsageError: a value is too large.
    """
    salt = chunk_salt(keys.salt, index)
    chunk = np.empty(len(salt) + VALUE_BYTES * len(values), dtype=np.uint8).data
    chunk[: len(salt)] = salt
    words = np.frombuffer(chunk, dtype="<u8", offset=len(salt))
    _write_padded(keys.pad, index, values, words, pairs)
    return chunk.toreadonly()


def add_pads(pad_key: bytes, index: int, values: Integers) -> Words:
    """The values of chunk `index`, each with its pad.

    Use a key and an index for one list of values only. Whoever has two lists with the same pads sees the
    exact differences of their values.

    Args:
        pad_key: 32 bytes.
        index: the position of the chunk.
        values: (n,) int64, each below 2⁶² in absolute value.

    Raises:
        UsageError: a value is too large.
    """
    words = np.empty(len(values), dtype=np.uint64)
    _write_padded(pad_key, index, values, words)
    return words


def encode(words: Words) -> bytes:
    """The values of a chunk as they are sent, without a salt."""
    return words.astype("<u8", copy=False).tobytes()


def decode(content: Content) -> Words:
    """The values of a chunk that was checked before, without its salt."""
    return np.frombuffer(content, dtype="<u8")


def add_up(shares: Iterable[Words]) -> Words:
    """The sums over all owners, position by position.

    Args:
        shares: the same chunk of each owner. Each is read once, and only one is in memory at a time.

    Raises:
        UsageError: there is no share, or shares have different lengths.
    """
    total: Words | None = None
    for words in shares:
        if total is None:
            total = words.copy()
        elif len(words) != len(total):
            raise UsageError("wrong-shape", f"a share has {len(words)} values, but another has {len(total)}")
        else:
            total += words
    if total is None:
        raise UsageError("wrong-shape", "there is no share to add up")
    return total


def add_known(words: Words, values: Integers) -> Words:
    """Padded values plus known values, such as the noise of the proxy.

    Raises:
        UsageError: the lengths differ.
    """
    if len(words) != len(values):
        raise UsageError("wrong-length", f"got {len(values)} values instead of {len(words)}")
    return words + _as_words(values)


def open_chunk(words: Words, pad_keys: Iterable[bytes], index: int, out: Integers | None = None) -> Integers:
    """The sums in chunk `index` of a release, as signed integers.

    Args:
        words: the padded sums.
        pad_keys: the pad keys of the whole cohort, each once.
        index: the position of the chunk.
        out: (n,) int64, where to put the result; None for a new array.

    Returns:
        (n,) int64: the padded sums without the pads, modulo 2⁶⁴.
    """
    opened = np.empty(len(words), dtype=np.int64) if out is None else out
    apply_pads(words, [PadKey(key, adds=False) for key in pad_keys], index, out=_as_words(opened))
    return opened


def integers(values: Sequence[int]) -> Integers:
    """Values as an array. Raises UsageError for a value beyond 64 bits."""
    try:
        return np.fromiter(map(exact, values), dtype=np.int64, count=len(values))
    except OverflowError as error:
        raise UsageError("bad-argument", "a value does not fit into 64 bits") from error


def _write_padded(
    pad_key: bytes, index: int, values: Integers, out: Words, pairs: Sequence[PadKey] = ()
) -> None:
    """Writes to `out` the values of chunk `index`, each with its pad and masks. Raises like `add_pads`."""
    pads, masks = open_stream(pad_key, index), PadStreams(pairs, index)
    for place in parts(len(out)):
        part, given = out[place], values[place]
        write_next(pads, part)
        part += _as_words(given)
        _check_magnitudes(given)
        masks.apply(part, part)


def _check_magnitudes(values: Integers) -> None:
    if not -MAGNITUDE_LIMIT < int(values.min()) <= int(values.max()) < MAGNITUDE_LIMIT:
        raise UsageError("bad-argument", "a value of a share reaches 2⁶² in absolute value")


def _as_words(values: Integers) -> Words:
    """Signed integers modulo 2⁶⁴."""
    if values.dtype != np.int64:
        raise UsageError("bad-argument", f"values must be int64, not {values.dtype}")
    return values.view(np.uint64)
