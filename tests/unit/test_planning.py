"""The planner's formulas at points worked out by hand."""

from math import sqrt

import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.study import ReleaseKind
from dpdpca_user.planning.noise import (
    clip_quantile,
    components_seen,
    least_records,
    noise_over_signal,
    relative_noise,
    usual_norm,
)


def test_noise_of_each_release_in_its_own_unit() -> None:
    assert relative_noise(ReleaseKind.JOINT, 0.05) == pytest.approx(1.025)
    assert relative_noise(ReleaseKind.JOINT, 0.43) == pytest.approx(1.215)
    assert relative_noise(ReleaseKind.MASKED) == pytest.approx(2.828, abs=0.001)
    assert relative_noise(ReleaseKind.MASKED, nonnegative=True) == pytest.approx(1.732, abs=0.001)
    assert relative_noise(ReleaseKind.PAIRS) == 2
    with pytest.raises(UsageError):
        relative_noise(ReleaseKind.PRE_STUDY)


def test_the_noisier_the_lower_the_clip() -> None:
    assert [clip_quantile(nu) for nu in (0.0001, 0.001, 0.004, 0.008, 0.02)] == [0.99, 0.95, 0.75, 0.5, 0.1]
    assert noise_over_signal(1.0, 50, 0.01, 10_000) == pytest.approx(0.005)


def test_norm_without_data() -> None:
    assert usual_norm(100, 0) == pytest.approx(3.5)
    assert usual_norm(0, 4) == pytest.approx(1.8)
    assert usual_norm(9, 1) == pytest.approx(sqrt(1.05**2 + 0.81))


@pytest.mark.parametrize(
    ("rho", "d", "base"), [(0.0172, 100, 170), (0.000209, 10, 489), (0.137, 800, 171), (0.00172, 50, 381)]
)
def test_least_records_of_one_spike(rho: float, d: int, base: float) -> None:
    assert least_records(1.0, 1.0, d, rho) == pytest.approx(base, rel=0.01)
    assert least_records(1.215, 0.2, d, rho, 3.0) == pytest.approx(base * 1.215 * 15, rel=0.01)
    assert least_records(1.0, 1.0, d, rho, offset=d / 2) == pytest.approx(base * sqrt(2), rel=0.01)


def test_components_of_a_spectrum_that_stand_above_the_noise() -> None:
    spectrum = [0.4, 0.2, 0.1, 0.05, 0.01]
    few = components_seen(spectrum, 1.0, 100, 0.0172, 700)
    many = components_seen(spectrum, 1.0, 100, 0.0172, 20_000)
    assert (few, many) == (2, 5)
    assert components_seen([4, 2, 1, 0.5, 0.1], 1.0, 100, 0.0172, 20_000) >= 4
    assert components_seen(spectrum, 1.0, 100, 0.0172, 10) == 0
    for bad in ([], [0.0], [1.0, -0.1]):
        with pytest.raises(UsageError):
            components_seen(bad, 1.0, 100, 0.0172, 700)
