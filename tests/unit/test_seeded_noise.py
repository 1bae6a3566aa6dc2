"""Noise out of a seed: the same again, and other noise for another key, study or share."""

import hashlib
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_chacha import chacha20_stream

from dpdpca_protocol.privacy.gaussian_draws import draw_gaussians
from dpdpca_protocol.records.seeded_noise import owners_noise_seed, seeded_samplers
from dpdpca_protocol.wire.identifiers import Digest, StudyId

KEY, STUDY, SUMS = b"k" * 32, StudyId(b"s" * 32), Digest(b"d" * 32)
SIZED = st.binary(min_size=32, max_size=32)
PARTS = st.tuples(st.binary(max_size=64), SIZED.map(StudyId), SIZED.map(Digest))


def draws(seed: bytes, count: int = 40) -> list[int]:
    return seeded_samplers(seed).gaussian(Fraction(10**12), count, 13 * 10**6)


@given(one=PARTS, other=PARTS)
def test_two_seeds_are_equal_only_if_all_their_parts_are(
    one: tuple[bytes, StudyId, Digest], other: tuple[bytes, StudyId, Digest]
) -> None:
    assert (owners_noise_seed(*one) == owners_noise_seed(*other)) == (one == other)


@given(parts=PARTS, bit=st.integers(0, 255), place=st.integers(1, 2))
def test_one_bit_of_the_study_or_of_the_sums_gives_other_noise(
    parts: tuple[bytes, StudyId, Digest], bit: int, place: int
) -> None:
    changed: list[bytes] = list(parts)
    flipped = bytearray(changed[place])
    flipped[bit // 8] ^= 1 << bit % 8
    changed[place] = bytes(flipped)
    other = changed[0], StudyId(changed[1]), Digest(changed[2])
    assert draws(owners_noise_seed(*parts), 8) != draws(owners_noise_seed(*other), 8)


def test_each_owner_has_noise_of_its_own() -> None:
    """Two ledgers' keys, with the same study and the same sums."""
    keys = (b"a" * 32, b"b" * 32)
    assert len({tuple(draws(owners_noise_seed(key, STUDY, SUMS))) for key in keys}) == 2


def test_no_part_can_pass_for_another() -> None:
    seeds = {
        owners_noise_seed(KEY, STUDY, SUMS),
        owners_noise_seed(KEY, StudyId(SUMS), Digest(STUDY)),
        owners_noise_seed(KEY + STUDY, StudyId(SUMS), SUMS),
        owners_noise_seed(b"", StudyId(KEY), SUMS),
        owners_noise_seed(bytes(STUDY), StudyId(KEY), SUMS),
    }
    assert len(seeds) == 5


def test_the_seed_is_the_stated_hash() -> None:
    parts = (b"dpdpca/owners-noise/v2", KEY, STUDY, SUMS)
    framed = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    assert owners_noise_seed(KEY, STUDY, SUMS) == hashlib.sha256(framed).digest()


class PlainStream:
    """Bytes of ChaCha20 by the RFC, for the sampler."""

    def __init__(self, seed: bytes, length: int) -> None:
        self.left = chacha20_stream(seed, bytes(12), 0, length)

    def bytes(self, count: int) -> bytes:
        taken, self.left = self.left[:count], self.left[count:]
        assert len(taken) == count
        return taken

    def below(self, bound: int) -> int:
        raise AssertionError("the sampler takes bytes")


def test_the_draws_are_those_of_the_stated_sampler_over_the_stated_stream() -> None:
    seed = owners_noise_seed(KEY, STUDY, SUMS)
    stream = PlainStream(seed, 20_000)
    wanted = [draw_gaussians(10**6, count, 13 * 10**6, stream) for count in (40, 3)]
    sample = seeded_samplers(seed)
    found = [sample.gaussian(Fraction(10**12), count, 13 * 10**6) for count in (40, 3)]
    assert found == [each.tolist() for each in wanted]
    assert np.concatenate(wanted).std() == pytest.approx(1e6, rel=0.6)


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1, 2), Fraction(7)])
def test_small_scales_draw_too(variance: Fraction) -> None:
    """Shares of a histogram's noise may be as small as a quarter."""
    count = 4000
    found = np.array(seeded_samplers(bytes(32)).gaussian(variance, count, 40))
    support = np.arange(-40, 41)
    weights = np.exp(-(support**2) / (2 * float(variance)))
    exact = float((support**2 * weights).sum() / weights.sum())
    # The seed is fixed, so this never fails by chance.
    assert found.var() == pytest.approx(exact, rel=0.12)
    assert abs(found.mean()) < 5 * (exact / count) ** 0.5
