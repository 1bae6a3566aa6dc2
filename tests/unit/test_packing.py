import numpy as np
import pytest
from gmpy2 import mpz

from dpdpca_protocol.errors import CryptographicError, UsageError
from dpdpca_protocol.layout.packing import BlockLayout, FlatLayout, pack, slots_for, symmetric_rows, unpack


def test_slots_stay_two_bits_below_the_modulus() -> None:
    assert slots_for(3072, 64) == 47
    assert slots_for(3072, 48) == 63
    assert slots_for(2048, 2046) == 1
    assert slots_for(2048, 2047) == 0


@pytest.mark.parametrize("value", [8, -9, 1000])
def test_a_value_must_fit_its_slot(value: int) -> None:
    with pytest.raises(CryptographicError) as caught:
        pack([0, value], 4)
    assert caught.value.slug == "slot-overflow"
    assert str(value) not in str(caught.value)


@pytest.mark.parametrize("plain", [1 << 12, -(1 << 12), 1 << 11, -(1 << 11) - (1 << 7) - 9, 1 << 500])
def test_a_rest_above_the_last_slot_is_an_error(plain: int) -> None:
    with pytest.raises(CryptographicError) as caught:
        unpack(plain, 4, 3)
    assert caught.value.slug == "slot-overflow"


def test_the_last_slot_ends_at_its_extremes() -> None:
    low = sum(-8 << 4 * k for k in range(3))
    high = sum(7 << 4 * k for k in range(3))
    assert unpack(low, 4, 3) == [-8] * 3
    assert unpack(high, 4, 3) == [7] * 3
    for beyond in (low - 1, high + 1):
        with pytest.raises(CryptographicError, match="more than its slots"):
            unpack(beyond, 4, 3)


def test_numpy_integers_do_not_overflow() -> None:
    values = np.array([2**62, -(2**62), 1], dtype=np.int64)
    assert unpack(pack(values, 64), 64, 3) == values.tolist()
    assert all(type(value) is int for value in unpack(pack(values, 64), 64, 3))


@pytest.mark.parametrize("slot_bits", [1, 2, 7, 8, 31, 32, 48, 63, 64, 65, 128, 190, 1000])
@pytest.mark.parametrize("count", [0, 1, 2, 47])
def test_extremes_of_every_width_are_what_shifting_one_by_one_gives(slot_bits: int, count: int) -> None:
    lowest, highest = -(1 << (slot_bits - 1)), (1 << (slot_bits - 1)) - 1
    cases = [[lowest] * count, [highest] * count, [0] * count, [-1] * count]
    cases += [[(lowest, highest, 0, -1)[(k * k + shift) % 4] for k in range(count)] for shift in range(4)]
    cases += [[value for value in case if value <= highest] for case in cases]
    for values in cases:
        shifted = 0
        for value in reversed(values):
            shifted = (shifted << slot_bits) + value
        packed = pack(values, slot_bits)
        assert type(packed) is int
        assert packed == shifted
        assert unpack(mpz(packed), slot_bits, len(values)) == values


def test_the_flat_layout_cuts_into_whole_plaintexts_and_a_rest() -> None:
    layout = FlatLayout(7, 8, 3)
    plains = list(layout.pack_stream([1, 2, 3, -4, -5, -6, 7]))
    assert layout.plaintext_count == len(plains) == 3
    assert plains == [pack([1, 2, 3], 8), pack([-4, -5, -6], 8), 7]
    assert layout.unpack_all(plains) == [1, 2, 3, -4, -5, -6, 7]
    with pytest.raises(CryptographicError):
        layout.unpack_all([*plains[:2], 1 << 8])


def test_lists_of_another_length_are_a_mistake_of_the_caller() -> None:
    flat, block = FlatLayout(7, 8, 3), BlockLayout(3, 8, 2)
    with pytest.raises(UsageError):
        list(flat.pack_stream([1]))
    with pytest.raises(UsageError):
        list(flat.pack_stream(range(8)))
    with pytest.raises(UsageError):
        flat.unpack_all([1])
    with pytest.raises(UsageError):
        block.unpack_release([0] * (block.release_count + 1))


def test_rows_start_at_the_block_of_their_diagonal() -> None:
    layout = BlockLayout(5, 8, 2)
    assert layout.blocks(0) == [(0, range(2)), (1, range(2, 4)), (2, range(4, 5))]
    assert layout.blocks(1) == layout.blocks(0)
    assert layout.blocks(2) == layout.blocks(3) == [(1, range(2, 4)), (2, range(4, 5))]
    assert layout.blocks(4) == [(2, range(4, 5))]
    assert layout.block_count == 3 + 3 + 2 + 2 + 1
    assert layout.ciphertext_count == 1 + 5 + 11
    assert layout.release_count == 5 + 11


def test_a_share_is_count_sums_and_rows_with_true_copies_left_of_the_diagonal() -> None:
    layout = BlockLayout(3, 16, 2)
    matrix = symmetric_rows(3, [1, 2, 3, 4, 5, 6])
    assert matrix == [[1, 2, 3], [2, 4, 5], [3, 5, 6]]
    plains = list(layout.pack_share(9, [7, -8, 0], matrix))
    assert plains == [9, 7, -8, 0, pack([1, 2], 16), 3, pack([2, 4], 16), 5, 6]
    assert len(plains) == layout.ciphertext_count
    assert layout.unpack_release(plains[1:]) == ([7, -8, 0], matrix)


def test_a_copy_that_differs_from_its_original_fails_the_release() -> None:
    layout = BlockLayout(3, 16, 2)
    plains = list(layout.pack_share(9, [7, -8, 0], symmetric_rows(3, [1, 2, 3, 4, 5, 6])))
    plains[6] = pack([-2, 4], 16)
    with pytest.raises(CryptographicError) as caught:
        layout.unpack_release(plains[1:])
    assert caught.value.slug == "release-not-symmetric"


def test_an_absent_slot_that_is_not_0_fails_the_release() -> None:
    layout = BlockLayout(3, 16, 2)
    plains = list(layout.pack_share(9, [7, -8, 0], symmetric_rows(3, [1, 2, 3, 4, 5, 6])))
    plains[-1] = pack([6, 1], 16)
    with pytest.raises(CryptographicError) as caught:
        layout.unpack_release(plains[1:])
    assert caught.value.slug == "slot-overflow"
