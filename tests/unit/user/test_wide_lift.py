"""What is read from a lift and from scores: against numpy's decomposition, and formulas turned round.

Where noise has a law, tests/statistical/test_wide.py looks at many draws. Here it is absent or known.
"""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from present import present
from reference_data import Seeded

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import NoiseLaw
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import BELOW_THE_EDGE, LOWER_BOUND, MIXTURE, OF_THE_SPAN, VARIANCE
from dpdpca_user.results.wide import lift as lift_module
from dpdpca_user.results.wide.choice import Visibility
from dpdpca_user.results.wide.estimates import WideComponents, wide_components
from dpdpca_user.results.wide.lift import LiftReading, read_lift
from dpdpca_user.results.wide.redrawing import ScoresNoise, redraw
from dpdpca_user.results.wide.scores import ScoresReading, read_scores
from dpdpca_user.results.wide.sketch import SketchReading

D, K = 240, 5

Floats = np.ndarray


def source_of(seed: int) -> np.random.Generator:  # noqa: TID251 - made up
    return np.random.default_rng(seed)  # noqa: TID251 - made-up records, not noise of a release


def orthonormal(rows: int, columns: int, seed: int) -> Floats:
    return np.linalg.qr(source_of(seed).standard_normal((columns, rows)))[0].T


def projector(rows: Floats) -> Floats:
    return np.asarray(rows.T @ rows)


