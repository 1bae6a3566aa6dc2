"""Chains of few records, which ask first in which direction the records lie. The results are made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from reference_data import Seeded

from dpdpca_protocol.layout.blocks import NORM_BINS, BlockName
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_user.planning.choice import Guess, NextRound, first_round, next_round
from dpdpca_user.planning.directions import MeanDirection, directions_share, lengths_share
from dpdpca_user.planning.prestudy import Histogram, NoisySum, PreStudyResult
from dpdpca_user.results.deviates import normal_deviates, uniforms

D, RECORDS, RHO = 100, 8000, 0.0003
SHORT = sqrt(D) / 1024
EDGES = tuple(sqrt(D) * 2 ** ((b + 1 - NORM_BINS) / 4) for b in range(NORM_BINS))
FAR = Guess(10.0, 3.0, of_categories=False)


def result(
    number: int, before: Sequence[PreStudyResult], share: Fraction, **changes: object
) -> PreStudyResult:
    base = PreStudyResult(
        study=StudyId.of(bytes([number])),
        records=RECORDS,
        names=tuple(f"x{i}" for i in range(D)),
        centre=(5.0,) * D,
        half_range=(10.0,) * D,
        epsilon=Fraction(1, 10),
        delta=Fraction(1, 10**6),
        rho_share=share,
        rho=float(share) * RHO,
        rho_total=RHO,
        noise_by=NoiseBy.PROXY,
        noise_draws=2.0,
        pre_studies=tuple(each.study for each in before),
        norms=None,
        pair_norms=None,
        total=None,
        octaves=None,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # the tests' own values


def look(square: float, noise: float = 0.6, records: int = RECORDS) -> PreStudyResult:
    """A mean direction whose length without noise has this square, and whose noise has this norm."""
    entry, deviation = (SHORT * sqrt(each / D) for each in (square + noise**2, noise**2))
    return result(1, (), Fraction(5, 100), records=records, total=NoisySum((entry,) * D, deviation, SHORT))


def lengths(first: PreStudyResult, bin: int = 40, noise: float = 1.0) -> PreStudyResult:
    counts = tuple(RECORDS if b == bin else 0 for b in range(NORM_BINS))
    return result(2, [first], Fraction(3, 100), norms=Histogram(EDGES, counts, noise))


def first(d: int, records: int, rho: float = RHO, draws: float = 2.0) -> NextRound:
    return first_round(d, records, rho, FAR, draws=draws)


def test_few_records_are_asked_for_their_direction_first() -> None:
    chosen = first(D, RECORDS)
    assert (chosen.release, chosen.blocks) == (ReleaseKind.PRE_STUDY, {BlockName.SUM: Fraction(1)})
    assert chosen.clip_norm == SHORT
    assert (chosen.centre, chosen.pre_studies) == (None, ())
    assert "are too few to measure norms and a mean" in chosen.reasons[0]


def test_fewer_records_pay_more_for_it_and_the_fewest_do_without() -> None:
    """The deviation of the square is √(2/d)·n² and, from the cross term, 2·√(0.6/d)·n; it may be 0.15."""
    shares = {records: directions_share(D, records, RHO, 2.0) for records in (8000, 7500, 7000)}
    for records, share in shares.items():
        assert share is not None
        noises = [sqrt(2 * 2 * D / (part * RHO)) / records for part in (float(share), float(share) - 0.01)]
        deviations = [sqrt(2 / D * n**4 + 4 * 0.6 / D * n**2) for n in noises]
        assert deviations[0] <= 0.15 < deviations[1]
    assert directions_share(D, 10**6, RHO, 2.0) == Fraction(3, 100)
    assert directions_share(D, 5000, RHO, 2.0) is None
    assert directions_share(D, 7000, RHO, 1.0) < directions_share(D, 7000, RHO, 2.0)  # type: ignore[operator]
    assert first(D, 5000).blocks == {BlockName.FAR_PAIRS: Fraction(1)}
    alone = first(D, 2500)
    assert (alone.release, alone.rho_share, alone.is_last) == (ReleaseKind.PAIRS, Fraction(1), True)


def test_a_histogram_of_all_records_costs_what_its_peak_needs() -> None:
    """15 times the noise of a count, which is √(2·2/(2ρ))."""
    for records in (8000, 6000):
        share = lengths_share(records, RHO, 2.0)
        assert share is not None
        peaks = [records / sqrt(2 / (part * RHO)) for part in (float(share), float(share) - 0.01)]
        assert peaks[0] >= 15 > peaks[1]
    assert lengths_share(10**6, RHO, 2.0) == Fraction(2, 100)
    assert lengths_share(4000, RHO, 2.0) is None


@pytest.mark.parametrize("square", [0.9, 0.61])
def test_records_on_one_side_of_the_centre_make_it_pairs_of_one_length(square: float) -> None:
    chosen = next_round([look(square)], D)
    assert (chosen.release, chosen.rho_share, chosen.clip_norm) == (
        ReleaseKind.PAIRS,
        Fraction(95, 100),
        SHORT,
    )
    assert chosen.centre is None
    assert chosen.pre_studies == (StudyId.of(bytes([1])),)
    assert "far from the mean" in chosen.reasons[0]


@pytest.mark.parametrize("square", [-0.1, 0.02])
def test_records_all_around_the_centre_make_it_a_joint_study_about_it(square: float) -> None:
    chosen = next_round([look(square)], D)
    assert (chosen.release, chosen.rho_share, chosen.clip_norm) == (
        ReleaseKind.JOINT,
        Fraction(95, 100),
        SHORT,
    )
    assert (chosen.centre, chosen.sum_weight) == (None, 0.05)
    assert "not far from the mean" in chosen.reasons[0]


@pytest.mark.parametrize("square", [0.3, 0.59])
def test_in_between_the_norms_of_records_are_worth_their_cost(square: float) -> None:
    chosen = next_round([look(square, noise=0.4)], D)
    assert chosen.blocks == {BlockName.NORMS: Fraction(1)}
    assert chosen.rho_share == lengths_share(RECORDS, RHO, 2.0)
    assert chosen.clip_norm == sqrt(D)
    assert chosen.centre is None


def test_a_direction_that_has_spent_nearly_everything_leaves_no_norms() -> None:
    """A person may have written such a first round."""
    chosen = next_round([replace(look(0.3, noise=0.4), rho_share=Fraction(98, 100))], D)
    assert (chosen.release, chosen.rho_share) == (ReleaseKind.JOINT, Fraction(2, 100))


def test_too_few_records_for_their_norms_leave_the_public_centre_or_pairs() -> None:
    """The noise is (1 + w/2)·(1 + e²) or 2, with e² = s/(1 − s)."""
    near, far = (next_round([look(square, records=3000)], D) for square in (0.44, 0.47))
    assert (near.release, near.centre, near.sum_weight) == (ReleaseKind.JOINT, None, 0.2)
    assert far.release is ReleaseKind.PAIRS


def test_the_centre_moves_in_the_direction_by_the_share_that_is_no_noise() -> None:
    """Half of the norms are below R, so the mean is s·R away and the records R·√(1 − s²) from it."""
    square, noise = 0.5, 0.3
    begun = [look(square, noise)]
    begun.append(lengths(begun[0]))
    chosen = next_round(begun, D)
    norm = EDGES[39] + (EDGES[40] - EDGES[39]) / 2
    step = square / (square + noise**2)
    moved = norm * step * sqrt((square + noise**2) / D)  # in half-ranges, with the noise of the mean
    assert chosen.centre == pytest.approx((5 + 10 * moved,) * D)
    unit = norm * sqrt(1 - square)
    error = norm * noise * sqrt(step) / unit
    assert chosen.blocks == {BlockName.SUM: Fraction(1)}
    assert chosen.clip_norm == pytest.approx(unit * sqrt(1 + error**2))
    assert chosen.centre_error == pytest.approx(unit * error)
    assert f"half within {unit:.3g} of their mean" in chosen.reasons[0]


def test_means_go_on_from_there_and_the_last_study_has_one_length() -> None:
    begun = [look(0.5, 0.6)]
    begun.append(lengths(begun[0]))
    second = next_round(begun, D)
    assert second.blocks == {BlockName.SUM: Fraction(1)}
    assert second.centre is not None
    mean = NoisySum((0.01,) * D, 0.001, second.clip_norm)
    begun.append(result(3, begun, second.rho_share, total=mean, centre=second.centre))
    chosen = next_round(begun, D)
    assert (chosen.release, chosen.clip_norm) == (ReleaseKind.JOINT, SHORT)
    step = 0.99  # a hundredth of the square is noise
    assert chosen.centre == pytest.approx([each + 10 * 0.01 * step for each in second.centre], abs=1e-6)
    assert chosen.rho_share == 1 - sum((each.rho_share for each in begun), Fraction(0))
    norm = EDGES[39] + (EDGES[40] - EDGES[39]) / 2
    assert chosen.clip_cap == pytest.approx(2 * norm * sqrt(1 - 0.5))
    assert chosen.clip_share == "0.005"
    assert [each.study for each in begun] == list(chosen.pre_studies)


def test_a_histogram_that_shows_nothing_leaves_the_public_centre() -> None:
    begun = [look(0.3)]
    begun.append(lengths(begun[0], noise=1e6))
    chosen = next_round(begun, D)
    assert (chosen.release, chosen.centre, chosen.rho_share) == (ReleaseKind.JOINT, None, Fraction(92, 100))


def test_a_mean_of_records_that_are_clipped_less_is_no_direction() -> None:
    first = look(0.3)
    total = first.total
    assert total is not None
    assert MeanDirection.at_the_start([first]) is not None
    assert MeanDirection.at_the_start([replace(first, total=replace(total, clip_norm=1.01 * SHORT))]) is None
    assert MeanDirection.at_the_start([lengths(first)]) is None


@pytest.mark.parametrize(("offset", "present"), [(0.0, 1.0), (0.5, 0.8), (1.0, 1.0), (1.0, 0.7), (3.0, 0.8)])
def test_the_square_is_what_offset_and_gaps_make_it(offset: float, present: float) -> None:
    """q·e²/(1 + e²) for 20,000 normal records, without the noise of a study. The entries of their mean have
    deviations below 0.01/√d, so the square has one below 0.02, and its own approximation is as good."""
    rows = normal_deviates(20_000 * D, Seeded(5)).reshape(-1, D)
    rows += offset * np.where(np.arange(D) % 2, 1.0, -1.0)
    rows *= uniforms(20_000 * D, Seeded(6)).reshape(-1, D) < present
    mean = (rows / np.linalg.norm(rows, axis=1)[:, None]).mean(axis=0)
    square = present * offset**2 / (1 + offset**2)
    assert float(mean @ mean) == pytest.approx(square, abs=0.03)
    direction = MeanDirection.at_the_start(
        [result(1, (), Fraction(1, 20), total=NoisySum(tuple(SHORT * mean), 0.0, SHORT))]
    )
    assert direction is not None
    assert direction.square == pytest.approx(float(mean @ mean))
