"""phe as the oracle: it opens what we encrypt, we open what it encrypts, keys go both ways."""

from concurrent.futures import ThreadPoolExecutor

import phe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdpca_interop import (
    PheEncryptor,
    from_phe_ciphertext,
    from_phe_private,
    from_phe_public,
    to_phe_ciphertext,
    to_phe_private,
    to_phe_public,
)
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.paillier.cipher import Encryptor, check_ciphertexts, raw_encrypt
from dpdpca_protocol.paillier.keys import KeyRules, SecretKey, generate_secret_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.vectors import PaillierVectors

OURS = generate_secret_key(520, OS_RANDOMNESS, rules=KeyRules(520))
_, THEIRS = phe.generate_paillier_keypair(n_length=512)
KEYS = [pytest.param(OURS, id="our key"), pytest.param(from_phe_private(THEIRS), id="their key")]
plaintexts = st.integers(-(2**500), 2**500)


@pytest.mark.parametrize("secret", KEYS)
@settings(max_examples=30)
@given(plain=plaintexts)
def test_each_opens_what_the_other_encrypts(secret: SecretKey, plain: int) -> None:
    public, private = to_phe_public(secret.public), to_phe_private(secret)
    ours = Encryptor(secret.public, 1).encrypt(plain)
    assert private.decrypt(to_phe_ciphertext(secret.public, ours)) == plain
    theirs = public.encrypt(plain)
    assert secret.decrypt(from_phe_ciphertext(theirs)) == plain
    both = to_phe_ciphertext(secret.public, ours) - theirs
    assert private.decrypt(both) == 0


@pytest.mark.parametrize("secret", KEYS)
@settings(max_examples=30)
@given(plain=plaintexts, randomizer=st.integers(2, 2**250))
def test_the_same_randomizer_gives_the_same_ciphertext(
    secret: SecretKey, plain: int, randomizer: int
) -> None:
    public = to_phe_public(secret.public)
    ours = raw_encrypt(secret.public, plain, randomizer)
    assert public.raw_encrypt(plain % public.n, r_value=randomizer) == ours


def test_keys_survive_both_conversions() -> None:
    assert from_phe_public(to_phe_public(OURS.public)) == OURS.public
    assert {from_phe_private(to_phe_private(OURS)).p, from_phe_private(to_phe_private(OURS)).q} == {
        OURS.p,
        OURS.q,
    }
    assert to_phe_private(from_phe_private(THEIRS)) == THEIRS


def test_an_encrypted_float_is_no_integer() -> None:
    with pytest.raises(UsageError):
        from_phe_ciphertext(to_phe_public(OURS.public).encrypt(0.5))


def test_an_owner_with_phe_alone_makes_valid_vectors() -> None:
    vectors = PaillierVectors(OURS.public, 20)
    values = list(range(-30, 30))
    with_phe = PheEncryptor(OURS.public)
    plains = list(vectors.plaintexts(values, 60))
    share = with_phe.encrypt_many(plains)
    check_ciphertexts(OURS.public, share)
    with ThreadPoolExecutor(2) as executor:
        another = with_phe.encrypt_many(plains, executor)
    third = Encryptor(OURS.public, len(plains)).encrypt_many(plains)
    assert vectors.decrypt_vector(OURS, multiply_shares([share, another, third], OURS.public), 60) == [
        3 * value for value in values
    ]
    assert OURS.decrypt(with_phe.encrypt(-1)) == -1
