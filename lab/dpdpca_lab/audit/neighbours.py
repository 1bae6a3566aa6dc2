"""Neighbouring data sets that are easy to distinguish: the known worst cases, and a search for others.

If the features' bounds allow it, the records are in the features' own units and go through the encoder.
Otherwise they are integer records at the norm bound, which is all that the guarantee assumes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.audit.releases import Release, Totals
from dpdpca_protocol.layout.blocks import gap_bound
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.records.block_sums import clipped_rows
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.manifest import Manifest

Vector = NDArray[np.float64]

_MOST_PLAYED = 4  # features; the draws of a release grow with their square
_GRID = 1001
_BEYOND = 0.01


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two data sets of the same size that differ in one record.

    Attributes:
        name: the name of the pair, in words.
        encoded: whether the records went through the encoder; else they are integers at the bound.
        first, second: the totals of both data sets, over the features in the game.
    """

    name: str
    encoded: bool
    first: Totals
    second: Totals


@dataclass(frozen=True, slots=True)
class Shape:
    """A pair as directions in units of the clip norm: the others, the record before, the record after."""

    name: str
    others: Vector
    before: Vector
    after: Vector


@dataclass(frozen=True, slots=True)
class Arena:
    """The columns in which the game is played.

    Attributes:
        columns: the encoded columns in the game; the others stay at 0.
        shapes: the worst cases in these columns.
        encoded: whether the features' bounds let records reach the clip norm in these columns.
        stretch: how many times as long as the clip norm the moved record is at its second place. It is 1
            unless the study tells what clipping did.
    """

    columns: tuple[int, ...]
    shapes: tuple[Shape, ...]
    encoded: bool
    stretch: float = 1.0


def arena_of(manifest: Manifest) -> Arena:
    """The columns in which the audit of a study plays, and the worst cases in them.

    It chooses as few columns as possible in which the bounds let records reach the clip norm.
    """
    figures = manifest.figures
    reach = reach_of(manifest)
    best = sorted(range(len(reach)), key=lambda column: -reach[column])
    norm = float(manifest.clip_norm)
    weight = float(figures.alpha_squared / figures.record_bound)
    cap = figures.mechanism.setting.clip_bound << figures.clip_shift
    longest = math.sqrt(cap / figures.record_bound) * (1 + _BEYOND)
    for group in (1, 2, 4):
        width = group if figures.release is ReleaseKind.MASKED else 2 * group
        width = min(max(width, 2), figures.encoded_features)
        columns = tuple(sorted(best[:width]))
        usable = width <= _MOST_PLAYED and len(columns) == width and figures.encoded_features >= 2
        # the masked worst case is spread over all columns played, the joint ones over half of them each
        spread = width if figures.release is ReleaseKind.MASKED else width // 2
        near = min(reach[column] for column in columns) * math.sqrt(spread) if usable else 0.0
        if near >= norm:
            shapes = worst_shapes(figures.release, width, weight)
            return Arena(columns, shapes, encoded=True, stretch=max(1.0, min(longest, near / norm)))
    width = min(2, figures.encoded_features)
    single = width == 1 and bool(best) and reach[0] >= norm
    shapes = worst_shapes(figures.release, width, weight)
    return Arena(tuple(range(width)), shapes, encoded=single, stretch=max(1.0, longest))


def worst_pairs(manifest: Manifest, arena: Arena, count: int) -> list[Neighbours]:
    """The known worst cases of a study, N = `count`."""
    bound, clip_bound = manifest.figures.record_bound, manifest.figures.mechanism.setting.clip_bound
    if not arena.encoded:
        pairs = pairs_on_the_bound(arena.shapes, bound, count)
        if not clip_bound:
            return pairs
        gaps = _most_gaps(manifest)
        return [
            replace(
                pair,
                first=replace(pair.first, gaps=gaps),
                second=replace(pair.second, clipped=(1, clip_bound)),
            )
            for pair in pairs
        ]
    # A record at the clip norm would be shortened by the rounding error, and count as clipped.
    short = 1 - (1 + _BEYOND) * math.sqrt(manifest.figures.encoded_features / bound) if clip_bound else 1.0
    pairs = []
    for shape in arena.shapes:
        moves = (shape.before * short, True), (shape.after * arena.stretch, False)
        first, second = (
            _through_the_encoder(manifest, arena.columns, moved, shape.others, count, has_gaps)
            for moved, has_gaps in moves
        )
        pairs.append(Neighbours(shape.name, True, first, second))
    return pairs


