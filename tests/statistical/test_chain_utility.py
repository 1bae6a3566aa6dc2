"""Algorithm A through the real integer path: real tables, exact noise, every round paid for.

Nothing is encrypted: ciphertexts carry these very integers (tests/unit/user/test_service_chains.py). Noise is
the operating system's, so figures move from run to run; each bound stands some five deviations away.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from present import present
from reference_data import Seeded, Table, digits, insurance, terrain

from dpdpca_lab.benchmarks.played_chains import (
    base_of,
    captured_by,
    chain,
    complete,
    in_clear,
    naive,
    owners_of,
    whole,
    with_noise_of_owners,
)
from dpdpca_lab.reference_data import load as load_set
from dpdpca_lab.reference_data import reference_folder
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_user.planning.rehearsal import captured, play_chain, play_round
from dpdpca_user.results.deviates import normal_deviates, uniforms


@pytest.mark.nightly
def test_ten_times_too_wide_bounds_cost_a_chain_little_and_a_naive_study_everything() -> None:
    table = insurance().widened(10)
    found = [captured_by(chain(table, 0.3), table) for _ in range(8)]
    lost = [naive(table, 0.3) for _ in range(12)]
    assert np.mean(found) >= 0.8
    assert np.mean(lost) <= 0.15


@pytest.mark.parametrize(
    ("load", "times", "epsilon", "least", "most"),
    [(terrain, 10, 0.3, 0.97, 0.95), (digits, 10, 3.0, 0.95, 0.4), (digits, 1, 1.0, 0.8, 0.75)],
)
def test_a_chain_beats_one_naive_study_of_the_same_budget(
    load: Callable[[], Table], times: float, epsilon: float, least: float, most: float
) -> None:
    table = load().widened(times)
    played = chain(table, epsilon)
    assert captured_by(played, table) > least
    assert naive(table, epsilon) < most
    assert sum(each.chosen.rho_share for each in played.rounds) == 1
    spent = [present(each.manifest.figures.rho) for each in played.rounds]
    assert sum(spent) <= played.main.figures.rho_total


def test_a_centre_that_is_dear_makes_it_pairs_and_a_cheap_one_a_mean() -> None:
    assert chain(terrain(), 1.0).main.release is ReleaseKind.JOINT
    assert chain(digits().widened(10), 0.3).main.release is ReleaseKind.PAIRS


def test_missing_values_do_not_leave_the_centre_far_away() -> None:
    """The bounds are ten times too wide, and each mean moves only four fifths of the way."""
    table = terrain().widened(10)
    rows = table.rows.copy()
    rows[np.random.default_rng(7).random(rows.shape) < 0.2] = np.nan  # noqa: TID251 - which values are missing
    played = chain(replace(table, rows=rows), 1.0)
    assert captured_by(played, table) > 0.95


@pytest.mark.parametrize(("records", "first"), [(2500, "sum"), (1700, "far-pairs")])
def test_few_records_about_a_near_centre_are_not_paired(records: int, first: str) -> None:
    """100 features, a fifth of the values missing, half a usual distance from the public centre. Chains keep
    0.67 ± 0.03 and 0.56 ± 0.03, pairs of one length 0.45 ± 0.04 and 0.30 ± 0.06: the means of four are at
    least 0.22 ± 0.031 apart."""
    deviates = normal_deviates(records * 105, Seeded(3)).reshape(records, 105)
    loadings = normal_deviates(5 * 100, Seeded(4)).reshape(5, 100) * [[1.0], [0.8], [0.65], [0.5], [0.4]]
    rows = 2 + 0.2 * (deviates[:, :5] @ loadings + 0.7 * deviates[:, 5:])
    rows += 0.5 * np.sqrt(rows.var(axis=0).mean()) * np.where(np.arange(100) % 2, 1, -1)
    gaps = uniforms(rows.size, Seeded(5)).reshape(rows.shape) < 0.2
    table = Table("factors", rows, np.zeros(100), np.full(100, 4.0))
    with_gaps = replace(table, rows=np.where(gaps, np.nan, rows))
    pairs = base_of(with_gaps, 0.3) | {"release": "pairs", "clip_norm": "0.01"}
    chains = [chain(with_gaps, 0.3) for _ in range(4)]
    assert {frozenset(each.rounds[0].chosen.blocks) for each in chains} == {frozenset({first})}
    assert any(each.main.release is ReleaseKind.JOINT for each in chains)
    by_chain = [captured_by(each, table) for each in chains]
    by_pairs = [captured_by_study(pairs, with_gaps, table) for _ in range(4)]
    assert np.mean(by_chain) > np.mean(by_pairs) + 0.02


def captured_by_study(draft: dict[str, Any], with_gaps: Table, table: Table) -> float:
    manifest = complete(draft)
    noisy = play_round(manifest, owners_of(with_gaps), OS_RANDOMNESS)
    assert isinstance(noisy, NoisyScatter)
    components = fit_components(noisy, manifest.figures, EncodedSpace.of(manifest))
    return captured(components, manifest, whole(table), 5)


@pytest.mark.parametrize(("records", "epsilon", "least"), [(20_000, 0.3, 0.97), (4000, 0.3, 0.6)])
def test_categories_beside_numbers(records: int, epsilon: float, least: float) -> None:
    """Five of the columns are cut into five levels each: d = 30."""
    columns, features = cut_into_levels(terrain(), range(5, 10))
    owners = [{name: column[start:records:3] for name, column in columns.items()} for start in range(3)]
    base = base_of(terrain(), epsilon) | {"features": features, "max_records": records}
    played = play_chain(base, complete, owners, OS_RANDOMNESS)
    whole = {name: column[:records] for name, column in columns.items()}
    assert captured(played.components, played.main, whole, 5) > least


def cut_into_levels(
    table: Table, chosen: Collection[int]
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """The table's columns and features, with some columns as categories of unequally frequent levels."""
    columns, features = {}, base_of(table, 1.0)["features"]
    for j in range(table.d):
        columns[f"x{j}"] = table.rows[:, j]
        if j in chosen:
            steps = np.searchsorted(np.quantile(table.rows[:, j], (0.1, 0.4, 0.7, 0.95)), table.rows[:, j])
            columns[f"x{j}"] = np.array(list("abcde"), dtype=object)[steps]
            features[j] = {"name": f"x{j}", "levels": list("abcde")}
    return columns, features


