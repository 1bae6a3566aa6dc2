"""Pads against an independent ChaCha20 and against sums of Python's integers."""

import hmac

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from plain_chacha import chacha20_stream

from dpdpca_protocol.errors import CryptographicError, MessageError, UsageError
from dpdpca_protocol.pads.chunks import (
    MAGNITUDE_LIMIT,
    add_known,
    add_up,
    check_chunk,
    chunk_count,
    chunk_range,
    decode,
    encode,
    open_chunk,
    share_chunk,
)
from dpdpca_protocol.pads.keys import (
    SEALED_KEY_BYTES,
    PadsSecret,
    ShareKeys,
    open_pad_key,
    seal_pad_key,
)
from dpdpca_protocol.pads.streams import CHUNK_VALUES, chunk_pads, chunk_salt
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.sealing import open_sealed, seal

SALT_BYTES = 32
STUDY, OWNER = StudyId.of(b"study"), PartyId.of(b"owner")
KEYS = ShareKeys(bytes(range(32)), bytes(range(32, 64)))


def integers(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def modulo(value: int) -> int:
    """`value` modulo 2⁶⁴, as a signed integer."""
    return (value + 2**63) % 2**64 - 2**63


# --- streams ----------------------------------------------------------------------------------------------


def test_the_plain_chacha_has_the_vectors_of_the_rfc() -> None:
    # RFC 8439, section 2.3.2 (block 1) and appendix A.1, vector 1 (block 0 of zeros).
    nonce = bytes.fromhex("000000090000004a00000000")
    assert chacha20_stream(bytes(range(32)), nonce, 1, 64).hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert chacha20_stream(bytes(32), bytes(12), 0, 32).hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    )


@pytest.mark.parametrize("index", [0, 1, 255, 256, 2**32 - 1])
def test_pads_are_the_words_of_a_chacha20_stream_whose_nonce_is_the_index(index: int) -> None:
    count = 37  # the last block is used in part
    stream = chacha20_stream(KEYS.pad, index.to_bytes(12, "big"), 0, 8 * count)
    expected = [int.from_bytes(stream[at : at + 8], "little") for at in range(0, 8 * count, 8)]
    assert chunk_pads(KEYS.pad, index, count).tolist() == expected


def test_the_last_pad_of_a_full_chunk_is_in_block_12287() -> None:
    block = chacha20_stream(KEYS.pad, (5).to_bytes(12, "big"), 12_287, 64)
    assert encode(chunk_pads(KEYS.pad, 5, CHUNK_VALUES)[-8:]) == block
    with pytest.raises(UsageError):
        chunk_pads(KEYS.pad, 5, CHUNK_VALUES + 1)


def test_every_pad_differs_with_key_and_chunk() -> None:
    other = ShareKeys.draw(OS_RANDOMNESS)
    streams = [chunk_pads(key, index, 64) for key in (KEYS.pad, other.pad) for index in range(3)]
    pads = np.concatenate(streams).tolist()
    assert len(set(pads)) == len(pads)


def test_a_salt_is_an_hmac_of_the_index() -> None:
    tagged = b"dpdpca/salt/v2\x00" + b"\x00\x00\x01\x02"
    assert chunk_salt(KEYS.salt, 258) == hmac.digest(KEYS.salt, tagged, "sha256")
    keys = KEYS.salt, ShareKeys.draw(OS_RANDOMNESS).salt
    assert len({chunk_salt(key, index) for key in keys for index in range(50)}) == 100


# --- chunks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "lengths"),
    [
        (1, [1]),
        (CHUNK_VALUES, [CHUNK_VALUES]),
        (CHUNK_VALUES + 1, [CHUNK_VALUES, 1]),
        (3 * CHUNK_VALUES - 1, [CHUNK_VALUES, CHUNK_VALUES, CHUNK_VALUES - 1]),
    ],
)
def test_chunks_are_full_except_the_last(values: int, lengths: list[int]) -> None:
    ranges = [chunk_range(values, index) for index in range(chunk_count(values))]
    assert [len(part) for part in ranges] == lengths
    assert [at for part in ranges for at in (part.start, part.stop)][1:-1:2] == [
        part.start for part in ranges[1:]
    ]
    for index in (-1, len(lengths)):
        with pytest.raises(MessageError):
            chunk_range(values, index)


