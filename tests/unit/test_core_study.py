"""What roles stream is what the reference releases, in batches, groups and slices, with a pool or without."""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from operator import add
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz
from reference_data import Seeded
from scripted import STEPS
from small_studies import CASES, OWNERS
from study_parties import PADS_SECRET, MakeManifest

from dpdpca_protocol.layout.blocks import whole_numbers
from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.paillier.cipher import Encryptor, rerandomize
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.paillier.residues import pool_size, uniform_residues
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.records.block_sums import BlockSums, new_sums
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.pairing import KeyStream, pairs, shuffled
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.masked import Speed, masked_ciphertexts
from dpdpca_protocol.release.release import (
    answer_count,
    check_count,
    checked_blocks,
    draw_mask,
    flat_scatter,
    noise_row,
    open_masked_release,
)
from dpdpca_protocol.release.suite import CohortShare, Suite
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import NoiseBy
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import suite_of
from dpdpca_protocol.terms.terms import SuiteName
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.salts import unsalted


def owner_values(manifest: Manifest, columns: dict[str, Any], randomness: Randomness) -> Any:
    """The sums of an owner's records, which it reads in batches of two."""
    encoder, sums, batches = RecordEncoder(manifest), new_sums(manifest.figures), []
    for start in range(0, len(columns["a"]), 2):
        encoded = encoder.encode({name: column[start : start + 2] for name, column in columns.items()})
        batches.append(encoded.z)
        sums.add(encoded.z)
        if isinstance(sums, SecondMoments):
            sums.add_gaps(encoded.gaps)
    if isinstance(sums, BlockSums) and sums.has_pairs:
        z = np.concatenate(batches)[shuffled(sum(map(len, batches)), KeyStream(randomness.bytes(32)))]
        for pair in pairs(np.array_split(z, 3)):
            sums.add_pairs(*pair)
    return sums


def masked_share(manifest: Manifest, sums: SecondMoments, secret: SecretKey) -> list[mpz]:
    """As an owner makes it: ciphertexts in slices by threads."""
    figures, public = manifest.figures, secret.public
    rows: Any = sums.second_moment
    layout = BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)
    plains = layout.pack_share(sums.count, sums.sum.tolist(), rows)
    with ThreadPoolExecutor(2) as threads:
        slices = Encryptor(public, figures.ciphertext_count).encrypt_slices(list(plains), threads)
        share = [ciphertext for part in slices for ciphertext in part]
    assert len(share) == figures.ciphertext_count
    return share


def flat_share(
    suite: Suite, owner: PartyId, values: Sequence[int], threads: Executor
) -> tuple[list[bytes], CohortShare]:
    """The chunks of a flat share without their salts, and what its statement says."""
    begun = suite.begin(owner, 1, OS_RANDOMNESS)
    make = suite.chunk_maker(begun.secrets, OS_RANDOMNESS, threads)
    parts = [values[at.start : at.stop] for at in map(suite.chunk_values, range(suite.chunk_count))]
    chunks = [make(index, part)(lambda count: None) for index, part in enumerate(parts)]
    return [unsalted(chunk) for chunk in chunks], CohortShare(owner, 1, begun.pad)


def flat_release(manifest: Manifest, shares: Sequence[list[bytes]]) -> list[bytes]:
    """As a proxy makes it: it adds some shares at a time, then their sums, then its noise."""
    suite, figures = suite_of(manifest), manifest.figures
    noise = figures.mechanism.draw(1, STEPS) if figures.noise_by is NoiseBy.PROXY else None
    chunks = []
    for index in range(suite.chunk_count):
        first = suite.add(share[index] for share in shares[:2])
        added = suite.add([first, *(share[index] for share in shares[2:])])
        at = suite.chunk_values(index)
        chunks.append(added if noise is None else suite.add_known(added, noise[at.start : at.stop]))
    return chunks


def product_in_groups(shares: Sequence[Sequence[mpz]], secret: SecretKey) -> list[mpz]:
    """As a proxy multiplies: some at a time, then the products of these."""
    first = multiply_shares(shares[:2], secret.public)
    return multiply_shares(iter([first, *shares[2:]]), secret.public)


@pytest.mark.parametrize(
    ("kind", "with_pool"), [*((kind, False) for kind in CASES), ("masked", True), ("masked, laplace", True)]
)
def test_what_roles_stream_is_what_the_reference_releases(
    make_manifest: MakeManifest, toy_key: SecretKey, kind: str, with_pool: bool
) -> None:
    manifest = make_manifest(**CASES[kind])
    figures, public = manifest.figures, toy_key.public
    randomness = Seeded(6)
    sums = [owner_values(manifest, columns, randomness) for columns in OWNERS]
    opened: Any
    if manifest.release is ReleaseKind.MASKED:
        aggregate = product_in_groups([masked_share(manifest, each, toy_key) for each in sums], toy_key)
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
        suite = suite_of(manifest)
        values = [list(map(add, each.stream(), figures.own_noise(STEPS))) for each in sums]
        with ThreadPoolExecutor(2) as threads:
            made = [
                flat_share(suite, PartyId.of(b"owner %d" % number), each, threads)
                for number, each in enumerate(values)
            ]
            released = flat_release(manifest, [chunks for chunks, _ in made])
            secret = PADS_SECRET.to_bytes() if manifest.suite is SuiteName.PADS else toy_key.to_bytes()
            opened_values = suite.open_sum(secret, released, [said for _, said in made], threads)
        blocks = checked_blocks(figures.blocks, opened_values)
        opened = {name: whole_numbers(values) for name, values in blocks.items()}
        if manifest.release is not ReleaseKind.PRE_STUDY:
            opened = flat_scatter(blocks, figures.encoded_features)

    assert opened == run_study(manifest, OWNERS, Seeded(6), STEPS, UNENCRYPTED)
