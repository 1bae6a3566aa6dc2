"""A joint release opened by those who know d and the most records, and have no manifest at hand."""

from collections.abc import Sequence

from gmpy2 import mpz

from dpdpca_protocol.layout.blocks import Block, BlockName, block_length
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.release.release import NoisyScatter, flat_scatter, open_flat_release
from dpdpca_protocol.release.vectors import PaillierVectors

NAMES = (BlockName.COUNT, BlockName.SUM, BlockName.SECOND_MOMENT)


def open_joint_release(
    vectors: PaillierVectors, secret: SecretKey, ciphertexts: Sequence[mpz], d: int, max_records: int
) -> NoisyScatter:
    """The noisy scatter of a joint release."""
    blocks = [Block(name, block_length(name, d), max_records, 0) for name in NAMES]
    return flat_scatter(open_flat_release(vectors, secret, ciphertexts, blocks), d)