def test_a_full_chunk_has_the_size_of_the_specification() -> None:
    chunk = share_chunk(KEYS, 0, np.zeros(CHUNK_VALUES, dtype=np.int64))
    assert len(chunk) == 786_464
    check_chunk(chunk, CHUNK_VALUES, 0, SALT_BYTES)


def test_a_chunk_is_its_salt_and_little_endian_values_with_their_pads() -> None:
    values = [0, 1, -1, 2**62 - 1, 1 - 2**62, 12345678901]
    stream = chacha20_stream(KEYS.pad, (7).to_bytes(12, "big"), 0, 8 * len(values))
    expected = b"".join(
        ((value + int.from_bytes(stream[8 * i : 8 * i + 8], "little")) % 2**64).to_bytes(8, "little")
        for i, value in enumerate(values)
    )
    assert share_chunk(KEYS, 7, integers(*values)) == chunk_salt(KEYS.salt, 7) + expected


@pytest.mark.parametrize("off", [-8, -1, 1, 8])
def test_a_chunk_of_another_length_is_refused(off: int) -> None:
    check_chunk(bytes(SALT_BYTES + 24), 3, 0, SALT_BYTES)
    check_chunk(bytes(24), 3, 0)
    with pytest.raises(MessageError):
        check_chunk(bytes(24 + off), 3, 0)
    with pytest.raises(MessageError):
        check_chunk(bytes(SALT_BYTES + 24 + off), 3, 0, SALT_BYTES)


@pytest.mark.parametrize("value", [MAGNITUDE_LIMIT, -MAGNITUDE_LIMIT, 2**63 - 1, -(2**63)])
def test_a_value_of_2_to_the_62_is_refused(value: int) -> None:
    share_chunk(KEYS, 0, integers(MAGNITUDE_LIMIT - 1, 1 - MAGNITUDE_LIMIT))
    with pytest.raises(UsageError):
        share_chunk(KEYS, 0, integers(0, value))


def test_floats_are_refused() -> None:
    with pytest.raises(UsageError):
        share_chunk(KEYS, 0, np.array([0.0, 1.0]))
    with pytest.raises(UsageError):
        add_known(chunk_pads(KEYS.pad, 0, 1), np.array([1.0]))


# --- sums -------------------------------------------------------------------------------------------------

WIDE = st.integers(1 - MAGNITUDE_LIMIT, MAGNITUDE_LIMIT - 1)


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[list[list[int]], list[int], int]:
    """The values of each owner, known values to add, and the index of the chunk."""
    length = draw(st.integers(1, 6))
    row = st.lists(WIDE, min_size=length, max_size=length)
    return draw(st.lists(row, min_size=1, max_size=5)), draw(row), draw(st.integers(0, 2**32 - 1))


@given(cohorts())
def test_a_cohort_opens_to_the_sum_of_its_values_and_of_what_was_added(
    case: tuple[list[list[int]], list[int], int],
) -> None:
    owners, noise, index = case
    keys = [ShareKeys.draw(OS_RANDOMNESS) for _ in owners]
    chunks = [share_chunk(key, index, integers(*row)) for key, row in zip(keys, owners, strict=True)]
    padded = add_known(add_up(decode(chunk[SALT_BYTES:]) for chunk in chunks), integers(*noise))
    opened = open_chunk(decode(encode(padded)), (key.pad for key in keys), index)
    assert opened.tolist() == [modulo(sum(column)) for column in zip(*owners, noise, strict=True)]


def test_sums_within_the_bound_and_a_second_draw_are_exact() -> None:
    keys = [ShareKeys.draw(OS_RANDOMNESS) for _ in range(2)]
    half = 2**61 - 1
    chunks = [share_chunk(key, 0, integers(half, -half)) for key in keys]
    padded = add_up(decode(chunk[SALT_BYTES:]) for chunk in chunks)
    opened = open_chunk(padded, [key.pad for key in keys], 0)
    assert opened.tolist() == [2 * half, -2 * half]
    assert (opened + integers(half, -half)).tolist() == [3 * half, -3 * half]


