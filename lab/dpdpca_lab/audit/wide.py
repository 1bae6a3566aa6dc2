"""The distinguishing game for sketch, lift and scores, with the real sums and noise.

Each record is given by its coordinates and by the numbers that a rule made of it. The guarantee assumes
nothing about the rule, so the game chooses both freely within their bounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpdpca_lab.audit.flat import FlatRelease, Records
from dpdpca_lab.audit.neighbours import Neighbours, distance, worst_shapes
from dpdpca_lab.audit.releases import Totals
from dpdpca_protocol.layout.blocks import block_length, value_count
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.records.projected_sums import ProjectedSums
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest

_MOST_PLAYED = 4


@dataclass(frozen=True, slots=True)
class Given:
    """A rule whose results are given in advance, in the order of the records."""

    numbers: Records

    def __call__(self, z: Records) -> Records:
        return self.numbers


class WideRelease(FlatRelease):
    """The blocks of a sketch, a lift or scores, with fewer features and columns than the study has.

    The noise of an entry does not depend on how many there are.

    Args:
        figures: of the study.
        features: how many coordinates of what is summed are in the game.
        columns: how many columns of a lift are in the game; 0 for a sketch or scores.
    """

    def __init__(self, figures: Figures, features: int, columns: int = 0) -> None:
        super().__init__(_narrowed(figures, features, columns))
        self.columns = columns

    def totals_of(self, z: Records, numbers: Records) -> Totals:
        """The totals of records, or of differences.

        Args:
            z: (n, features) int64 with Σ z² ≤ K in every row.
            numbers: (n, w) int64: what a rule made of each row, cut by the sums themselves.
        """
        sums = ProjectedSums(self.figures, Given(numbers))
        if sums.has_pairs:
            sums.add_pairs(z, np.zeros_like(z))
        else:
            sums.add(z)
        count, *values = sums.stream()
        return Totals(count, (), (), tuple(values))


def wide_release(manifest: Manifest) -> WideRelease:
    """The release that the audit plays for a sketch, a lift or scores."""
    figures = manifest.figures
    columns = min(figures.mechanism.setting.columns, 2)
    return WideRelease(figures, min(figures.summed_features, _MOST_PLAYED), columns)


def wide_pairs(release: WideRelease, count: int) -> list[Neighbours]:
    """The known worst cases, as integers on the bounds: one record or difference is replaced.

    Source: docs/claims.md, C1, C10, C19 and C20.
    """
    figures, d = release.figures, release.d
    if not release.columns:
        kind = ReleaseKind.PAIRS if figures.rules.of_pairs else ReleaseKind.JOINT
        weight = float(figures.alpha_squared / figures.summed_bound)
        shapes = worst_shapes(kind, d, weight)
        return [
            _pair(
                release,
                shape.name,
                count,
                *((_inside(side, figures.summed_bound),) * 2 for side in (shape.before, shape.after)),
            )
            for shape in shapes
        ]
    record, number = np.zeros(d), np.zeros(release.columns)
    record[0], number[0] = 1, 1
    z, a = _inside(record, figures.record_bound), _inside(number, figures.mechanism.setting.score_bound)
    pairs = [_pair(release, "one record to its opposite, with the same numbers", count, (z, a), (-z, a))]
    if release.columns > 1:
        pairs.append(_pair(release, "the numbers of one record turned", count, (z, a), (z, a[::-1])))
    return pairs


def searched_wide_pair(release: WideRelease, tries: int, randomness: Randomness) -> Neighbours:
    """The pair of single records that is furthest apart, of `tries` random ones within the bounds."""
    figures = release.figures
    bounds = (figures.record_bound, figures.mechanism.setting.score_bound)

    def record() -> tuple[Records, Records]:
        if not release.columns:
            y = _inside(_direction(release.d, randomness), figures.summed_bound)
            return y, y
        sizes = (release.d, release.columns)
        z, a = (
            _inside(_direction(size, randomness), bound) for size, bound in zip(sizes, bounds, strict=True)
        )
        return z, a

    pairs = [_pair(release, "found by random search", 1, record(), record()) for _ in range(tries)]
    return max(pairs, key=lambda pair: distance(release, pair.first, pair.second))


def _pair(
    release: WideRelease,
    name: str,
    count: int,
    before: tuple[Records, Records],
    after: tuple[Records, Records],
) -> Neighbours:
    """Two data sets of `count` records, all at the centre but the first."""
    sides = []
    for moved, made in (before, after):
        z = np.zeros((count, release.d), dtype=np.int64)
        numbers = np.zeros((count, len(made)), dtype=np.int64)
        # The sums cut z to K. What a sketch adds up may be longer, and counts by its numbers alone.
        z[0] = moved if release.columns else 0
        numbers[0] = made
        sides.append(release.totals_of(z, numbers))
    return Neighbours(name, False, *sides)


def _inside(direction: Sequence[float] | np.ndarray, bound: int) -> Records:
    """Integers along a direction of length 1, as long as Σ z² ≤ `bound` allows."""
    scaled = np.asarray(direction, dtype=np.float64) * math.sqrt(bound)
    z = np.trunc(scaled + np.sign(scaled) * 1e-6).astype(np.int64)
    if sum(int(each) ** 2 for each in z) > bound:
        z -= np.sign(z)
    return z


def _direction(size: int, randomness: Randomness) -> np.ndarray:
    """A random direction of length 1."""
    while True:
        cube = np.array([randomness.below(2001) - 1000 for _ in range(size)], dtype=np.float64)
        if length := float(np.linalg.norm(cube)):
            return cube / length


def _narrowed(figures: Figures, features: int, columns: int) -> Figures:
    blocks = tuple(
        replace(block, length=block_length(block.name, features, columns)) for block in figures.blocks
    )
    setting = replace(figures.mechanism.setting, encoded_features=features, columns=columns)
    return replace(
        figures,
        encoded_features=features,
        summed_features=features,
        mechanism=replace(figures.mechanism, setting=setting),
        blocks=blocks,
        value_count=value_count(blocks),
    )
