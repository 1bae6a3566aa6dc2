"""The distinguishing game for studies of pairs and pre-studies, with the real encoder, pairing, sums and
noise.

Records are paired in their order. An owner's order does not depend on anything that differs between two
neighbours, so an audit with one order shows as much as an audit with all orders.
"""

import math
from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.audit.neighbours import Neighbours, distance, reach_of
from dpdpca_lab.audit.releases import (
    Coordinate,
    DrawnAhead,
    Integers,
    Law,
    Totals,
    Views,
    flat_views,
    integers,
    narrowed,
    triangle,
)
from dpdpca_protocol.layout.blocks import TRIANGLES, BlockName, matrix_size
from dpdpca_protocol.privacy.mechanisms import SharedGaussian
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.records.encoding import ABSENT, RecordEncoder, at_centre, cut_to_bound
from dpdpca_protocol.records.pairing import differences
from dpdpca_protocol.reference import owner_sums
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest

_GRANULARITY = 16
_UNIFORM = 2  # modulo m, noise of scale 2m is uniform within 2·exp(−8π²) ≈ 10⁻³⁴
_MOST_PLAYED = 4
_LETTERS = {BlockName.SECOND_MOMENT: "R", BlockName.PAIR_MOMENT: "P", BlockName.GRAM: "G"}

Records = NDArray[np.int64]


class FlatRelease:
    """The blocks of a study. The count is exact, and the same for both data sets.

    If the owners draw the noise, the game has the noise of those m that are assured.

    Args:
        figures: the figures of the study.
        d: number of features in the game; None means all. The noise on `octaves` depends on d, so a game with
            fewer features plays with less noise on them.
    """

    veil = 0
    law = Law.GAUSSIAN

    def __init__(self, figures: Figures, d: int | None = None) -> None:
        self.figures = narrowed(figures, d)
        self.d = self.figures.encoded_features
        self.mechanism = self.figures.mechanism
        self.sample = DrawnAhead().samplers

    def totals(self, z: Records) -> Totals:
        """The totals of these records. The records are not clipped, and pairs are formed in the order
        given."""
        count, *values = owner_sums(self.figures, z)
        return Totals(count, (), (), tuple(values))

    def granularity(self, count: int) -> int | None:
        least = min(coordinate.scale for coordinate in self.coordinates(count))
        return _GRANULARITY if least >= _UNIFORM * _GRANULARITY else None

    def coordinates(self, count: int) -> tuple[Coordinate, ...]:
        named: list[Coordinate] = []
        columns = self.mechanism.setting.columns
        for block in self.figures.blocks[1:]:
            variance = self.figures.block_variance(block.name, self.assured)
            scale = sqrt(variance)
            if block.name in TRIANGLES:
                size = matrix_size(block.name, self.d, columns)
                named += triangle(_LETTERS[block.name], size, scale, sqrt(variance / 2))
                continue
            named += [Coordinate(f"{block.name}{k + 1}", scale, None) for k in range(block.length)]
        return tuple(named)

    def truth(self, totals: Totals) -> tuple[int, ...]:
        return totals.values

    @property
    def assured(self) -> int | None:
        """m, if the owners draw the noise."""
        return self.mechanism.setting.shares if isinstance(self.mechanism, SharedGaussian) else None

    def draw_noise(self, runs: int) -> Integers:
        """(runs, size of a release) the noise of `runs` releases, as the mechanism draws it."""
        return integers(self.mechanism.draw(1, self.sample) for _ in range(runs))

    def play(self, totals: Totals, runs: int) -> Views:
        noise = self.draw_noise(runs)
        return flat_views(self.figures, [totals.count, *totals.values], noise)


def flat_pairs(manifest: Manifest, release: FlatRelease, records: int) -> list[Neighbours]:
    """The known worst case of each block. The first record is the replaced one, and the second its partner.

    If the bounds allow it, the records go through the encoder.
    """
    figures, reach = manifest.figures, reach_of(manifest)
    columns = sorted(range(len(reach)), key=lambda column: -reach[column])[: release.d]
    near = min(reach[column] for column in columns)
    norm = float(manifest.clip_norm)
    found = []
    for name, before, after, partner in _worst(release, norm):
        encoded = max(np.abs(row).max() for row in (before, after, partner)) <= near * (1 + 1e-12)
        sides = []
        for moved, has_gaps in ((before, release.mechanism.setting.tells_gaps), (after, False)):
            wanted = np.zeros((records, release.d))
            wanted[0], wanted[1] = moved, partner
            if encoded:
                z = _encoded(manifest, columns, wanted)
            else:
                z = np.trunc(wanted * figures.grid).astype(np.int64)
            if has_gaps:  # what is at the centre is missing, which changes only the number of gaps
                z[0, z[0] == 0] = ABSENT
            sides.append(release.totals(z))
        found.append(Neighbours(name, encoded, *sides))
    return found


