"""How many values the records lack, and covariances as they would be without these gaps.

A missing value counts as the centre, and in a study of pairs it is left out of the difference. Both lower
variances, and covariances even more. If the study tells how many values are missing, and they are missing at
random, evenly over records and features, this can be undone on average. All of this is post-processing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.layout.blocks import BlockName, gap_bound
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, Floats, scatter_matrix
from dpdpca_protocol.terms.figures import Figures

NONE_SEEN = 2.0
"""Deviations of its noise up to which a share of missing values changes nothing: there may be no gaps."""
_NUMBERS = ("share", "share_deviation", "present", "present_deviation")
_FEWEST_PRESENT = 0.2
"""No figure is divided by a smaller share, or by its square, than this."""
_AT_THE_BOUND = 0.9
"""From this part of the largest share that can be told, the true share may be larger."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """How empty the records are.

    Attributes:
        share, share_deviation: estimate of the share of missing values, from 0 to the most that can be told,
            and the standard deviation of its noise.
        present, present_deviation: estimate of the share of coordinates of rows that have a value (of
            differences: where both records have one), and its deviation. 1 if no gaps can be told from noise.
        may_be_more: whether the share is near the most that can be told.
    """

    share: float
    share_deviation: float
    present: float
    present_deviation: float
    may_be_more: bool

    @classmethod
    def of(cls, noisy: NoisyScatter, figures: Figures, owners: int | None = None) -> Self | None:
        """The gaps of a release; None if it does not tell. `owners` as for `fit_components`."""
        if noisy.gaps is None:
            return None
        d = figures.encoded_features
        values = noisy.count * (2 if noisy.of_pairs else 1) * d
        deviation = sqrt(figures.block_variance(BlockName.GAPS, owners)) / values
        found, most = max(noisy.gaps / values, 0.0), gap_bound(d) / d
        share, power = min(found, most), 2 if noisy.of_pairs else 1
        present, unsure = 1.0, min(deviation, found)
        if found > NONE_SEEN * deviation:
            present, unsure = max((1 - share) ** power, _FEWEST_PRESENT), deviation
        return cls(
            share=share,
            share_deviation=deviation,
            present=present,
            present_deviation=power * present ** (1 - 1 / power) * unsure,
            may_be_more=share > _AT_THE_BOUND * most,
        )

    @classmethod
    def parse(cls, untrusted: Mapping[str, Any]) -> Self:
        """The reverse of `asdict`. Raises KeyError, TypeError or ValueError if it is no such body."""
        share, deviation, present, unsure = (float(untrusted[name]) for name in _NUMBERS)
        deviations = isfinite(deviation + unsure) and min(deviation, unsure) >= 0
        if not (deviations and 0 <= share <= 1 and _FEWEST_PRESENT <= present <= 1):
            raise ValueError("the shares of missing values are not finite, or out of range")
        return cls(share, deviation, present, unsure, bool(untrusted["may_be_more"]))


def unseen_gaps(of_pairs: bool) -> str:
    """What gaps did to a release that does not tell how many values are missing, in words."""
    how = "is left out of the difference" if of_pairs else "counts as the centre"
    return (
        f"A missing value {how}, so gaps lower variances, and covariances even more. The study does not tell"
        " how many values are missing, so no figure here allows for them."
    )


def without_gaps(scatter: Floats, within: Floats, present: float) -> Floats:
    """A scatter, (d, d) or only its diagonal in some basis, as it would be without gaps.

    Args:
        scatter: as released.
        within: the part of the second moment about the public centre that lies within single features
            (`within_features`), in the same basis and unit.
        present: q, the share of coordinates with a value.

    Source: let values be missing at random. Then the second moment R becomes q²R, but q·R within a feature,
        and the mean δ becomes q·δ. So R − δδᵀ, of which the release shows S′, is (S′ − (1 − q)·within)/q².
    Tested: tests/unit/user/test_gaps.py.
    """
    return np.asarray((scatter - (1 - present) * within) / present**2)


def within_features(noisy: NoisyScatter, space: EncodedSpace) -> Floats:
    """(d, d) the second moment about the public centre, in grid² units, with 0 between different features."""
    second = scatter_matrix(noisy)
    if noisy.sum is not None:
        sums = np.array([float(value) for value in noisy.sum])
        second = second + np.outer(sums, sums / noisy.count)
    return np.where(same_feature(space), second, 0.0)


def same_feature(space: EncodedSpace) -> NDArray[np.bool_]:
    """(d, d) whether two encoded features belong to one feature, and so are missing together."""
    widths = space.widths or (1,) * len(space.names)
    feature = np.repeat(np.arange(len(widths)), widths)
    return np.asarray(feature[:, None] == feature[None, :])
