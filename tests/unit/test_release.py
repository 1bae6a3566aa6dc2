"""What releases promise beside their arithmetic, which test_core_study.py and the properties look at."""

import pytest
from gmpy2 import mpz

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.release.release import (
    NoisyScatter,
    answer_count,
    check_count,
    check_count_range,
    draw_mask,
    flat_scatter,
    triangle_index,
)


class Scripted:
    """Answers with the extremes in turn, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def bytes(self, count: int) -> bytes:
        raise AssertionError("a mask is of integers below a bound")

    def below(self, bound: int) -> int:
        self.asked.append(bound)
        return 0 if len(self.asked) % 2 else bound - 1


@pytest.mark.parametrize("bits", [1, 8, 97])
def test_a_mask_fills_its_range_in_each_coordinate(bits: int) -> None:
    randomness = Scripted()
    half = 1 << (bits - 1)
    assert draw_mask(3, bits, randomness) == [-half, half - 1, -half]
    assert randomness.asked == [1 << bits] * 3


def test_a_scatter_knows_what_it_is_divided_by() -> None:
    rows = ((4,),)
    records, pairs = NoisyScatter(7, rows, None), NoisyScatter(7, rows, None, of_pairs=True)
    assert (records.divisor, records.degrees) == (7, 6)
    assert (pairs.divisor, pairs.degrees) == (2, 7)
    assert NoisyScatter(1, rows, None).degrees == 1


def test_pairs_are_their_own_scatter() -> None:
    released = {BlockName.COUNT: [3], BlockName.PAIR_MOMENT: [1, 2, 5]}
    assert flat_scatter(released, 2) == NoisyScatter(3, ((1, 2), (2, 5)), None, of_pairs=True)


def test_an_upper_triangle_is_counted_by_rows() -> None:
    places = [(i, j) for i in range(4) for j in range(i, 4)]
    assert [triangle_index(4, i, j) for i, j in places] == list(range(10))


def test_a_count_may_touch_its_limits() -> None:
    for count in (3, 5):
        check_count_range(count, 3, 5)
    for count in (2, 6):
        with pytest.raises(CryptographicError) as caught:
            check_count_range(count, 3, 5)
        assert caught.value.slug == "count-out-of-range"


def test_a_proof_of_the_count_is_a_residue_below_the_modulus(toy_key: SecretKey) -> None:
    public = toy_key.public
    plain = mpz(1 + 12 * public.modulus)  # E[12] with 1 as its randomness
    assert answer_count(toy_key, plain) == (12, 1)
    check_count(public, plain, 12, mpz(1))
    for wrong in (mpz(0), public.modulus, public.modulus + 1, mpz(-1)):
        with pytest.raises(CryptographicError) as caught:
            check_count(public, plain, 12, wrong)
        assert caught.value.slug == "count-proof-false"
    for wrong in (mpz(0), public.modulus):  # 0ⁿ ≡ nⁿ ≡ 0 mod n²
        with pytest.raises(CryptographicError):
            check_count(public, mpz(0), 12, wrong)
