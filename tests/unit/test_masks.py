"""Masks between owners: byte for byte as specified, 0 in the sum over all, and uniform in any smaller sum."""

import hmac
import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pad_streams import masks_of
from plain_chacha import chacha20_stream

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.pads.chunks import add_up, decode, integers, open_chunk, share_chunk
from dpdpca_protocol.pads.keys import ShareKeys
from dpdpca_protocol.pads.masks import check_blinding_key, pair_keys
from dpdpca_protocol.pads.streams import PadKey, Words
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.salts import unsalted

STUDY = StudyId.of(b"study")
PRIME = 2**255 - 19
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "masks.json").read_text(encoding="utf-8"))[
    "operations"
]
LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (PRIME - 1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
]


class Crowd:
    """Owners with keys, and the keys that each shares with the others."""

    def __init__(self, count: int, study: StudyId = STUDY) -> None:
        self.owners = [PartyId.of(b"owner %d" % i) for i in range(count)]
        self.keys = {owner: X25519PrivateKey.generate() for owner in self.owners}
        self.pairs = {owner: self.pairs_of(owner, study) for owner in self.owners}

    def public(self, owner: PartyId) -> bytes:
        return self.keys[owner].public_key().public_bytes_raw()

    def pairs_of(self, owner: PartyId, study: StudyId) -> tuple[PadKey, ...]:
        others = {other: self.public(other) for other in self.owners if other != owner}
        return pair_keys(self.keys[owner], owner, others, study)

    def masks(self, owners: Sequence[PartyId], index: int = 0, count: int = 4) -> Words:
        """The sum of these owners' masks."""
        return add_up(masks_of(self.pairs[owner], index, count) for owner in owners)


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, for one block."""
    return hmac.digest(hmac.digest(salt, secret, "sha256"), info + b"\x01", "sha256")


def x25519(scalar: bytes, u: bytes) -> bytes:
    """RFC 7748, section 5, with Python's integers."""
    k = int.from_bytes(scalar, "little") & ~7 & (2**254 - 1) | 2**254
    x1 = int.from_bytes(u, "little") & (2**255 - 1)
    x2, z2, x3, z3, swap = 1, 0, x1, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % PRIME, b * b % PRIME, d * a % PRIME, c * b % PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % PRIME, x1 * (da - cb) ** 2 % PRIME
        x2, z2 = aa * bb % PRIME, e * (aa + 121665 * e) % PRIME
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


def oracle_key(vector: dict[str, Any]) -> bytes:
    """The key of the pair of owners in a vector, from the specification alone."""
    low, high = (x25519(bytes.fromhex(vector[name]), (9).to_bytes(32, "little")) for name in ("low", "high"))
    ids = bytes.fromhex(vector["low_id"]) + bytes.fromhex(vector["high_id"])
    shared = x25519(bytes.fromhex(vector["low"]), high)
    return hkdf(shared, bytes.fromhex(vector["study"]), b"dpdpca/blinding/v2" + ids + low + high)


def words(key: bytes, index: int, count: int) -> list[int]:
    """The first words of the stream of a chunk."""
    stream = chacha20_stream(key, index.to_bytes(12, "big"), 0, 8 * count)
    return [int.from_bytes(stream[at : at + 8], "little") for at in range(0, 8 * count, 8)]


def oracle(vector: dict[str, Any]) -> list[int]:
    """The first words of both chunks of a vector."""
    key = oracle_key(vector)
    return [word for index in (0, 7) for word in words(key, index, 2)]


@pytest.mark.parametrize("vector", VECTORS)
def test_a_blinded_chunk_is_that_of_the_specification(vector: dict[str, Any]) -> None:
    salt = hmac.digest(
        bytes.fromhex(vector["salt_key"]), b"dpdpca/salt/v2\0" + (7).to_bytes(4, "big"), "sha256"
    )
    values = [int(value) for value in vector["values"]]
    pads, masks = (
        words(key, 7, len(values)) for key in (bytes.fromhex(vector["pad_key"]), oracle_key(vector))
    )
    hidden = [sum(each) % 2**64 for each in zip(values, pads, masks, strict=True)]
    assert salt + b"".join(word.to_bytes(8, "little") for word in hidden) == bytes.fromhex(vector["chunk"])


