"""The sensitivities against neighbours found by optimisation and by exhaustion: reached, and never passed."""

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import wide_studies as wide
from numpy.typing import NDArray
from scipy.optimize import minimize
from study_parties import MakeManifest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.sensitivity import (
    block_sensitivity_squared,
    joint_sensitivity_squared,
    lift_sensitivity_squared,
    nonnegative_scatter_sensitivity_squared_bound,
    scatter_sensitivity_bound,
    second_moment_sensitivity_squared,
)
from dpdpca_protocol.records.block_sums import BlockSums
from dpdpca_protocol.records.encoding import cut_to_bound
from dpdpca_protocol.records.pairing import pairs
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.terms.terms import LIFT_BOUND

SEED = 20181210


def scatter(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    total = rows.sum(axis=0)
    return rows.T @ rows - np.outer(total, total) / len(rows)


def second_moment(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows.T @ rows


def in_ball(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    inside: NDArray[np.float64] = rows / np.maximum(norms, 1)
    return inside


def not_negative(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return in_ball(np.abs(rows))


def furthest_neighbours(
    distance: Callable[..., Any], count: int, d: int, starts: int = 4, domain: Callable[..., Any] = in_ball
) -> float:
    """The largest `distance(X, X')` found over data sets in the unit ball that differ in their first row."""
    source = random.Random(SEED + 100 * count + d)

    def loss(flat: NDArray[np.float64]) -> float:
        rows = domain(flat.reshape(count + 1, d))
        return -float(distance(rows[1:], np.vstack([rows[:1], rows[2:]])))

    found = 0.0
    for _ in range(starts):
        start = [source.gauss(0, 0.2) for _ in range((count + 1) * d)]
        result = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 300})
        found = max(found, -float(result.fun))
    return found


def scatter_sensitivity(record_bound: int, count: int) -> Fraction:
    """4K(N−1)/N: how far S moves, to be held against the bound that is free of N."""
    return Fraction(4 * record_bound * (count - 1), count)


def nonnegative_scatter_sensitivity_squared(record_bound: int, count: int) -> Fraction:
    """6K²(N−1)²/N²: the square of how far S moves where no coordinate is below 0."""
    return Fraction(6 * (record_bound * (count - 1)) ** 2, count**2)


@pytest.mark.parametrize("count", [2, 3, 4, 6, 10])
@pytest.mark.parametrize("d", [1, 3])
def test_scatter_moves_by_four_k_n_minus_one_over_n(count: int, d: int) -> None:
    found = furthest_neighbours(lambda a, b: np.linalg.norm(scatter(a) - scatter(b)), count, d)
    claimed = float(scatter_sensitivity(1, count))
    assert 0.99 * claimed <= found <= claimed * (1 + 1e-9)
    assert scatter_sensitivity(1, count) < scatter_sensitivity_bound(1)


@pytest.mark.parametrize(
    ("count", "d"),
    [(2, 3), (3, 4), *(pytest.param(n, 3, marks=pytest.mark.nightly) for n in (4, 6, 10))],
)
def test_scatter_of_nonnegative_records_moves_by_root_six_k_n_minus_one_over_n(count: int, d: int) -> None:
    found = furthest_neighbours(
        lambda a, b: np.linalg.norm(scatter(a) - scatter(b)), count, d, domain=not_negative
    )
    claimed = float(nonnegative_scatter_sensitivity_squared(1, count)) ** 0.5
    assert 0.99 * claimed <= found <= claimed * (1 + 1e-9)
    assert claimed**2 < nonnegative_scatter_sensitivity_squared_bound(1)


@pytest.mark.parametrize("record_bound", [1, 3, 4])
def test_no_nonnegative_integer_neighbours_pass_the_bound(record_bound: int) -> None:
    """Three records of three integers, all of them; squares are exact, times N²."""
    n, side = 3, range(3)
    records = [np.array(z) for z in product(side, repeat=3) if sum(x * x for x in z) <= record_bound]
    others = {tuple(a + b) for a, b in product(records, repeat=2)}
    moved = [(old, new, np.outer(new, new) - np.outer(old, old)) for old, new in product(records, repeat=2)]
    worst = 0
    for rest in others:
        for old, new, moment in moved:
            v, w = rest + old, rest + new
            worst = max(worst, int(((n * moment - np.outer(w, w) + np.outer(v, v)) ** 2).sum()))
    claimed = n**2 * nonnegative_scatter_sensitivity_squared(record_bound, n)
    assert worst <= claimed
    if record_bound in (1, 4):  # records on the bound exist
        assert worst == claimed


@pytest.mark.parametrize("d", [2, 3, 4])
def test_second_moment_moves_by_root_two_k(d: int) -> None:
    found = furthest_neighbours(lambda a, b: np.linalg.norm(second_moment(a) - second_moment(b)), 2, d)
    claimed = second_moment_sensitivity_squared(1) ** 0.5
    assert 0.99 * claimed <= found <= claimed * (1 + 1e-9)


@pytest.mark.parametrize("count", [2, 4, 6, 10])
def test_the_moment_of_pairs_moves_by_root_two_k(count: int) -> None:
    """Differences are what is in the ball: in_ball bounds them as an owner cuts them."""

    def pair_moment(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return second_moment(in_ball(3 * (rows[0::2] - rows[1::2])))

    found = furthest_neighbours(lambda a, b: np.linalg.norm(pair_moment(a) - pair_moment(b)), count, 3)
    claimed = block_sensitivity_squared(BlockName.PAIR_MOMENT, 3, 1) ** 0.5
    assert 0.99 * claimed <= found <= claimed * (1 + 1e-9)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_sum_of_a_pre_study_moves_by_two_root_k(count: int) -> None:
    found = furthest_neighbours(lambda a, b: np.linalg.norm(a.sum(axis=0) - b.sum(axis=0)), count, 3)
    claimed = block_sensitivity_squared(BlockName.SUM, 3, 1) ** 0.5
    assert 0.99 * claimed <= found <= claimed * (1 + 1e-9)


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize(
    "name", [BlockName.NORMS, BlockName.PAIR_NORMS, BlockName.OCTAVES, BlockName.FAR_PAIRS]
)
def test_counts_move_by_what_is_claimed(make_manifest: MakeManifest, name: BlockName, count: int) -> None:
    """Random integer records of all sizes, one of them replaced, through the sums that an owner makes."""
    figures = make_manifest(release="pre-study", blocks={str(name): "1"}).figures
    source, d, claimed = random.Random(SEED), 3, block_sensitivity_squared(name, 3, figures.record_bound)

    def record() -> list[int]:
        size = 2 ** source.randint(0, figures.grid.bit_length())
        return [source.randint(-size, size) for _ in range(d)]

    def counted(rows: list[list[int]]) -> NDArray[np.object_]:
        sums = BlockSums(figures)
        sums.add(np.array(rows, dtype=np.int64))
        for pair in pairs([np.array(rows, dtype=np.int64)]):
            sums.add_pairs(*pair)
        return np.array(list(sums.stream()))

    worst = 0
    for _ in range(300):
        rows = [record() for _ in range(count)]
        moved = counted(rows) - counted([record(), *rows[1:]])
        assert moved[0] == 0
        worst = max(worst, int((moved**2).sum()))
    assert worst == claimed


def test_a_count_does_not_move() -> None:
    assert block_sensitivity_squared(BlockName.COUNT, 3, 10) == 0
    assert block_sensitivity_squared(BlockName.SECOND_MOMENT, 3, 10) == 200


@pytest.mark.parametrize("weight", ["0.05", "0.43", "1", "1.7", "2"])
@pytest.mark.parametrize("d", [2, 3])
def test_joint_release_moves_by_two_k_plus_a_over_root_two(weight: str, d: int) -> None:
    a = Fraction(weight)

    def distance(rows: NDArray[np.float64], others: NDArray[np.float64]) -> float:
        moved = np.linalg.norm(second_moment(rows) - second_moment(others)) ** 2
        moved += float(a) * np.linalg.norm(rows.sum(axis=0) - others.sum(axis=0)) ** 2
        return float(moved**0.5)

    found = furthest_neighbours(distance, 2, d)
    claimed = float(joint_sensitivity_squared(1, a)) ** 0.5
    assert 0.99 * claimed <= found <= claimed * (1 + 1e-9)


@pytest.mark.parametrize(("record_bound", "count"), [(1, 2), (1, 4), (4, 3), (5, 2), (9, 2)])
def test_no_pair_of_integer_neighbours_passes_the_bounds(record_bound: int, count: int) -> None:
    """Every data set of up to four records of two integers; distances squared are exact, times N²."""
    side = range(-3, 4)
    records = [z for z in product(side, repeat=2) if z[0] ** 2 + z[1] ** 2 <= record_bound]
    a = Fraction("0.43") * record_bound
    worst_scatter, worst_moment, worst_joint = 0, 0, Fraction(0)
    # Only the sum of the other records matters to S, so every multiset of them is covered by its sum.
    sums = {(0, 0)}
    for _ in range(count - 1):
        sums = {(x + z[0], y + z[1]) for x, y in sums for z in records}
    for old, new in product(records, repeat=2):
        moment = [new[i] * new[j] - old[i] * old[j] for i, j in ((0, 0), (0, 1), (1, 1))]
        moment_squared = moment[0] ** 2 + 2 * moment[1] ** 2 + moment[2] ** 2
        worst_moment = max(worst_moment, moment_squared)
        step = [new[i] - old[i] for i in range(2)]
        worst_joint = max(worst_joint, moment_squared + a * (step[0] ** 2 + step[1] ** 2))
        for others in sums:
            v = [others[i] + old[i] for i in range(2)]
            w = [others[i] + new[i] for i in range(2)]
            scaled = [
                count * moment[k] - (w[i] * w[j] - v[i] * v[j])
                for k, (i, j) in enumerate(((0, 0), (0, 1), (1, 1)))
            ]
            worst_scatter = max(worst_scatter, scaled[0] ** 2 + 2 * scaled[1] ** 2 + scaled[2] ** 2)
    assert worst_moment <= second_moment_sensitivity_squared(record_bound)
    assert worst_joint <= joint_sensitivity_squared(record_bound, a)
    assert worst_scatter <= (count * scatter_sensitivity(record_bound, count)) ** 2
    if record_bound in (1, 4, 9):  # records on the bound exist
        assert worst_scatter == (count * scatter_sensitivity(record_bound, count)) ** 2
        assert worst_moment == second_moment_sensitivity_squared(record_bound)


@pytest.mark.parametrize("a", [Fraction(0), Fraction(-1), Fraction(2001)])
def test_a_weight_outside_its_range_is_refused(a: Fraction) -> None:
    with pytest.raises(UsageError):
        joint_sensitivity_squared(1000, a)


def test_above_two_k_the_worst_pair_is_another() -> None:
    """Why a ≤ 2K: beyond it antipodal records move by √(4aK); the formula only bounds that."""
    a = 3

    def distance(rows: NDArray[np.float64], others: NDArray[np.float64]) -> float:
        moved = np.linalg.norm(second_moment(rows) - second_moment(others)) ** 2
        return float((moved + a * np.linalg.norm(rows.sum(axis=0) - others.sum(axis=0)) ** 2) ** 0.5)

    assert furthest_neighbours(distance, 2, 2) == pytest.approx((4 * a) ** 0.5, rel=0.01)


def test_one_record_has_no_scatter_and_many_come_up_to_the_bounds() -> None:
    assert scatter_sensitivity(7, 1) == nonnegative_scatter_sensitivity_squared(7, 1) == 0
    many = 10**12
    for claimed, bound in (
        (scatter_sensitivity(7, many), scatter_sensitivity_bound(7)),
        (nonnegative_scatter_sensitivity_squared(7, many), nonnegative_scatter_sensitivity_squared_bound(7)),
    ):
        assert bound * (1 - Fraction(3, many)) < claimed < bound


def furthest_lifts(weight: float, columns: int, d: int = 3) -> float:
    """The largest |Δ(L, γG)|²/KB found for γ² = `weight`·K/B, over all z, x, a and b in unit balls."""
    source = random.Random(SEED + 10 * columns + d)
    size = d + columns

    def loss(flat: NDArray[np.float64]) -> float:
        pairs = flat.reshape(2, size)
        z, x = in_ball(pairs[:, :d])
        a, b = in_ball(pairs[:, d:])
        lifted = np.outer(z, a) - np.outer(x, b)
        gram = np.outer(a, a) - np.outer(b, b)
        return -float((lifted**2).sum() + weight * (gram**2).sum())

    starts = [[source.gauss(0, 1) for _ in range(2 * size)] for _ in range(5)]
    return max(-float(minimize(loss, start, method="L-BFGS-B").fun) for start in starts)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_lift_moves_by_four_k_b_and_its_gram_matrix_is_free(columns: int) -> None:
    for weight in (0.0, 0.25, 0.5):
        assert furthest_lifts(weight, columns) == pytest.approx(lift_sensitivity_squared(1, 1), rel=1e-4)


def test_a_heavier_gram_matrix_is_not_free() -> None:
    """What the optimiser must find if the weight of G were too large."""
    assert furthest_lifts(1.0, 2) == pytest.approx(4.5, rel=1e-3)
    assert furthest_lifts(0.75, 2) > 4.1


@pytest.mark.parametrize(("record_bound", "score_bound"), [(1, 1), (2, 1), (1, 2), (4, 2), (2, 4)])
def test_no_integer_lifts_pass_the_bound(record_bound: int, score_bound: int) -> None:
    """All records of two integers and all scores of two, with any of the other; G with the weight K/(2B)."""

    def inside(bound: int) -> list[NDArray[np.int64]]:
        side = range(-bound, bound + 1)
        return [np.array(z) for z in product(side, repeat=2) if sum(x * x for x in z) <= bound]

    pairs = list(product(inside(record_bound), inside(score_bound)))
    lifted = np.array([np.outer(z, a).ravel() for z, a in pairs])
    gram = np.array([np.outer(a, a).ravel() for _, a in pairs])
    moved = [
        2 * score_bound * ((lifted - here) ** 2).sum(axis=1)
        + record_bound * ((gram - there) ** 2).sum(axis=1)
        for here, there in zip(lifted, gram, strict=True)
    ]
    assert max(map(max, moved)) == 2 * score_bound * lift_sensitivity_squared(record_bound, score_bound)


def test_the_worst_pair_of_a_lift_passes_through_the_encoder(make_manifest: MakeManifest) -> None:
    """Through the encoder: αe + βf and αe − βf have the same a, and move L by almost 2√(KB)."""
    manifest = wide.lift(make_manifest, lift=sharp_rule())
    rule = projection_of(manifest)
    assert rule is not None
    bound = manifest.figures.record_bound
    p0 = np.array(wide.plain_sketch_matrix(bytes.fromhex(wide.SEED), wide.D, wide.M), dtype=float)
    row = np.array(sharp_rule()["matrix"], dtype=float)[0] @ p0
    e = row / np.linalg.norm(row)
    f = np.roll(e, 1) - e * (e @ np.roll(e, 1))
    f /= np.linalg.norm(f)
    alpha, most = 0.1, bound**0.5 - wide.D**0.5
    beta = (1 - alpha**2) ** 0.5
    z = np.rint(most * np.array([alpha * e + beta * f, alpha * e - beta * f])).astype(np.int64)
    a, _ = cut_to_bound(rule(z), LIFT_BOUND)
    square = float(((np.outer(z[0], a[0]) - np.outer(z[1], a[1])).astype(float) ** 2).sum())
    claimed = lift_sensitivity_squared(bound, LIFT_BOUND)
    assert 0.95 * claimed <= square <= claimed


def sharp_rule() -> dict[str, Any]:
    """One column, so steep that even a small part of a record along it fills the bound on a."""
    return {"columns": 1, "matrix": [[2**20 * (1 + j % 3) for j in range(wide.M)]], "offset": [0]}
