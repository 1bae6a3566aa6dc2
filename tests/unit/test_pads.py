"""Pads against an independent ChaCha20, and sums against Python's integers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pad_streams import chunk_pads
from plain_chacha import chacha20_stream

from dpdpca_protocol.errors import MessageError, UsageError
from dpdpca_protocol.pads.chunks import (
    MAGNITUDE_LIMIT,
    add_known,
    add_pads,
    add_up,
    chunk_count,
    chunk_range,
    integers,
    open_chunk,
)
from dpdpca_protocol.pads.streams import CHUNK_VALUES, KEY_BYTES
from dpdpca_protocol.randomness import OS_RANDOMNESS

KEY, OTHER_KEY = bytes(range(32)), bytes(range(32, 64))


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
    stream = chacha20_stream(KEY, index.to_bytes(12, "big"), 0, 8 * count)
    expected = [int.from_bytes(stream[at : at + 8], "little") for at in range(0, 8 * count, 8)]
    assert chunk_pads(KEY, index, count).tolist() == expected


def test_the_last_pad_of_a_full_chunk_is_in_block_12287() -> None:
    block = chacha20_stream(KEY, (5).to_bytes(12, "big"), 12_287, 64)
    assert chunk_pads(KEY, 5, CHUNK_VALUES)[-8:].astype("<u8").tobytes() == block
    with pytest.raises(UsageError):
        chunk_pads(KEY, 5, CHUNK_VALUES + 1)


def test_every_pad_differs_with_key_and_chunk() -> None:
    streams = [chunk_pads(key, index, 64) for key in (KEY, OTHER_KEY) for index in range(3)]
    pads = np.concatenate(streams).tolist()
    assert len(set(pads)) == len(pads)


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
    assert [at for part in ranges for at in part] == list(range(values))
    for index in (-1, len(lengths)):
        with pytest.raises(MessageError):
            chunk_range(values, index)


def test_each_value_has_its_own_pad() -> None:
    values = [0, 1, -1, 2**62 - 1, 1 - 2**62, 12345678901]
    stream = chacha20_stream(KEY, (7).to_bytes(12, "big"), 0, 8 * len(values))
    pads = [int.from_bytes(stream[at : at + 8], "little") for at in range(0, len(stream), 8)]
    expected = [(value + pad) % 2**64 for value, pad in zip(values, pads, strict=True)]
    assert add_pads(KEY, 7, integers(values)).tolist() == expected


@pytest.mark.parametrize("value", [MAGNITUDE_LIMIT, -MAGNITUDE_LIMIT, 2**63 - 1, -(2**63)])
def test_a_value_of_2_to_the_62_is_refused(value: int) -> None:
    add_pads(KEY, 0, integers([MAGNITUDE_LIMIT - 1, 1 - MAGNITUDE_LIMIT]))
    with pytest.raises(UsageError):
        add_pads(KEY, 0, integers([0, value]))


def test_what_is_no_integer_of_64_bits_is_refused() -> None:
    with pytest.raises(UsageError):
        add_pads(KEY, 0, np.array([0.0, 1.0]))
    with pytest.raises(UsageError):
        add_known(chunk_pads(KEY, 0, 1), np.array([1.0]))
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(UsageError):
            integers([0, value])
    halves: list[Any] = [0.5]
    with pytest.raises(TypeError):
        integers(halves)


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
    keys = [OS_RANDOMNESS.bytes(KEY_BYTES) for _ in owners]
    shares = [add_pads(key, index, integers(row)) for key, row in zip(keys, owners, strict=True)]
    opened = open_chunk(add_known(add_up(shares), integers(noise)), keys, index)
    assert opened.tolist() == [modulo(sum(column)) for column in zip(*owners, noise, strict=True)]


def test_sums_below_2_to_the_63_are_exact() -> None:
    values = integers([MAGNITUDE_LIMIT - 1, 1 - MAGNITUDE_LIMIT])
    shares = [add_pads(key, 0, values) for key in (KEY, OTHER_KEY)]
    opened = open_chunk(add_known(add_up(shares), integers([1, -1])), [KEY, OTHER_KEY], 0)
    assert opened.tolist() == [2**63 - 1, 1 - 2**63]


def test_adding_leaves_its_arguments_as_they_are() -> None:
    first, second = chunk_pads(KEY, 0, 4).copy(), chunk_pads(KEY, 1, 4).copy()
    before = first.tolist(), second.tolist()
    add_known(add_up([first, second]), integers([1, 2, 3, 4]))
    open_chunk(first, [KEY], 0)
    assert (first.tolist(), second.tolist()) == before


def test_shares_of_different_lengths_or_none_are_not_added_up() -> None:
    with pytest.raises(UsageError):
        add_up([])
    with pytest.raises(UsageError):
        add_up([chunk_pads(KEY, 0, 3), chunk_pads(KEY, 0, 1)])
    with pytest.raises(UsageError):
        add_known(chunk_pads(KEY, 0, 3), integers([1]))


def test_chunks_of_two_places_swapped_give_an_offset_that_depends_on_pads_alone() -> None:
    values = [[1, 2], [30, 40]]
    chunks = [add_pads(KEY, index, integers(part)) for index, part in enumerate(values)]
    opened = open_chunk(chunks[1], [KEY], 0)
    pads = [chunk_pads(KEY, index, 2).tolist() for index in range(2)]
    assert opened.tolist() == [modulo(v + b - a) for v, a, b in zip([30, 40], *pads, strict=True)]
    assert opened.tolist() not in values
