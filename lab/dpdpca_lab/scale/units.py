"""Measures the unit costs of `Units` on this machine, in about two minutes on one core."""

import time

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpdpca_lab.benchmarks.phases import Size, bench_aggregate, bench_decrypt, bench_encrypt
from dpdpca_lab.scale.model import Units
from dpdpca_lab.scale.simulation import Spent, simulate
from dpdpca_lab.scale.uploads import ask, upload
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.pads.streams import CHUNK_VALUES, apply_pads
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.wire.identifiers import PartyId, StudyId

_FEW, _MANY = 500, 50_000
"""Values of two shares whose costs give the parts that do and do not grow with the values."""
_SHARES = 300
_PAIRS = 200
_FEATURES = 200
_OWNERS = 8
_UPLOADS = 12
_NARROW, _WIDE = 10, 617
"""Features of two studies that are sent to a real proxy."""
_PARTIES, _LISTED, _QUESTIONS = 3_000, 100_000, 50
"""Parties at a proxy, features of a list, and how often it is asked for them."""


def measure() -> Units:
    """The unit costs of this machine, each from one run."""
    few, many = simulate(_SHARES, _FEW), simulate(_SHARES // 5, _MANY)
    owner, proxy, user = (
        _line(few.owners, one, many.owners, other)
        for one, other in ((few.owner, many.owner), (few.proxy, many.proxy), (few.user, many.user))
    )
    small, large = upload(_NARROW, _UPLOADS), upload(_WIDE, _UPLOADS)
    requests = [each.cpu_seconds / each.shares for each in (small, large)]
    counts = [each.chunks + 1 for each in (small, large)]
    sizes = [each.bytes / each.shares for each in (small, large)]
    request, request_byte = np.linalg.solve(np.column_stack([counts, sizes]), requests)
    # What the simulation counts too is taken off, so that nothing is counted twice.
    request -= proxy[0] / counts[0]
    size = Size(_FEATURES, _OWNERS, 3072, ReleaseKind.JOINT, 1, 1)
    count = size.figures.ciphertext_count
    encrypted, multiplied, decrypted = (
        bench(size, None) for bench in (bench_encrypt, bench_aggregate, bench_decrypt)
    )
    pair_share, pair_value = _pairs()
    answers = ask(_PARTIES, _LISTED, _QUESTIONS)
    return Units(
        owner_share=owner[0],
        owner_value=owner[1],
        proxy_share=proxy[0],
        proxy_value=proxy[1],
        user_share=user[0],
        user_value=user[1],
        pair_share=pair_share,
        pair_value=pair_value,
        request=max(0.0, float(request)),
        request_byte=max(0.0, float(request_byte)),
        answer=answers.short,
        list_byte=answers.list_byte,
        file_byte=answers.file_byte,
        encrypt=encrypted.cpu_seconds / count,
        multiply=multiplied.cpu_seconds / (count * _OWNERS),
        decrypt=decrypted.cpu_seconds / count,
    )


def _line(few: int, one: Spent, many: int, other: Spent) -> tuple[float, float]:
    """Seconds for a share, and for each value, from two sizes."""
    at_few, at_many = one.seconds / few, other.seconds / many
    slope = max(0.0, (at_many - at_few) / (_MANY - _FEW))
    return at_few - slope * _FEW, slope


def _pairs() -> tuple[float, float]:
    """Seconds of the masks for one other owner: to agree on a key, and for each value."""
    own, owner, study = X25519PrivateKey.generate(), PartyId.of(b"own"), StudyId.of(b"scale")
    others = {
        PartyId.of(b"other %d" % number): X25519PrivateKey.generate().public_key().public_bytes_raw()
        for number in range(_PAIRS)
    }
    begin = time.process_time()
    pairs = pair_keys(own, owner, others, study)
    agreed = time.process_time()
    apply_pads(np.zeros(CHUNK_VALUES, dtype="<u8"), pairs, 0)
    end = time.process_time()
    return (agreed - begin) / _PAIRS, (end - agreed) / _PAIRS / CHUNK_VALUES
