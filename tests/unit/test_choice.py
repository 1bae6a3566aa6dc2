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
from dpdpca_user.planning.choice import Guess, NextRound, first_round, next_round
from dpdpca_user.planning.histograms import mean_square, quantile
from dpdpca_user.planning.prestudy import Histogram, NoisySum, PreStudyResult

D = 4
EDGES = tuple(2.0 * 2 ** ((b + 1 - NORM_BINS) / 4) for b in range(NORM_BINS))


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


def mean_study(
    number: int, earlier: Sequence[PreStudyResult], mean: float, noise: float = 0.001
) -> PreStudyResult:
    return result(
        study=study(number),
        rho_share=Fraction(1, 10),
        pre_studies=tuple(each.study for each in earlier),
        total=NoisySum((mean,) * D, noise, 2.0),
    )


NEAR, FAR = Guess(2.0, 0.5, of_categories=False), Guess(2.0, 3.0, of_categories=False)


def test_a_chain_begins_with_norms_about_the_public_centre_and_of_pairs() -> None:
    first = first_round(D, 10_000, 0.02, NEAR)
    assert first.release is ReleaseKind.PRE_STUDY
    assert first.rho_share == Fraction(1, 20)
    assert first.clip_norm == sqrt(D)
    assert first.blocks == {BlockName.NORMS: Fraction(1, 2), BlockName.PAIR_NORMS: Fraction(1, 2)}
    assert not first.is_last
    assert first_round(D, 10_000, 0.02, replace(NEAR, longest=3.0)).clip_norm == 3.0


def test_a_norm_study_of_fewer_records_takes_more_and_at_last_too_much() -> None:
    """It takes 4·draws·100/(records²·ρ·3/4), so that the pairs are ten times the noise of a count."""
    shares = {records: first_round(D, records, 0.02, NEAR).rho_share for records in (1100, 900, 740)}
    assert shares == {1100: Fraction(5, 100), 900: Fraction(7, 100), 740: Fraction(10, 100)}
    parts = [first_round(D, records, 0.02, NEAR).blocks for records in (2550, 2500)]  # 20 times at 2,530
    assert [each[BlockName.PAIR_NORMS] for each in parts] == [Fraction(1, 2), Fraction(3, 4)]
    assert first_round(D, 720, 0.02, NEAR).blocks == {BlockName.SUM: Fraction(1)}
    alone = first_round(D, 300, 0.02, NEAR)
    assert (alone.release, alone.rho_share, alone.is_last) == (ReleaseKind.PAIRS, Fraction(1), True)
    assert alone.clip_norm == pytest.approx(sqrt(D) / 1024)


def test_norms_are_not_asked_for_where_a_mean_would_be_too_dear() -> None:
    """With so many features, the private mean of these records is noise."""
    assert BlockName.PAIR_NORMS in first_round(D, 2000, 0.02, FAR).blocks
    assert first_round(10**4, 2000, 0.02, FAR).blocks == {BlockName.SUM: Fraction(1)}
    categories = replace(FAR, of_categories=True)
    assert BlockName.PAIR_NORMS in first_round(10**4, 2000, 0.02, categories).blocks


@pytest.mark.parametrize(("offset", "release"), [(0.5, ReleaseKind.JOINT), (1.0, ReleaseKind.PAIRS)])
def test_few_records_of_categories_are_measured_from_a_public_centre_that_is_near(
    offset: float, release: ReleaseKind
) -> None:
    alone = first_round(D, 100, 0.02, Guess(2.0, offset, of_categories=True))
    assert (alone.release, alone.rho_share) == (release, Fraction(1))
    assert alone.sum_weight == (offset**2 / 2 if release is ReleaseKind.JOINT else 0)


def test_scales_are_asked_for_only_where_records_are_enough() -> None:
    assert first_round(D, 10_000, 0.02, NEAR, unknown_scales=True).blocks == {BlockName.OCTAVES: Fraction(1)}
    few = first_round(D, 2000, 0.02, NEAR, unknown_scales=True)
    assert BlockName.NORMS in few.blocks
    assert "are too few for a study of scales" in few.reasons[0]


