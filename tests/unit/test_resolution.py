"""What doubles can tell apart, how long a record can be, and that nothing overflows at either end."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.layout.packing import pack, unpack
from dpdpca_protocol.records.block_sums import BlockSums, norm_edges
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.terms.features import (
    Feature,
    check_clip_norm,
    check_resolution,
    feature_units,
    longest_norm_squared,
)
from dpdpca_protocol.terms.figures import figures_of
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import parse_manifest

ManifestMaker = Callable[..., Manifest]


def numeric(lower: Any, upper: Any, centre: Any = None, scale: Any = None) -> Feature:
    def exact(value: Any) -> Fraction | None:
        return None if value is None else Fraction(value)

    return Feature("x", "numeric", exact(lower), exact(upper), exact(centre), scale=exact(scale))


@pytest.mark.parametrize(
    ("lower", "upper", "bits", "steps"),
    [
        (2**60, 2**60 + 1, 10, 0),
        (-(2**60) - 1, -(2**60), 10, 0),
        (2**53, 2**53 + 2, 10, 1),
        (2**42, 2**42 + 1, 10, 1024),
        (10**6, 10**6 + Fraction(1, 10**9), 10, 8),
        (0, 1, 53, 2**52),
    ],
)
def test_bounds_that_doubles_cannot_resolve_are_refused(
    lower: Any, upper: Any, bits: int, steps: int
) -> None:
    with pytest.raises(
        PolicyError, match=f"the bounds of feature x are {steps} steps of double precision apart"
    ):
        check_resolution([numeric(lower, upper)], "range", 1 << bits)


@pytest.mark.parametrize(
    ("lower", "upper", "bits"),
    [
        (2**41, 2**41 + 1, 10),  # 2,048 steps, 2,048 levels
        (0, 1, 51),
        (-1, 1, 52),
        (0, Fraction(1, 10**40), 40),
        (-(10**30) + 1, 10**30 - 1, 40),
        (1_600_000_000, 1_700_000_000, 30),
        (1900, 2030, 40),
    ],
)
def test_bounds_with_as_many_steps_as_levels_are_taken(lower: Any, upper: Any, bits: int) -> None:
    check_resolution([numeric(lower, upper)], "range", 1 << bits)


def test_levels_are_counted_in_what_values_are_divided_by() -> None:
    narrow, wide = numeric(2**42, 2**42 + 1), numeric(-(10**6), 10**6)
    with pytest.raises(PolicyError, match="1024 steps"):
        check_resolution([wide, narrow], "range", 1 << 10)
    check_resolution([wide, narrow], "common", 1 << 10)  # one level for what is 10⁻⁶ of the common unit
    with pytest.raises(PolicyError, match="0 steps"):
        check_resolution([wide, numeric(2**60, 2**60 + 1)], "common", 1 << 10)
    with pytest.raises(PolicyError, match="but the study needs 33554432 levels"):
        check_resolution([numeric(2**29, 2**29 + 1, scale=Fraction(1, 2**15))], "range", 1 << 10)


@pytest.mark.parametrize("bounds", [(0, 2**401), (-(2**401), 0), (0, Fraction(1, 2**400))])
def test_bounds_whose_squares_no_double_holds_are_refused(bounds: tuple[Any, Any]) -> None:
    with pytest.raises(
        PolicyError,
        match=r"feature x are .*too (large|small) for variances in double precision|feature x are \d+ steps",
    ):
        check_resolution([numeric(*bounds)], "range", 1 << 10)


def test_every_party_refuses_a_manifest_that_doubles_cannot_resolve(make_manifest: ManifestMaker) -> None:
    features = [{"name": "when", "lower": 2**60, "upper": 2**60 + 1}, {"name": "age", "lower": 0, "upper": 9}]
    with pytest.raises(PolicyError, match=r"feature when are 0 steps .* needs 2048 levels"):
        make_manifest(features=features)
    body = make_manifest().to_body()
    body["features"][1] |= {"lower": str(2**60), "upper": str(2**60 + 1), "centre": str(2**60)}
    with pytest.raises(PolicyError, match="the bounds of feature systolic are 0 steps"):
        parse_manifest(body)


def test_a_value_reaches_the_grid_within_a_level_where_steps_are_as_few_as_may_be(
    make_manifest: ManifestMaker,
) -> None:
    lower, q = 2**41, 1 << 10
    feature = {"name": "x", "lower": lower, "upper": lower + 1}
    manifest = make_manifest(features=[feature], clip_norm=1, fraction_bits=10, release="pairs", missing=None)
    steps = [lower + Fraction(step, 2048) for step in range(2049)]
    z = RecordEncoder(manifest).encode({"x": np.array([float(x) for x in steps])}).z[:, 0]
    exact = [(x - lower - Fraction(1, 2)) * 2 * q for x in steps]
    assert max(abs(int(found) - wanted) for found, wanted in zip(z, exact, strict=True)) <= Fraction(3, 2)
    assert len(set(z.tolist())) > 1000


FEATURE_SETS: list[list[Feature]] = [
    [numeric(0, 10)],
    [numeric(0, 10, 0)],
    [numeric(0, 10, 10), numeric(-1, 3, 0)],
    [numeric(0, 10, 1, Fraction(1, 2)), numeric(0, 4)],
    [numeric(0, 10, 0), Feature("c", "categorical", levels=("a", "b", "c"))],
    [Feature("c", "categorical", levels=("a", "b")), Feature("one", "categorical", levels=("a",))],
    [
        numeric(0, 10),
        Feature("c", "categorical", levels=("a", "b"), level_centres=(Fraction(1), Fraction(1, 3))),
    ],
    [Feature("one", "categorical", levels=("a",), level_centres=(Fraction(3, 4),))],
]


@pytest.mark.parametrize("features", FEATURE_SETS)
@pytest.mark.parametrize("scaling", ["range", "common"])
def test_the_longest_record_and_difference_by_all_corners(features: list[Feature], scaling: str) -> None:
    units = feature_units(features, scaling)
    choices, start = [], 0
    for feature in features:
        if feature.is_categorical:
            rows = [
                [(place == level) - origin for place, origin in enumerate(feature.origins)]
                for level in range(feature.width)
            ]
        else:
            origin, unit = units[start]
            rows = [[(x - origin) / unit] for x in (feature.lower, feature.upper, origin) if x is not None]
        choices.append(rows)
        start += feature.width
    corners = [list(itertools.chain(*parts)) for parts in itertools.product(*choices)]
    longest = max(sum(u * u for u in corner) for corner in corners)
    most = Fraction(len(features), 2**128)
    assert longest <= longest_norm_squared(features, scaling) <= longest + most
    apart = max(
        sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for one in corners for other in corners
    )
    alone = sum(feature.is_categorical and feature.width == 1 for feature in features)
    assert apart + alone <= longest_norm_squared(features, scaling, of_pairs=True) <= apart + alone + most


def test_the_clip_norm_may_be_that_of_the_longest_record_and_no_larger() -> None:
    middle, edge = [numeric(0, 10)] * 4, [numeric(0, 10, 0)] * 4
    check_clip_norm(middle, "range", Fraction(2))
    check_clip_norm(edge, "range", Fraction(4))
    check_clip_norm(edge, "range", Fraction(4), of_pairs=True)
    levels = [Feature("c", "categorical", levels=tuple("abcd"))]
    check_clip_norm(levels, "range", Fraction(2))  # no record is longer than 1, but √d was always taken
    above = Fraction(1, 10**12)
    for features, norm, pairs, words in (
        (middle, 2, False, "clip_norm is above √4, the square root"),
        (
            edge,
            4,
            False,
            "clip_norm is above 4, the norm of the longest record that bounds and centres allow",
        ),
        (edge, 4, True, "clip_norm is above 2·√4, the largest distance between two records"),
        (levels, 2, False, "above √4"),
    ):
        with pytest.raises(PolicyError, match=words):
            check_clip_norm(features, "range", norm + above, pairs)
    narrow = [numeric(0, 10, 0, 1)]
    check_clip_norm(narrow, "range", Fraction(10), of_pairs=True)
    with pytest.raises(PolicyError, match="above 10, the norm of the longest difference"):
        check_clip_norm(narrow, "range", 10 + above, of_pairs=True)


EDGE = [{"name": name, "lower": 0, "upper": 10, "centre": 0} for name in "abcd"]
MOST = 500


@pytest.mark.parametrize("release", ["joint", "masked", "pairs", "pre-study"])
def test_no_slot_overflows_where_all_records_are_as_long_as_any(
    make_manifest: ManifestMaker, release: str
) -> None:
    """The clip norm is that of the corner opposite the centres, and every record lies there."""
    blocks = {"blocks": {"norms": "0.5", "sum": "0.5"}} if release == "pre-study" else {}
    manifest = make_manifest(
        features=EDGE, clip_norm=4, release=release, max_records=MOST, missing="midpoint", **blocks
    )
    figures = manifest.figures
    assert figures.record_bound == 16 * figures.grid**2
    far = {name: np.full(MOST, 10.0) for name in "abcd"}
    z = RecordEncoder(manifest).encode(far).z
    sums: list[int]
    if release in ("joint", "masked"):
        moments = SecondMoments(4, figures.record_bound)
        moments.add(z)
        sums = list(moments.stream())
    else:
        opposite = RecordEncoder(manifest).encode({name: np.zeros(MOST) for name in "abcd"}).z
        totals = BlockSums(figures)
        totals.add(z)
        if totals.has_pairs:
            totals.add_pairs(z[: MOST // 2], opposite[: MOST // 2])
        sums = list(totals.stream())
    assert max(sums) > 0.9 * max(sums[0], 2 * figures.grid * sums[0])
    top = 1 << (figures.slot_bits - 1 if figures.slot_bits else 62)
    if figures.blocks:
        reach = [[block.bound + block.tail] * block.length for block in figures.blocks]
        most = list(itertools.chain(*reach))
        assert len(sums) == len(most)
        assert all(abs(value) <= bound < top for value, bound in zip(sums, most, strict=True))
    else:
        half = 1 << (figures.mask_bits - 1)
        law = figures.law(MOST)
        v, second = sums[1], max(sums[5:])
        # T = N·R + v·b + b·v + b·b + H, as large as mask and noise can make it.
        entry = MOST * second + 2 * v * half + half * half + law.triangle_bound
        assert abs(v) <= MOST * figures.sum_bound
        assert entry < top
        most = [entry] * 9
    if not figures.slots:
        return  # under pads nothing is packed
    slots = most[: figures.slots]
    for signs in (1, -1):
        values = [signs * value for value in slots]
        packed = pack(values, figures.slot_bits)
        assert abs(packed) < 2 ** (manifest.key.bits - 2)
        assert unpack(packed, figures.slot_bits, len(values)) == values


def test_a_clip_norm_just_above_the_rounding_error_leaves_zeros(make_manifest: ManifestMaker) -> None:
    """In doubles nothing is left for a record to be; it must not become less than nothing."""
    root = Fraction(math.isqrt(5 * 10**60) + 1, 10**30) / 2**11  # √5/(2q), rounded up
    norm = Fraction(math.ceil(root * 10**40), 10**40)
    features = [{"name": name, "lower": -1, "upper": 1} for name in "abcde"]
    manifest = make_manifest(features=features, clip_norm=norm, fraction_bits=10)
    z = RecordEncoder(manifest).encode({name: [0.0, 1.0, -1.0] for name in "abcde"}).z
    assert not z.any()


def test_squares_that_a_pre_study_compares_stay_within_64_bits(make_manifest: ManifestMaker) -> None:
    blocks = {"norms": "0.5", "pair-norms": "0.5"}
    manifest = make_manifest(
        features=EDGE, clip_norm=4, release="pre-study", missing="midpoint", blocks=blocks, fraction_bits=28
    )
    assert manifest.figures.record_bound == 2**60
    assert (np.diff(norm_edges(2**62 - 1, 2)) > 0).all()
    with pytest.raises(PolicyError, match="2⁶²"):
        figures_of(replace(manifest.terms, clip_norm=Fraction(8), max_records=2))
