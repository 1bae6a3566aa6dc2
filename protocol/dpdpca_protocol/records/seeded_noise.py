"""Gaussian noise that a party derives from a secret: the same seed always gives the same noise.

To anyone without the seed, the noise is as good as fresh. A party that may have to make its noise again,
after a crash or from a backup, draws it in this way: two different draws on the same sums could be averaged.
"""

import hashlib
from functools import partial

from dpdpca_protocol.privacy.gaussian import discrete_gaussian
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.records.pairing import KeyStream
from dpdpca_protocol.wire.identifiers import Digest, StudyId

_OWNERS_TAG = b"dpdpca/owners-noise/v2"


class _Stream:
    """Randomness that is the same for the same seed."""

    def __init__(self, seed: bytes) -> None:
        self._stream = KeyStream(seed)

    def bytes(self, count: int) -> bytes:
        return self._stream.take(count).tobytes()

    def below(self, bound: int) -> int:
        length = (bound.bit_length() + 7) // 8
        limit = 256**length // bound * bound
        while (value := int.from_bytes(self.bytes(length), "big")) >= limit:
            pass
        return value % bound


def seeded_samplers(seed: bytes) -> Samplers:
    """Samplers whose Gaussian draws are derived from a seed of 32 bytes, one after the other.

    Laplace noise cannot be derived from a seed: it is drawn anew each time.

    Guarantee: the law of the draws is exact if the stream is as good as random; docs/claims.md, C12.
    """
    return Samplers(gaussian=partial(discrete_gaussian, randomness=_Stream(seed)))


def owners_noise_seed(key: bytes, study: StudyId, sums: Digest) -> bytes:
    """The seed of the noise that an owner adds to its share.

    Args:
        key: the key of the owner's ledger, which nobody else knows.
        study: the study's id.
        sums: the digest of the owner's exact integers. Other records give other noise, because two shares
            under one noise would show their exact difference.

    Source: docs/claims.md, C7. Tested: tests/unit/test_seeded_noise.py.
    """
    return hashlib.sha256(_framed(_OWNERS_TAG) + _framed(key) + _framed(study) + _framed(sums)).digest()


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
