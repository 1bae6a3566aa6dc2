"""The phases of a study at a given size, each with the code that the roles run.

Ciphertexts that are only multiplied are random units. Keys have ordinary primes, which are faster to make and
cost the same in computations. Further owners are simulated: their shares are the same files again.
"""

import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path

import gmpy2
import numpy as np
from gmpy2 import mpz

from dpdpca_lab.benchmarks.measure import (
    Measured,
    Peak,
    cpu_seconds,
    in_turns,
    multiplication_seconds,
    seconds_of,
    steady,
)
from dpdpca_lab.benchmarks.peers import Peer, random_plain
from dpdpca_owner.upload import WORTH_A_WORKER
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.paillier.bases import best_shape
from dpdpca_protocol.paillier.chunks import CHUNK_CIPHERTEXTS, chunk_length, encode_chunk
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.release.masked import multiplications
from dpdpca_protocol.release.release import open_flat_release, open_masked_release
from dpdpca_protocol.release.suite import PaillierSuite
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures, default_fraction_bits, figures_of
from dpdpca_protocol.terms.terms import NoiseBy, SuiteName, Terms
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.precomputed import prepare_residues
from dpdpca_proxy.store.files import FolderStore
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_proxy.worker import draw, make_release, multiply_chunks
from dpdpca_runtime.workers import WorkerProcesses, WorkerThreads, core_count

Clock = Callable[[], float]

MAX_RECORDS = 10_000
RECORDS = 7797
_MOST_DISTINCT_SHARES = 8


@dataclass(frozen=True)
class Size:
    """The size of what is measured.

    Attributes:
        features: d.
        owners: L.
        key_bits: length of the modulus.
        release: joint or masked.
        workers: number of cores.
        rounds: how often each thing is measured; the median counts.
        peer_sample: number of operations of the peer in each round.
        suite: how owners hide their values.
        blinded: whether owners add masks between each other, and the noise too.
    """

    features: int
    owners: int
    key_bits: int
    release: ReleaseKind
    workers: int
    rounds: int = 3
    peer_sample: int = 5
    suite: SuiteName = SuiteName.PAILLIER
    blinded: bool = False

    @cached_property
    def secret(self) -> SecretKey:
        half = self.key_bits // 2
        while True:
            p, q = (gmpy2.next_prime(mpz(secrets.randbits(half) | 3 << (half - 2))) for _ in range(2))
            if (p * q).bit_length() == self.key_bits and gmpy2.gcd(p * q, (p - 1) * (q - 1)) == 1:
                return SecretKey(p, q)

    @cached_property
    def figures(self) -> Figures:
        d, clip_norm = self.features, Fraction(1)
        masked = self.release is ReleaseKind.MASKED
        terms = Terms(
            release=self.release,
            encoded_features=d,
            clip_norm=clip_norm,
            fraction_bits=default_fraction_bits(d, clip_norm),
            epsilon=Fraction(1),
            delta=Fraction("1e-6"),
            sum_weight=Fraction(0) if masked else Fraction("0.43"),
            max_records=MAX_RECORDS,
            modulus_bits=self.key_bits,
            suite=self.suite,
            noise_by=NoiseBy.OWNERS if self.blinded else NoiseBy.PROXY,
            assured_shares=self.owners - 1 if self.blinded else 1,
            max_owners=self.owners,
        )
        return figures_of(terms)

    @property
    def layout(self) -> BlockLayout:
        return BlockLayout(self.features, self.figures.slot_bits, self.figures.slots)

    def unit(self) -> mpz:
        return mpz(2 + secrets.randbelow(int(self.secret.public.ciphertext_modulus) - 2))

    def measured(
        self,
        phase: str,
        run: Callable[[], object],
        total: float,
        values: int,
        content_bytes: int,
        peer: Peer | None,
        peer_act: Callable[[], object] | None,
        peer_operations: int,
        notes: tuple[str, ...] = (),
        bare: Callable[[Clock], float] | None = None,
    ) -> Measured:
        """Measure our run, the bare multiplication and the peer's operation in turn."""
        peak, used = Peak(), []
        if bare is None:
            bare = partial(multiplication_seconds, self.secret.public.ciphertext_modulus)

        def once_through() -> float:
            before = cpu_seconds()
            taken = seconds_of(run)
            used.append(cpu_seconds() - before)
            return taken

        measurements: list[Callable[[], float]] = [
            once_through,
            partial(bare, time.perf_counter),
            partial(bare, time.process_time),
        ]
        if self.suite is SuiteName.PADS:
            measurements = [partial(steady, each) for each in measurements]
        if peer_act is not None:
            once = peer_act
            measurements.append(lambda: seconds_of(lambda: [once() for _ in range(self.peer_sample)]))
        with peak.watching():
            seconds, bare_seconds, bare_cpu_seconds, *other = in_turns(self.rounds, *measurements)
        peer_seconds = None
        if peer is not None and other:
            cores = 1 if peer.threads else self.workers
            peer_seconds = other[0] / self.peer_sample * peer_operations / cores
            notes += (f"{peer.name}: extrapolated from {self.peer_sample} operations in each round",)
        return Measured(
            phase,
            seconds,
            values,
            content_bytes,
            peak.bytes,
            total,
            bare_seconds,
            self.workers,
            peer.name if peer_seconds is not None and peer is not None else None,
            peer_seconds,
            self.peer_sample if peer_seconds is not None else 0,
            statistics.median(used),
            bare_cpu_seconds,
            notes,
        )