def pairs_on_the_bound(shapes: Sequence[Shape], record_bound: int, count: int) -> list[Neighbours]:
    """Pairs with these shapes as integer records with Σ z² ≤ K = `record_bound`, and N = `count`."""
    pairs = []
    for shape in shapes:
        first, second = (
            Totals.of(_on_the_bound(record_bound, moved, shape.others, count), record_bound)
            for moved in (shape.before, shape.after)
        )
        pairs.append(Neighbours(shape.name, False, first, second))
    return pairs


def worst_shapes(release: ReleaseKind, width: int, weight: float) -> tuple[Shape, ...]:
    """The known worst cases.

    Args:
        release: masked, for the centred scatter; joint, for R and v.
        width: number of features in the game.
        weight: a/K of a joint release; 0 for R alone.

    Source: docs/claims.md, C1.
    """
    if release is ReleaseKind.MASKED:
        along = np.full(width, 1 / math.sqrt(width))
        return (Shape("all others at −r e, one from −r e to r e", -along, -along, along),)
    if width == 1:
        return (_worst_on_a_line(weight),)
    half = width // 2
    x, y = np.zeros(width), np.zeros(width)
    x[:half] = y[half : 2 * half] = 1 / math.sqrt(half)
    turned = -weight / 2 * x + math.sqrt(1 - weight**2 / 4) * y
    right = Shape("one record rotated by a right angle", x, x, y)
    return (Shape("one record rotated to the cosine −a/(2K)", x, x, turned), right) if weight else (right,)


def hard_records(manifest: Manifest, randomness: Randomness, count: int = 64) -> NDArray[np.int64]:
    """(n, d) encoded records in the corners of the bounds and beyond."""

    def value(feature: Feature) -> object:
        if feature.is_categorical:
            return feature.levels[randomness.below(len(feature.levels))]
        assert feature.lower is not None
        assert feature.upper is not None
        lower, upper = float(feature.lower), float(feature.upper)
        beyond = (lower, upper, -1e300, 1e300, math.nextafter(upper, lower), math.inf)
        return beyond[randomness.below(len(beyond))]

    columns = {feature.name: [value(feature) for _ in range(count)] for feature in manifest.features}
    z: NDArray[np.int64] = RecordEncoder(manifest).encode(columns).z
    return z


def searched_pair(
    release: Release, record_bound: int, count: int, tries: int, randomness: Randomness
) -> Neighbours:
    """The pair of integer records that is furthest apart in units of the noise, found by `tries` random
    steps.

    Args:
        release: defines the distance of two totals.
        record_bound: K.
        count: N ≥ 2. The N − 1 other records are equal, because only their sum matters in both releases.
        tries: number of steps of a random ascent; a quarter of them start afresh.
        randomness: the source of the random steps.
    """

    inside = math.sqrt(record_bound) * (1 - 1e-12)  # rounding never takes a record out of the ball

    def totals_of(shape: Shape) -> tuple[Totals, Totals]:
        others, before, after = (
            [math.trunc(x * inside) for x in direction]
            for direction in (shape.others, shape.before, shape.after)
        )
        first, second = (_totals(others, moved, count) for moved in (before, after))
        return first, second

    best: tuple[float, Shape] | None = None
    step = 0.5
    for turn in range(tries):
        if best is None or turn < tries // 4:
            candidate = Shape("search", *(_direction(release.d, randomness) for _ in range(3)))
        else:
            step = max(step * 0.98, 1e-3)
            candidate = Shape(
                "search",
                *(
                    _into_the_ball(old + step * _direction(release.d, randomness))
                    for old in (best[1].others, best[1].before, best[1].after)
                ),
            )
        found = distance(release, *totals_of(candidate))
        if best is None or found > best[0]:
            best = (found, candidate)
    assert best is not None
    return Neighbours("found by random search", False, *totals_of(best[1]))


