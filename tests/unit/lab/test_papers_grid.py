"""Our mechanisms in the papers' experiments have the same integers and the same noise as a study."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpdpca_lab.benchmarks.played_chains import base_of, complete, owners_of
from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.papers import methods, prepared
from dpdpca_lab.papers.declared import Panel
from dpdpca_lab.papers.methods import Point, fitted, method
from dpdpca_lab.papers.prepared import GridSums, Problem, problem
from dpdpca_lab.pipelines.dppca_svm import leading_directions
from dpdpca_lab.reference_data import Table
from dpdpca_protocol.privacy.mechanisms import Gaussian, Quantity
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.terms.manifest import Manifest

NO_NOISE = Samplers(gaussian=lambda variance, count, bound: [0] * count)
EPSILON = Fraction(1, 2)
TABLE = problem(Panel(title="a", data="covtype-10", prepare="centre", records=300), None, False)


def as_records(table: Problem) -> Table:
    ends = np.ones(table.d)
    return Table("table", table.rows.astype(np.float64), -ends, ends)


def manifest_of(table: Problem, release: str) -> Manifest:
    base = base_of(as_records(table), float(EPSILON))
    weight = {"sum_weight": "0.43"} if release == "joint" else {}
    return complete(base | {"release": release, "clip_norm": "1", "delta": "0.0005"} | weight)


def released(table: Problem, release: str) -> NoisyScatter:
    manifest, owners = manifest_of(table, release), owners_of(as_records(table))
    noisy = run_study(manifest, owners, OS_RANDOMNESS, NO_NOISE, UNENCRYPTED)
    assert isinstance(noisy, NoisyScatter)
    return noisy


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_the_sums_are_those_of_a_study(release: str) -> None:
    """Rows of norm 1 are among them, so clipping before rounding counts too."""
    assert np.linalg.norm(TABLE.rows, axis=1).max() == pytest.approx(1)
    noisy, sums = released(TABLE, release), TABLE.on_grid
    assert noisy.count == sums.count == TABLE.n
    scaled = [[int(value) for value in row] for row in noisy.scaled_scatter]
    total = [int(value) for value in sums.total]
    ours = [
        [sums.count * int(value) - total[i] * total[j] for j, value in enumerate(row)]
        for i, row in enumerate(sums.moment)
    ]
    assert scaled == ours
    assert noisy.sum is None or list(noisy.sum) == total
    assert manifest_of(TABLE, release).figures.record_bound == sums.record_bound
    assert sums.scatter == pytest.approx(np.array(scaled) / TABLE.n, rel=1e-9)


@pytest.mark.parametrize(("release", "quantity"), [("joint", Quantity.JOINT), ("masked", Quantity.SCATTER)])
def test_the_noise_is_that_of_a_study(release: str, quantity: Quantity) -> None:
    """A study gives a little of its δ to tails and masks, and rounds its scale up."""
    of_study = manifest_of(TABLE, release).figures.mechanism
    ours = fitted(Gaussian, quantity, TABLE.d, EPSILON, Fraction("0.0005"), TABLE.on_grid.record_bound)
    assert isinstance(of_study, Gaussian)
    assert isinstance(ours, Gaussian)
    assert ours.setting.alpha_squared == of_study.setting.alpha_squared
    assert float(ours.scale) == pytest.approx(float(of_study.scale), rel=1e-6)


@pytest.mark.parametrize(("name", "best"), [("joint", "S"), ("masked", "S"), ("gaussian", "R")])
def test_without_noise_our_methods_have_the_components_of_these_integers(
    name: str, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(mechanism: Gaussian, sample: Samplers = NO_NOISE) -> Floats:
        assert mechanism.setting.record_bound == TABLE.on_grid.record_bound
        return np.zeros((mechanism.setting.encoded_features,) * 2)

    monkeypatch.setattr(methods, "noise_matrix", nothing)
    monkeypatch.setattr(methods, "FAST", NO_NOISE)
    draws = method(name).draws
    assert draws is not None
    found = next(draws(TABLE, Point(EPSILON, Fraction("0.0005"), 3)))
    sums = TABLE.on_grid
    assert found == pytest.approx(leading_directions(sums.scatter if best == "S" else sums.moment, 3))


def test_the_grid_hardly_moves_a_table() -> None:
    sums = TABLE.on_grid
    assert np.abs(sums.moment / sums.record_bound - TABLE.moment).max() < 1e-3 * np.abs(TABLE.moment).max()
    assert not (sums.moment / sums.record_bound == TABLE.moment).all()


def test_sums_do_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Any = GridSums.of(TABLE.rows)
    monkeypatch.setattr(prepared, "_BATCH", 70)
    parts = GridSums.of(TABLE.rows.astype(np.float64))
    assert (parts.moment == whole.moment).all()
    assert (parts.total == whole.total).all()
    assert (parts.count, parts.record_bound) == (whole.count, whole.record_bound)
