"""The releases, flat and masked, and how the data user opens them.

The functions take noise and mask as arguments. A mechanism draws the noise. Paper: Wang & Chang 2018,
Algorithm 1, with the corrections that docs/spec.md lists.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.blocks import (
    CLIPPING,
    Block,
    BlockName,
    Values,
    cut_blocks,
    value_count,
    whole_numbers,
)
from dpdpca_protocol.layout.packing import BlockLayout, symmetric_rows
from dpdpca_protocol.paillier.cipher import decrypt_many, raw_encrypt
from dpdpca_protocol.paillier.keys import PublicKey, SecretKey
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.release.vectors import PaillierVectors


@dataclass(frozen=True, slots=True)
class NoisyScatter:
    """A decrypted release, in exact integers.

    Attributes:
        count: N, or the number of pairs.
        scaled_scatter: N·S̃, or 2·S̃ of pairs, d × d, symmetric, in grid² units; S̃ = S + noise.
        sum: ṽ, length d, in grid units (joint release), or None (other releases, which have no mean).
        of_pairs: whether S̃ is half the second moment of differences, from which no mean is subtracted.
        clipped: what clipping did, with noise: the number of clipped records (or differences), and the sum of
            their bounded squared lengths in units of 2^e grid². None if the release does not tell it.
        gaps: with noise, how many encoded values the records lack, in each at most half of them. None if the
            release does not tell it.
    """

    count: int
    scaled_scatter: tuple[tuple[int, ...], ...]
    sum: tuple[int, ...] | None
    of_pairs: bool = False
    clipped: tuple[int, int] | None = None
    gaps: int | None = None

    @property
    def divisor(self) -> int:
        """The divisor of `scaled_scatter` that gives S̃."""
        return 2 if self.of_pairs else self.count

    @property
    def degrees(self) -> int:
        """The divisor of S̃ that gives an unbiased covariance: N − 1, or the number of pairs."""
        return self.count if self.of_pairs else max(self.count - 1, 1)


def triangle_index(d: int, i: int, j: int) -> int:
    """Position of entry (i, j), i ≤ j, in an upper triangle laid out by rows."""
    return i * d - i * (i - 1) // 2 + (j - i)


def draw_mask(d: int, mask_bits: int, randomness: Randomness) -> list[int]:
    """b, uniform in [−B/2, B/2) with B = 2^mask_bits, for each coordinate of v."""
    half = 1 << (mask_bits - 1)
    return [randomness.below(2 * half) - half for _ in range(d)]


def open_flat_release(
    vectors: PaillierVectors,
    secret: SecretKey,
    ciphertexts: Sequence[mpz],
    blocks: Sequence[Block],
    executor: Executor | None = None,
) -> dict[BlockName, Values]:
    """Decrypts a flat release, with the threads of `executor` if given, and cuts it into its blocks.

    Raises:
        CryptographicError: the count is out of range, or a slot overflowed.
    """
    return checked_blocks(blocks, vectors.decrypt_vector(secret, ciphertexts, value_count(blocks), executor))


def checked_blocks(blocks: Sequence[Block], values: Values) -> dict[BlockName, Values]:
    """The values of a flat release, cut into its blocks.

    Raises:
        CryptographicError: the count is out of range.
    """
    released = cut_blocks(blocks, values)
    (count,) = whole_numbers(released[BlockName.COUNT])
    check_count_range(count, 1, blocks[0].bound)
    return released


def flat_scatter(released: Mapping[BlockName, Values], d: int) -> NoisyScatter:
    """The scatter of a joint release, N·S̃ = N·R̃ − ṽ ṽᵀ, or of a release of pairs, 2·S̃ = P̃."""
    (count,) = whole_numbers(released[BlockName.COUNT])
    if BlockName.PAIR_MOMENT in released:
        pairs = _matrix(d, _by_rows(released[BlockName.PAIR_MOMENT], d))
        return NoisyScatter(count, pairs, None, True, _clipped(released), _gaps(released))
    total, moments = whole_numbers(released[BlockName.SUM]), _by_rows(released[BlockName.SECOND_MOMENT], d)
    scaled = (count * next(moments) - total[i] * total[j] for i in range(d) for j in range(i, d))
    matrix = _matrix(d, scaled)
    return NoisyScatter(count, matrix, tuple(total), False, _clipped(released), _gaps(released))


def _clipped(released: Mapping[BlockName, Values]) -> tuple[int, int] | None:
    if BlockName.CLIPPED not in released:
        return None
    rows, squares = (whole_numbers(released[name])[0] for name in CLIPPING)
    return rows, squares


def _gaps(released: Mapping[BlockName, Values]) -> int | None:
    if BlockName.GAPS not in released:
        return None
    (gaps,) = whole_numbers(released[BlockName.GAPS])
    return gaps


def _by_rows(upper: Values, d: int) -> Iterator[int]:
    """An upper triangle as Python's integers, which are made row by row."""
    for row in range(d):
        start = triangle_index(d, row, row)
        yield from whole_numbers(upper[start : start + d - row])


def _matrix(d: int, upper: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, symmetric_rows(d, upper)))


def check_count_range(count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        raise CryptographicError(
            "count-out-of-range",
            f"the study holds {count} records, but {least} to {most} are allowed",
            "start a new study with other limits or with more records",
        )


def answer_count(secret: SecretKey, ciphertext: mpz) -> tuple[int, mpz]:
    """N in E[N], and the n-th root ρ of E[N]·(1+n)^(−N) mod n that proves it (step 1)."""
    # 1 + n ≡ 1 mod n, so E[N] itself has the root that E[N]·(1+n)^(−N) has
    return int(secret.decrypt(ciphertext)), secret.residue_root(ciphertext)


def check_count(public: PublicKey, ciphertext: mpz, count: int, randomizer: mpz) -> None:
    """Raises CryptographicError unless (1 + N n)·ρⁿ ≡ E[N] mod n².

    This check is sound, because the key comes with a proof of gcd(n, φ(n)) = 1, so E[N] determines N mod n.
    """
    if not 0 < randomizer < public.modulus or raw_encrypt(public, count, randomizer) != ciphertext:
        raise CryptographicError(
            "count-proof-false",
            f"the proof that the study holds {count} records is invalid",
            "answer the count challenge of this study with the key of this study",
        )


def noise_row(noise: Sequence[int] | NDArray[np.int64], d: int, i: int, columns: Iterable[int]) -> list[int]:
    """H_ij for `columns` of row i.

    Left of the diagonal, H_ij repeats H_ji, because fresh noise or no noise there would leak information.
    """
    return [int(noise[triangle_index(d, min(i, j), max(i, j))]) for j in columns]


def open_masked_release(
    secret: SecretKey,
    layout: BlockLayout,
    ciphertexts: Sequence[mpz],
    count: int,
    executor: Executor | None = None,
) -> NoisyScatter:
    """Decrypts v′ and T, with the threads of `executor` if given, and forms N·S̃ = T − v′ v′ᵀ (step 5).

    Raises:
        CryptographicError: T is not symmetric, or a slot overflowed.
    """
    return unmask(layout, decrypt_many(secret, ciphertexts, executor), count)


def unmask(layout: BlockLayout, plains: Sequence[int], count: int) -> NoisyScatter:
    """N·S̃ = T − v′ v′ᵀ of a decrypted release. Raises CryptographicError like `open_masked_release`."""
    v, rows = layout.unpack_release(plains)
    d = layout.d
    return NoisyScatter(
        count, _matrix(d, (rows[i][j] - v[i] * v[j] for i in range(d) for j in range(i, d))), None
    )