def test_means_follow_until_another_would_cost_more_than_it_helps() -> None:
    norms = after_norms(long=47)
    first = next_round([norms], D)
    assert first.blocks == {BlockName.SUM: Fraction(1)}
    assert first.centre is None
    ninety = EDGES[45] + 0.9 * (EDGES[46] - EDGES[45])
    assert first.clip_norm == pytest.approx(1.05 * ninety)
    middle = (EDGES[38] + EDGES[39]) / 2
    noise = 0.5 * middle
    one = mean_study(2, [norms], (ninety - 0.05) / 2, noise=noise / 2)
    second = next_round([norms, one], D)
    assert second.blocks == {BlockName.SUM: Fraction(1)}
    step = 1 - (noise / (ninety - 0.05)) ** 2
    assert second.centre == pytest.approx((5 + 10 * step * (ninety - 0.05) / 2,) * D)
    assert second.clip_norm == pytest.approx(middle * sqrt(1 + step * 0.5**2), rel=0.005)
    two = replace(mean_study(3, [norms, one], 0.01), centre=(7.0,) * D)
    main = next_round([norms, one, two], D)
    assert main.release is ReleaseKind.JOINT
    assert main.rho_share == 1 - Fraction(1, 20) - 2 * Fraction(1, 10)
    assert main.sum_weight == 0.05
    assert main.centre == pytest.approx((7.1,) * D, rel=1e-3)
    assert EDGES[38] < main.clip_norm <= 1.01 * EDGES[39]
    assert main.pre_studies == (study(1), study(2), study(3))
    assert main.is_last


def test_a_good_public_centre_needs_no_mean() -> None:
    """Few records about a near centre: the noise of a mean would cost more."""
    near = next_round([after_norms(records=60, long=41, middle=40)], D)
    assert (near.release, near.centre, near.rho_share) == (ReleaseKind.JOINT, None, Fraction(19, 20))
    assert 0.05 < near.sum_weight < 1
    assert near.clip_norm > EDGES[39]


def test_a_joint_study_about_a_noisy_mean_weighs_the_sum_more() -> None:
    norms = after_norms(records=600, long=42)
    middle = (EDGES[38] + EDGES[39]) / 2
    means = [norms]
    for number in range(2, 6):
        means.append(mean_study(number, means, 0.25, noise=0.6 * middle / 2))
    main = next_round(means, D)
    assert main.release is ReleaseKind.JOINT
    step = 1 - (0.6 * middle / 0.5) ** 2  # the noise has norm 0.6·r, and the move with it 0.5
    assert main.sum_weight == pytest.approx(step * 0.6**2 / 2, abs=0.02)  # half the square of the error
    assert EDGES[38] < main.clip_norm / sqrt(1 + 2 * main.sum_weight) <= 1.01 * EDGES[39]


def test_missing_values_are_seen_in_the_first_mean_and_ask_for_more_of_them() -> None:
    """All records are equally far from the centre, but the mean moves by four fifths of that only. So a fifth
    is missing, and the mean is as far away again as a quarter of the move."""
    norms = replace(after_norms(long=46), norms=histogram({45: 10_000}))
    distance = EDGES[45] * 2**-0.125
    complete, gappy = (mean_study(2, [norms], part * distance / 2, noise=1e-4) for part in (1.0, 0.8))
    assert next_round([norms, complete], D).release is ReleaseKind.JOINT
    following = next_round([norms, gappy], D)
    assert following.blocks == {BlockName.SUM: Fraction(1)}
    assert following.centre == pytest.approx((5 + 10 * distance / 2,) * D, rel=0.05)  # the whole way


