"""How a chain for many features is planned: parts of ρ, rows of its sketch, and what a spectrum forecasts."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.privacy.accounting import zcdp_rho
from dpdpca_protocol.privacy.sensitivity import joint_sensitivity_squared
from dpdpca_user.planning.wide import (
    Route,
    SketchNoise,
    check_sketch,
    forecast,
    parts,
    route,
    sketch_rows,
)

GENOTYPES = (0.0852, 0.0419, 0.0127, 0.0093, 0.0020, 0.0017)


def rho_of(records: int, epsilon: str = "1") -> float:
    return float(zcdp_rho(Fraction(epsilon), min(Fraction(1, 10**6), Fraction(1, records**2))))


def test_the_number_of_features_decides_what_is_compared() -> None:
    assert [route(d) for d in (1, 1000, 1001, 5000, 5001, 200_000)] == [
        Route.FULL,
        Route.FULL,
        Route.COMPARE,
        Route.COMPARE,
        Route.LIFT,
        Route.LIFT,
    ]


@pytest.mark.parametrize("with_means", [False, True])
@pytest.mark.parametrize("with_scores", [False, True])
def test_parts_add_up_to_1_exactly(with_means: bool, with_scores: bool) -> None:
    taken = parts(with_means, with_scores)
    means = 2 if with_means else 0
    assert taken.norms + means * taken.mean + taken.sketch + taken.lift + taken.scores == 1
    assert taken.norms + means * taken.mean + taken.sketch + taken.after_sketch == 1
    assert taken.norms + means * taken.mean + taken.without_sketch == 1
    assert (
        taken.lift
        == {
            (False, True): Fraction(7, 10),
            (True, True): Fraction(1, 2),
            (False, False): Fraction(3, 4),
            (True, False): Fraction(11, 20),
        }[with_means, with_scores]
    )


def test_the_noise_edge_is_that_of_the_calibrated_noise() -> None:
    """2s√m over the trace of records whose length is the clip norm, from D² of the joint release."""
    records, rho, rows, bound = 40_000, 0.003, 200, 10**9
    t = sqrt(float(joint_sensitivity_squared(bound, Fraction(bound, 20))) / (2 * rho))
    for draws in (1.0, 2.0, 1.5):
        edge = 2 * t * sqrt(draws / 2) * sqrt(rows) / (records * bound)
        noise = SketchNoise(records, rho, draws=draws)
        assert noise.edge(rows) == pytest.approx(edge, rel=1e-6)
    assert SketchNoise(records, rho).edge(rows) == pytest.approx(2.05 * sqrt(rows / rho) / records)
    t = bound / sqrt(rho)
    edge = 2 * t * sqrt(rows) / (records / 2 * bound)  # two draws
    assert SketchNoise(records, rho, of_pairs=True).edge(rows) == pytest.approx(edge)


@pytest.mark.parametrize(
    ("d", "records", "rows"),
    [(22_684, 100_160, 656), (22_684, 40_000, 128), (22_684, 10**7, 1024), (900, 100_160, 224), (40, 10, 16)],
)
def test_rows_are_those_of_the_rule(d: int, records: int, rows: int) -> None:
    assert sketch_rows(d, SketchNoise(records, 0.2 * rho_of(records))) == rows


def test_rows_give_an_edge_of_one_per_cent() -> None:
    for noise in (
        SketchNoise(100_160, 0.0026),
        SketchNoise(100_160, 0.0026, draws=1.5),
        SketchNoise(200_000, 0.0026, of_pairs=True),
    ):
        rows = sketch_rows(100_000, noise)
        assert 128 < rows < 1024
        assert noise.edge(rows) <= 0.01025 < noise.edge(rows + 16)


def test_a_sketch_that_shows_nothing_at_best_is_refused() -> None:
    check_sketch(128, SketchNoise(464, 0.01))
    with pytest.raises(PolicyError, match="463 records") as caught:
        check_sketch(128, SketchNoise(463, 0.01))
    assert caught.value.slug == "too-few-records"
    with pytest.raises(PolicyError):
        check_sketch(128, SketchNoise(900, 0.01, of_pairs=True))


def test_genotypes_are_forecast_as_they_turn_out() -> None:
    """1000 Genomes forty times: about 0.88 and 0.66 of the best ten; few columns are right for both ε."""
    records, best = 100_160, 0.1572
    for epsilon, columns, seen, captured in (("1", 4, 4, 0.88), ("0.3", 2, 3, 0.66)):
        rho = rho_of(records, epsilon)
        noise = SketchNoise(records, 0.2 * rho)
        told = forecast((*GENOTYPES, *np.linspace(0.0015, 0.0012, 4)), 22_684, noise, 10, rho, parts(False))
        assert told.choice.columns == columns
        assert told.choice.seen_count == seen
        assert told.choice.lift / best == pytest.approx(captured, abs=0.06)
        assert told.needs_sketch
        assert not told.choice.is_possible
        assert list(told.records_needed) == sorted(told.records_needed)


def test_a_strong_spectrum_gets_a_full_matrix_without_a_sketch() -> None:
    """Like MNIST and ISOLET: most of all variance in a few components."""
    rho = rho_of(5_000)
    noise = SketchNoise(5_000, 0.2 * rho)
    told = forecast((0.4, 0.2, 0.1), 1200, noise, 3, rho, parts(False))
    assert not told.needs_sketch
    assert told.full_at_once > told.choice.full
    rho = rho_of(60_000)
    noise = SketchNoise(60_000, 0.2 * rho)
    weak = forecast([0.012] * 10, 4000, noise, 10, rho, parts(False))
    assert weak.needs_sketch
    assert weak.choice.is_lift


def test_noise_of_pairs_and_of_a_second_draw_costs_as_much_as_it_is() -> None:
    rho = rho_of(100_160)
    noise = SketchNoise(100_160, 0.2 * rho)
    plain = forecast(GENOTYPES, 22_684, noise, 4, rho, parts(False))
    twice = forecast(GENOTYPES, 22_684, noise, 4, rho, parts(False), draws=2.0)
    assert twice.choice.lift < plain.choice.lift
    if plain.choice.columns == twice.choice.columns:
        assert twice.records_needed[0] == pytest.approx(sqrt(2) * plain.records_needed[0], rel=1e-3)
    of_pairs = SketchNoise(100_160, 0.2 * rho, of_pairs=True)
    pairs = forecast(GENOTYPES, 22_684, of_pairs, 4, rho, parts(False))
    assert pairs.records_needed[0] == pytest.approx(2 * plain.records_needed[0], rel=1e-3)
