"""Several owners: how they split a table, what chains of theirs find, and its scores."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpdpca_lab.central.result import captured_energy
from dpdpca_lab.papers.cells import Cell, cells_of
from dpdpca_lab.papers.class_scores import point_by_owners, scores_on_components, split_by_owners
from dpdpca_lab.papers.declared import Experiment, Panel, experiments
from dpdpca_lab.papers.measures import point_of
from dpdpca_lab.papers.methods import Draws, Point, method
from dpdpca_lab.papers.prepared import problem
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Gaussian

FIGURE = next(each for each in experiments() if each.name == "wc18-fig4")
SMALL = problem(Panel(title="a", data="css13-normal", records=300), None, False)


def cell_of(figure: Experiment, name: str, x: float) -> Cell:
    return next(
        cell
        for cell in cells_of(figure, quick=False)
        if cell.line.method == name and cell.x == x and "tenth" in cell.panel.title
    )


def draws_of(name: str) -> Draws:
    found = method(name).draws
    assert found is not None
    return found


def test_without_noise_owners_in_turn_find_what_their_own_records_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 300 rows, four owners of 70 have 280. What is left over belongs to nobody."""
    monkeypatch.setattr(
        Gaussian, "draw_triangle", lambda self, count, sample: [0] * (SMALL.d * (SMALL.d + 1) // 2)
    )
    point = Point(Fraction(1), Fraction(1, 10**6), SMALL.d, {"owner_records": 70})
    found = next(draws_of("local-chain")(SMALL, point))
    rows = SMALL.rows[:280]
    energy = [captured_energy(found[:k], rows.T @ rows) for k in (1, 2, 3)]
    levels = np.linalg.eigvalsh(rows.T @ rows)[::-1]
    assert energy == pytest.approx(np.cumsum(levels)[:3])


@pytest.mark.parametrize("name", ["local-chain", "local-chain-published"])
def test_the_noise_of_owners_in_turn_has_the_unit_of_their_rows(name: str) -> None:
    """At a huge ε there is hardly any noise; at a small ε, the components are lost."""
    energy = []
    for epsilon in (Fraction(1000), Fraction(1, 1000)):
        point = Point(epsilon, Fraction(1, 1000), 2, {"owner_records": 100})
        energy.append(captured_energy(next(draws_of(name)(SMALL, point)), SMALL.moment / SMALL.n))
    best = SMALL.levels[:2].sum()
    assert energy[0] > 0.98 * best
    assert energy[1] < 0.9 * best


def test_both_protocols_of_the_figure_have_their_own_real_epsilon() -> None:
    point = Point(Fraction(1, 2), Fraction(1, 10**5), 2, {"owner_records": 70})
    real = {}
    for name in ("local-chain", "local-chain-published", "published-gaussian-centred"):
        epsilon = method(name).real_epsilon
        assert epsilon is not None
        real[name] = epsilon(SMALL, point)
    assert real["local-chain"] == 0.5
    assert 0.4 < real["local-chain-published"] < 0.6  # √2 of the constant, less the slack of the formula
    assert real["published-gaussian-centred"] > 1.4


def test_the_rank_is_that_of_an_owner_or_a_tenth_of_it() -> None:
    cell = cell_of(FIGURE, "masked", 40)
    split = split_by_owners(cell, None)
    point = point_by_owners(cell, split.train, point_of(cell, split.train))
    assert (point.k, point.options["owner_records"]) == (4, 40)
    whole = replace(cell, panel=cell.panel.model_copy(update={"options": {"test": 360, "rank_share": 1.0}}))
    assert point_by_owners(whole, split.train, point).k == 40
    many = replace(whole, records=10**6)
    assert point_by_owners(many, split.train, point).k == min(split.train.n, split.train.d)


def test_test_rows_are_the_last_of_the_file_or_those_of_a_shuffle_and_train_nothing() -> None:
    for x in (40, 100):
        cell = cell_of(FIGURE, "optimum", x)
        split = split_by_owners(cell, None)
        table = problem(cell.panel.model_copy(update={"records": None}), None, False)
        assert split.train.n + len(split.test) == table.n
        assert (split.test == table.rows[-len(split.test) :]).all() == (x == 100)
        both = np.vstack([split.train.rows, split.test])
        assert np.allclose(both.sum(axis=0), table.rows.sum(axis=0))
        assert split.train.is_centred


def test_a_machine_on_good_components_beats_one_on_others() -> None:
    cell = cell_of(FIGURE, "optimum", 160)
    split = split_by_owners(cell, None)
    point = point_by_owners(cell, split.train, point_of(cell, split.train))
    optimum = method("optimum")
    worst = replace(optimum, draws=lambda table, point: iter([table.axes[-point.k :]]))
    good, bad = (next(scores_on_components(each, split, point, 1)) for each in (optimum, worst))
    assert good.f1 > bad.f1 + 0.2
    assert good.precision == pytest.approx(good.f1, abs=0.1)


@pytest.mark.parametrize(("prepare", "reach"), [("centre", 1.0), ("public", 10**-0.5)])
def test_a_chain_finds_the_components_of_the_prepared_rows(prepare: str, reach: float) -> None:
    """At a large ε its noise is small, so a wrong unit, sign or order of columns would show."""
    table = problem(Panel(title="a", data="covtype-10", prepare=prepare, records=2000), None, False)
    assert table.reach == pytest.approx(reach)
    assert np.abs(table.rows).max() <= table.reach
    found = next(draws_of("chain")(table, Point(Fraction(8), Fraction(9, 20_000), 3)))
    assert found.shape == (3, 10)
    assert found @ found.T == pytest.approx(np.eye(3), abs=1e-9)
    assert captured_energy(found, table.target / table.n) > 0.97 * table.levels[:3].sum()


def test_a_chain_is_about_the_mean() -> None:
    table = problem(Panel(title="a", data="css13-normal", records=300), None, False)
    with pytest.raises(UsageError, match="mean"):
        next(draws_of("chain")(table, Point(Fraction(1), Fraction(1, 1000), 2)))