@pytest.mark.parametrize("block", [2**20, 37 * K])
@pytest.mark.parametrize("spread", [1.0, 1e-5])
def test_directions_are_those_of_numpy(block: int, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers of 10¹⁵, singular values up to 10⁵ apart, in one block and in many."""
    monkeypatch.setattr(lift_module, "_BLOCK", block)
    sizes = 1e17 * np.geomspace(1, spread / 2, K)
    values = np.rint((orthonormal(K, D, 1).T * sizes) @ orthonormal(K, K, 2)).astype(np.int64)
    read = read_lift(values, np.eye(K), 0.0)
    left, singular, _ = np.linalg.svd(values.astype(float), full_matrices=False)
    assert read.singular_values == pytest.approx(singular, rel=1e-10 / spread)
    assert np.abs(projector(read.vectors) - projector(left.T)).max() < 1e-9
    assert np.abs(read.vectors @ read.vectors.T - np.eye(K)).max() < 1e-12
    assert np.abs(np.abs(read.vectors @ left) - np.eye(K)).max() < 1e-9 / spread
    leaders = np.abs(read.vectors).argmax(axis=1)
    assert (read.vectors[np.arange(K), leaders] > 0).all()


def test_values_in_doubles_read_the_same() -> None:
    values = np.rint(1e6 * source_of(3).standard_normal((D, K)))
    whole, real = (read_lift(each, np.eye(K), 0.0) for each in (values.astype(np.int64), values))
    assert (whole.vectors == real.vectors).all()


def test_a_lift_of_lower_rank_has_fewer_directions() -> None:
    values = np.rint(1e9 * orthonormal(2, D, 1).T @ source_of(4).standard_normal((2, K)))
    read = read_lift(values, np.eye(K), 0.0)
    assert read.vectors.shape == (2, D)
    assert np.linalg.svd(values)[1][:2] == pytest.approx(read.singular_values)


def test_shapes_must_match() -> None:
    for values, gram in (
        (np.ones((D, K)), np.eye(K - 1)),
        (np.ones((3, K)), np.eye(K)),
        (np.zeros((D, K)), np.eye(K)),
    ):
        with pytest.raises(UsageError):
            read_lift(values, gram, 1.0)


def in_noise(signals: Floats, t: float) -> tuple[Floats, Floats]:
    """L̃ with exactly the singular values that these signals have in noise of scale t, and its left axes."""
    squares = (signals**2 + t**2 * D) * (signals**2 + t**2 * K) / signals**2
    axes = orthonormal(K, D, 5)
    return (axes.T * np.sqrt(squares)) @ orthonormal(K, K, 6), axes


def test_signals_are_singular_values_without_noise() -> None:
    signals, t = np.array([900.0, 400.0, 200.0, 120.0, 100.0]), 5.0
    values, _ = in_noise(signals, t)
    read = read_lift(values, np.eye(K), t)
    assert read.edge == pytest.approx(5 * (sqrt(D) + sqrt(K) + 3.04), rel=1e-3)
    assert (read.singular_values > read.edge).tolist() == [True] * K
    assert read.signals == pytest.approx(signals)
    by_hand = (signals**4 - t**4 * D * K) / (signals**4 + D * t**2 * signals**2)
    assert read.overlaps == pytest.approx(by_hand)
    assert read.lower_bounds == pytest.approx(by_hand * signals**2)


def test_nothing_is_said_from_the_first_direction_below_the_edge_on() -> None:
    values = orthonormal(K, D, 5).T * np.array([900.0, 400.0, 90.0, 80.0, 70.0])
    read = read_lift(values, np.eye(K), 5.0)
    assert read.trusted_count == 2
    assert not read.signals[2:].any()
    assert not read.overlaps[2:].any()
    assert read.lower_bounds is not None
    assert not read.lower_bounds[2:].any()


def test_lower_bounds_are_met_by_linear_numbers_and_kept_by_all_others() -> None:
    """Without noise: V·L G⁻¹Lᵀ·V ≤ V·(Σ z zᵀ)·V, with equality where a is a turn of Vz."""
    source = source_of(7)
    records = source.standard_normal((400, 30)) * np.linspace(3, 0.5, 30)
    moment = records.T @ records
    values, vectors = np.linalg.eigh(moment)
    best, turn = vectors[:, ::-1][:, :3], source.standard_normal((3, 3))
    linear = records @ best @ turn
    read = read_lift(records.T @ linear, linear.T @ linear, 0.0)
    held = np.einsum("ki,ij,kj->k", read.vectors, moment, read.vectors)
    assert read.lower_bounds == pytest.approx(held)
    assert held.sum() == pytest.approx(values[-3:].sum())
    for lengths in (0.5, 4.0):
        cut = linear * np.minimum(1, lengths / np.linalg.norm(linear, axis=1))[:, None]
        other = read_lift(records.T @ cut, cut.T @ cut, 0.0)
        held = np.einsum("ki,ij,kj->k", other.vectors, moment, other.vectors)
        assert other.lower_bounds is not None
        assert (other.lower_bounds <= held * (1 + 1e-12)).all()
        assert (other.lower_bounds > 0.3 * held).all()


def test_sums_of_products_that_are_not_positive_give_no_variances() -> None:
    gram = np.diag([5.0, 4.0, 3.0, 2.0, -1.0])
    read = read_lift(in_noise(np.full(K, 300.0), 5.0)[0], gram, 5.0)
    assert read.lower_bounds is None
    assert read.trusted_count == K


def opened_scores(scatter: Floats, mean: Floats | None, count: int) -> NoisyScatter:
    whole = np.rint(scatter).astype(np.int64).tolist()
    if mean is None:
        return NoisyScatter(count, tuple(tuple(2 * each for each in row) for row in whole), None, True)
    sums = tuple(np.rint(count * mean).astype(np.int64).tolist())
    return NoisyScatter(count, tuple(tuple(count * each for each in row) for row in whole), sums)


LAW = NoiseLaw(Fraction(200), Fraction(100), Fraction(9), 0, 0)


def test_scores_turn_the_directions_above_the_edge_alone() -> None:
    turn = orthonormal(3, 3, 8)
    scatter = np.diag([0.0, 0, 0, 7e6, 9e6])
    scatter[:3, :3] = (turn.T * [5e8, 2e8, 1e8]) @ turn
    scatter[3, 4] = scatter[4, 3] = 5e6
    read = read_scores(opened_scores(scatter, np.arange(5.0), 1001), LAW, 3)
    assert read.variances == pytest.approx([5e5, 2e5, 1e5, 7e3, 9e3], rel=1e-6)
    assert np.abs(read.rotation[:3, :3] @ turn.T) == pytest.approx(np.eye(3), abs=1e-6)
    assert (read.rotation[3:] == np.eye(5)[3:]).all()
    assert read.mean == pytest.approx(read.rotation @ np.arange(5.0))
    assert read.mean_deviation == pytest.approx(3 / 1001)


@pytest.mark.parametrize("of_pairs", [False, True])
def test_deviations_of_variances_are_those_of_many_draws(of_pairs: bool) -> None:
    """Of a quadratic form in a noisy matrix and a noisy mean, to the first order."""
    count, source = 500, source_of(9)
    axes = orthonormal(3, 3, 10)
    scatter = (axes.T * [9e6, 5e6, 1e6]) @ axes
    mean = np.array([20.0, -50.0, 90.0])
    law = NoiseLaw(Fraction(3 * 10**9), Fraction(10**9), Fraction(10**6), 0, 0)
    read = read_scores(opened_scores(scatter, None if of_pairs else mean, count), law, 3)
    draws = []
    for _ in range(4000):
        upper = np.triu(1e9**0.5 * source.standard_normal((3, 3)), 1)
        noise = upper + upper.T + np.diag(3e9**0.5 * source.standard_normal(3))
        if of_pairs:
            noise = noise / 2
        else:
            error = 1e3 * source.standard_normal(3)
            noise -= np.outer(mean, error) + np.outer(error, mean)
        draws.append(np.diag(read.rotation @ noise @ read.rotation.T) / (count - (not of_pairs)))
    pairing = read.variances**2 / count if of_pairs else 0.0
    assert read.deviations == pytest.approx(np.sqrt(np.var(draws, axis=0) + pairing), rel=0.08)


def sketch_with(seen: int, shares: Floats) -> tuple[SketchReading, Visibility]:
    trace = 2.0 * 999 * 1000.0
    sketch = SketchReading(
        count=1000,
        of_pairs=False,
        trace=trace,
        bulk=1.0,
        half_width=0.02 * trace,
        edge=0.02 * trace,
        noise_energy=0.0,
        sums=(0,) * 64,
        mean=np.zeros(64),
        mean_square=0.0,
        directions=np.eye(10, 64),
        heights=np.ones(10),
        widths=np.ones(10),
        seen_count=seen,
        strengths=shares[:seen] * trace,
        trace_noise=0.0,
    )
    return sketch, Visibility(shares, np.full(10, 0.8), np.full(10, 0.04), seen)


def lifted(signals: Floats, t: float, bounds: Floats | None = None) -> LiftReading:
    read = read_lift(in_noise(signals, t)[0], np.eye(K), t)
    return LiftReading(read.vectors, read.singular_values, t, read.signals, read.overlaps, bounds)


SHARES = np.array([0.2, 0.1, 0.095, *[0.01] * 7])
SILENT = 5.0 * (D * K) ** 0.25
"""A signal whose singular value is where that of noise of scale 5 is."""
SIGNALS = np.array([900.0, 500.0, 470.0, 300.0, SILENT])


def with_scores(seen: int = 4) -> WideComponents:
    sketch, shown = sketch_with(seen, SHARES)
    turn = np.eye(K)
    turn[:2, :2] = [[0.8, 0.6], [-0.6, 0.8]]
    scores = ScoresReading(
        1000, np.array([190.0, 95.0, 90.0, 20.0, -3.0]), np.full(K, 2.0), turn, np.arange(5.0), 0.1
    )
    return wide_components(sketch, shown, lifted(SIGNALS, 5.0), scores)


def test_overlaps_follow_the_turn_of_the_scores() -> None:
    made, lift = with_scores(), lifted(SIGNALS, 5.0)
    roots = np.sqrt(lift.overlaps)
    first = (0.64 * roots[0] + 0.36 * roots[1]) ** 2
    within = 1 / (1 + 0.04 / 0.8)
    assert made.overlaps[0] == pytest.approx(first * within)
    assert made.overlaps[2] == pytest.approx(lift.overlaps[2] * within)
    assert made.overlaps[4] == 0
    assert made.kind == VARIANCE
    assert made.vectors == pytest.approx(
        np.diag([1 if v > 0 else -1 for v in signs_of(made, lift)]) @ turned(lift), abs=1e-12
    )


def turned(lift: LiftReading) -> Floats:
    turn = np.eye(K)
    turn[:2, :2] = [[0.8, 0.6], [-0.6, 0.8]]
    return np.asarray(turn @ lift.vectors)


def signs_of(made: WideComponents, lift: LiftReading) -> Floats:
    return np.asarray(np.einsum("ki,ki->k", made.vectors, turned(lift)))


def test_the_mean_of_scores_turns_with_its_component() -> None:
    """The point that the mean stands for is the same, whatever the signs of the components are."""
    made, lift = with_scores(), lifted(SIGNALS, 5.0)
    assert made.mean is not None
    assert made.mean @ made.vectors == pytest.approx(np.arange(5.0) @ turned(lift), abs=1e-9)


def test_labels_tell_noise_from_what_the_sketch_did_not_resolve() -> None:
    made = with_scores(seen=3)
    assert (made.above_count, made.trusted_count) == (4, 3)
    assert [made.label(index) for index in range(5)] == [
        "",
        OF_THE_SPAN,
        OF_THE_SPAN,
        MIXTURE,
        BELOW_THE_EDGE,
    ]
    assert not made.overlaps[3:].any()


def test_the_share_is_an_estimate_up_to_the_last_component_and_then_a_bound() -> None:
    made = with_scores(seen=3)
    assert made.variances is not None
    best = (made.variances[:3] / made.overlaps[:3]).sum()
    assert present(made.captured_share(3)) == pytest.approx((375 / best, 1))
    unseen = 0.02 * 1000
    assert made.unseen_variance == pytest.approx(unseen)
    assert present(made.captured_share(5)) == pytest.approx((392 / (best + 2 * unseen), 0))
    with pytest.raises(UsageError):
        made.captured_share(6)


def test_without_scores_variances_are_lower_bounds() -> None:
    sketch, shown = sketch_with(4, SHARES)
    bounds = np.array([1.8e5, 9e4, 8e4, 1e4, 0.0])
    made = wide_components(sketch, shown, lifted(SIGNALS, 5.0, bounds))
    assert made.kind == LOWER_BOUND
    assert made.variances == pytest.approx(bounds / 999)
    assert made.mean is None
    share = made.captured_share(2)
    assert share is not None
    assert not share[1]
    assert wide_components(sketch, shown, lifted(SIGNALS, 5.0)).captured_share(2) is None


def test_units_change_variances_and_the_mean() -> None:
    made = with_scores()
    other = made.in_units(0.5)
    assert made.variances is not None
    assert made.mean is not None
    assert other.variances == pytest.approx(made.variances / 4)
    assert other.mean == pytest.approx(made.mean / 2)
    assert other.captured_share(2) == pytest.approx(made.captured_share(2))


def test_intervals_hold_what_is_estimated_and_shrink_with_the_noise() -> None:
    wide = []
    for t in (5.0, 2.0):
        sketch, shown = sketch_with(4, SHARES)
        scores = ScoresReading(1000, np.array([190.0, 95, 60, 20, 0]), np.full(K, 1.0), np.eye(K), None, 0.0)
        lift = lifted(SIGNALS, t)
        made = wide_components(sketch, shown, lift, scores)
        found = redraw(made, shown, lift, ScoresNoise(0.4, 0.3), Seeded(1))
        assert len(found.share_low) == len(found.overlap_low) == made.trusted_count == 4
        assert (found.overlap_low < made.overlaps[:4] + 0.005).all()
        assert (found.overlap_high > made.overlaps[:4] - 0.02).all()
        assert (found.share_low <= found.share_high).all()
        wide.append(float((found.overlap_high - found.overlap_low).sum()))
    assert wide[1] < 0.6 * wide[0]


def test_a_lift_of_noise_has_no_intervals() -> None:
    sketch, shown = sketch_with(4, SHARES)
    lift = lifted(np.full(K, SILENT), 5.0)
    made = wide_components(sketch, shown, lift)
    assert made.trusted_count == 0
    assert len(redraw(made, shown, lift, None, Seeded(1)).overlap_low) == 0
