"""Pads and masks by themselves: what `apply_pads` does to zeros."""

from collections.abc import Iterable

import numpy as np

from dpdpca_protocol.pads.streams import PadKey, Words, apply_pads


def chunk_pads(pad_key: bytes, index: int, count: int) -> Words:
    """The first `count` pads of chunk `index`."""
    return masks_of([PadKey(pad_key, adds=True)], index, count)


def masks_of(pairs: Iterable[PadKey], index: int, count: int) -> Words:
    """The first `count` masks of chunk `index`, of all pairs together."""
    words = np.zeros(count, dtype=np.uint64)
    apply_pads(words, pairs, index)
    return words
