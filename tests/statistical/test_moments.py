"""Tables of covariances and correlations against the truth, which only a test knows.

Seeded runs, as in test_reliability.py: the figures are those that were measured, with room.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from reference_data import Floats, Seeded, Table, covtype, digits, in_half_ranges, insurance, musk, terrain
from releases import Clipped, clipped

from dpdpca_protocol.result.components import Components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_user.results.moments import Moments
from dpdpca_user.results.reliability import assess_release


def study_of(
    table: Table, epsilon: float, release: ReleaseKind = ReleaseKind.JOINT, off_centre: float = 0.0
) -> Clipped:
    rows = in_half_ranges(table)
    rows = rows - rows.mean(axis=0) + off_centre
    if release is ReleaseKind.PAIRS:
        even = len(rows) // 2 * 2
        rows = rows[0:even:2] - rows[1:even:2]
    return clipped(rows, float(np.median(np.linalg.norm(rows, axis=1))), epsilon, release)


def truth_of(study: Clipped) -> Floats:
    if study.figures.release is ReleaseKind.PAIRS:
        covariance: Floats = study.rows.T @ study.rows / (2 * len(study.rows))
        return covariance
    return np.cov(study.rows.T)


def released(study: Clipped, source: Seeded) -> tuple[Components, Moments]:
    noisy = study.release(source)
    components = study.fit(noisy)
    reliability = assess_release(noisy, study.figures, components, source)
    return components, Moments.of(components, reliability, study.figures)


@pytest.mark.parametrize("release", ["joint", "masked", "pairs"])
def test_the_deviations_are_those_of_the_noise(release: str) -> None:
    """Thirty releases of a table whose mean is far from the centre, where the noise of the mean counts."""
    study = study_of(terrain(), 1.0, ReleaseKind(release), off_centre=0.2)
    truth, source, off, off_mean = truth_of(study), Seeded(3), [], []
    correlations, wrong = np.corrcoef(truth_rows(study)), []
    upper = np.triu_indices(len(truth))
    for _ in range(30):
        moments = replace(released(study, source)[1], pairs=None)  # the choice of the pairs is given here
        table = moments.covariance(remove_noise=False)
        off.append(((table.values - truth) / table.deviations)[upper])
        if release == "joint":
            means = moments.means()
            off_mean.append((means.values - study.rows.mean(axis=0)) / means.deviations)
        found = moments.correlation(remove_noise=False)
        known = ~np.isnan(found.values) & ~np.eye(len(truth), dtype=bool)
        wrong.append((found.values - correlations)[known] / found.deviations[known])
    assert np.mean(np.square(off)) == pytest.approx(1, abs=0.15)
    if release == "joint":
        assert np.mean(np.square(off_mean)) == pytest.approx(1, abs=0.25)
    assert np.median(np.abs(np.concatenate(wrong))) == pytest.approx(0.6745, abs=0.12)


def truth_rows(study: Clipped) -> Floats:
    """Columns whose correlations are the true ones, also of differences, which have no mean."""
    if study.figures.release is ReleaseKind.PAIRS:
        return np.concatenate([study.rows, -study.rows]).T
    return study.rows.T


@pytest.mark.parametrize(
    ("load", "epsilon", "most"),
    [(terrain, 1.0, 1.05), (musk, 1.0, 0.5), (digits, 1.0, 0.65), (insurance, 0.3, 0.6), (covtype, 0.1, 0.7)],
)
def test_removing_the_noise_lowers_the_error(load: Callable[[], Table], epsilon: float, most: float) -> None:
    study = study_of(load(), epsilon)
    truth, (_, moments) = truth_of(study), released(study, Seeded(5))
    noisy, clean = (moments.covariance(remove_noise=remove) for remove in (False, True))
    assert np.linalg.norm(clean.values - truth) <= most * np.linalg.norm(noisy.values - truth)
    assert np.array_equal(np.diag(clean.values), np.diag(noisy.values)) or np.allclose(
        np.diag(clean.values), np.diag(noisy.values)
    )
    upper = np.triu_indices(len(truth))
    inside = np.abs(clean.values - truth) <= 1.645 * clean.deviations
    assert inside[upper].mean() >= 0.88


def test_noise_alone_is_marked_as_noise() -> None:
    """An unmarked figure in at most 2 of 100 releases, so 5 of 50 are far more than expected."""
    study, source = clipped(np.zeros((500, 12)), 1.0, 0.3), Seeded(1)
    unmarked = sum(not released(study, source)[1].covariance(False).in_noise.all() for _ in range(50))
    assert unmarked <= 5


def test_a_clear_covariance_is_not_marked_as_noise() -> None:
    _, moments = released(study_of(terrain(), 3.0), Seeded(1))
    table = moments.covariance()
    largest = np.unravel_index(np.abs(np.triu(table.values, 1)).argmax(), table.values.shape)
    assert not table.in_noise[largest]
    assert table.in_noise.any()


def test_loadings_scatter_as_far_as_their_deviations_say() -> None:
    study, source = study_of(covtype(), 1.0), Seeded(9)
    values, vectors = np.linalg.eigh(truth_of(study))
    first = vectors[:, ::-1][:, :3].T
    off, told = [], []
    for _ in range(12):
        components, moments = released(study, source)
        loadings, deviations = moments.loadings()
        sizes = np.sqrt(components.captured[:3])[:, None]
        signs = np.sign((components.vectors[:3] * first).sum(axis=1))[:, None]
        off.append(loadings[:3] * signs - first * sizes)
        told.append(deviations[:3])
    for component in range(3):
        spread = np.sqrt(np.mean(np.square(np.array(off)[:, component])))
        assert 0.7 < spread / np.sqrt(np.mean(np.square(np.array(told)[:, component]))) < 1.3
    assert values[-1] > values[-2]
