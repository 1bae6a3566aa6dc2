"""Choosing the next round: a pure function, so its inputs are made by hand."""

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import sqrt

import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import NORM_BINS, OCTAVES, BlockName
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_user.planning.choice import (
    first_round,
    next_round,
)
from dpdpca_user.planning.prestudy import Histogram, NoisySum, PreStudyResult

D = 4
EDGES = tuple(2.0 * 2 ** ((b + 1 - NORM_BINS) / 4) for b in range(NORM_BINS))
NUMERIC = (False,) * D


def study(number: int) -> StudyId:
    return StudyId.of(bytes([number]))


def histogram(counts: dict[int, int], noise: float = 1.0) -> Histogram:
    return Histogram(EDGES, tuple(counts.get(b, 0) for b in range(NORM_BINS)), noise)


def result(**changes: object) -> PreStudyResult:
    base = PreStudyResult(
        study=study(1),
        records=10_000,
        names=tuple(f"x{i}" for i in range(D)),
        centre=(5.0,) * D,
        half_range=(10.0,) * D,
        epsilon=Fraction(1),
        delta=Fraction(1, 10**6),
        rho_share=Fraction(1, 20),
        rho=0.001,
        rho_total=0.02,
        noise_by=NoiseBy.PROXY,
        noise_draws=2.0,
        pre_studies=(),
        norms=None,
        pair_norms=None,
        total=None,
        octaves=None,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # the tests' own values


def after_norms(records: int = 10_000, long: int = 46, middle: int = 40) -> PreStudyResult:
    """90 % of the norms below edge `long`, half of the pairs' below edge `middle`."""
    return result(
        records=records,
        norms=histogram({long - 1: records}),
        pair_norms=histogram({middle - 1: records // 2}),
    )


def mean_study(number: int, earlier: Sequence[PreStudyResult], mean: float) -> PreStudyResult:
    return result(
        study=study(number),
        rho_share=Fraction(1, 10),
        pre_studies=tuple(each.study for each in earlier),
        total=NoisySum((mean,) * D, 0.001, 1.0),
    )


def test_a_chain_begins_with_norms_about_the_public_centre_and_of_pairs() -> None:
    first = first_round(D, 10_000, 0.02)
    assert first.release is ReleaseKind.PRE_STUDY
    assert first.rho_share == Fraction(1, 20)
    assert first.clip_norm == sqrt(D)
    assert first.blocks == {BlockName.NORMS: Fraction(1, 2), BlockName.PAIR_NORMS: Fraction(1, 2)}
    assert not first.is_last


def test_scales_are_asked_for_only_where_records_are_enough() -> None:
    assert first_round(D, 10_000, 0.02, unknown_scales=True).blocks == {BlockName.OCTAVES: Fraction(1)}
    few = first_round(D, 1000, 0.02, unknown_scales=True)
    assert BlockName.NORMS in few.blocks
    assert "are too few for a study of scales" in few.reasons[0]


def test_a_cheap_mean_is_asked_for_twice_and_the_joint_study_stands_about_it() -> None:
    norms = after_norms()
    first = next_round([norms], NUMERIC)
    assert first.blocks == {BlockName.SUM: Fraction(1)}
    ninety = EDGES[44] + 0.9 * (EDGES[45] - EDGES[44])
    assert first.clip_norm == pytest.approx(1.05 * ninety)
    one = mean_study(2, [norms], 0.2)
    second = next_round([norms, one], NUMERIC)
    assert second.centre == pytest.approx((7.0,) * D)
    middle = (EDGES[38] + EDGES[39]) / 2
    assert second.clip_norm == pytest.approx(1.5 * middle)
    two = replace(mean_study(3, [norms, one], 0.01), centre=(7.0,) * D)
    main = next_round([norms, one, two], NUMERIC)
    assert main.release is ReleaseKind.JOINT
    assert main.rho_share == Fraction(3, 4)
    assert main.sum_weight == 0.05
    assert main.centre == pytest.approx((7.1,) * D)
    assert EDGES[38] < main.clip_norm <= EDGES[39]
    assert main.pre_studies == (study(1), study(2), study(3))
    assert main.is_last


def test_levels_keep_their_centre_and_widen_the_clip() -> None:
    norms = after_norms()
    one = mean_study(2, [norms], 0.4)
    two = mean_study(3, [norms, one], 0.4)
    numeric = next_round([norms, one, two], NUMERIC)
    mixed = next_round([norms, one, two], (False, False, True, True))
    assert mixed.clip_norm == pytest.approx(sqrt(numeric.clip_norm**2 + 2 * 0.4**2 - 2 * 0.001**2))


@pytest.mark.parametrize(("records", "long", "middle"), [(100, 46, 40), (10_000, 49, 10)])
def test_a_dear_mean_makes_it_pairs(records: int, long: int, middle: int) -> None:
    following = next_round([after_norms(records, long, middle)], NUMERIC)
    assert following.release is ReleaseKind.PAIRS
    assert following.rho_share == Fraction(19, 20)
    assert EDGES[middle - 2] < following.clip_norm / sqrt(2) <= EDGES[middle - 1]
    assert any("need no centre" in reason for reason in following.reasons)


def test_a_histogram_that_shows_nothing_leaves_the_rule() -> None:
    silent = result(norms=histogram({3: 1}), pair_norms=histogram({3: 1}))
    following = next_round([silent], NUMERIC)
    assert following.release is ReleaseKind.PAIRS
    assert following.clip_norm == pytest.approx(sqrt(2) * 0.35 * sqrt(D) / 2)


def test_scales_move_units_and_end_in_pairs() -> None:
    edges = tuple(2.0 ** (o + 1 - OCTAVES) for o in range(OCTAVES))
    narrow = Histogram(edges, tuple(5000 if o == 5 else 0 for o in range(OCTAVES)), 10.0)
    silent = Histogram(edges, (1,) * OCTAVES, 10.0)
    scales = result(rho_share=Fraction(1, 10), octaves=(narrow, narrow, narrow, silent))
    following = next_round([scales], NUMERIC)
    assert following.blocks == {BlockName.PAIR_NORMS: Fraction(1)}
    assert following.scale is not None
    assert following.scale[3] == 10.0
    assert 0.72 * edges[5] * 10 <= following.scale[0] <= 0.72 * edges[5] * 10 * sqrt(2)
    norms = replace(after_norms(), study=study(2), pre_studies=(study(1),), norms=None)
    main = next_round([scales, norms], NUMERIC)
    assert (main.release, main.rho_share) == (ReleaseKind.PAIRS, Fraction(17, 20))
    assert main.scale == norms.half_range


@pytest.mark.parametrize(
    "results",
    [
        [],
        [result()],
        [after_norms(), after_norms()],
        [replace(after_norms(), rho_share=Fraction(1))],
        [replace(after_norms(), names=("a",))],
        [mean_study(2, [], 0.1)],
    ],
)
def test_what_is_no_chain_is_refused(results: list[PreStudyResult]) -> None:
    with pytest.raises(UsageError) as refused:
        next_round(results, NUMERIC)
    assert refused.value.slug == "not-a-chain"


def test_noise_by_owners_is_forecast_with_the_cohort_that_drew_it() -> None:
    """L/m times the variance, in the mean studies and in the main study; no second draw."""
    norms = after_norms(records=4000, long=46, middle=40)
    few, many = (replace(norms, noise_by=NoiseBy.OWNERS, noise_draws=draws) for draws in (4 / 3, 3.0))
    reasons = [next_round([each], NUMERIC).reasons[1] for each in (norms, few, many)]
    errors = [float(re.findall(r"relative error of ([0-9.]+)", said)[0]) for said in reasons]
    assert errors[1] / errors[0] == pytest.approx(sqrt(4 / 3 / 2), rel=0.06)
    assert errors[2] / errors[0] == pytest.approx(sqrt(3 / 2), rel=0.06)
    needed = [first_round(D, 10**6, 0.02, unknown_scales=True, draws=draws).reasons[0] for draws in (2, 8)]
    least = [float(re.findall(r"at least ([0-9,]+)", said)[0].replace(",", "")) for said in needed]
    assert least[1] == pytest.approx(2 * least[0], rel=0.01)
