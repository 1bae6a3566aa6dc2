"""What a release must be, given the exact sums of those who are in it.

Two kinds of comparison, both against the noise that the manifest promises:

- entry by entry, each within the bound beyond which the proxy draws again (κ = 13 standard deviations): an
  honest release never fails it, however often it is run;
- the noise as a whole, by its sum of squares, at `LEVEL`: an honest release fails it once in 10⁹ runs.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isqrt

import numpy as np
from scipy.stats import chi2

from dpdpca_protocol.layout.blocks import TRIANGLES, BlockName, Values, cut_blocks
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures
from federation.records import Sums

LEVEL = 1e-9
TAIL = 13


def assert_blocks(blocks: Mapping[BlockName, Values], exact: Sequence[int], figures: Figures) -> None:
    """The blocks of a flat release are these exact sums, under exactly the noise that the proxy promised.

    Args:
        blocks: as they were opened, without a draw of the data user's.
        exact: the plain sums over all owners, in the order of the blocks.
        figures: of the study.
    """
    sums = cut_blocks(figures.blocks, exact)
    assert list(blocks[BlockName.COUNT]) == list(sums[BlockName.COUNT])
    energy, length = 0.0, 0
    for block in figures.blocks[1:]:
        noise = np.array(blocks[block.name], dtype=float) - np.array(sums[block.name], dtype=float)
        variances = np.full(block.length, float(figures.block_variance(block.name)))
        if block.name in TRIANGLES:
            rows, columns = np.triu_indices((isqrt(8 * block.length + 1) - 1) // 2)
            variances[rows != columns] /= 2
        assert np.all(np.abs(noise) <= TAIL * np.sqrt(variances) + 1), block.name
        energy, length = energy + float((noise**2 / variances).sum()), length + block.length
    assert chi2.ppf(LEVEL / 2, length) <= energy <= chi2.isf(LEVEL / 2, length)


def assert_release(noisy: NoisyScatter, sums: Sums, figures: Figures, owners: int | None = None) -> None:
    """The release is of exactly these records, under exactly the promised noise.

    One record more or less moves N, which has no noise; another record in the place of one moves the sums by
    up to 2K, and a whole file by hundreds of K, where the noise here has a standard deviation near K.

    Args:
        owners: of the cohort; needed where they draw the noise.
    """
    assert noisy.count == sums.count
    d, law = len(sums.sum), figures.law(sums.count, owners)
    noises: list[tuple[int, Fraction]] = []
    if figures.release is ReleaseKind.JOINT:
        assert noisy.sum is not None
        noises += [(a - b, law.sum_) for a, b in zip(noisy.sum, sums.sum, strict=True)]
        for i in range(d):
            for j in range(i, d):
                entry, rest = divmod(noisy.scaled_scatter[i][j] + noisy.sum[i] * noisy.sum[j], noisy.count)
                assert rest == 0
                variance = law.diagonal if i == j else law.off_diagonal
                noises.append((entry - sums.second_moment[i][j], variance))
    else:
        exact = sums.scaled_scatter
        for i in range(d):
            for j in range(i, d):
                variance = law.diagonal if i == j else law.off_diagonal
                noises.append((noisy.scaled_scatter[i][j] - exact[i][j], variance))
    for noise, variance in noises:
        assert noise * noise <= (isqrt(int(TAIL * TAIL * variance)) + 1) ** 2
    energy = float(sum(Fraction(noise * noise) / variance for noise, variance in noises))
    assert chi2.ppf(LEVEL / 2, len(noises)) <= energy <= chi2.isf(LEVEL / 2, len(noises))
