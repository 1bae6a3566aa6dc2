"""Genotypes through the integers and the noise of the product, by the benchmark that the tutorial prints.

Nightly, the people of the 1000 Genomes Project; by day, made-up people of three populations at a few sites.
Mixtures and noise of a chain follow from its seed, so each run can be repeated.
"""

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from reference_data import Seeded
from scripted import SILENCE

from dpdpca_lab.benchmarks.genotypes import People, Repeated, by_matrix, by_power, chain, complete
from dpdpca_lab.reference_data import reference_folder
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.seeded_noise import seeded_samplers
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.study import ReleaseKind
from dpdpca_user.planning import wide, wide_chain
from dpdpca_user.planning.rehearsal import Rehearsal

SITES = 200


@cache
def three_populations(times: int = 100) -> People:
    """300 people whose frequencies differ from population to population, as Balding and Nichols have it."""
    source = np.random.default_rng(5)  # noqa: TID251 - made-up people, not noise
    common = source.uniform(0.2, 0.8, SITES)
    frequencies = source.beta(9 * common, 9 * (1 - common), (3, SITES)).repeat(100, axis=0)
    dosages = source.binomial(2, frequencies).astype(np.uint8)
    return People(dosages[:, dosages.std(axis=0) > 0], times)


@pytest.fixture
def only_lifts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "FULL_UP_TO", SITES // 2)
    monkeypatch.setattr(wide_chain, "COMPARED_UP_TO", SITES // 2)


def seeded_chain(people: People, epsilon: str, seed: int, **terms: Any) -> Rehearsal:
    return chain(people, epsilon, Seeded(seed), seeded_samplers(seed.to_bytes(32)), **terms)


def shown_forecast(played: Rehearsal, people: People, k: int) -> float:
    """What the data user reads after the sketch, as a share of the variance of the best k."""
    (lift,) = (each for each in played.rounds if each.manifest.release is ReleaseKind.LIFT)
    (percent,) = re.findall(
        r"columns would capture about (\d+)% of all variance", " ".join(lift.chosen.reasons)
    )
    return float(int(percent) / 100 * people.eigenvalues.sum() / people.eigenvalues[:k].sum())


def test_a_small_table_keeps_the_directions_of_its_populations(only_lifts: None) -> None:
    """A sketch of 128 rows knows the total variance, and so its forecast, to about an eighth."""
    people, wishes = three_populations(), {"lift": {"columns": 2}, "sketch": {"rows": 128}}
    played = seeded_chain(people, "3", 1, **wishes)
    kinds = list(dict.fromkeys(str(each.manifest.release) for each in played.rounds))
    assert kinds == ["pre-study", "sketch", "lift", "scores"]
    assert played.components.count == people.records
    captured = people.share(played.components.vectors, 2)
    assert captured > 0.85
    assert shown_forecast(played, people, 2) == pytest.approx(captured, abs=0.15)
    again = seeded_chain(people, "3", 1, **wishes)
    assert np.array_equal(again.components.vectors, played.components.vectors)
    other = seeded_chain(people, "3", 2, **wishes)
    assert not np.array_equal(other.components.vectors, played.components.vectors)


def test_repeated_sums_are_those_of_repeated_records() -> None:
    people = three_populations(3)
    manifest = complete(people.draft("1", release="joint", clip_norm=7))
    rows = [{name: np.tile(column, 3) for name, column in each.items()} for each in people.owners()]

    once = run_study(manifest, people.owners(), OS_RANDOMNESS, SILENCE, Repeated(3))
    assert once == run_study(manifest, rows, OS_RANDOMNESS, SILENCE, UNENCRYPTED)


def test_rivals_find_the_populations_too() -> None:
    people = three_populations()
    manifest = complete(people.draft("3", release="joint", clip_norm=6))
    assert by_power(people, manifest) > 0.5
    assert by_matrix(people, manifest) > 0.5


@cache
def all_people() -> People:
    folder = reference_folder()
    file = None if folder is None else folder / "thousand_genomes_2504x23770.npz"
    if file is None or not file.is_file():
        pytest.skip("DPDPCA_REFERENCE_DATA names the folder that has the genotypes")
    return People.of_file(file, every=1, times=40)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_genotypes_keep_85_of_100_parts_of_the_best_ten(seed: int) -> None:
    """0.88 is usual."""
    people = all_people()
    played = seeded_chain(people, "1", seed)
    captured, forecast = people.share(played.components.vectors), shown_forecast(played, people, 10)
    print(f"seed {seed}: {captured:.4f}, forecast {forecast:.2f}")
    assert captured >= 0.85
    assert forecast == pytest.approx(captured, abs=0.15)