def distance(release: Release, first: Totals, second: Totals) -> float:
    """μ: the distance of two totals in standard deviations of the stated noise."""
    coordinates = release.coordinates(first.count)
    moved = zip(release.truth(first), release.truth(second), coordinates, strict=True)
    return math.sqrt(sum(((b - a) / c.scale) ** 2 for a, b, c in moved if c.copy_of is None))


def _worst_on_a_line(weight: float) -> Shape:
    """The worst case with one feature: from r to the x with the largest (r² − x²)² + a(r − x)²."""
    places = np.linspace(-1, 1, _GRID)
    worst = places[np.argmax((1 - places**2) ** 2 + weight * (1 - places) ** 2)]
    one = np.ones(1)
    return Shape("the only value of one record changed from r", one, one, worst * one)


def reach_of(manifest: Manifest) -> list[float]:
    """The distance from each column's centre to its nearer bound, in scaled units; 0 for a column without a
    free choice."""
    if any(feature.is_categorical for feature in manifest.features) and manifest.missing == "reject":
        return [0.0] * manifest.figures.encoded_features
    reach: list[float] = []
    start = 0
    units = manifest.feature_units
    for feature in manifest.features:
        if feature.lower is None or feature.upper is None:
            reach += [0.0] * feature.width
        else:
            origin, unit = units[start]
            reach.append(float(min(feature.upper - origin, origin - feature.lower) / unit))
        start += feature.width
    return reach


def _through_the_encoder(
    manifest: Manifest,
    columns: Sequence[int],
    moved: Vector,
    others: Vector,
    count: int,
    has_gaps: bool,
) -> Totals:
    """The totals of (N, width) encoded records at the clip norm.

    Args:
        has_gaps: whether the moved record lacks what is at the centre, if the study tells of gaps.
    """
    norm = float(manifest.clip_norm)
    wanted = np.zeros((count, manifest.figures.encoded_features))
    wanted[:, columns] = others * norm
    wanted[0, columns] = moved * norm
    raw: dict[str, NDArray[np.float64] | list[None]] = {}
    start = 0
    for feature in manifest.features:
        origin, unit = manifest.feature_units[start]
        numbers = float(origin) + float(unit) * wanted[:, start]
        if has_gaps and manifest.terms.tells_gaps and not wanted[0, start]:
            numbers[0] = np.nan
        raw[feature.name] = [None] * count if feature.is_categorical else numbers
        start += feature.width
    encoded = RecordEncoder(manifest).encode(raw)
    told = clipped_rows(manifest.figures)
    return Totals.of(encoded.z[:, columns], manifest.figures.record_bound, encoded.long, told, encoded.gaps)


def _most_gaps(manifest: Manifest) -> int:
    return gap_bound(manifest.figures.encoded_features) if manifest.terms.tells_gaps else 0


def _on_the_bound(record_bound: int, moved: Vector, others: Vector, count: int) -> NDArray[np.int64]:
    """(N, width) integers with Σ z² ≤ K, as close to the bound as truncation allows."""
    scaled = np.vstack([moved, np.tile(others, (count - 1, 1))]) * math.sqrt(record_bound)
    z = np.trunc(scaled + np.sign(scaled) * 1e-6).astype(np.int64)
    too_long = (z.astype(object) ** 2).sum(axis=1) > record_bound
    z[too_long] -= np.sign(z[too_long])
    return z


def _totals(others: list[int], moved: list[int], count: int) -> Totals:
    d, rest = len(others), count - 1
    sums = tuple(rest * others[i] + moved[i] for i in range(d))
    moments = tuple(
        tuple(rest * others[i] * others[j] + moved[i] * moved[j] for j in range(d)) for i in range(d)
    )
    return Totals(count, sums, moments)


def _direction(d: int, randomness: Randomness) -> Vector:
    """A random vector on or in the unit ball."""
    cube = np.array([randomness.below(2 * _GRID + 1) - _GRID for _ in range(d)]) / _GRID
    return _into_the_ball(2 * cube)


def _into_the_ball(vector: Vector) -> Vector:
    return vector / max(1.0, float(np.linalg.norm(vector)))
