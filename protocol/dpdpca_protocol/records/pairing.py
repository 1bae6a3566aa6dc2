"""Forms pairs of records, whose differences need no centre.

The values of records do not influence the pairs. The order is derived from a secret of the owner and the
study's id, so that a share can be made again with the same pairs. Besides this secret and the id, the order
depends only on the number of records. If a record is replaced by another, only its own pair changes.
"""

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from dpdpca_protocol.records.encoding import ABSENT
from dpdpca_protocol.wire.identifiers import StudyId

SEED_BYTES = 32

_TAG = b"dpdpca/pairing/v1\x00"


class KeyStream:
    """Pseudorandom bytes: always the same for one seed, and random to anyone without the seed.

    Args:
        seed: `SEED_BYTES` bytes.
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()

    def take(self, count: int) -> NDArray[np.uint8]:
        """The next `count` bytes. The stream is the same whether bytes are taken at once or one by one."""
        return np.frombuffer(self._stream.update(bytes(count)), dtype=np.uint8)


def pairing_seed(key: bytes, study: StudyId) -> bytes:
    """The seed of the pairing in one study, derived from an owner's secret key."""
    return hashlib.sha256(_TAG + len(key).to_bytes(4, "big") + key + study).digest()


def shuffled(count: int, stream: KeyStream) -> NDArray[np.int64]:
    """A permutation of `count` positions, sorted by 64 random bits each."""
    keys = stream.take(8 * count).view("<u8")
    return np.argsort(keys, kind="stable")


def pairs(
    batches: Iterable[NDArray[np.int64]],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Each two consecutive records, across batches. If the number of records is odd, the last record is
    dropped.

    Args:
        batches: (n, d) int64 in the order of pairing.

    Returns:
        The first and the second records of pairs, each (m, d) int64, in batches.
    """
    rest: NDArray[np.int64] | None = None
    for batch in batches:
        z = batch if rest is None else np.concatenate([rest, batch])
        even = len(z) // 2 * 2
        rest = z[even:]
        if even:
            yield z[0:even:2], z[1:even:2]


def difference(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """y = z_i − z_j of pairs, exact.

    A coordinate of y is 0 if either record lacks it. So a missing value does not count as the distance of the
    other record from the centre.

    Args:
        first, second: (m, d) int64, with `ABSENT` for every coordinate that a record lacks.
    """
    y = first - second
    if (absent := (first == ABSENT) | (second == ABSENT)).any():
        y[absent] = 0
    return y


def differences(batches: Iterable[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    """The differences of all `pairs`, (m, d) int64 in batches."""
    return (difference(first, second) for first, second in pairs(batches))
