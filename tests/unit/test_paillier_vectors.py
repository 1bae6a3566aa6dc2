from concurrent.futures import ThreadPoolExecutor

import pytest
from streamed import encrypted, with_noise

from dpdpca_protocol.errors import CryptographicError, UsageError
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import KeyRules, SecretKey, generate_secret_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.vectors import PaillierVectors

VALUES = [(-3) ** i % 1000 - 500 for i in range(50)]


@pytest.fixture(scope="module")
def secret() -> SecretKey:
    return generate_secret_key(264, OS_RANDOMNESS, rules=KeyRules(264))


@pytest.fixture(scope="module")
def vectors(secret: SecretKey) -> PaillierVectors:
    return PaillierVectors(secret.public, 16)


def test_vectors_add_up_and_take_noise(secret: SecretKey, vectors: PaillierVectors) -> None:
    shares = [encrypted(vectors, VALUES) for _ in range(3)]
    assert len(shares[0]) == vectors.layout(50).plaintext_count == 4
    noisy = with_noise(vectors, multiply_shares(shares, secret.public), range(-25, 25))
    expected = [3 * value + noise for value, noise in zip(VALUES, range(-25, 25), strict=True)]
    assert vectors.decrypt_vector(secret, noisy, 50) == expected


@pytest.mark.parametrize("bits", [264, 320])
@pytest.mark.parametrize(("slot_bits", "count"), [(200, 1), (200, 5), (16, 1), (16, 17)])
def test_one_slot_or_one_ciphertext_is_enough(bits: int, slot_bits: int, count: int) -> None:
    secret = generate_secret_key(bits, OS_RANDOMNESS, rules=KeyRules(264))
    vectors = PaillierVectors(secret.public, slot_bits)
    values, half = VALUES[:count], 1 << (slot_bits - 1)
    for extreme in (values, [half - 1 - 500] * count, [-half + 500] * count):
        ciphertexts = encrypted(vectors, extreme)
        assert len(ciphertexts) == vectors.layout(count).plaintext_count
        noisy = with_noise(vectors, ciphertexts, [500] * count)
        assert vectors.decrypt_vector(secret, noisy, count) == [value + 500 for value in extreme]


def test_plaintexts_of_a_stream_are_those_of_the_vector(secret: SecretKey, vectors: PaillierVectors) -> None:
    plains = list(vectors.plaintexts(iter(VALUES), 50))
    encryptor = Encryptor(secret.public, len(plains))
    with ThreadPoolExecutor(2) as executor:
        parts = list(encryptor.encrypt_slices(plains, executor))
        ciphertexts = [ciphertext for part in parts for ciphertext in part]
        assert vectors.decrypt_vector(secret, ciphertexts, 50, executor) == VALUES
    for wrong in (49, 51):
        with pytest.raises(UsageError):
            list(vectors.plaintexts(iter(VALUES), wrong))


def test_shapes_and_keys_must_fit(secret: SecretKey, vectors: PaillierVectors) -> None:
    short, long = encrypted(vectors, [1, 2]), encrypted(vectors, VALUES)
    other = generate_secret_key(264, OS_RANDOMNESS, rules=KeyRules(264))
    with pytest.raises(UsageError):
        multiply_shares([], secret.public)
    with pytest.raises(UsageError):
        multiply_shares([short, long], secret.public)
    for ciphertexts, values in ((short, VALUES), (long, [1, 2])):
        with pytest.raises(ValueError, match="argument 2"):
            with_noise(vectors, ciphertexts, values)
    with pytest.raises(UsageError):
        vectors.decrypt_vector(secret, short, 50)
    with pytest.raises(UsageError):
        vectors.decrypt_vector(other, short, 2)


def test_a_value_that_does_not_fit_a_slot_is_not_encrypted(vectors: PaillierVectors) -> None:
    with pytest.raises(CryptographicError) as caught:
        encrypted(vectors, [1 << 15])
    assert caught.value.slug == "slot-overflow"