def bench_encrypt(size: Size, peer: Peer | None) -> Measured:
    """Measure one owner's whole share: packed, encrypted and encoded, including the start of workers."""
    figures, public = size.figures, size.secret.public
    moments = random_moments(size)
    count = figures.ciphertext_count
    workers = max(1, min(size.workers, count // WORTH_A_WORKER))

    def run() -> None:
        encryptor = Encryptor(public, -(-count // workers))
        if size.release is ReleaseKind.JOINT:
            plains = PaillierVectors(public, figures.slot_bits).plaintexts(
                moments.stream(), figures.value_count
            )
        else:
            rows = moments.second_moment
            plains = size.layout.pack_share(moments.count, moments.sum.tolist(), rows)  # type: ignore[arg-type]  # rows are sequences of integers
        with WorkerProcesses(workers) if workers > 1 else nullcontext() as executor:
            while part := [plain for _, plain in zip(range(2 * CHUNK_CIPHERTEXTS), plains, strict=False)]:
                for ciphertexts in encryptor.encrypt_slices(part, executor):
                    encode_chunk(ciphertexts, public)

    plain = random_plain(size.key_bits)
    act = None
    if peer is not None:
        encrypt = peer.encrypt
        act = lambda: encrypt(plain if peer.packs else 12345)  # noqa: E731 # one line, one operation
    teeth, splits = best_shape(-(-size.key_bits // 2), -(-count // workers), public.ciphertext_bytes)
    tables = -(-size.key_bits // 2 // (teeth * splits))
    # the comb's products and squarings, the plaintext's two, and the tables of each process
    floor = count * (tables * splits + splits) + workers * (size.key_bits // 2 + (tables << teeth))
    operations = count if peer is not None and peer.packs else figures.value_count
    return size.measured(
        "encrypt", run, floor, figures.value_count, figures.share_bytes, peer, act, operations
    )


def random_moments(size: Size) -> SecondMoments:
    """Sums of a few random records: the time of encryption does not depend on their content."""
    figures = size.figures
    moments = SecondMoments(size.features, figures.record_bound)
    limit = max(1, int((figures.record_bound // size.features) ** 0.5))
    drawn = np.frombuffer(secrets.token_bytes(4 * 20 * size.features), dtype="<i4")
    moments.add((drawn % (2 * limit) - limit).astype(np.int64).reshape(20, size.features))
    return moments


def bench_aggregate(size: Size, peer: Peer | None) -> Measured:
    """Measure the aggregation: read all shares from sealed files, multiply them, and write the products."""
    figures = size.figures
    distinct = min(size.owners, _MOST_DISTINCT_SHARES)
    with tempfile.TemporaryDirectory() as folder:
        place, wanted = stored_shares(size, Path(folder))
        act = None
        if peer is not None:
            left, right = (peer.encrypt(random_plain(size.key_bits) if peer.packs else 5) for _ in range(2))
            act = partial(peer.add, left, right)
        total = figures.ciphertext_count * max(1, size.owners - 1)
        operations = total
        if peer is not None and not peer.packs:
            operations = figures.value_count * max(1, size.owners - 1)
        notes = (f"{size.owners - distinct} of the owners are simulated",) if size.owners > distinct else ()
        return size.measured(
            "aggregate",
            lambda: with_cores(size.workers, lambda: multiply_chunks(place, wanted)),
            total,
            figures.value_count * size.owners,
            figures.share_bytes * size.owners,
            peer,
            act,
            operations,
            notes,
        )


def bench_release(size: Size, peer: Peer | None) -> Measured:
    """Measure the proxy's release from the stored products and noise.

    The time of the work that the proxy does before closing is reported separately.
    """
    figures, public = size.figures, size.secret.public
    with tempfile.TemporaryDirectory() as folder:
        place, products = stored_products(size, Path(folder))
        masked = size.release is ReleaseKind.MASKED
        records = RECORDS if masked else None
        begin = time.perf_counter()
        token = draw(place, figures, records)
        drawing = time.perf_counter() - begin
        outgoing = size.layout.release_count

        def prepare() -> None:
            while prepare_residues(place, outgoing):
                pass

        ahead = seconds_of(prepare) if masked else 0.0
        total = float(figures.ciphertext_count)
        act: Callable[[], object] | None = None
        if masked:
            total = multiplications(public, size.layout, figures.mask_bits, RECORDS, size.workers)
            if peer is not None and peer.release is not None:
                bound = 1 << figures.mask_bits
                masks = [secrets.randbelow(bound) - bound // 2 for _ in range(2)]
                steps = peer.release
                act = lambda: steps(RECORDS, masks[0], masks[1], 999)  # noqa: E731 # one line, one operation
        elif peer is not None and not peer.packs:
            number = peer.encrypt(5)
            act = lambda: number + 7  # noqa: E731 # one line, one operation
        measured = size.measured(
            "release",
            lambda: with_cores(size.workers, lambda: make_release(place, figures, records, products, token)),
            total,
            figures.value_count,
            outgoing * public.ciphertext_bytes if masked else figures.share_bytes,
            peer,
            act,
            figures.value_count,
        )
    measured.details.update(ahead_seconds=ahead, draw_seconds=drawing)
    return measured


def bench_decrypt(size: Size, peer: Peer | None) -> Measured:
    """Measure decrypting, unpacking and centring a release.

    The floor is two bare half-size powers for each.
    """
    figures, secret, public = size.figures, size.secret, size.secret.public
    encryptor, layout = Encryptor(public, 60), size.layout
    if size.release is ReleaseKind.JOINT:
        count = figures.ciphertext_count
        some = encryptor.encrypt_many([RECORDS if k == 0 else 0 for k in range(min(count, 40))])
        ciphertexts = [some[0], *(some[1 + k % (len(some) - 1)] for k in range(count - 1))]
    else:
        count = layout.release_count
        some = encryptor.encrypt_many([0] * min(count, 40))
        ciphertexts = [some[k % len(some)] for k in range(count)]

    def run() -> None:
        with WorkerThreads(size.workers) as threads:
            if size.release is ReleaseKind.JOINT:
                vectors = PaillierVectors(public, figures.slot_bits)
                open_flat_release(vectors, secret, ciphertexts, figures.blocks, threads)
            else:
                open_masked_release(secret, layout, ciphertexts, RECORDS, threads)

    square = secret.p * secret.p
    base = some[0] % square

    def half_power(clock: Clock) -> float:
        begin = clock()
        for _ in range(10):
            gmpy2.powmod_sec(base, secret.p - 1, square)
        return (clock() - begin) / 10

    act = None
    if peer is not None:
        number, decrypt = peer.encrypt(random_plain(size.key_bits) if peer.packs else 5), peer.decrypt
        act = lambda: decrypt(number)  # noqa: E731 # one line, one operation
    operations = count if peer is not None and peer.packs else figures.value_count
    return size.measured(
        "decrypt",
        run,
        2 * count,
        figures.value_count,
        count * public.ciphertext_bytes,
        peer,
        act,
        operations,
        ("here a multiplication is a power with half-size numbers",),
        half_power,
    )


def stored_shares(size: Size, folder: Path) -> tuple[StudyFiles, list[tuple[int, list[str]]]]:
    """Shares of random units in sealed files, and for each position the names of the files to multiply."""
    figures, public = size.figures, size.secret.public
    distinct = min(size.owners, _MOST_DISTINCT_SHARES)
    place, wanted = _place(size, folder), []
    for position in range(figures.chunk_count):
        length = chunk_length(figures.ciphertext_count, position)
        names = [f"{place.study.hex()}/sealed/{position}-{owner}" for owner in range(distinct)]
        for name in names:
            place.write(name, encode_chunk([size.unit() for _ in range(length)], public))
        wanted.append((position, [names[owner % distinct] for owner in range(size.owners)]))
    return place, wanted


def stored_products(size: Size, folder: Path) -> tuple[StudyFiles, list[str]]:
    """Products of random units in sealed files, and their names."""
    figures, public = size.figures, size.secret.public
    place, products = _place(size, folder), []
    for position in range(figures.chunk_count):
        length = chunk_length(figures.ciphertext_count, position)
        products.append(f"{place.study.hex()}/sealed/{position}")
        place.write(products[-1], encode_chunk([size.unit() for _ in range(length)], public))
    return place, products


def _place(size: Size, folder: Path) -> StudyFiles:
    figures = size.figures
    suite = PaillierSuite(
        size.secret.public, figures.slot_bits, figures.value_count, figures.ciphertext_count
    )
    return StudyFiles(FolderStore(folder), StudyId.of(b"bench"), suite, OS_RANDOMNESS.bytes(32))


def with_cores(workers: int, act: Callable[[], object]) -> None:
    """Run `act` with this process limited to `workers` cores, because the proxy's code uses all cores that it
    may use.

    Raises:
        UsageError: this system cannot limit the cores of a process; only Linux can.
    """
    choose, chosen = getattr(os, "sched_setaffinity", None), getattr(os, "sched_getaffinity", None)
    if choose is None or chosen is None:
        if workers < core_count():
            raise UsageError(
                "bad-option", f"this system cannot measure with {workers} workers", "leave out --workers"
            )
        act()
        return
    allowed = chosen(0)
    choose(0, set(sorted(allowed)[:workers]))
    try:
        act()
    finally:
        choose(0, allowed)
