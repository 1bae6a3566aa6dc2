"""Chunks of ciphertexts, as shares and releases are sent.

The ciphertexts are sent in the order that docs/spec.md, section 6, defines. Each has bits(n)/4 bytes,
big-endian. A chunk has 1,024 ciphertexts; the last chunk may be shorter. A chunk of a share begins with a
salt. A chunk of a release has no salt.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from gmpy2 import mpz

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.paillier.cipher import check_ciphertexts
from dpdpca_protocol.paillier.keys import PublicKey

CHUNK_CIPHERTEXTS = 1024


def chunk_count(ciphertext_count: int) -> int:
    return -(-ciphertext_count // CHUNK_CIPHERTEXTS)


def chunk_length(ciphertext_count: int, index: int) -> int:
    """The number of ciphertexts in chunk `index` of a share or release with `ciphertext_count` ciphertexts.

    Raises:
        MessageError: no chunk has this index.
    """
    if not 0 <= index < chunk_count(ciphertext_count):
        raise MessageError(
            "malformed",
            f"there is no chunk {index}: chunks are numbered from 0 to {chunk_count(ciphertext_count) - 1}",
        )
    return min(CHUNK_CIPHERTEXTS, ciphertext_count - index * CHUNK_CIPHERTEXTS)


def encode_chunk(ciphertexts: Iterable[mpz], public: PublicKey) -> bytes:
    width = public.ciphertext_bytes
    return b"".join(ciphertext.to_bytes(width, "big") for ciphertext in ciphertexts)


def encode_chunks(ciphertexts: Iterable[mpz], public: PublicKey) -> Iterator[bytes]:
    """The chunks of a share or release, in order, while the ciphertexts are produced."""
    stream = iter(ciphertexts)
    while group := list(islice(stream, CHUNK_CIPHERTEXTS)):
        yield encode_chunk(group, public)


def decode_chunk(chunk: bytes, public: PublicKey) -> list[mpz]:
    """The ciphertexts in a chunk without a salt, which must have been checked before."""
    width = public.ciphertext_bytes
    return [mpz.from_bytes(chunk[at : at + width], "big") for at in range(0, len(chunk), width)]


def parse_chunk(
    untrusted: bytes, public: PublicKey, index: int, ciphertext_count: int, salt_bytes: int = 0
) -> list[mpz]:
    """The ciphertexts of chunk `index`.

    Each is in range, is a unit and differs from the others in the chunk.

    Args:
        untrusted: a chunk.
        public: the key.
        index: the position of the chunk.
        ciphertext_count: the number of ciphertexts in the whole share or release.
        salt_bytes: the length of the salt at its beginning.

    Raises:
        MessageError: the length is not the one that the manifest gives this chunk.
        CryptographicError: a ciphertext is out of range, shares a factor with n, or appears twice.
    """
    expected = salt_bytes + chunk_length(ciphertext_count, index) * public.ciphertext_bytes
    if len(untrusted) != expected:
        raise MessageError("malformed", f"chunk {index} has {len(untrusted)} bytes instead of {expected}")
    ciphertexts = decode_chunk(untrusted[salt_bytes:], public)
    check_ciphertexts(public, ciphertexts)
    return ciphertexts
