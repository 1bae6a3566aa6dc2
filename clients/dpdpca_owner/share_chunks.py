"""The chunks of a share. Chunks are encrypted ahead of time, and kept on disk until the receipt arrives."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import count, islice
from operator import add

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.pads.streams import PadKey
from dpdpca_protocol.paillier.chunks import CHUNK_CIPHERTEXTS, decode_chunk, encode_chunk
from dpdpca_protocol.paillier.cipher import Encryptor, add_plain, encode_signed
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.records.block_sums import Sums
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.release.suite import BegunShare, Suite
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.terms.signed_manifest import SignedManifest
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.identifiers import Content
from dpdpca_protocol.wire.salts import SALT_BYTES, salted_chunk

_CHUNKS_AHEAD = 2
"""Chunks that are encrypted at the same time, so that workers are busy while a chunk is written and sent."""

OnEncrypted = Callable[[int], None]


def share_chunks(
    signed: SignedManifest,
    sums: Sums,
    noise: Samplers,
    folder: StudyFolder,
    randomness: Randomness,
    executor: Executor | None = None,
    workers: int = 1,
    on_encrypted: OnEncrypted = lambda count: None,
) -> Iterator[bytes]:
    """The unsealed chunks of a share in order, in the layout that the manifest's release requires.

    A chunk that an earlier run made is read from the disk. A new chunk is written to the disk before it is
    returned. For ciphertexts that `prepare_randomizers` has prepared, encrypting only adds the plaintexts.

    Args:
        signed: the manifest, opened and checked.
        sums: this owner's exact integers.
        noise: where this owner's noise comes from, if the owners draw it.
        folder: keeps the chunks; it must not contain chunks of other data.
        randomness: for the encryption and the salts.
        executor: the processes that encrypt; None encrypts in this process.
        workers: the number of these processes.
        on_encrypted: called with the number of new ciphertexts since its last call.
    """
    public = signed.public_key
    encryptor = Encryptor(public, -(-signed.manifest.figures.ciphertext_count // workers), randomness)
    plains = _plaintexts(signed, sums, noise)
    begun: deque[_Begun] = deque()
    for index in count():
        if part := list(islice(plains, CHUNK_CIPHERTEXTS)):
            kept = folder.chunk(index)
            width = len(part) * public.ciphertext_bytes
            if kept is not None and len(kept) == SALT_BYTES + width:
                begun.append(_Begun(index, len(part), kept, iter(())))
            elif (randomizers := folder.take_randomizers(index)) is not None and len(randomizers) == width:
                slices = iter([_encrypt_with(public, part, decode_chunk(randomizers, public))])
                begun.append(_Begun(index, len(part), None, slices))
            else:
                begun.append(_Begun(index, len(part), None, encryptor.encrypt_slices(part, executor)))
        elif not begun:
            return
        if len(begun) == _CHUNKS_AHEAD or not part:
            yield _finish(begun.popleft(), public, folder, randomness, on_encrypted)


def share_values(signed: SignedManifest, sums: Sums, noise: Samplers) -> NDArray[np.int64]:
    """All values of a flat share, with this owner's part of the noise if the owners draw it.

    Args:
        signed, sums, noise: as for `share_chunks`.
    """
    figures = signed.manifest.figures
    values = sums.values()
    if figures.noise_by is NoiseBy.OWNERS:
        values += np.fromiter(figures.own_noise(noise), dtype=np.int64, count=figures.value_count)
    return values


def repeatable_chunks(
    suite: Suite,
    begun: BegunShare,
    values: NDArray[np.int64],
    randomness: Randomness,
    on_made: OnEncrypted = lambda count: None,
    pairs: Sequence[PadKey] = (),
) -> Iterator[Content]:
    """The unsealed chunks of a share in order, where the same secrets and values always give the same chunks.

    Args:
        suite: of the study.
        begun: the secrets of this version, already on the disk, with the digest of these values.
        values: of the whole share.
        randomness: not used by suites that repeat chunks.
        on_made: called with the number of new values since its last call.
        pairs: the keys that this owner shares with the others in a blinded study.
    """
    make = suite.chunk_maker(begun.secrets, randomness, pairs=pairs)
    for index in range(suite.chunk_count):
        at = suite.chunk_values(index)
        yield make(index, values[at.start : at.stop])(on_made)


def prepare_randomizers(
    signed: SignedManifest,
    folder: StudyFolder,
    randomness: Randomness,
    executor: Executor | None = None,
    workers: int = 1,
    on_made: OnEncrypted = lambda count: None,
) -> int:
    """Make an encryption of 0, ahead of time, for every ciphertext of a share that has none yet. Returns the
    number of new encryptions.

    Adding a plaintext to an encryption of 0 takes microseconds. Each encryption of 0 is used for one
    ciphertext only.

    Args:
        signed, folder, randomness, executor, workers: as for `share_chunks`.
        on_made: called with the number of new ones since its last call.
    """
    if signed.suite.is_quick:
        return 0
    public, total = signed.public_key, signed.manifest.figures.ciphertext_count
    encryptor = Encryptor(public, -(-total // workers), randomness)
    made = 0
    for index in range(-(-total // CHUNK_CIPHERTEXTS)):
        if not folder.has_randomizers(index):
            size = min(CHUNK_CIPHERTEXTS, total - index * CHUNK_CIPHERTEXTS)
            encoded = []
            for randomizers in encryptor.encrypt_slices([0] * size, executor):
                encoded.append(encode_chunk(randomizers, public))
                on_made(len(randomizers))
            folder.save_randomizers(index, b"".join(encoded))
            made += size
    return made


def _encrypt_with(public: PublicKey, plains: list[int], randomizers: list[mpz]) -> list[mpz]:
    return [
        add_plain(public, randomizer, encode_signed(public, plain))
        for plain, randomizer in zip(plains, randomizers, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A chunk that is already on the disk, or that workers are encrypting."""

    index: int
    ciphertext_count: int
    kept: bytes | None
    slices: Iterator[list[mpz]]


def _finish(
    begun: _Begun,
    public: PublicKey,
    folder: StudyFolder,
    randomness: Randomness,
    on_encrypted: OnEncrypted,
) -> bytes:
    if begun.kept is not None:
        on_encrypted(begun.ciphertext_count)
        return begun.kept
    encoded = []
    for ciphertexts in begun.slices:
        encoded.append(encode_chunk(ciphertexts, public))
        on_encrypted(len(ciphertexts))
    chunk = salted_chunk(b"".join(encoded), randomness)
    folder.save_chunk(begun.index, chunk)
    return chunk


def _plaintexts(signed: SignedManifest, sums: Sums, noise: Samplers) -> Iterator[int]:
    """Packs rows one at a time: a whole matrix of Python integers would take ten times the memory."""
    figures = signed.manifest.figures
    if figures.blocks:
        vectors = PaillierVectors(signed.public_key, figures.slot_bits)
        values = sums.stream()
        if figures.noise_by is NoiseBy.OWNERS:
            values = map(add, values, figures.own_noise(noise))
        return vectors.plaintexts(values, figures.value_count)
    assert isinstance(sums, SecondMoments)
    layout = BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)
    return layout.pack_share(sums.count, sums.sum.tolist(), sums.second_moment)  # type: ignore[arg-type]  # rows of an array are sequences of integers
