"""Chains of so few records that they only count the pairs far from the public centre."""

from collections.abc import Callable
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from reference_data import Seeded
from study_parties import MakeManifest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.records.block_sums import are_far
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_user.planning.choice import Guess, NextRound, first_round, next_round
from dpdpca_user.planning.far_pairs import far_pairs_share
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.results.deviates import normal_deviates

D, RECORDS, RHO = 3, 5001, 0.0003
Ending = Callable[[int], NextRound]


@pytest.fixture
def ending(make_manifest: MakeManifest) -> Ending:
    manifest = make_manifest(release="pre-study", blocks={"far-pairs": "1"}, rho_share="0.02")

    def make(count: int) -> NextRound:
        released = {BlockName.COUNT: [RECORDS], BlockName.FAR_PAIRS: [count]}
        return next_round([PreStudyResult.of(manifest, released, 3)], D)

    return make


def test_records_too_few_for_a_mean_direction_are_counted_in_pairs() -> None:
    chosen = first_round(100, RECORDS, RHO, Guess(10.0, 3.0, of_categories=False))
    assert (chosen.release, chosen.blocks) == (ReleaseKind.PRE_STUDY, {BlockName.FAR_PAIRS: Fraction(1)})
    assert chosen.rho_share == far_pairs_share(RECORDS, RHO, 2.0) == Fraction(4, 100)
    assert (chosen.clip_norm, chosen.centre, chosen.pre_studies) == (10.0, None, ())
    assert "too few to measure norms and a mean" in chosen.reasons[0]


def test_a_count_costs_what_its_noise_needs_and_the_fewest_records_do_without() -> None:
    """The deviation of the share of far pairs is √(draws/(2·share·ρ)) over the pairs."""
    for records in (8000, RECORDS, 4200):
        share = far_pairs_share(records, RHO, 2.0)
        assert share is not None
        noises = [sqrt(2 / (2 * part * RHO)) / (records // 2) for part in (float(share), float(share) - 0.01)]
        assert noises[0] <= 0.12 < noises[1]
    assert far_pairs_share(10**6, RHO, 2.0) == Fraction(1, 100)
    assert far_pairs_share(2800, RHO, 2.0) == Fraction(6, 100)  # 0.168
    assert far_pairs_share(2700, RHO, 2.0) is None  # 0.175
    assert far_pairs_share(2000, RHO, 1.0) == Fraction(6, 100)
    assert far_pairs_share(1, RHO, 2.0) is far_pairs_share(0, RHO, 2.0) is None


@pytest.mark.parametrize("count", [1551, 2400, 9999])
def test_many_far_pairs_end_the_chain_with_pairs_of_one_length(ending: Ending, count: int) -> None:
    """62 % of the 2500 pairs are 1550."""
    chosen = ending(count)
    assert (chosen.release, chosen.rho_share, chosen.is_last) == (ReleaseKind.PAIRS, Fraction(98, 100), True)
    assert chosen.clip_norm == sqrt(D) / 1024
    assert "lie far from the public centre, so this centre is far from the mean" in chosen.reasons[0]


@pytest.mark.parametrize("count", [-700, 0, 1549])
def test_few_far_pairs_end_it_with_a_joint_study_about_the_public_centre(ending: Ending, count: int) -> None:
    chosen = ending(count)
    assert (chosen.release, chosen.rho_share, chosen.is_last) == (ReleaseKind.JOINT, Fraction(98, 100), True)
    assert (chosen.clip_norm, chosen.centre, chosen.sum_weight) == (sqrt(D) / 1024, None, 0.05)
    assert "so this centre is near the mean" in chosen.reasons[0]
    assert "-" not in chosen.reasons[0]


@pytest.mark.parametrize("records", [0, 1, 2, 2000])
def test_far_fewer_records_than_expected_make_it_pairs(make_manifest: MakeManifest, records: int) -> None:
    """A count that is mostly noise decides nothing, and nothing is divided by zero."""
    manifest = make_manifest(release="pre-study", blocks={"far-pairs": "1"}, rho_share="0.0001")
    released = {BlockName.COUNT: [records], BlockName.FAR_PAIRS: [0]}
    chosen = next_round([PreStudyResult.of(manifest, released, 3)], D)
    assert chosen.release is ReleaseKind.PAIRS
    assert f"{records:,} records are too few" in chosen.reasons[0]


def test_a_count_about_a_moved_centre_is_not_one_of_a_chain(make_manifest: MakeManifest) -> None:
    """It would tell nothing about the public centre."""
    terms: dict[str, Any] = {"release": "pre-study", "rho_share": "0.1"}
    first = make_manifest(blocks={"sum": "1"}, **terms)
    mean = PreStudyResult.of(first, {BlockName.COUNT: [RECORDS], BlockName.SUM: [0] * D}, 3)
    second = make_manifest(blocks={"far-pairs": "1"}, pre_studies=[first.study_id.hex()], **terms)
    count = PreStudyResult.of(second, {BlockName.COUNT: [RECORDS], BlockName.FAR_PAIRS: [0]}, 3)
    assert count.pre_studies == (StudyId(first.study_id),)
    with pytest.raises(UsageError, match="nothing from which the next round can be chosen"):
        next_round([mean, count], D)


@pytest.mark.parametrize(
    ("distance", "least", "most"), [(0.0, 0, 0), (0.8, 0, 0.1), (1.3, 0.9, 1), (3, 1, 1)]
)
def test_pairs_are_far_from_the_usual_distance_on(distance: float, least: float, most: float) -> None:
    """Normal records in 100 dimensions, whose mean is so many times their usual distance away."""
    rows = normal_deviates(400 * 100, Seeded(3)).reshape(400, 100) + distance
    z = np.rint(2**20 * rows).astype(np.int64)
    assert least <= are_far(z[::2], z[1::2]).mean() <= most