def test_a_mean_that_is_mostly_noise_moves_the_centre_by_little() -> None:
    """The first mean is known to 0.1 in each feature. The second, with ten times the noise, tells less."""
    norms = after_norms(records=600, long=47)
    first = mean_study(2, [norms], 0.64, noise=0.1)
    second = replace(mean_study(3, [norms, first], 1.05, noise=1.0), centre=(10.0,) * D)
    main = next_round([norms, first, second], D)
    assert main.centre is not None
    assert 10 < main.centre[0] < 10 + 10 * 1.05 / 2
    assert main.centre == pytest.approx((10 + 10 * 1.05 * sqrt(0.5) / (1 + sqrt(0.5)),) * D)


@pytest.mark.parametrize(("records", "long", "middle"), [(120, 47, 40), (500, 49, 10)])
def test_a_dear_mean_makes_it_pairs(records: int, long: int, middle: int) -> None:
    following = next_round([after_norms(records, long, middle)], D)
    assert following.release is ReleaseKind.PAIRS
    assert following.rho_share == Fraction(19, 20)
    assert EDGES[middle - 2] < following.clip_norm / sqrt(2) <= EDGES[middle - 1]
    assert any("need no centre" in reason for reason in following.reasons)


def test_a_histogram_that_shows_nothing_leaves_one_length() -> None:
    silent = result(norms=histogram({3: 3}), pair_norms=histogram({3: 3}))
    following = next_round([silent], D)
    assert (following.release, following.rho_share) == (ReleaseKind.PAIRS, Fraction(19, 20))
    assert following.clip_norm == pytest.approx(sqrt(D) / 1024)


def test_a_mean_after_a_histogram_that_shows_nothing_leaves_one_length_too() -> None:
    """An earlier version believed single bins, and may have asked for a mean."""
    silent = result(norms=histogram({3: 3}), pair_norms=histogram({3: 3}))
    following = next_round([silent, mean_study(2, [silent], 0.1)], D)
    assert (following.release, following.rho_share) == (ReleaseKind.PAIRS, Fraction(17, 20))
    seen = replace(silent, pair_norms=histogram({40: 5000}))
    assert next_round([seen, mean_study(2, [seen], 0.1)], D).release is not ReleaseKind.PAIRS


def test_a_bin_of_noise_far_from_the_peak_is_not_believed() -> None:
    peak = {39: 300, 40: 500, 41: 100}
    stray = histogram(peak | {5: 90, 48: 90}, noise=30.0)
    assert quantile(stray, 0.5) == quantile(histogram(peak, noise=30.0), 0.5)
    assert quantile(stray, 1.0) == EDGES[41]
    assert quantile(histogram({5: 90}, noise=30.0), 0.5) is None
    assert mean_square(histogram({40: 10}), 9.0) == pytest.approx(EDGES[40] ** 2 * 2**-0.25)
    assert mean_square(histogram({40: 10}), 0.1) == pytest.approx(0.01)
    assert mean_square(histogram({5: 2}), 9.0) == 0


def test_scales_move_units_and_end_in_pairs() -> None:
    edges = tuple(2.0 ** (o + 1 - OCTAVES) for o in range(OCTAVES))
    narrow = Histogram(edges, tuple(5000 if o == 5 else 0 for o in range(OCTAVES)), 10.0)
    silent = Histogram(edges, (1,) * OCTAVES, 10.0)
    scales = result(rho_share=Fraction(1, 10), octaves=(narrow, narrow, narrow, silent))
    following = next_round([scales], D)
    assert following.blocks == {BlockName.PAIR_NORMS: Fraction(1)}
    assert following.scale is not None
    assert following.scale[3] == 10.0
    assert 0.72 * edges[5] * 10 <= following.scale[0] <= 0.72 * edges[5] * 10 * sqrt(2)
    norms = replace(after_norms(), study=study(2), pre_studies=(study(1),), norms=None)
    main = next_round([scales, norms], D)
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
        next_round(results, D)
    assert refused.value.slug == "not-a-chain"


