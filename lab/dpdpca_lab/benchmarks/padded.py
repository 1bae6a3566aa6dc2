"""The phases of a study under pads at a given size, each with the code that the roles run.

The floor is what a phase cannot avoid, measured in the same run: one ChaCha20 stream, one SHA-256 and one
seal of an owner's chunks, one addition for each value and owner, or one ChaCha20 stream for each owner. A
blinded share has one more stream for each other owner.
"""

import hashlib
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from dpdpca_lab.benchmarks.measure import Measured, in_turns, seconds_of, steady
from dpdpca_lab.benchmarks.phases import Clock, Size, random_moments
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.pads.streams import apply_pads
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.seeded_noise import seeded_samplers
from dpdpca_protocol.release.suite import CohortShare, PadsSuite
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.kem import KemKey
from dpdpca_protocol.wire.sealing import chunk_info, seal
from dpdpca_proxy.store.files import FolderStore
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_proxy.worker import draw, make_release, multiply_chunks
from dpdpca_runtime.workers import WorkerThreads

_STUDY, _OWNER = StudyId.of(b"bench"), PartyId.of(b"owner")


def bench_encrypt(size: Size) -> Measured:
    """Measure one owner's whole share: its keys, and its chunks padded, blinded, hashed and sealed.

    In a blinded study, the masks alone and the owner's noise are measured too.
    """
    suite = _study(size)[1]
    proxy = KemKey.generate().public
    values, info = random_moments(size).values(), chunk_info(_STUDY, _OWNER, 1, 0)
    parts = _chunks(suite, values.tobytes())
    own_words = [np.frombuffer(part, dtype="<u8").copy() for part in parts]
    own, *others = (X25519PrivateKey.generate() for _ in range(size.owners if size.blinded else 1))
    publics = {
        PartyId.of(b"owner %d" % number): other.public_key().public_bytes_raw()
        for number, other in enumerate(others)
    }

    def run() -> None:
        begun = suite.begin(_OWNER, 1, OS_RANDOMNESS)
        pairs = pair_keys(own, _OWNER, publics, _STUDY) if size.blinded else ()
        make = suite.chunk_maker(begun.secrets, OS_RANDOMNESS, pairs=pairs)
        for index, at in enumerate(map(suite.chunk_values, range(suite.chunk_count))):
            chunk = make(index, values[at.start : at.stop])(lambda count: None)
            Digest.of(chunk)
            seal(chunk, proxy, info)

    def bare(clock: Clock) -> float:
        begin = clock()
        for part in parts:
            for _ in range(1 + len(others)):
                _stream(part)
            hashlib.sha256(part).digest()
            seal(part, proxy, info)
        return clock() - begin

    def masks() -> None:
        pairs = pair_keys(own, _OWNER, publics, _STUDY)
        for index, words in enumerate(own_words):
            apply_pads(words, pairs, index)

    def streams() -> None:
        for part in parts:
            for _ in others:
                _stream(part)

    def noise() -> None:
        drawn = size.figures.own_noise(seeded_samplers(secrets.token_bytes(32)))
        np.fromiter(drawn, dtype=np.int64, count=size.figures.value_count)

    measured = _measured(size, "encrypt", run, bare)
    if size.blinded:
        used = [
            partial(steady, partial(seconds_of, act, time.process_time)) for act in (masks, streams, noise)
        ]
        for_masks, for_streams, for_noise = in_turns(size.rounds, *used)
        measured.details.update(mask_streams=for_masks / for_streams, draw_cpu_seconds=for_noise)
    return measured


def bench_aggregate(size: Size) -> Measured:
    """Measure the aggregation: read all shares from sealed files, add them up, and write the sums."""
    _, suite = _study(size)
    with tempfile.TemporaryDirectory() as folder:
        place = StudyFiles(FolderStore(Path(folder)), _STUDY, suite, OS_RANDOMNESS.bytes(32))
        wanted = []
        for position in range(suite.chunk_count):
            name = f"{_STUDY.hex()}/sealed/{position}"
            place.write(name, secrets.token_bytes(suite.chunk_bytes(position)))
            wanted.append((position, [name] * size.owners))
        words = np.frombuffer(secrets.token_bytes(size.figures.share_bytes), dtype="<u8")

        def bare(clock: Clock) -> float:
            total, begin = words.copy(), clock()
            for _ in range(max(1, size.owners - 1)):
                total += words
            return clock() - begin

        notes = ("all owners are simulated with one share",)
        return _measured(size, "aggregate", lambda: multiply_chunks(place, wanted), bare, size.owners, notes)


def bench_release(size: Size) -> Measured:
    """Measure the proxy's release from the stored sums and noise."""
    figures = size.figures
    _, suite = _study(size)
    with tempfile.TemporaryDirectory() as folder:
        place = StudyFiles(FolderStore(Path(folder)), _STUDY, suite, OS_RANDOMNESS.bytes(32))
        names = [f"{_STUDY.hex()}/sealed/{position}" for position in range(suite.chunk_count)]
        for position, name in enumerate(names):
            place.write(name, secrets.token_bytes(suite.chunk_bytes(position)))
        token = draw(place, figures, None)
        words = np.frombuffer(secrets.token_bytes(figures.share_bytes), dtype="<u8")

        def bare(clock: Clock) -> float:
            begin = clock()
            words + words
            return clock() - begin

        return _measured(size, "release", lambda: make_release(place, figures, None, names, token), bare)


def bench_decrypt(size: Size) -> Measured:
    """Measure opening the pads of a whole cohort and subtracting them from a release."""
    secret, suite = _study(size)
    chunks = _chunks(suite, secrets.token_bytes(size.figures.share_bytes))
    owners = [PartyId.of(b"owner %d" % number) for number in range(size.owners)]
    cohort = [CohortShare(owner, 1, suite.begin(owner, 1, OS_RANDOMNESS).pad) for owner in owners]

    def run() -> None:
        with WorkerThreads(size.workers) as threads:
            suite.open_sum(secret.to_bytes(), chunks, cohort, threads)

    def bare(clock: Clock) -> float:
        begin = clock()
        for chunk in chunks:
            for _ in owners:
                _stream(chunk)
        return clock() - begin

    return _measured(size, "decrypt", run, bare)


PHASES: Mapping[str, Callable[[Size], Measured]] = {
    "encrypt": bench_encrypt,
    "aggregate": bench_aggregate,
    "release": bench_release,
    "decrypt": bench_decrypt,
}


def _study(size: Size) -> tuple[PadsSecret, PadsSuite]:
    secret = PadsSecret.generate(OS_RANDOMNESS)
    return secret, PadsSuite(secret.public, _STUDY, size.figures.value_count)


def _chunks(suite: PadsSuite, content: bytes) -> list[bytes]:
    ranges = map(suite.chunk_values, range(suite.chunk_count))
    return [content[8 * at.start : 8 * at.stop] for at in ranges]


def _stream(content: bytes) -> bytes:
    return Cipher(ChaCha20(bytes(32), bytes(16)), mode=None).encryptor().update(content)


def _measured(
    size: Size,
    phase: str,
    run: Callable[[], object],
    bare: Callable[[Clock], float],
    owners: int = 1,
    notes: tuple[str, ...] = (),
) -> Measured:
    figures = size.figures
    return size.measured(
        phase,
        run,
        1,
        figures.value_count * owners,
        figures.share_bytes * owners,
        None,
        None,
        0,
        (*notes, "here the one multiplication is the whole floor"),
        bare,
    )