def test_adding_leaves_its_arguments_as_they_are() -> None:
    first, second = chunk_pads(KEYS.pad, 0, 4).copy(), chunk_pads(KEYS.pad, 1, 4).copy()
    before = first.tolist(), second.tolist()
    add_known(add_up([first, second]), integers(1, 2, 3, 4))
    open_chunk(first, [KEYS.pad], 0)
    assert (first.tolist(), second.tolist()) == before


def test_shares_of_different_lengths_or_none_are_not_added_up() -> None:
    with pytest.raises(UsageError):
        add_up([])
    with pytest.raises(UsageError):
        add_up([chunk_pads(KEYS.pad, 0, 3), chunk_pads(KEYS.pad, 0, 1)])
    with pytest.raises(UsageError):
        add_known(chunk_pads(KEYS.pad, 0, 3), integers(1))


def test_chunks_of_two_places_swapped_give_an_offset_that_depends_on_pads_alone() -> None:
    values = [integers(1, 2), integers(30, 40)]
    chunks = [decode(share_chunk(KEYS, index, part)[SALT_BYTES:]) for index, part in enumerate(values)]
    opened = open_chunk(chunks[1], [KEYS.pad], 0)
    pads = [chunk_pads(KEYS.pad, index, 2).tolist() for index in range(2)]
    expected = [modulo(v + b - a) for v, a, b in zip([30, 40], *pads, strict=True)]
    assert opened.tolist() == expected
    assert opened.tolist() not in ([30, 40], [1, 2])


# --- keys -------------------------------------------------------------------------------------------------


def test_a_pad_key_opens_in_its_study_for_its_owner_and_version_alone() -> None:
    secret, other = (PadsSecret.generate(OS_RANDOMNESS) for _ in range(2))
    sealed = seal_pad_key(KEYS.pad, secret.public, STUDY, OWNER, 3)
    assert len(sealed) == SEALED_KEY_BYTES
    assert open_pad_key(sealed, secret, STUDY, OWNER, 3) == KEYS.pad
    for key, study, owner, version in (
        (other, STUDY, OWNER, 3),
        (secret, StudyId.of(b"another"), OWNER, 3),
        (secret, STUDY, PartyId.of(b"another"), 3),
        (secret, STUDY, OWNER, 2),
    ):
        with pytest.raises(CryptographicError):
            open_pad_key(sealed, key, study, owner, version)
    with pytest.raises(CryptographicError):
        open_pad_key(sealed[:-1], secret, STUDY, OWNER, 3)


def test_the_info_of_a_pad_key_is_byte_exact() -> None:
    secret = PadsSecret.generate(OS_RANDOMNESS)
    info = b"dpdpca/pad/v2" + STUDY + OWNER + b"\x00\x00\x01\x02"
    assert open_sealed(seal_pad_key(KEYS.pad, secret.public, STUDY, OWNER, 258), secret.kem, info) == KEYS.pad
    with pytest.raises(MessageError):
        open_pad_key(seal(b"short", secret.public, info), secret, STUDY, OWNER, 258)


def test_no_two_keys_are_alike() -> None:
    keys, others = ShareKeys.draw(OS_RANDOMNESS), ShareKeys.draw(OS_RANDOMNESS)
    assert len({keys.pad, keys.salt, others.pad, others.salt}) == 4
    secrets = [PadsSecret.generate(OS_RANDOMNESS) for _ in range(2)]
    assert len({secret.public for secret in secrets}) == 2
    assert len({secret.second_noise for secret in secrets}) == 2


def test_secrets_survive_storage_and_show_nothing() -> None:
    keys, secret = ShareKeys.draw(OS_RANDOMNESS), PadsSecret.generate(OS_RANDOMNESS)
    assert ShareKeys.from_bytes(keys.to_bytes()) == keys
    again = PadsSecret.from_bytes(secret.to_bytes())
    assert (again.public, again.second_noise) == (secret.public, secret.second_noise)
    assert repr(keys) == "ShareKeys(…)"
    assert repr(secret) == "PadsSecret(…)"
    for stored in (b"", bytes(63), bytes(65)):
        with pytest.raises(MessageError):
            ShareKeys.from_bytes(stored)
        with pytest.raises(MessageError):
            PadsSecret.from_bytes(stored)