def test_noise_by_owners_is_forecast_with_the_cohort_that_drew_it() -> None:
    """L/m times the variance in means, and in the last study too. One draw is cheaper than two."""
    norms = after_norms(records=900, long=46, middle=40)
    few, many = (replace(norms, noise_by=NoiseBy.OWNERS, noise_draws=draws) for draws in (4 / 3, 6.0))
    said = [next_round([each], D).reasons[1] for each in (few, norms, many)]
    noises = [float(re.findall(r"([0-9.]+) after more private means", each)[0]) for each in said]
    assert noises == sorted(noises)
    assert noises[0] < noises[1] < noises[2]
    needed = [
        first_round(D, 10**3, 0.02, NEAR, unknown_scales=True, draws=draws).reasons[0] for draws in (2, 8)
    ]
    least = [float(re.findall(r"which needs ([0-9,]+):", each)[0].replace(",", "")) for each in needed]
    assert least[1] == pytest.approx(2 * least[0], rel=0.01)


LENGTHS = {34: 100, 36: 400, 38: 1500, 40: 2500, 42: 450, 44: 50}
MEAN_SQUARE = sum(count * EDGES[bin] ** 2 for bin, count in LENGTHS.items()) / sum(LENGTHS.values())


def told_noise(chosen: NextRound, rows: int, draws: float, unit: float = 1.0) -> float:
    """The noise of the released sum of squared lengths, divided by that sum; `unit` is that of lengths."""
    assert chosen.clip_cap is not None
    rho = float(chosen.rho_share) * 0.02 / draws
    return (chosen.clip_cap / unit) ** 2 / (rows * sqrt(2 * float(chosen.clip_share) * rho) * MEAN_SQUARE)


@pytest.mark.parametrize(
    ("noise_by", "draws", "in_clear", "share"),
    [
        (NoiseBy.PROXY, 1.0, False, "0.01"),
        (NoiseBy.PROXY, 2.0, True, "0.01"),
        (NoiseBy.OWNERS, 1.0, False, "0.01"),
        (NoiseBy.OWNERS, 3.0, False, "0.01"),
        (NoiseBy.OWNERS, 4.0, False, "0.02"),
    ],
)
def test_the_noise_of_what_clipping_took_is_small_whoever_draws_it(
    noise_by: NoiseBy, draws: float, in_clear: bool, share: str
) -> None:
    """Owners' noise has `draws` times the variance, and components in clear have a second draw."""
    drawn = draws if noise_by is NoiseBy.OWNERS else 2.0
    norms = after_norms(long=41)
    results = [replace(norms, noise_by=noise_by, noise_draws=drawn, pair_norms=histogram(LENGTHS))]
    results.append(replace(mean_study(2, results, 0.3), noise_by=noise_by, noise_draws=drawn))
    chosen = next_round(results, D, second_draw=in_clear)
    assert chosen.release is ReleaseKind.JOINT
    assert chosen.clip_cap in EDGES
    assert chosen.clip_share == share
    assert told_noise(chosen, 10_000, draws) <= 0.03


def test_a_study_of_pairs_states_its_cap_in_units_of_differences() -> None:
    """The histogram shows |y|/√2, and cap and clip norm bound |y|. There are half as many rows as records."""
    edges = tuple(2.0 ** (o + 1 - OCTAVES) for o in range(OCTAVES))
    silent = Histogram(edges, (1,) * OCTAVES, 10.0)
    scales = result(rho_share=Fraction(1, 10), octaves=(silent,) * D, records=40_000)
    norms = result(study=study(2), pre_studies=(study(1),), pair_norms=histogram(LENGTHS), records=40_000)
    chosen = next_round([scales, norms], D)
    assert chosen.release is ReleaseKind.PAIRS
    assert chosen.clip_cap is not None
    assert min(abs(chosen.clip_cap / sqrt(2) - edge) for edge in EDGES) < 1e-9
    assert EDGES[43] < chosen.clip_cap / sqrt(2) < 4 * EDGES[43]
    assert told_noise(chosen, 20_000, 1.0, sqrt(2)) <= 0.03
