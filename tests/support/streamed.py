"""What roles stream, at once and in memory: shares, flat releases, masked ones."""

from collections.abc import Iterable, Sequence
from functools import partial

from gmpy2 import mpz

from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.paillier.cipher import Encryptor, add_plain
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release import release
from dpdpca_protocol.release.masked import Speed, masked_ciphertexts
from dpdpca_protocol.release.vectors import PaillierVectors


def encrypted(
    vectors: PaillierVectors, values: Sequence[int], encryptor: Encryptor | None = None
) -> list[mpz]:
    """The ciphertexts of a flat vector, as an owner makes them."""
    plains = list(vectors.plaintexts(values, len(values)))
    return (encryptor or Encryptor(vectors.public, len(plains))).encrypt_many(plains)


def with_noise(vectors: PaillierVectors, aggregate: Iterable[mpz], noise: Sequence[int]) -> list[mpz]:
    """A flat release, as a proxy makes it."""
    plains = vectors.plaintexts(noise, len(noise))
    return [add_plain(vectors.public, *pair) for pair in zip(aggregate, plains, strict=True)]


def masked_release(
    public: PublicKey,
    layout: BlockLayout,
    aggregate: Iterable[mpz],
    count: int,
    mask: Sequence[int],
    noise: Sequence[int],
    speed: Speed | None = None,
) -> list[mpz]:
    """A masked release, as a proxy makes it. `noise` is H as an upper triangle by rows."""
    row = partial(release.noise_row, noise, layout.d)
    return list(
        masked_ciphertexts(public, layout, aggregate, count, mask, row, OS_RANDOMNESS, speed or Speed())
    )
