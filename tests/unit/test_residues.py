from fractions import Fraction

import gmpy2
import pytest
from gmpy2 import mpz

from dpdpca_protocol.paillier.keys import KeyRules, PublicKey, SecretKey, generate_secret_key
from dpdpca_protocol.paillier.products import product_of_steps
from dpdpca_protocol.paillier.residues import (
    ResidueProducts,
    is_worth_a_pool,
    pool_size,
    residue_products,
    uniform_residue,
    uniform_residues,
)
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_runtime.workers import WorkerProcesses


class Scripted:
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


def is_residue(secret: SecretKey, value: mpz) -> bool:
    """An n-th residue is an encryption of 0."""
    return int(secret.decrypt(value)) == 0


def test_uniform_residues_are_fresh_residues(secret: SecretKey) -> None:
    residues = uniform_residues(secret.public, 20, OS_RANDOMNESS)
    assert len({*residues, uniform_residue(secret.public, OS_RANDOMNESS)}) == 21
    assert all(is_residue(secret, residue) for residue in residues)


@pytest.mark.parametrize("room", [0, 2**13, 2**20])
@pytest.mark.parametrize("count", [1, 5, 30])
def test_products_raise_each_member_to_its_own_eight_bits(secret: SecretKey, count: int, room: int) -> None:
    public = secret.public
    pool = uniform_residues(public, count, OS_RANDOMNESS)
    products = ResidueProducts(public, pool, 1000, room)
    sizes = products._tables.sizes
    assert sum(sizes) == count
    drawn = OS_RANDOMNESS.bytes(2 * 8 * len(sizes))
    found = product_of_steps([products.random_steps(Scripted(drawn))], public.ciphertext_modulus)
    words = [int.from_bytes(drawn[at : at + 2], "little") for at in range(0, len(drawn), 2)]
    expected, first = mpz(1), 0
    for table, size in enumerate(sizes):
        for unit in range(size):
            exponent = sum((words[step * len(sizes) + table] >> unit & 1) << step for step in range(8))
            expected = expected * gmpy2.powmod(pool[first + unit], exponent, public.ciphertext_modulus)
        first += size
    assert found == expected % public.ciphertext_modulus


def test_products_differ_and_are_residues_in_every_process(secret: SecretKey) -> None:
    public = secret.public
    pool = tuple(uniform_residues(public, pool_size(public, 40), OS_RANDOMNESS))
    with WorkerProcesses(2) as workers:
        futures = [
            workers.submit(residue_products, public, pool, 40, 2**20, 10, OS_RANDOMNESS) for _ in range(4)
        ]
        made = [residue for future in futures for residue in future.result()]
    assert len(set(made)) == 40
    assert all(is_residue(secret, residue) for residue in made)


@pytest.mark.parametrize(
    ("bits", "outgoing", "size"),
    [(2048, 100, 278), (2048, 10**5, 296), (3072, 14000, 408), (3072, 10**6, 409), (8192, 10**6, 1049)],
)
def test_the_pool_holds_enough_for_the_stated_distance(bits: int, outgoing: int, size: int) -> None:
    """docs/claims.md, C8: (|G|·CP − 1) ≤ 2^(−2(79 + log₂ C)), whatever the number of primes in n."""
    assert pool_size(PublicKey((mpz(1) << (bits - 1)) + 1), outgoing) == size
    same = Fraction(2**bits, 2 ** (8 * size))
    primes = bits // 20
    shrunk = sum(
        Fraction(c**primes * (-(-256 // c)) ** size, 256**size)  # c divides all differences of exponents
        for c in range(2, 256)
    )
    assert same + shrunk <= Fraction(1, 4 ** (79 + (outgoing - 1).bit_length()))


def test_few_ciphertexts_are_not_worth_a_pool() -> None:
    public = PublicKey((mpz(1) << 3071) + 1)
    assert not is_worth_a_pool(public, 500)
    assert is_worth_a_pool(public, 1000)