def searched_flat_pair(
    release: FlatRelease, manifest: Manifest, tries: int, randomness: Randomness
) -> Neighbours:
    """The pair that is furthest apart, of `tries` random pairs of neighbours with two records each."""
    grid = manifest.figures.grid

    def record() -> Records:
        return np.array([randomness.below(2 * grid + 1) - grid for _ in range(release.d)], dtype=np.int64)

    best: tuple[float, Neighbours] | None = None
    for _ in range(tries):
        partner = record()
        sides = [release.totals(np.stack([record(), partner])) for _ in range(2)]
        pair = Neighbours("found by random search", False, *sides)
        apart = distance(release, *sides)
        if best is None or apart > best[0]:
            best = apart, pair
    assert best is not None
    return best[1]


def cut_records(manifest: Manifest, z: Records) -> Records:
    """The sums that a study of pairs or a pre-study computes from records that are not clipped."""
    bound = manifest.figures.record_bound
    if any(block.name is BlockName.PAIR_MOMENT for block in manifest.figures.blocks):
        z = np.concatenate(list(differences([z])))
    return cut_to_bound(at_centre(z), bound)[0]


def played_features(manifest: Manifest) -> int:
    """The number of features in the game for pairs of neighbours."""
    return min(manifest.figures.encoded_features, _MOST_PLAYED)


_Worst = tuple[str, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _worst(release: FlatRelease, norm: float) -> list[_Worst]:
    """For each block, the record before and after its replacement, and its partner, in scaled units."""
    d = release.d
    first, last, nothing = np.zeros(d), np.zeros(d), np.zeros(d)
    first[0], last[-1] = norm, norm
    turned = last if d > 1 else nothing
    cases: dict[BlockName, tuple[str, NDArray[np.float64], NDArray[np.float64]]] = {
        BlockName.PAIR_MOMENT: ("one difference rotated by a right angle", first, turned),
        BlockName.NORMS: ("one record from the first bin to the last", nothing, first),
        BlockName.PAIR_NORMS: (
            "one difference from the first bin to the last",
            nothing,
            math.sqrt(2) * first,
        ),
        BlockName.SUM: ("one record to its opposite", first, -first),
        BlockName.OCTAVES: ("one difference in all octaves at once", nothing, np.full(d, 1.0)),
        BlockName.FAR_PAIRS: ("one pair from near to far", nothing, first),
    }
    if bound := release.figures.mechanism.setting.clip_bound:
        long = math.sqrt(bound << release.figures.clip_shift) / release.figures.grid * 1.01 * (last / norm)
        start = first if d > 1 else nothing
        cases[BlockName.CLIPPED] = ("one difference rotated to one beyond every cap", start, long)
    partners = {BlockName.FAR_PAIRS: first}
    return [
        (*cases[block.name], partners.get(block.name, nothing))
        for block in release.figures.blocks[1:]
        if block.name in cases
    ]


def _encoded(manifest: Manifest, columns: Sequence[int], wanted: NDArray[np.float64]) -> Records:
    """Encode, as an owner would, records with these scaled values in some columns and 0 in the others."""
    raw: dict[str, NDArray[np.float64] | list[None]] = {}
    place = {column: index for index, column in enumerate(columns)}
    start = 0
    for feature in manifest.features:
        origin, unit = manifest.feature_units[start]
        scaled = wanted[:, place[start]] if start in place else np.zeros(len(wanted))
        numbers = float(origin) + float(unit) * scaled
        raw[feature.name] = [None] * len(wanted) if feature.is_categorical else numbers
        start += feature.width
    z: Records = RecordEncoder(manifest).encode(raw).z[:, columns]
    return at_centre(z)
