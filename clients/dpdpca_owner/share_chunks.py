"""The chunks of a share, encrypted as they are asked for, and remembered until the receipt is in."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import islice

from gmpy2 import mpz

from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.figures import Figures
from dpdpca_protocol.manifest import SignedManifest
from dpdpca_protocol.packing import BlockLayout
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.scatter import SecondMoments
from dpdpca_protocol.share import CHUNK_CIPHERTEXTS, decode_chunk, encode_chunk
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.suite import EncryptsIntegers, PaillierSuite

_TICK = 64
"""Ciphertexts between two signs of progress."""

OnEncrypted = Callable[[int], None]


class RememberedChunks:
    """An encryptor that gives each chunk's ciphertexts from disk where an earlier run has made them.

    Asked for chunk after chunk, in order; a new chunk is on the disk before it is given.
    """

    def __init__(
        self,
        folder: StudyFolder,
        signed: SignedManifest,
        encryptor: EncryptsIntegers,
        on_encrypted: OnEncrypted,
    ) -> None:
        self._folder = folder
        self._public = signed.public_key
        self._encryptor = encryptor
        self._on_encrypted = on_encrypted
        self._index = 0

    def encrypt_many(self, plains: Sequence[int], executor: Executor | None = None) -> list[mpz]:
        index = self._index
        self._index += 1
        kept = self._folder.chunk(index)
        if kept is not None and len(kept) == len(plains) * self._public.ciphertext_bytes:
            self._on_encrypted(len(plains))
            return decode_chunk(kept, self._public)
        ciphertexts: list[mpz] = []
        for start in range(0, len(plains), _TICK):
            part = self._encryptor.encrypt_many(plains[start : start + _TICK], executor)
            ciphertexts += part
            self._on_encrypted(len(part))
        self._folder.save_chunk(index, encode_chunk(ciphertexts, self._public))
        return ciphertexts


def share_chunks(
    signed: SignedManifest,
    moments: SecondMoments,
    folder: StudyFolder,
    randomness: Randomness,
    executor: Executor | None = None,
    on_encrypted: OnEncrypted = lambda count: None,
) -> Iterator[bytes]:
    """The unsealed chunks of a share in order, in the layout that the manifest's release asks for.

    Args:
        signed: opened and checked.
        moments: this owner's exact integers.
        folder: remembers the chunks; those of other data must be gone from it.
        randomness: for the encryption.
        executor: threads to encrypt on.
        on_encrypted: told how many ciphertexts are new since it was last told.
    """
    manifest, public = signed.manifest, signed.public_key
    encryptor = RememberedChunks(
        folder, signed, Encryptor(public, manifest.figures.ciphertext_count, randomness), on_encrypted
    )
    if manifest.release is ReleaseKind.JOINT:
        suite = PaillierSuite(public, manifest.figures.slot_bits)
        parts: Iterable[list[mpz]] = suite.encrypt_stream(
            moments.values(), encryptor, CHUNK_CIPHERTEXTS, executor
        )
    else:
        parts = _masked_parts(manifest.figures, moments, encryptor, executor)
    for ciphertexts in parts:
        yield encode_chunk(ciphertexts, public)


def _masked_parts(
    figures: Figures, moments: SecondMoments, encryptor: EncryptsIntegers, executor: Executor | None
) -> Iterator[list[mpz]]:
    layout = BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)
    # Rows become Python integers one at a time: a whole matrix of them would be ten times its size.
    plains = layout.pack_share(moments.count, moments.sum.tolist(), moments.second_moment)  # type: ignore[arg-type]  # rows of an array are sequences of integers
    while part := list(islice(plains, CHUNK_CIPHERTEXTS)):
        yield encryptor.encrypt_many(part, executor)
