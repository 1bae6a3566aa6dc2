"""The fast way of making a masked release gives exactly what the formula gives, however it is run."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from gmpy2 import invert, mpz, powmod
from streamed import masked_release

from dpdpca_protocol.errors import UnavailableError, UsageError
from dpdpca_protocol.layout.packing import BlockLayout, pack
from dpdpca_protocol.paillier.cipher import Encryptor, pack_ciphertexts
from dpdpca_protocol.paillier.keys import KeyRules, PublicKey, SecretKey, generate_secret_key
from dpdpca_protocol.paillier.residues import pool_size, uniform_residues
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.masked import Speed
from dpdpca_protocol.release.release import noise_row, open_masked_release
from dpdpca_runtime.workers import WorkerProcesses

BETA = 12
SLOT_BITS = 40
COUNT = 1234


@pytest.fixture(scope="module", params=[512, 520])
def secret(request: pytest.FixtureRequest) -> SecretKey:
    """A key that fills whole machine words, and one that does not."""
    return generate_secret_key(request.param, OS_RANDOMNESS, rules=KeyRules(512))


class Case:
    """A random aggregate with a mask that holds both extremes."""

    def __init__(self, public: PublicKey, d: int, slots: int, count: int = COUNT) -> None:
        self.public, self.count = public, count
        self.layout = BlockLayout(d, SLOT_BITS, slots)
        self.sums = [OS_RANDOMNESS.below(2001) - 1000 for _ in range(d)]
        upper = {(i, j): OS_RANDOMNESS.below(200001) - 100000 for i in range(d) for j in range(i, d)}
        self.matrix = [[upper[min(i, j), max(i, j)] for j in range(d)] for i in range(d)]
        plains = self.layout.pack_share(count, self.sums, self.matrix)
        self.aggregate = Encryptor(public, 1).encrypt_many(list(plains))
        half = 1 << (BETA - 1)
        self.mask = [-half, half - 1, 0, -1, 1][:d]
        self.mask += [OS_RANDOMNESS.below(2 * half) - half for _ in range(d - len(self.mask))]
        self.noise = [OS_RANDOMNESS.below(2001) - 1000 for _ in range(d * (d + 1) // 2)]
        self.residues = uniform_residues(public, self.layout.release_count, OS_RANDOMNESS)

    def make(self, speed: Speed) -> list[mpz]:
        return masked_release(
            self.public, self.layout, iter(self.aggregate), self.count, self.mask, self.noise, speed
        )

    @property
    def by_the_formula(self) -> list[mpz]:
        """With powers of the plain kind, and the residues made ahead."""
        public, layout, mask = self.public, self.layout, self.mask
        n, square = public.modulus, public.ciphertext_modulus

        def power(base: mpz, exponent: int) -> mpz:
            return powmod(base if exponent >= 0 else invert(base, square), abs(exponent), square)

        sums, blocks = self.aggregate[1 : 1 + layout.d], iter(self.aggregate[1 + layout.d :])
        made = [c * (1 + b * n) for c, b in zip(sums, mask, strict=True)]
        for i in range(layout.d):
            for _, columns in layout.blocks(i):
                packed_mask = pack([mask[j] for j in columns], SLOT_BITS)
                noise = pack(noise_row(self.noise, layout.d, i, columns), SLOT_BITS)
                packed_sums = pack_ciphertexts(public, [sums[j] for j in columns], SLOT_BITS)
                made.append(
                    power(next(blocks), self.count)
                    * power(sums[i], packed_mask)
                    * power(packed_sums, mask[i])
                    * (1 + (mask[i] * packed_mask + noise) % n * n)
                )
        return [c * residue % square for c, residue in zip(made, self.residues, strict=True)]

    @property
    def scaled_scatter(self) -> tuple[tuple[int, ...], ...]:
        d = self.layout.d
        rows = [noise_row(self.noise, d, i, range(d)) for i in range(d)]
        return tuple(
            tuple(self.count * self.matrix[i][j] - self.sums[i] * self.sums[j] + rows[i][j] for j in range(d))
            for i in range(d)
        )


@pytest.mark.parametrize(
    ("d", "slots"), [(1, 1), (1, 12), (5, 1), (7, 3), (12, 12), (13, 12), (24, 12), (25, 7)]
)
def test_every_ciphertext_is_that_of_the_formula(secret: SecretKey, d: int, slots: int) -> None:
    case = Case(secret.public, d, slots)
    assert case.make(Speed(residues=iter(case.residues))) == case.by_the_formula


@pytest.mark.parametrize("count", [1, 2, 2**40 - 1])
def test_any_number_of_records_multiplies(secret: SecretKey, count: int) -> None:
    case = Case(secret.public, 4, 3, count)
    assert case.make(Speed(residues=case.residues)) == case.by_the_formula


@pytest.mark.parametrize("mask", range(-4, 5))
def test_a_mask_of_any_width_is_taken_whole(secret: SecretKey, mask: int) -> None:
    case = Case(secret.public, 1, 1)
    case.mask = [mask]
    assert case.make(Speed(residues=case.residues)) == case.by_the_formula


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("d", [1, 9])
def test_processes_make_the_same_and_say_how_far_they_are(secret: SecretKey, workers: int, d: int) -> None:
    case = Case(secret.public, d, 4)
    done: list[int] = []
    with WorkerProcesses(workers) as executor:
        made = case.make(Speed(case.residues, executor=executor, workers=workers, on_done=done.append))
    assert made == case.by_the_formula
    assert sum(done) == len(made)


@pytest.mark.parametrize("with_pool", [False, True])
@pytest.mark.parametrize("ahead", [0, 3, 1000])
def test_residues_that_were_not_made_ahead_are_made_on_the_way(
    secret: SecretKey, with_pool: bool, ahead: int
) -> None:
    case = Case(secret.public, 6, 4)
    size = pool_size(secret.public, case.layout.release_count) if with_pool else 0
    pool = uniform_residues(secret.public, size, OS_RANDOMNESS)
    with ThreadPoolExecutor(2) as executor:
        first, second = (case.make(Speed(case.residues[:ahead], pool, executor, workers=2)) for _ in range(2))
    assert first[:ahead] == case.by_the_formula[:ahead]
    assert not set(first[ahead:]) & set(second[ahead:])
    for made in (first, second):
        opened = open_masked_release(secret, case.layout, made, COUNT)
        assert opened.scaled_scatter == case.scaled_scatter


class Sizes(ThreadPoolExecutor):
    """Notes the size of each call, as a process or a cluster gets it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sizes: list[int] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.sizes.append(len(pickle.dumps((fn, args, kwargs))))
        return super().submit(pickle.loads(pickle.dumps(fn)), *args, **kwargs)


