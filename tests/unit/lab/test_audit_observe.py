"""What the audit computes of a view depends on the view alone, to the last bit."""

from fractions import Fraction

import numpy as np
import pytest
from study_parties import MakeManifest

from dpdpca_lab.audit.mechanisms import MechanismRelease
from dpdpca_lab.audit.neighbours import pairs_on_the_bound, worst_shapes
from dpdpca_lab.audit.observe import Lens, Observed
from dpdpca_lab.audit.releases import MaskedRelease
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Quantity, Setting
from dpdpca_protocol.study import ReleaseKind

BOUND = 2**20


def mechanism_release(mechanism: type[Gaussian] | type[Laplace]) -> MechanismRelease:
    return MechanismRelease(
        mechanism.calibrated(Setting(Quantity.SECOND_MOMENT, 2, BOUND, Fraction(1), Fraction(1, 100)))
    )


@pytest.mark.parametrize("mechanism", [Gaussian, Laplace])
def test_statistics_of_a_view_do_not_depend_on_the_side_it_is_read_from(
    mechanism: type[Gaussian] | type[Laplace],
) -> None:
    """The likelihood ratio of Laplace noise is constant over wide ranges: rounding decides a tie there."""
    release = mechanism_release(mechanism)
    (pair,) = pairs_on_the_bound(worst_shapes(ReleaseKind.JOINT, 2, 0.0), BOUND, 10)
    lens = Lens(release, pair)
    views = release.play(pair.second, 500)
    first, second = lens.statistics(lens.read(views, 0), lens.read(views, 1))
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name


def test_what_is_read_in_parts_is_what_is_read_at_once(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(release="masked")
    release = MaskedRelease(manifest.figures, 2)
    (pair,) = pairs_on_the_bound(worst_shapes(ReleaseKind.MASKED, 2, 0.0), manifest.figures.record_bound, 10)
    lens = Lens(release, pair)
    views = release.play(pair.first, 50)
    whole = lens.read(views, 0)
    cut = [slice(0, 20), slice(20, 50)]
    parts = [lens.read(type(views)(views.values[part], views.veiled[part]), 0) for part in cut]
    joined = Observed.joined(parts)
    for name in Observed.__slots__:
        assert np.array_equal(getattr(joined, name), getattr(whole, name)), name
    assert joined.runs == 50
    assert joined.veil_cells.sum() == joined.veiled_cells.sum() == 100
    assert joined.residue_cells.sum() == 50 * len(lens.coordinates)


def test_agreement_counts_towards_the_side_it_agrees_with(make_manifest: MakeManifest) -> None:
    """Views without noise: every telling coordinate speaks for the data set that it came from."""
    manifest = make_manifest(release="masked")
    release = MaskedRelease(manifest.figures, 2)
    vars(release)["draw_noise"] = lambda count, runs: np.zeros((runs, 3), dtype=object)
    (pair,) = pairs_on_the_bound(worst_shapes(ReleaseKind.MASKED, 2, 0.0), manifest.figures.record_bound, 10)
    lens = Lens(release, pair)
    for side, totals, sign in ((0, pair.first, -1), (1, pair.second, 1)):
        seen = lens.read(release.play(totals, 5), side)
        assert list(seen.exact) == [sign * 4] * 5  # three entries and a copy; v′ stays under its mask
        assert list(seen.residues) == [sign * 4] * 5
        assert list(seen.zeros) == [5] * 4
        assert list(seen.divisors) == [0] * 4
        assert seen.asymmetric == 0
