"""What is read from a sketch, and what is made of it: the rule of a lift, the bound of scores, the choice.

Made-up sketches have exact integers, and formulas are computed again here in another way.
"""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest

from dpdpca_protocol.errors import ConflictError, PolicyError, UsageError
from dpdpca_protocol.privacy.mechanisms import NoiseLaw
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.terms.terms import LIFT_BOUND
from dpdpca_user.results.wide.choice import (
    Budget,
    Visibility,
    choose_release,
    forecast_visibility,
    full_share,
    length_of,
    lift_share,
    records_needed,
    visibility,
)
from dpdpca_user.results.wide.rule import lift_rule, scores_norm
from dpdpca_user.results.wide.sketch import SketchReading, bulk_end, check_seen, read_sketch

M, COUNT = 64, 5000
SPIKES = (60.0, 25.0, 12.0)
NOISELESS = NoiseLaw(Fraction(0), Fraction(0), Fraction(0), 0, 0)

Floats = np.ndarray


def noise_of(deviation: float, m: int, seed: int) -> Floats:
    """(m, m) symmetric, with `deviation` off the diagonal and √2 times that on it."""
    source = np.random.default_rng(seed)  # noqa: TID251 - made-up sketches, not noise of a release
    upper = np.triu(deviation * source.standard_normal((m, m)), 1)
    return upper + upper.T + np.diag(sqrt(2) * deviation * source.standard_normal(m))


def law_of(deviation: float, on_sum: float = 0.0) -> NoiseLaw:
    return NoiseLaw(Fraction(2 * deviation**2), Fraction(deviation**2), Fraction(on_sum**2), 0, 0)


def spiked(seed: int = 1, scale: float = 1e6, bulk: float = 40.0) -> tuple[Floats, Floats]:
    """(m, m) with half-width 2·scale, and the true directions, as rows."""
    source = np.random.default_rng(seed)  # noqa: TID251 - made up
    axes = np.linalg.qr(source.standard_normal((M, len(SPIKES))))[0].T
    truth = (axes.T * (np.array(SPIKES) * scale)) @ axes + bulk * scale * np.eye(M)
    return truth + noise_of(scale / sqrt(M), M, seed), axes


def opened(scatter: Floats, mean: Floats | None = None, count: int = COUNT) -> NoisyScatter:
    """A joint sketch with this scatter in whole numbers; or of pairs, where `mean` is None."""
    whole = np.rint(scatter).astype(np.int64)
    if mean is None:
        return NoisyScatter(count, tuple(map(tuple, (2 * whole).tolist())), None, True)
    sums = np.rint(count * mean).astype(np.int64).tolist()
    scaled = [[count * each for each in row] for row in whole.tolist()]
    return NoisyScatter(count, tuple(map(tuple, scaled)), tuple(sums))


@pytest.fixture(scope="module")
def reading() -> SketchReading:
    scatter, _ = spiked()
    return read_sketch(opened(scatter, np.linspace(-40, 90, M)), law_of(0.6e6 / sqrt(M)))


def test_a_reading_has_the_figures_of_its_spectrum(reading: SketchReading) -> None:
    scatter, axes = spiked()
    values = np.linalg.eigvalsh(np.rint(scatter))[::-1]
    assert reading.bulk == pytest.approx((values[31] + values[32]) / 2, rel=1e-12)
    assert reading.half_width == pytest.approx(2e6, rel=0.15)
    assert reading.edge == pytest.approx(
        bulk_end(reading.bulk, reading.half_width, 0.36e12) * (1 + 64 ** (-2 / 3))
    )
    assert reading.seen_count == 3
    for theta, x in zip(reading.strengths, reading.heights, strict=False):
        assert theta + reading.half_width**2 / (4 * theta) == pytest.approx(x, rel=1e-12)
    assert reading.strengths == pytest.approx(np.array(SPIKES) * 1e6, rel=0.05)
    assert reading.captured(3) == pytest.approx(2 * reading.strengths - reading.heights[:3])
    overlaps = np.einsum("ij,ij->i", axes, reading.directions[:3]) ** 2
    assert overlaps == pytest.approx(1 - 1 / np.array(SPIKES) ** 2, abs=0.01)
    assert reading.trace == pytest.approx(np.trace(np.rint(scatter)), rel=1e-12)
    assert reading.total_variance == pytest.approx(np.trace(scatter) / 2 / (COUNT - 1), rel=1e-6)


