import math
import threading
from collections import Counter

import gmpy2
import pytest
from gmpy2 import mpz

from dpdpca_protocol.errors import MessageError, UsageError
from dpdpca_protocol.paillier import primes
from dpdpca_protocol.paillier.cipher import raw_encrypt
from dpdpca_protocol.paillier.keys import (
    LEAST_BITS,
    KeyRules,
    KeySearch,
    PublicKey,
    SecretKey,
    generate_secret_key,
    random_unit,
)
from dpdpca_protocol.randomness import OS_RANDOMNESS

BITS = 264  # no multiple of 64


@pytest.fixture(scope="module")
def secret() -> SecretKey:
    return generate_secret_key(BITS, OS_RANDOMNESS, rules=KeyRules(BITS))


class Constant:
    """Returns the same values for ever, or walks through a list of them."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)

    def bytes(self, count: int) -> bytes:
        return bytes(count)

    def below(self, bound: int) -> int:
        return self.values.pop(0) % bound


@pytest.mark.parametrize("bits", [128, 136, 256, BITS, 520])
def test_primes_are_distinct_and_give_the_exact_length(bits: int) -> None:
    key = generate_secret_key(bits, OS_RANDOMNESS, rules=KeyRules(64))
    assert key.public.bits == bits
    assert key.p != key.q
    assert key.p.bit_length() == key.q.bit_length() == bits // 2
    for prime in (key.p, key.q):
        assert gmpy2.is_prime(prime, 40)
        assert prime % 4 == 3
    assert gmpy2.gcd(key.p - 1, key.q - 1) == 2
    assert gmpy2.gcd(key.public.modulus, (key.p - 1) * (key.q - 1)) == 1


@pytest.mark.parametrize("bits", [32, 34, 36])
def test_half_of_p_minus_one_has_two_prime_factors_of_half_the_length(bits: int) -> None:
    """So short that trial division finds the factors."""
    for _ in range(50):
        p = primes.random_prime(bits, OS_RANDOMNESS, lambda: None)
        assert gmpy2.is_prime(p, 40)
        assert p.bit_length() == bits
        assert p**2 >= 1 << (2 * bits - 1)
        factors = factors_of(int(p // 2))
        assert len(factors) == 2
        assert min(factors) >= 1 << (bits // 2 - 1)


def factors_of(number: int) -> list[int]:
    found, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found + [number] * (number > 1)


def test_every_first_factor_comes_equally_often_and_so_does_every_prime_of_it() -> None:
    """False alarms below 1e-6: each frequency is within six standard deviations of a uniform draw."""
    low, high = mpz(1 << 7), mpz(181)
    expected = [n for n in range(129, 182) if gmpy2.is_prime(n)]
    drawn = Counter(int(primes._uniform_prime(low, high, OS_RANDOMNESS)) for _ in range(4000))
    assert sorted(drawn) == expected
    mean = 4000 / len(expected)
    assert all(abs(count - mean) < 6 * math.sqrt(mean) for count in drawn.values())


def test_the_search_ends_after_about_as_many_tests_as_expected() -> None:
    """The mean of 400 memoryless waits has a standard deviation of 5 %."""
    tested: list[None] = []
    for _ in range(400):
        primes.random_prime(64, OS_RANDOMNESS, lambda: tested.append(None))
    assert abs(len(tested) / 400 / primes.expected_tests(64) - 1) < 0.35


@pytest.mark.parametrize("bits", [0, LEAST_BITS - 8, LEAST_BITS + 4, 8200, -2048])
def test_other_lengths_are_refused(bits: int) -> None:
    with pytest.raises(UsageError) as caught:
        generate_secret_key(bits, OS_RANDOMNESS)
    assert caught.value.slug == "key-length"


def test_the_search_tells_what_it_knows_and_promises_nothing() -> None:
    told: list[KeySearch] = []
    generate_secret_key(512, OS_RANDOMNESS, told.append, rules=KeyRules(512))
    mean = round(primes.expected_tests(256))
    assert told[0] == KeySearch(0, 0, 2 * mean)
    assert (told[-1].primes, told[-1].expected) == (2, 0)
    assert [search.tested for search in told] == sorted(search.tested for search in told)
    assert [search.primes for search in told] == sorted(search.primes for search in told)
    assert all(search.expected == (2 - search.primes) * mean for search in told)


@pytest.mark.parametrize("s", [1031, 1033, 2**89 - 1])
def test_the_sieve_keeps_exactly_what_has_no_small_factor(s: int) -> None:
    start, limit = mpz(10**12) + 1, 1 << 10
    start += (-s - start) % 6
    small = primes._SmallPrimes.below(limit)
    roots = small.residues(lambda product: gmpy2.invert(-2 * s, product))
    below = [r for r in range(2, limit) if gmpy2.is_prime(r)]
    expected = [
        k
        for k in range(2000)
        if all((start + 6 * k) % r and (2 * s * (start + 6 * k) + 1) % r for r in below)
    ]
    assert primes._survivors(start, roots, 2000, small) == expected


@pytest.mark.parametrize("limit", [1 << 10, 1 << 21])
def test_products_of_small_primes_give_exact_residues(limit: int) -> None:
    small, number = primes._SmallPrimes.below(limit), mpz(3) ** 500
    assert math.prod(small.products[:40]) * 6 == gmpy2.primorial(int(small.primes[119]))
    assert small.residues(lambda product: number % product).tolist() == [
        number % prime for prime in small.primes.tolist()
    ]
    assert (small.inverses_of_six * 6 % small.primes == 1).all()


@pytest.mark.parametrize("bits", [31, 30, 33])
def test_primes_too_short_for_the_sieve_are_a_mistake_of_the_caller(bits: int) -> None:
    with pytest.raises(ValueError, match="even number of bits"):
        primes.random_prime(bits, OS_RANDOMNESS, lambda: None)


def test_a_second_prime_next_to_the_first_or_with_a_common_factor_is_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = iter([mpz(7), mpz(7), mpz(13), mpz(11)])
    monkeypatch.setattr(
        "dpdpca_protocol.paillier.keys.random_prime", lambda _bits, _randomness, _tested: next(drawn)
    )
    key = generate_secret_key(8, OS_RANDOMNESS, rules=KeyRules(8))
    assert (key.p, key.q) == (7, 11)


def test_decryption_reads_every_plaintext_as_signed(secret: SecretKey) -> None:
    modulus = secret.public.modulus
    edge = (modulus - 1) // 2
    for plain in (0, 1, -1, 12345, -(2**200), edge, -edge):
        ciphertext = raw_encrypt(secret.public, plain, random_unit(modulus, OS_RANDOMNESS))
        assert secret.decrypt(ciphertext) == plain


def test_no_value_that_meets_a_secret_exponent_comes_from_outside(
    secret: SecretKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[int] = []
    real = gmpy2.powmod_sec

    def watch(base: int, exponent: int, modulus: int) -> gmpy2.mpz:
        met.append(base)
        return real(base, exponent, modulus)

    monkeypatch.setattr(gmpy2, "powmod_sec", watch)
    ciphertext = raw_encrypt(secret.public, 7, 5)
    for _ in range(3):
        assert secret.decrypt(ciphertext) == 7
        secret.residue_root(ciphertext)
    outside = {ciphertext % m for p in (secret.p, secret.q) for m in (p, p * p)}
    assert outside.isdisjoint(met)
    assert len(set(met)) == len(met)


def test_blinders_are_residues_that_go_on_being_fresh() -> None:
    key = generate_secret_key(128, OS_RANDOMNESS, rules=KeyRules(128))
    square = key.public.ciphertext_modulus
    drawn = [key._blinders.draw(OS_RANDOMNESS) for _ in range(600)]
    assert len(set(drawn)) == 600
    order = (key.p - 1) * (key.q - 1)
    assert all(gmpy2.powmod(blinder, order, square) == 1 for blinder in drawn)


def test_one_key_serves_several_threads(secret: SecretKey) -> None:
    ciphertext = raw_encrypt(secret.public, -3, 11)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(1 for _ in range(200) if secret.decrypt(ciphertext) != -3)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_residue_root_is_the_randomizer(secret: SecretKey) -> None:
    public = secret.public
    for plain in (0, 99, -99):
        randomizer = random_unit(public.modulus, OS_RANDOMNESS)
        ciphertext = raw_encrypt(public, plain, randomizer)
        assert secret.residue_root(ciphertext) == randomizer
        assert raw_encrypt(public, plain, secret.residue_root(ciphertext)) == ciphertext


def test_a_key_survives_its_bytes(secret: SecretKey) -> None:
    again = SecretKey.from_bytes(secret.to_bytes())
    assert again == secret
    assert again.public == secret.public
    uneven = SecretKey(gmpy2.mpz(3), gmpy2.mpz(65537))
    assert SecretKey.from_bytes(uneven.to_bytes()) == uneven


@pytest.mark.parametrize("damage", [b"", b"\x07", b"\x07\x07", b"\x07\x09", b"\x09\x07", b"\x02\x07"])
def test_damaged_bytes_are_refused(damage: bytes) -> None:
    with pytest.raises(MessageError):
        SecretKey.from_bytes(damage)


def test_a_secret_key_shows_nothing(secret: SecretKey) -> None:
    for text in (repr(secret), str(secret), f"{secret}"):
        assert text == "SecretKey(…)"


def test_lengths_follow_the_modulus() -> None:
    public = PublicKey(gmpy2.mpz(1) << 3071)
    assert (public.bits, public.modulus_bytes, public.ciphertext_bytes) == (3072, 384, 768)
    assert public.encode() == b"\x80" + bytes(383)
    assert public == PublicKey(gmpy2.mpz(1) << 3071)
    assert len({public, PublicKey(gmpy2.mpz(1) << 3071)}) == 1


def test_a_unit_shares_no_factor_with_the_modulus() -> None:
    assert random_unit(gmpy2.mpz(15), Constant(0, 3, 5, 10, 7)) == 7
