"""What roles stream is what the reference releases, in batches, groups and slices, with a pool or without."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import add
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz
from numpy.typing import NDArray
from reference_data import Seeded
from scripted import STEPS
from small_studies import KINDS, OWNERS
from study_parties import MakeManifest

from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.paillier.cipher import Encryptor, rerandomize
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.paillier.residues import pool_size, uniform_residues
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.records.block_sums import BlockSums, new_sums
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.pairing import KeyStream, differences, shuffled
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.masked import Speed, masked_ciphertexts
from dpdpca_protocol.release.release import (
    answer_count,
    check_count,
    draw_mask,
    flat_scatter,
    noise_row,
    open_flat_release,
    open_masked_release,
)
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import NoiseBy
from dpdpca_protocol.terms.manifest import Manifest

Integers = NDArray[np.int64]


def owner_share(
    manifest: Manifest, columns: dict[str, Any], secret: SecretKey, randomness: Randomness
) -> list[mpz]:
    """As an owner makes it: records in batches of two, ciphertexts in slices by threads."""
    figures, public = manifest.figures, secret.public
    encoder, sums, batches = RecordEncoder(manifest), new_sums(figures), []
    for start in range(0, len(columns["a"]), 2):
        batches.append(
            encoder.encode({name: column[start : start + 2] for name, column in columns.items()}).z
        )
        sums.add(batches[-1])
    if isinstance(sums, BlockSums) and sums.has_pairs:
        z = np.concatenate(batches)[shuffled(sum(map(len, batches)), KeyStream(randomness.bytes(32)))]
        for y in differences(np.array_split(z, 3)):
            sums.add_pairs(y)
    values: Iterator[int] = map(add, sums.stream(), figures.own_noise(STEPS))
    if figures.blocks:
        plains = PaillierVectors(public, figures.slot_bits).plaintexts(values, figures.value_count)
    else:
        assert isinstance(sums, SecondMoments)
        rows: Any = sums.second_moment
        layout = BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)
        plains = layout.pack_share(sums.count, sums.sum.tolist(), rows)
    with ThreadPoolExecutor(2) as threads:
        slices = Encryptor(public, figures.ciphertext_count).encrypt_slices(list(plains), threads)
        share = [ciphertext for part in slices for ciphertext in part]
    assert len(share) == figures.ciphertext_count
    return share


def product_in_groups(shares: Sequence[Sequence[mpz]], secret: SecretKey) -> list[mpz]:
    """As a proxy multiplies: some at a time, then the products of these."""
    first = multiply_shares(shares[:2], secret.public)
    return multiply_shares(iter([first, *shares[2:]]), secret.public)


@pytest.mark.parametrize(
    ("kind", "with_pool"), [*((kind, False) for kind in KINDS), ("masked", True), ("masked, laplace", True)]
)
def test_what_roles_stream_is_what_the_reference_releases(
    make_manifest: MakeManifest, toy_key: SecretKey, kind: str, with_pool: bool
) -> None:
    manifest = make_manifest(**KINDS[kind])
    figures, public = manifest.figures, toy_key.public
    randomness = Seeded(6)
    shares = [owner_share(manifest, columns, toy_key, randomness) for columns in OWNERS]
    aggregate = product_in_groups(shares, toy_key)

    opened: Any
    if manifest.release is ReleaseKind.MASKED:
        challenge = rerandomize(public, aggregate[0], OS_RANDOMNESS)
        count, root = answer_count(toy_key, challenge)
        check_count(public, challenge, count, root)
        d = figures.encoded_features
        layout = BlockLayout(d, figures.slot_bits, figures.slots)
        mask = draw_mask(d, figures.mask_bits, OS_RANDOMNESS)
        noise = np.array(figures.mechanism.draw(count, STEPS), dtype="<i8")
        size = pool_size(public, layout.release_count) if with_pool else 0
        speed = Speed(pool=uniform_residues(public, size, OS_RANDOMNESS))
        row = partial(noise_row, noise, d)
        released = list(
            masked_ciphertexts(public, layout, iter(aggregate), count, mask, row, OS_RANDOMNESS, speed)
        )
        assert not set(released) & set(aggregate)
        with ThreadPoolExecutor(2) as threads:
            opened = open_masked_release(toy_key, layout, released, count, threads)
    else:
        vectors = PaillierVectors(public, figures.slot_bits)
        if figures.noise_by is NoiseBy.PROXY:
            drawn = iter(figures.mechanism.draw(1, STEPS))
            released = list(vectors.add_plain_stream(iter(aggregate), drawn, figures.value_count))
        else:
            released = aggregate
        with ThreadPoolExecutor(2) as threads:
            opened = open_flat_release(vectors, toy_key, released, figures.blocks, threads)
        if manifest.release is not ReleaseKind.PRE_STUDY:
            opened = flat_scatter(opened, figures.encoded_features)

    assert opened == run_study(manifest, OWNERS, Seeded(6), STEPS, UNENCRYPTED)
