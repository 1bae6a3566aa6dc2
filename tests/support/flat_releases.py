"""A joint release opened by those who know d and the most records, and have no manifest at hand."""

from dpdpca_protocol.layout.blocks import Block, BlockName, block_length
from dpdpca_protocol.release.release import flat_scatter, open_flat_release

NAMES = (BlockName.COUNT, BlockName.SUM, BlockName.SECOND_MOMENT)


def open_joint_release(suite, secret, ciphertexts, d, max_records):
    """The noisy scatter of a joint release."""
    blocks = [Block(name, block_length(name, d), max_records, 0) for name in NAMES]
    return flat_scatter(open_flat_release(suite, secret, ciphertexts, blocks), d)
