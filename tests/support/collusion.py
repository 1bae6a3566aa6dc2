"""What proxy, data user and some owners make together of another owner's share, and how it should look."""

from collections.abc import Sequence

import numpy as np

from dpdpca_protocol.layout.blocks import whole_numbers
from dpdpca_protocol.pads.streams import PadKey, Words, apply_pads
from dpdpca_protocol.release.suite import CohortShare, Suite


def undo(
    suite: Suite, secret: bytes, contents: Sequence[bytes], said: CohortShare, shared: Sequence[PadKey]
) -> list[int]:
    """The values of one share, as far as its pads and the masks of the colluding owners hide them.

    Args:
        suite, secret: of the data user.
        contents: the chunks that the proxy has of this share, without salts.
        said: of the owner of this share.
        shared: the keys that the colluding owners share with the owner of this share, as they have them.
    """
    opened = whole_numbers(suite.open_sum(secret, contents, [said]))
    values: list[int] = []
    for index in range(suite.chunk_count):
        at = suite.chunk_values(index)
        words: Words = np.array(opened[at.start : at.stop], dtype=np.int64).view(np.uint64)
        # What a colluding owner added, the owner of the share subtracted.
        apply_pads(words, shared, index)
        values += words.view(np.int64).tolist()
    return values


def looks_uniform(values: Sequence[int]) -> bool:
    """Chi-square with 255 degrees of freedom on all bytes; a false alarm has a probability below 10⁻¹⁰."""
    counts = np.bincount(np.array(values, dtype=np.int64).view(np.uint8), minlength=256)
    mean = 8 * len(values) / 256
    return bool(((counts - mean) ** 2 / mean).sum() < 255 + 8 * np.sqrt(2 * 255))


def wrapped(values: Sequence[int]) -> list[int]:
    """The values modulo 2⁶⁴, as signed integers."""
    return [(value + 2**63) % 2**64 - 2**63 for value in values]
