import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import gmpy2
import pytest
from gmpy2 import mpz

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.packing import unpack
from dpdpca_protocol.paillier.cipher import (
    Encryptor,
    add,
    add_plain,
    check_ciphertexts,
    decrypt_many,
    encode_signed,
    pack_ciphertexts,
    raw_encrypt,
    rerandomize,
    scale,
)
from dpdpca_protocol.paillier.keys import KeyRules, SecretKey, generate_secret_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_runtime.workers import WorkerProcesses


@pytest.fixture(scope="module")
def secret() -> SecretKey:
    return generate_secret_key(520, OS_RANDOMNESS, rules=KeyRules(520))


@pytest.fixture(scope="module")
def encryptor(secret: SecretKey) -> Encryptor:
    return Encryptor(secret.public, 10)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_signed_values_survive_their_residues(secret: SecretKey) -> None:
    public = secret.public
    edge = int(public.modulus - 1) // 2
    for value in (0, 1, -1, edge, -edge):
        assert encode_signed(public, value) == value % public.modulus
        assert secret.decrypt(raw_encrypt(public, value, 17)) == value
    for value in (edge + 1, -edge - 1, int(public.modulus)):
        with pytest.raises(CryptographicError) as caught:
            encode_signed(public, value)
        assert caught.value.slug == "plaintext-out-of-range"


def test_raw_encryption_is_the_textbook_formula(secret: SecretKey) -> None:
    n, square = secret.public.modulus, secret.public.ciphertext_modulus
    expected = gmpy2.powmod(1 + n, 42, square) * gmpy2.powmod(17, n, square) % square
    assert raw_encrypt(secret.public, 42, 17) == expected


def test_computing_on_ciphertexts(secret: SecretKey, encryptor: Encryptor) -> None:
    public = secret.public
    left, right = encryptor.encrypt(1000), encryptor.encrypt(-1)
    assert secret.decrypt(add(public, left, right)) == 999
    assert secret.decrypt(add_plain(public, left, -2000)) == -1000
    for factor in (0, 1, -1, 7, -12345678901234567890):
        assert secret.decrypt(scale(public, left, factor)) == 1000 * factor


def test_rerandomizing_keeps_the_plaintext_and_hides_the_randomizer(
    secret: SecretKey, encryptor: Encryptor
) -> None:
    ciphertext = encryptor.encrypt(-77)
    again = {rerandomize(secret.public, ciphertext, OS_RANDOMNESS) for _ in range(5)}
    assert len(again) == 5
    assert [secret.decrypt(c) for c in again] == [-77] * 5
    roots = {gmpy2.jacobi(secret.residue_root(c), secret.public.modulus) for c in again}
    assert roots <= {1, -1}


def test_every_encryption_is_fresh(secret: SecretKey, encryptor: Encryptor) -> None:
    ciphertexts = encryptor.encrypt_many([5] * 40)
    assert len(set(ciphertexts)) == 40
    assert set(decrypt_many(secret, ciphertexts)) == {5}
    check_ciphertexts(secret.public, ciphertexts)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_threads_keep_the_order(
    secret: SecretKey, encryptor: Encryptor, executor: ThreadPoolExecutor, count: int
) -> None:
    values = [(-1) ** i * i for i in range(count)]
    ciphertexts = encryptor.encrypt_many(values, executor)
    assert decrypt_many(secret, ciphertexts, executor) == values
    assert decrypt_many(secret, ciphertexts) == values


@pytest.mark.parametrize("bits", [520, 576])
@pytest.mark.parametrize("count", [1, 40])
def test_processes_encrypt_the_same_values(bits: int, count: int) -> None:
    """A key that fills whole machine words and one that does not; one value for three workers."""
    secret = generate_secret_key(bits, OS_RANDOMNESS, rules=KeyRules(bits))
    edge = int(secret.public.modulus - 1) // 2
    values = [edge, -edge, 0, *range(-count, count)][-count:]
    encryptor = Encryptor(secret.public, count)
    with WorkerProcesses(3) as workers:
        ciphertexts = encryptor.encrypt_many(values, workers)
    assert len(set(ciphertexts)) == count
    assert decrypt_many(secret, ciphertexts) == values


def test_a_refused_value_comes_back_from_a_worker_as_it_was_raised(encryptor: Encryptor) -> None:
    with WorkerProcesses(2) as workers, pytest.raises(CryptographicError) as caught:
        encryptor.encrypt_many([1] * 40 + [int(encryptor.public.modulus)], workers)
    assert caught.value.slug == "plaintext-out-of-range"


def test_slices_in_one_process_share_one_comb(encryptor: Encryptor) -> None:
    first, second = (pickle.loads(pickle.dumps(encryptor)) for _ in range(2))
    assert first is second
    assert first.comb is second.comb
    assert first.comb is not encryptor.comb


def test_a_secret_key_does_not_leave_its_process(secret: SecretKey) -> None:
    with WorkerProcesses(1) as workers, pytest.raises(TypeError):
        decrypt_many(secret, [mpz(2)], workers)


def test_the_lock_setting_of_the_caller_is_left_alone(
    encryptor: Encryptor, executor: ThreadPoolExecutor
) -> None:
    with gmpy2.context(allow_release_gil=False):  # a proxy of an earlier test may have set it in this thread
        encryptor.encrypt_many([1, 2, 3], executor)
        assert not gmpy2.get_context().allow_release_gil
    assert not executor.submit(lambda: gmpy2.get_context().allow_release_gil).result()


@pytest.mark.parametrize("values", [[9], [1, -2, 3, -4], [0, 0, 0], [-1] * 8])
def test_packing_ciphertexts_packs_plaintexts(
    secret: SecretKey, encryptor: Encryptor, values: list[int]
) -> None:
    packed = pack_ciphertexts(secret.public, encryptor.encrypt_many(values), 48)
    assert unpack(int(secret.decrypt(packed)), 48, len(values)) == values


def test_a_plaintext_that_does_not_fit_is_not_encrypted(secret: SecretKey, encryptor: Encryptor) -> None:
    with pytest.raises(CryptographicError):
        encryptor.encrypt(int(secret.public.modulus))


def refusal(secret: SecretKey, ciphertexts: list[mpz]) -> str:
    with pytest.raises(CryptographicError) as caught:
        check_ciphertexts(secret.public, ciphertexts)
    return caught.value.slug


def test_one_bad_value_among_a_thousand_is_found(secret: SecretKey, encryptor: Encryptor) -> None:
    public = secret.public
    n, square = public.modulus, public.ciphertext_modulus
    good = [encryptor.encrypt(1)]
    while len(good) < 1000:
        good.append(good[-1] * good[0] % square)
    check_ciphertexts(public, good)
    for bad in (0, 1, square, square + 1, -1):
        assert refusal(secret, [*good, mpz(bad)]) == "ciphertext-out-of-range"
    for bad in (n, 2 * n, secret.p, secret.q * 3, square - n):
        assert refusal(secret, [*good[:500], mpz(bad), *good[500:]]) == "ciphertext-not-a-unit"
    assert refusal(secret, [*good, good[499]]) == "ciphertext-repeated"


def test_nothing_is_nothing_to_refuse(secret: SecretKey) -> None:
    check_ciphertexts(secret.public, [])