def test_the_size_of_a_call_tells_nothing_of_mask_and_noise(secret: SecretKey) -> None:
    """A call passes an object store, whose operator sees its size."""
    sizes = []
    for mask, noise in ((0, 0), (-3, 1), (1, -200), (3, 255)):
        case = Case(secret.public, 6, 4)
        case.mask = [mask] * 6
        case.noise = [noise] * len(case.noise)
        case.aggregate = [mpz(secret.public.ciphertext_modulus - 2 - i) for i in range(len(case.aggregate))]
        with Sizes() as executor:
            case.make(Speed([mpz(7)] * case.layout.release_count, executor=executor))
        sizes.append(executor.sizes)
    assert all(each == sizes[0] for each in sizes)


class DyingWorkers(WorkerProcesses):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_row = isinstance(fn, partial) and any("_Task" in type(arg).__name__ for arg in fn.args)
        return super().submit(os._exit, 9) if is_row else super().submit(fn, *args, **kwargs)


def test_a_worker_that_dies_ends_the_release(secret: SecretKey) -> None:
    case = Case(secret.public, 6, 4)
    with DyingWorkers(2) as executor, pytest.raises(UnavailableError) as died:
        case.make(Speed(case.residues, executor=executor, workers=2))
    assert died.value.slug == "worker-died"


@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: [*c, c[0]], lambda c: c[:3]])
def test_an_aggregate_of_another_shape_is_a_mistake_of_the_caller(secret: SecretKey, change: Any) -> None:
    case = Case(secret.public, 6, 4)
    case.aggregate = change(case.aggregate)
    with pytest.raises(UsageError):
        case.make(Speed())
