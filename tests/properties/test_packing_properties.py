"""Packing against brute force, and computing on ciphertexts against computing on integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamed import encrypted, with_noise

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.packing import BlockLayout, FlatLayout, pack, slots_for, symmetric_rows, unpack
from dpdpca_protocol.paillier.cipher import (
    Encryptor,
    add,
    add_plain,
    pack_ciphertexts,
    rerandomize,
    scale,
)
from dpdpca_protocol.paillier.keys import KeyRules, generate_secret_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.vectors import PaillierVectors

SECRET = generate_secret_key(264, OS_RANDOMNESS, rules=KeyRules(264))
PUBLIC = SECRET.public
ENCRYPTOR = Encryptor(PUBLIC, 1)
widths = st.integers(2, 90)


def slot_values(slot_bits: int, headroom: int = 0) -> st.SearchStrategy[int]:
    half = 1 << (slot_bits - 1 - headroom)
    return st.integers(-half, half - 1)


@st.composite
def slot_lists(draw: st.DrawFn) -> tuple[int, list[int]]:
    slot_bits = draw(widths)
    return slot_bits, draw(st.lists(slot_values(slot_bits), max_size=40))


@given(slot_lists())
def test_packing_is_the_sum_of_shifted_values(case: tuple[int, list[int]]) -> None:
    slot_bits, values = case
    packed = pack(values, slot_bits)
    assert packed == sum(value * 2 ** (slot_bits * k) for k, value in enumerate(values))
    assert unpack(packed, slot_bits, len(values)) == values
    assert packed.bit_length() <= max(0, slot_bits * len(values))


@given(st.integers(2, 12), st.integers(0, 4), st.integers(-(2**60), 2**60))
def test_a_plaintext_has_one_reading_or_none(slot_bits: int, count: int, plain: int) -> None:
    lowest = sum(-(2 ** (slot_bits - 1)) * 2 ** (slot_bits * k) for k in range(count))
    highest = sum((2 ** (slot_bits - 1) - 1) * 2 ** (slot_bits * k) for k in range(count))
    if lowest <= plain <= highest:
        assert pack(unpack(plain, slot_bits, count), slot_bits) == plain
    else:
        with pytest.raises(CryptographicError):
            unpack(plain, slot_bits, count)


@given(st.data(), widths, st.integers(1, 9), st.integers(1, 40), st.integers(1, 6))
def test_sums_of_packed_lists_are_packed_sums(
    data: st.DataObject, slot_bits: int, slots: int, length: int, owners: int
) -> None:
    bound = (2 ** (slot_bits - 1) - 1) // owners
    lists = [
        data.draw(st.lists(st.integers(-bound, bound), min_size=length, max_size=length))
        for _ in range(owners)
    ]
    layout = FlatLayout(length, slot_bits, slots)
    packed = [list(layout.pack_stream(values)) for values in lists]
    total = [sum(plains) for plains in zip(*packed, strict=True)]
    assert layout.unpack_all(total) == [sum(column) for column in zip(*lists, strict=True)]


@given(st.data(), st.integers(2, 70), st.integers(1, 12), st.integers(1, 9))
def test_the_block_layout_holds_every_entry_and_the_copies_only(
    data: st.DataObject, slot_bits: int, d: int, slots: int
) -> None:
    layout = BlockLayout(d, slot_bits, slots)
    count = d * (d + 1) // 2
    upper = data.draw(st.lists(slot_values(slot_bits), min_size=count, max_size=count))
    sums = data.draw(st.lists(st.integers(), min_size=d, max_size=d))
    matrix = symmetric_rows(d, upper)
    plains = list(layout.pack_share(5, sums, matrix))
    assert len(plains) == layout.ciphertext_count
    assert layout.unpack_release(plains[1:]) == (sums, matrix)
    cells = [(i, j) for i in range(d) for _, columns in layout.blocks(i) for j in columns]
    assert len(set(cells)) == len(cells)
    assert {(i, j) for i in range(d) for j in range(i, d)} <= set(cells)
    assert all(j // slots == i // slots for i, j in cells if j < i)
    assert layout.block_count == sum(len(layout.blocks(i)) for i in range(d))


plaintexts = st.integers(-(2**120), 2**120)


@given(plaintexts, plaintexts, st.integers(-(2**100), 2**100))
def test_ciphertexts_compute_like_integers(x: int, y: int, k: int) -> None:
    left, right = ENCRYPTOR.encrypt(x), ENCRYPTOR.encrypt(y)
    assert SECRET.decrypt(left) == x
    assert SECRET.decrypt(add(PUBLIC, left, right)) == x + y
    assert SECRET.decrypt(add_plain(PUBLIC, left, y)) == x + y
    assert SECRET.decrypt(scale(PUBLIC, left, k)) == x * k
    assert SECRET.decrypt(rerandomize(PUBLIC, left, OS_RANDOMNESS)) == x


@given(st.data(), st.integers(4, 60))
def test_packing_under_encryption_is_packing(data: st.DataObject, slot_bits: int) -> None:
    slots = slots_for(PUBLIC.bits, slot_bits)
    values = data.draw(st.lists(slot_values(slot_bits), min_size=1, max_size=slots))
    packed = pack_ciphertexts(PUBLIC, [ENCRYPTOR.encrypt(value) for value in values], slot_bits)
    assert SECRET.decrypt(packed) == pack(values, slot_bits)


@given(st.data(), st.sampled_from([2, 8, 33, 131, 262]), st.integers(1, 5), st.integers(1, 30))
def test_a_vector_summed_under_encryption_is_the_sum(
    data: st.DataObject, slot_bits: int, owners: int, length: int
) -> None:
    """262 bits is a single slot; a short vector is a single ciphertext; 264 is no multiple of 64."""
    vectors = PaillierVectors(PUBLIC, slot_bits)
    bound = (2 ** (slot_bits - 1) - 1) // (owners + 1)
    lists = [
        data.draw(st.lists(st.integers(-bound, bound), min_size=length, max_size=length))
        for _ in range(owners + 1)
    ]
    *shares, noise = lists
    total = multiply_shares((encrypted(vectors, values, ENCRYPTOR) for values in shares), PUBLIC)
    noisy = with_noise(vectors, total, noise)
    expected = [sum(column) for column in zip(*lists, strict=True)]
    assert vectors.decrypt_vector(SECRET, noisy, length) == expected