def test_the_end_of_a_bulk_is_that_of_random_matrices() -> None:
    """Of noise alone a half circle; of mixed features alone the law of Marchenko and Pastur."""
    assert bulk_end(5.0, 2.0, 1.0) == 2.0
    assert bulk_end(5.0, 2.0, 7.0) == 2.0
    assert bulk_end(-1.0, 2.0, 0.5) == 2.0
    ratio = 0.25
    assert bulk_end(1.0, 2 * sqrt(ratio), 0.0) == pytest.approx((1 + sqrt(ratio)) ** 2 - 1, rel=1e-5)
    source = np.random.default_rng(2)  # noqa: TID251 - made up
    m, d, noise = 400, 1600, 0.2
    mixing = source.standard_normal((m, d)) / sqrt(d)
    values = np.linalg.eigvalsh(mixing @ mixing.T + noise_of(sqrt(noise / m), m, 3))
    assert bulk_end(1.0, 2 * sqrt(m / d + noise), noise) == pytest.approx(values[-1] - 1, rel=0.03)


def test_a_mean_is_taken_out_in_exact_numbers() -> None:
    """Σ y yᵀ is 10¹² times its scatter here, so that its doubles have no digit of it."""
    scatter, _ = spiked(scale=1e3)
    mean = np.full(M, 4e9)
    sums = tuple(int(each) for each in COUNT * mean)
    moment = [[int(scatter[i, j]) + sums[i] * sums[j] // COUNT for j in range(M)] for i in range(M)]
    scaled = tuple(tuple(COUNT * moment[i][j] - sums[i] * sums[j] for j in range(M)) for i in range(M))
    read = read_sketch(NoisyScatter(COUNT, scaled, sums), NOISELESS)
    assert read.strengths == pytest.approx(np.array(SPIKES) * 1e3, rel=0.05)


def test_pairs_are_read_as_records_of_half_their_second_moment(reading: SketchReading) -> None:
    scatter, _ = spiked()
    pairs = read_sketch(opened(scatter), law_of(1.2e6 / sqrt(M)))
    assert pairs.of_pairs
    assert pairs.degrees == COUNT
    assert pairs.strengths == pytest.approx(reading.strengths)
    assert pairs.noise_energy == pytest.approx(reading.noise_energy)
    assert pairs.total_variance == pytest.approx(reading.total_variance * (COUNT - 1) / COUNT)


def long_mean(seed: int, on_sum: float) -> NoisyScatter:
    """A sketch of noise alone about a centre that is far from the mean."""
    source = np.random.default_rng(seed)  # noqa: TID251 - made up
    mean = np.zeros(M)
    mean[3] = 30.0
    error = on_sum * source.standard_normal(M)
    scatter = noise_of(1e4, M, seed) - np.outer(mean, error) - np.outer(error, mean)
    return opened(scatter - np.outer(error, error) / COUNT + 1e6 * np.eye(M), mean + error / COUNT)


def test_the_noise_of_the_sum_makes_no_component_along_the_mean() -> None:
    sketches = [long_mean(seed, 1e4) for seed in range(5)]
    assert sum(read_sketch(each, law_of(1e4, 1e4)).seen_count for each in sketches) <= 1
    assert sum(read_sketch(each, law_of(1e4)).seen_count for each in sketches) >= 5


def test_a_sketch_of_noise_shows_nothing_and_the_chain_stops() -> None:
    read = read_sketch(opened(noise_of(1e5, M, 3) + 1e7 * np.eye(M), np.zeros(M)), law_of(1e5))
    assert read.seen_count == 0
    for refused in (check_seen, visibility, lambda each: lift_rule(each, 1)):
        with pytest.raises(ConflictError, match="shows no component") as caught:
            refused(read)
        assert caught.value.slug == "nothing-in-the-sketch"


def test_a_sketch_must_have_rows_and_sums_that_match() -> None:
    with pytest.raises(UsageError):
        read_sketch(opened(np.eye(3), np.zeros(3)), NOISELESS)
    with pytest.raises(UsageError):
        read_sketch(opened(np.eye(M), np.zeros(M - 1)), NOISELESS)
    with pytest.raises(UsageError, match="101 columns"):
        read_sketch(opened(spiked()[0], np.zeros(M)), NOISELESS).strength(101)


@pytest.mark.parametrize("columns", [1, 3, 7])
def test_the_rule_of_a_lift_is_the_formula(reading: SketchReading, columns: int) -> None:
    made = lift_rule(reading, columns)
    for j in range(columns):
        theta = reading.strengths[j] if j < 3 else 0.0
        height = 2 * theta - reading.heights[j] if j < 3 else -1.0
        variance = (max(height, 0.7 * reading.edge) + reading.bulk) / COUNT
        for i in range(M):
            real = 2**16 * 2**10 / (0.5 * sqrt(columns)) / sqrt(variance) * reading.directions[j, i]
            assert abs(int(made.matrix[j, i]) - real) <= 0.5 + 1e-12 * abs(real)
        products = [int(made.matrix[j, i]) * round(COUNT * float(reading.mean[i])) for i in range(M)]
        exact = -Fraction(sum(products), COUNT)
        assert abs(made.offset[j] - exact) <= Fraction(1, 2)


def test_lifted_records_are_twice_as_long_as_their_cut_and_about_0(reading: SketchReading) -> None:
    made = lift_rule(reading, 3)
    scatter, _ = spiked()
    lengths = np.einsum("ij,jk,ik->i", made.matrix, scatter / COUNT, made.matrix) / 2.0**32
    assert lengths == pytest.approx(np.full(3, 4 * LIFT_BOUND / 3), rel=0.02)
    at_the_mean = made.matrix @ reading.mean + np.array(made.offset, dtype=float)
    assert np.abs(at_the_mean).max() <= 1


def test_a_lift_of_pairs_has_the_moments_of_differences_and_no_offset(reading: SketchReading) -> None:
    scatter, _ = spiked()
    pairs = lift_rule(read_sketch(opened(scatter), law_of(1.2e6 / sqrt(M))), 3)
    assert pairs.offset == (0, 0, 0)
    assert pairs.matrix == pytest.approx(lift_rule(reading, 3).matrix / sqrt(2), abs=1)


def test_a_rule_with_too_large_entries_is_refused() -> None:
    scatter, _ = spiked(scale=1e7)  # N·S̃ of variances of about 10⁻¹⁰
    whole = tuple(tuple(round(each) for each in row) for row in scatter)
    read = read_sketch(NoisyScatter(10**9, whole, (0,) * M), NOISELESS)
    with pytest.raises(PolicyError, match=r"below 1.1e\+12") as caught:
        lift_rule(read, 3)
    assert caught.value.slug == "manifest-refused"


def test_the_bound_of_scores_has_room_for_variances_mean_and_noise(reading: SketchReading) -> None:
    grid, d = 64, 5000
    held = reading.captured(3).sum() / (COUNT - 1)
    along = sum(float(reading.directions[j] @ reading.mean) ** 2 for j in range(3))
    r = 10 * sqrt((held + along) / 2) / grid
    expected = (held + along) / 2 / grid**2 + 2 * 3 * r**2 / d
    assert scores_norm(reading, 3, r, grid, d) == pytest.approx(sqrt(3 * expected))
    assert scores_norm(reading, 3, 0.1 * r, grid, d) == pytest.approx(0.1 * r)  # never above r
    scatter, _ = spiked()
    pairs = read_sketch(opened(scatter), law_of(1.2e6 / sqrt(M)))
    of_pairs = pairs.captured(3).sum() / COUNT
    expected = of_pairs / grid**2 + 2 * 3 * r**2 / d
    assert scores_norm(pairs, 3, r, grid, d) == pytest.approx(sqrt(3 * expected))


def seen_as(shares: tuple[float, ...], mixed: float = 0.0) -> Visibility:
    values = np.array(shares)
    return Visibility(values, np.full(len(values), 0.9), np.full(len(values), mixed), len(values))


def test_forecasts_are_the_formulas() -> None:
    budget = Budget(
        features=2000, rows=40_000, of_pairs=False, rho_lift=0.01, rho_full=0.011, draws=2.0, length=1.3
    )
    shares = (0.2, 0.05, 0.02)
    seen = seen_as(shares, 0.04)
    by_hand = sum(
        s / (1 + (2 * 1.3 * 2 * 2000 * 2 / (0.01 * 40_000**2 * s) + 0.04) / 0.9) for s in shares[:2]
    )
    assert lift_share(seen, 2, budget) == pytest.approx(by_hand)
    full = sum(s * max(1 - 1.05 * 2 * 1.3**2 * 2000 / (2 * 0.011 * 40_000**2 * s**2), 0) for s in shares)
    assert full_share(seen.shares, budget) == pytest.approx(full)
    needed = records_needed(0.05, 4, budget)
    assert 9 * 2 * 1.3 * 2 * 2000 * 4 / (0.01 * needed**2 * 0.05) == pytest.approx(1, rel=1e-3)


def test_fewer_columns_are_lifted_where_they_capture_more() -> None:
    budget = Budget(features=20_000, rows=30_000, of_pairs=False, rho_lift=0.001, rho_full=0.001)
    seen = seen_as((0.1, 0.05, 0.001, 0.001))
    lifts = [lift_share(seen, k, budget) for k in range(1, 5)]
    choice = choose_release(seen, 4, budget, full_is_possible=False)
    assert choice.lift == max(lifts)
    assert choice.columns == lifts.index(max(lifts)) + 1 < 4
    assert choice.is_lift
    assert "instead of 4" in choice.sentences[-1]
    assert choose_release(seen, 1, budget).columns == 1
    with pytest.raises(UsageError):
        choose_release(seen, 0, budget)


def test_strong_components_get_a_full_matrix_and_weak_ones_a_lift() -> None:
    def choice(shares: tuple[float, ...]) -> bool:
        budget = Budget(features=2000, rows=40_000, of_pairs=False, rho_lift=0.01, rho_full=0.011)
        return choose_release(seen_as(shares), len(shares), budget).is_lift

    assert not choice((0.5, 0.2))
    assert choice((0.011,) * 5)


def test_what_a_sketch_shows_is_its_spectrum_less_noise(reading: SketchReading) -> None:
    seen = visibility(reading)
    assert seen.seen_count == 3
    assert seen.shares[:3] == pytest.approx(reading.strengths / reading.trace)
    assert seen.shares[3:] == pytest.approx(reading.edge / 2 / reading.trace)
    assert seen.kept[:3] == pytest.approx(1 - (reading.half_width / reading.strengths) ** 2 / 4)
    mixing = reading.half_width**2 / 4 - 0.36e12
    assert seen.mixed[0] == pytest.approx(mixing / reading.strengths[0] ** 2)
    all_noise = read_sketch(opened(spiked()[0], np.zeros(M)), law_of(1e7))
    assert not visibility(all_noise).mixed.any()


def test_a_mean_far_from_the_centre_makes_records_longer(reading: SketchReading) -> None:
    about_the_centre = np.trace(np.rint(spiked()[0])) + COUNT * (np.linspace(-40, 90, M) ** 2).sum()
    assert length_of(reading) == pytest.approx(about_the_centre / reading.trace, rel=1e-3)
    noisy = read_sketch(opened(spiked()[0], np.linspace(-40, 90, M)), law_of(1e5, COUNT * 30.0))
    squares = (np.linspace(-40, 90, M) ** 2).sum() - 64 * 900
    assert length_of(noisy) == pytest.approx(1 + COUNT * squares / noisy.trace, rel=1e-3)


def test_a_spectrum_forecasts_what_its_sketch_would_show() -> None:
    """Against a sketch made with a random matrix: strengths, cosines, and what is mixed in."""
    source = np.random.default_rng(5)  # noqa: TID251 - made up
    d, m = 1500, 96
    spectrum = np.array([0.2, 0.1, 0.06, *np.full(40, 0.006)])
    full = np.full(d, (1 - spectrum.sum()) / (d - len(spectrum)))
    full[: len(spectrum)] = spectrum
    scale = 1e12
    towards = source.standard_normal((m, d)) * sqrt(1 / m)
    deviation = 0.002
    scatter = (towards * full) @ towards.T + noise_of(deviation, m, 8)
    read = read_sketch(opened(scale * scatter, np.zeros(m)), law_of(scale * deviation))
    shown, expected = visibility(read), forecast_visibility(spectrum.tolist(), d, m, m * deviation**2)
    assert shown.seen_count == expected.seen_count == 3
    assert expected.shares[:3] == pytest.approx(shown.shares[:3], rel=0.3)
    assert expected.kept[:3] == pytest.approx(shown.kept[:3], abs=0.05)
    assert expected.mixed[:3] == pytest.approx(shown.mixed[:3], rel=0.6)