@pytest.mark.parametrize("vector", VECTORS)
def test_masks_are_those_of_the_specification(vector: dict[str, Any]) -> None:
    keys = {
        name: X25519PrivateKey.from_private_bytes(bytes.fromhex(vector[name])) for name in ("low", "high")
    }
    ids = {name: PartyId(bytes.fromhex(vector[f"{name}_id"])) for name in ("low", "high")}
    expected = [int(word) for word in vector["masks"]]
    assert oracle(vector) == expected
    for mine, theirs in (("low", "high"), ("high", "low")):
        others = {ids[theirs]: keys[theirs].public_key().public_bytes_raw()}
        pairs = pair_keys(keys[mine], ids[mine], others, StudyId(bytes.fromhex(vector["study"])))
        found = [int(word) for index in (0, 7) for word in masks_of(pairs, index, 2)]
        assert found == [word if mine == "low" else -word % 2**64 for word in expected]


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_masks_vanish_in_the_sum_over_all_owners_and_in_no_smaller_sum(count: int) -> None:
    crowd = Crowd(count)
    assert crowd.masks(crowd.owners).tolist() == [0] * 4
    for size in {1, count // 2, count - 1} - {0}:
        for some in list(combinations(crowd.owners, size))[:20]:
            assert 0 not in crowd.masks(some)


def test_the_masks_of_a_smaller_set_are_uniform() -> None:
    """Chi-square with 255 degrees of freedom on each byte of the values."""
    crowd = Crowd(3)
    for some in (crowd.owners[:1], crowd.owners[1:]):
        found = crowd.masks(some, count=20_000).view(np.uint8)
        counts = np.bincount(found, minlength=256)
        mean = len(found) / 256
        assert ((counts - mean) ** 2 / mean).sum() < 255 + 8 * np.sqrt(2 * 255)


def test_blinded_shares_open_to_the_sum_and_one_opens_to_nothing() -> None:
    crowd, values = Crowd(3), [5, -7, 2**62 - 1]
    keys = {owner: ShareKeys.draw(OS_RANDOMNESS) for owner in crowd.owners}
    shares = {
        owner: decode(unsalted(share_chunk(keys[owner], 3, integers(values), crowd.pairs[owner])))
        for owner in crowd.owners
    }
    total = open_chunk(add_up(shares.values()), [keys[owner].pad for owner in crowd.owners], 3)
    assert total[:2].tolist() == [15, -21]
    one = crowd.owners[0]
    alone = open_chunk(shares[one], [keys[one].pad], 3)
    assert not set(alone.tolist()) & set(values)
    without = decode(unsalted(share_chunk(keys[one], 3, integers(values))))
    assert open_chunk(without, [keys[one].pad], 3).tolist() == values


def test_masks_differ_with_the_study_the_pair_and_the_chunk() -> None:
    crowd = Crowd(3)
    first, second, _ = crowd.owners
    other = crowd.pairs_of(first, StudyId.of(b"another"))
    keys = {pair.key for owner in crowd.owners for pair in crowd.pairs[owner]}
    assert len(keys | {pair.key for pair in other}) == 5
    masks = [crowd.masks([first], index) for index in range(3)] + [crowd.masks([second])]
    assert len({tuple(each.tolist()) for each in masks}) == 4


def test_the_masks_of_a_pair_follow_its_secret() -> None:
    """Everybody knows the ids, the study and the public keys."""
    crowd = Crowd(2)
    first, second = crowd.owners
    others = {second: crowd.public(second)}
    info = b"dpdpca/blinding/v2" + b"".join(sorted(crowd.owners))
    low, high = sorted(crowd.owners)
    public = hkdf(bytes(32), STUDY, info + crowd.public(low) + crowd.public(high))
    found = {pair_keys(X25519PrivateKey.generate(), first, others, STUDY)[0].key for _ in range(3)}
    assert len({*found, crowd.pairs[first][0].key, public}) == 5


@pytest.mark.parametrize("weak", LOW_ORDER)
def test_a_key_of_low_order_is_refused(weak: bytes) -> None:
    with pytest.raises(CryptographicError, match="low order"):
        check_blinding_key(weak)
    with pytest.raises(CryptographicError, match="low order"):
        pair_keys(X25519PrivateKey.generate(), PartyId.of(b"a"), {PartyId.of(b"b"): weak}, STUDY)


@pytest.mark.parametrize("off", [0, 1, 9, 18, 2**255 - PRIME + 9])
def test_a_second_encoding_of_a_point_is_refused(off: int) -> None:
    with pytest.raises(CryptographicError, match="only encoding"):
        check_blinding_key((PRIME + off).to_bytes(32, "little"))
    check_blinding_key((9).to_bytes(32, "little"))


def test_two_equal_keys_are_refused() -> None:
    own, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    mine, theirs = own.public_key().public_bytes_raw(), other.public_key().public_bytes_raw()
    ids = [PartyId.of(name) for name in (b"a", b"b", b"c")]
    for others in ({ids[1]: theirs, ids[2]: theirs}, {ids[1]: mine}):
        with pytest.raises(CryptographicError, match="same blinding key"):
            pair_keys(own, ids[0], others, STUDY)


def test_a_pair_key_shows_nothing() -> None:
    assert repr(PadKey(bytes(32), adds=True)) == "PadKey(…)"