@pytest.mark.nightly
def test_noise_by_five_owners_costs_little_and_beats_a_second_draw() -> None:
    table = digits()
    played = [chain(table, 1.0) for _ in range(8)]
    sealed = np.mean([captured_by(each, table) for each in played])
    clear = np.mean([captured_by(in_clear(each, table), table) for each in played])
    by_owners = np.mean([captured_by(with_noise_of_owners(table, 1.0, 5), table) for _ in range(8)])
    assert clear < by_owners
    assert by_owners > sealed - 0.06


def test_uneven_bounds_are_found_out_by_a_study_of_scales() -> None:
    """Half of the bounds thirty times too wide: in its own units nearly every feature counts again."""
    table = terrain()
    times = np.where(np.arange(table.d) % 2, 30.0, 1.0)
    table = Table(table.name, table.rows, table.lower, table.lower + times * (table.upper - table.lower))
    played = chain(table, 1.0, scales=True)
    assert [each.chosen.release for each in played.rounds] == ["pre-study", "pre-study", "pairs"]
    deviations = np.std(table.rows, axis=0)
    worth = played.components.space.scale / deviations
    # A stray bin in a high octave may widen a feature or two.
    assert 0.6 < np.median(worth) < 2
    assert captured_by(played, table) > 0.8


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "lower", "upper"), [("mnist", 0.0, 255.0), ("isolet", -1.0, 1.0)])
def test_hundreds_of_features_get_a_full_matrix(name: str, lower: float, upper: float) -> None:
    """784 and 617 features: below 1,000, no chain has a sketch."""
    found = load_set(name, reference_folder())
    if found.origin.startswith("synthetic"):
        pytest.skip("DPDPCA_REFERENCE_DATA names the folder that has it")
    d = found.rows.shape[1]
    table = Table(name, found.rows.astype(np.float64), np.full(d, lower), np.full(d, upper))
    played = chain(table, 1.0)
    last = played.rounds[-1].result
    assert [each.manifest.sketch for each in played.rounds] == [None] * len(played.rounds)
    assert isinstance(last, NoisyScatter)
    assert {len(row) for row in last.scaled_scatter} == {len(last.scaled_scatter)} == {d}
    kept = captured_by(played, table)
    print(f"{name}: {[str(each.manifest.release) for each in played.rounds]}, {kept:.4f}")
    assert kept > 0.8
