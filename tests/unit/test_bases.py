import gmpy2
import pytest
from gmpy2 import mpz

from dpdpca_protocol.paillier import bases
from dpdpca_protocol.paillier.bases import Comb, best_shape, comb_for, derive_base, hash_to_residue
from dpdpca_protocol.paillier.keys import KeyRules, PublicKey, SecretKey, generate_secret_key
from dpdpca_protocol.randomness import OS_RANDOMNESS

PRIME = mpz(2) ** 127 - 1


class Bytes:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def bytes(self, count: int) -> bytes:
        assert count == len(self.content)
        return self.content

    def below(self, bound: int) -> int:
        raise AssertionError(bound)


@pytest.fixture(scope="module")
def secret() -> SecretKey:
    return generate_secret_key(264, OS_RANDOMNESS, rules=KeyRules(264))


@pytest.mark.parametrize("exponent_bits", [1, 7, 64, 100, 129])
@pytest.mark.parametrize(("teeth", "splits"), [(1, 1), (2, 3), (6, 4), (8, 8), (16, 1)])
def test_the_comb_raises_to_any_exponent_in_range(exponent_bits: int, teeth: int, splits: int) -> None:
    comb = Comb(mpz(3), PRIME, exponent_bits, teeth, splits)
    columns = -(-exponent_bits // (teeth * splits)) * splits
    top = (1 << teeth * columns) - 1
    for exponent in (0, 1, 2 & top, top, top // 2, top // 3, OS_RANDOMNESS.below(top)):
        drawn = digits(exponent, teeth, columns)
        assert comb.random_power(Bytes(drawn)) == gmpy2.powmod(3, exponent, PRIME)


def digits(exponent: int, teeth: int, columns: int) -> bytes:
    """What is drawn where this exponent is: two bytes a column, a bit a tooth."""
    return b"".join(
        sum((exponent >> (tooth * columns + column) & 1) << tooth for tooth in range(teeth)).to_bytes(
            2, "little"
        )
        for column in range(columns)
    )


@pytest.mark.parametrize(("exponent_bits", "columns"), [(15, 3), (16, 6)])
def test_a_comb_is_no_wider_than_its_teeth_and_splits_need(exponent_bits: int, columns: int) -> None:
    assert Comb(mpz(3), PRIME, exponent_bits, 5, 3).random_power(Bytes(bytes(2 * columns))) == 1


def test_a_random_power_is_the_power_of_the_digits_drawn() -> None:
    comb = Comb(mpz(5), PRIME, 24, 6, 2)
    columns = 24 // 6
    drawn_digits = [0x3F, 0, 21, 0xFFC1]  # what lies above six bits is cut off
    drawn = comb.random_power(Bytes(b"".join(digit.to_bytes(2, "little") for digit in drawn_digits)))
    exponent = sum(
        (digit >> tooth & 1) << (tooth * columns + column)
        for column, digit in enumerate(drawn_digits)
        for tooth in range(6)
    )
    assert drawn == gmpy2.powmod(5, exponent, PRIME)


def test_the_base_is_a_residue_with_a_root_minus_a_square(secret: SecretKey) -> None:
    public = secret.public
    base = derive_base(public)
    root = secret.residue_root(base)
    assert gmpy2.powmod(root, public.modulus, public.ciphertext_modulus) == base
    assert gmpy2.jacobi(root, public.modulus) == 1
    assert [gmpy2.jacobi(root, p) for p in (secret.p, secret.q)] == [-1, -1]


def test_a_hash_that_shares_a_factor_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    modulus = mpz(7 * 11)
    drawn: list[int] = []

    def scripted(_tag: bytes, _modulus: mpz, _width: int, counter: int) -> mpz:
        drawn.append(counter)
        return mpz([0, 14, 5][counter])

    monkeypatch.setattr(bases, "hash_to_residue", scripted)
    assert derive_base(PublicKey(modulus)) == gmpy2.powmod(-25 % modulus, modulus, modulus**2)
    assert drawn == [0, 1, 2]


def test_hashes_differ_by_tag_and_counter() -> None:
    modulus = mpz(2) ** 255 - 19
    values = {hash_to_residue(tag, modulus, 32, counter) for tag in (b"a", b"b") for counter in range(3)}
    assert len(values) == 6
    assert all(0 <= value < modulus for value in values)


@pytest.mark.parametrize("count", [1, 60, 400, 1600, 10**6])
def test_more_work_buys_a_larger_comb_and_fewer_multiplications(count: int) -> None:
    public = PublicKey((mpz(1) << 607) + 1)
    teeth, splits = best_shape(304, count, public.ciphertext_bytes)
    columns = -(-304 // (teeth * splits)) * splits
    assert comb_for(public, count).random_power(Bytes(bytes(2 * columns))) == 1

    def multiplications(uses: int) -> int:
        """Of one power, squarings included."""
        teeth, splits = best_shape(304, uses, public.ciphertext_bytes)
        return -(-304 // (teeth * splits)) * splits + splits - 2

    assert multiplications(count) <= multiplications(1)
