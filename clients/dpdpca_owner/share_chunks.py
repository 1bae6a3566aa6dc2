"""The chunks of a share, encrypted ahead of being asked for, and remembered until the receipt is in."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import count, islice
from operator import add

from gmpy2 import mpz

from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.figures import NoiseBy
from dpdpca_protocol.manifest import SignedManifest
from dpdpca_protocol.packing import BlockLayout
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.scatter import SecondMoments
from dpdpca_protocol.share import CHUNK_CIPHERTEXTS, encode_chunk
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.suite import PaillierSuite

_CHUNKS_AHEAD = 2
"""Chunks that are being encrypted at a time: workers go on while a chunk is written and sent."""

OnEncrypted = Callable[[int], None]


def share_chunks(
    signed: SignedManifest,
    moments: SecondMoments,
    folder: StudyFolder,
    randomness: Randomness,
    executor: Executor | None = None,
    workers: int = 1,
    on_encrypted: OnEncrypted = lambda count: None,
) -> Iterator[bytes]:
    """The unsealed chunks of a share in order, in the layout that the manifest's release asks for.

    A chunk that an earlier run has made comes from the disk; a new one is on the disk before it is given.

    Args:
        signed: opened and checked.
        moments: this owner's exact integers.
        folder: remembers the chunks; those of other data must be gone from it.
        randomness: for the encryption.
        executor: processes to encrypt in.
        workers: how many they are.
        on_encrypted: told how many ciphertexts are new since it was last told.
    """
    public = signed.public_key
    encryptor = Encryptor(public, -(-signed.manifest.figures.ciphertext_count // workers), randomness)
    plains = _plaintexts(signed, moments)
    begun: deque[_Begun] = deque()
    for index in count():
        if part := list(islice(plains, CHUNK_CIPHERTEXTS)):
            kept = folder.chunk(index)
            if kept is not None and len(kept) == len(part) * public.ciphertext_bytes:
                begun.append(_Begun(index, len(part), kept, iter(())))
            else:
                begun.append(_Begun(index, len(part), None, encryptor.encrypt_slices(part, executor)))
        elif not begun:
            return
        if len(begun) == _CHUNKS_AHEAD or not part:
            yield _finish(begun.popleft(), public, folder, on_encrypted)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A chunk that is on the disk already, or that workers are at."""

    index: int
    ciphertext_count: int
    kept: bytes | None
    slices: Iterator[list[mpz]]


def _finish(begun: _Begun, public: PublicKey, folder: StudyFolder, on_encrypted: OnEncrypted) -> bytes:
    if begun.kept is not None:
        on_encrypted(begun.ciphertext_count)
        return begun.kept
    encoded = []
    for ciphertexts in begun.slices:
        encoded.append(encode_chunk(ciphertexts, public))
        on_encrypted(len(ciphertexts))
    chunk = b"".join(encoded)
    folder.save_chunk(begun.index, chunk)
    return chunk


def _plaintexts(signed: SignedManifest, moments: SecondMoments) -> Iterator[int]:
    """Rows become Python's integers one at a time: a whole matrix of them is ten times its size."""
    figures = signed.manifest.figures
    if signed.manifest.release is ReleaseKind.JOINT:
        suite = PaillierSuite(signed.public_key, figures.slot_bits)
        values = moments.stream()
        if figures.noise_by is NoiseBy.OWNERS:
            # Drawn anew in each run. A chunk that is on the disk keeps the draws that it was made with, one
            # that is not has never left: so no value is ever sent under two draws, nor two under one.
            values = map(add, values, figures.own_noise())
        return suite.plaintexts(values, figures.value_count)
    layout = BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)
    return layout.pack_share(moments.count, moments.sum.tolist(), moments.second_moment)  # type: ignore[arg-type]  # rows of an array are sequences of integers
