import gmpy2
import pytest
from gmpy2 import mpz

from dpdpca_protocol.errors import CryptographicError, UsageError
from dpdpca_protocol.paillier import proof as proof_module
from dpdpca_protocol.paillier.keys import KeyRules, SecretKey, generate_secret_key
from dpdpca_protocol.paillier.proof import ROOT_COUNT, KeyProof, check_public_key, prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import Digest

IDENTITY = b"\x01" * 32
BITS = 264


@pytest.fixture(scope="module")
def secret() -> SecretKey:
    return generate_secret_key(BITS, OS_RANDOMNESS, rules=KeyRules(BITS))


@pytest.fixture(scope="module")
def proof(secret: SecretKey) -> KeyProof:
    return prove_key(secret, IDENTITY)


def reason(modulus: int, proof: KeyProof, **options: object) -> str:
    with pytest.raises(CryptographicError) as caught:
        check_public_key(modulus, proof, IDENTITY, **{"rules": KeyRules(64), **options})  # type: ignore[arg-type]  # options vary
    assert caught.value.slug == "unfit-modulus"
    assert caught.value.next_step
    return caught.value.problem


def test_an_honest_key_passes(secret: SecretKey, proof: KeyProof) -> None:
    assert len(proof.roots) == ROOT_COUNT
    modulus = int(secret.public.modulus)
    assert check_public_key(modulus, proof, IDENTITY, rules=KeyRules(BITS)) == secret.public
    assert check_public_key(modulus, proof, IDENTITY, bits=BITS, rules=KeyRules(BITS)) == secret.public


def test_the_proof_is_the_same_every_time(secret: SecretKey, proof: KeyProof) -> None:
    assert prove_key(secret, IDENTITY) == proof


def test_lengths(secret: SecretKey, proof: KeyProof) -> None:
    modulus = int(secret.public.modulus)
    assert "264 bits instead of a multiple of 8 from 2048" in reason(modulus, proof, rules=KeyRules(2048))
    assert "264 bits instead of 272" in reason(modulus, proof, bits=272)
    for bad in (0, -modulus, modulus >> 1, 1 << 8199):
        assert "bits instead of" in reason(bad, proof)


def test_a_modulus_of_another_study_or_of_the_tests(
    secret: SecretKey, proof: KeyProof, monkeypatch: pytest.MonkeyPatch
) -> None:
    modulus = int(secret.public.modulus)
    digest = Digest.of(secret.public.encode())
    assert "in another study" in reason(modulus, proof, known_moduli={digest})
    check_public_key(modulus, proof, IDENTITY, known_moduli=[Digest.of(b"another")], rules=KeyRules(BITS))
    monkeypatch.setattr(proof_module, "PUBLISHED_MODULI", frozenset({digest.hex()}))
    assert "test key" in reason(modulus, proof)


def test_a_false_proof(secret: SecretKey, proof: KeyProof) -> None:
    modulus = int(secret.public.modulus)
    roots = proof.roots
    assert "not 0" in reason(modulus, KeyProof(()))
    assert "not 9" in reason(modulus, KeyProof((*roots, roots[0])))
    for position in range(ROOT_COUNT):
        altered = list(roots)
        altered[position] ^= 2
        assert "is invalid for this modulus" in reason(modulus, KeyProof(tuple(altered)))
    assert "is invalid for this modulus" in reason(modulus, KeyProof(roots[::-1]))
    assert "is invalid for this modulus" in reason(modulus, prove_key(secret, b"\x02" * 32))
    for root in (0, -1, modulus, modulus + 1):
        assert "is not between" in reason(modulus, KeyProof((mpz(root), *roots[1:])))


def test_every_challenge_is_a_unit_even_where_units_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    key = SecretKey(mpz(11), mpz(7))
    proof = prove_key(key, IDENTITY)
    for root in proof.roots:
        assert gmpy2.gcd(root, 77) == 1
    monkeypatch.setattr(proof_module, "_check_factors", lambda _modulus: None)
    with pytest.raises(CryptographicError):  # 77 has 7 bits
        check_public_key(77, proof, IDENTITY, rules=KeyRules(8))


def test_without_the_proof_a_power_of_a_prime_has_almost_no_roots() -> None:
    """gcd(n, φ(n)) = p for n = p²: about one hash in p is an n-th residue, so honest work finds none."""
    p = gmpy2.next_prime(1 << 20)
    n = p * p
    values = [mpz(OS_RANDOMNESS.below(int(n))) for _ in range(200)]
    order = p - 1  # n-th powers mod p² are the elements of this order
    assert not any(gmpy2.powmod(value, order, n) == 1 for value in values if value > 1)


def test_an_identity_is_a_whole_key(secret: SecretKey) -> None:
    with pytest.raises(UsageError):
        prove_key(secret, b"short")
