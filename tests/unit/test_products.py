import gmpy2
import pytest
from gmpy2 import mpz

from dpdpca_protocol.paillier.products import SegmentShape, SubsetTables, bits_of, digits_of, product_of_steps
from dpdpca_protocol.randomness import OS_RANDOMNESS

PRIME = mpz(2) ** 127 - 1


def test_parts_share_their_squarings() -> None:
    left = [[mpz(3)], [], [mpz(5), mpz(7)]]
    right = [[], [mpz(11)]]
    expected = 3 * gmpy2.powmod(35, 4, PRIME) * 121 % PRIME
    assert product_of_steps([left, right], PRIME) == expected
    assert product_of_steps([right, left], PRIME) == expected


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_a_factor_of_a_high_step_is_squared_all_the_way(factor: int) -> None:
    assert product_of_steps([[[], [], [mpz(factor)]], [[mpz(5)]]], PRIME) == 5 * factor**4


@pytest.mark.parametrize("parts", [[], [[]], [[[]]], [[[], []], [[]]]])
def test_nothing_multiplies_to_one(parts: list[list[list[mpz]]]) -> None:
    assert product_of_steps(parts, PRIME) == 1


@pytest.mark.parametrize("teeth", [1, 2, 3, 5, 8])
def test_tables_look_up_every_subset(teeth: int) -> None:
    units = [mpz(value) for value in (2, 3, 5, 7, 11)]
    tables = SubsetTables(units, PRIME, teeth)
    exponents = [OS_RANDOMNESS.below(16) for _ in units]
    digits = digits_of(bits_of(exponents, 4), teeth)
    expected = mpz(1)
    for unit, exponent in zip(units, exponents, strict=True):
        expected = expected * unit**exponent % PRIME
    assert product_of_steps([tables.steps(digits)], PRIME) == expected


def test_bits_stand_from_the_lowest_up() -> None:
    assert bits_of([1, 6], 3).tolist() == [[1, 0, 0], [0, 1, 1]]
    for width, most in ((8, 8), (9, 16)):  # whole bytes are told
        with pytest.raises(OverflowError):
            bits_of([1 << most], width)
    with pytest.raises(OverflowError):
        bits_of([-1], 9)


@pytest.mark.parametrize(("segments", "bits", "spacing"), [(1, 1, 0), (1, 93, 0), (3, 10, 25), (4, 64, 64)])
@pytest.mark.parametrize("uses", [1, 3, 50])
def test_segmented_exponents_are_powers(segments: int, bits: int, spacing: int, uses: int) -> None:
    shape = SegmentShape.best(segments, bits, spacing, uses, 16, 2**20)
    base = mpz(3)
    tables = shape.tables(base, PRIME)
    top = (1 << bits) - 1
    for values in (
        [0] * segments,
        [top] * segments,
        [1 << (bits - 1)] * segments,
        [OS_RANDOMNESS.below(top + 1) for _ in range(segments)],
        [top],
    ):
        exponent = sum(value << spacing * k for k, value in enumerate(values))
        found = product_of_steps([tables.steps(shape.digits(values))], PRIME)
        assert found == gmpy2.powmod(base, exponent, PRIME)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_offset_of_signed_values_comes_off(count: int) -> None:
    shape = SegmentShape.best(3, 8, 20, 4, 16, 2**20)
    tables = shape.tables(mpz(3), PRIME)
    signed = [-128, 127, -1][:count]
    power = product_of_steps([tables.steps(shape.digits([value + 128 for value in signed]))], PRIME)
    found = power * shape.without_offset(tables, count, PRIME) % PRIME
    assert found == gmpy2.powmod(3, sum(value << 20 * k for k, value in enumerate(signed)), PRIME)


@pytest.mark.parametrize(("segments", "bits", "teeth", "steps"), [(1, 8, 3, 8), (3, 8, 4, 3), (4, 9, 5, 2)])
def test_a_shape_knows_the_tables_that_it_makes(segments: int, bits: int, teeth: int, steps: int) -> None:
    """By their number it keeps within its room."""
    shape = SegmentShape(segments, bits, 20, teeth, steps)
    sizes = shape.tables(mpz(3), PRIME).sizes
    assert shape.table_count == len(sizes)
    assert sum(sizes) == segments * shape.units_of_segment
    assert max(sizes) <= teeth


def test_more_uses_buy_larger_tables_within_their_room() -> None:
    shapes = [SegmentShape.best(15, 97, 194, uses, 768, 2**24) for uses in (1, 10, 100, 10**6)]
    assert [shape.power() for shape in shapes] == sorted((shape.power() for shape in shapes), reverse=True)
    assert all(shape.table_count << shape.teeth <= 2**24 // 768 for shape in shapes)
    assert SegmentShape.best(15, 97, 194, 10**6, 768, 0).teeth == 1
