"""Compares a chain with a plain draft and with a central method that knows more, on many kinds of tables.

python -m dpdpca_lab.benchmarks.grid 5 --data FOLDER                  the grid, means of 5 runs
python -m dpdpca_lab.benchmarks.grid 5 --data FOLDER --owners 5       five owners draw the noise

The plain draft is the joint study that `dpdpca user study init --single` would write.
The central method is Analyze Gauss about the true mean with the best of several clip norms and one draw of
noise. Mean and norm cost it nothing: no private method knows these numbers.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from dpdpca_lab.benchmarks.played_chains import complete
from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.reference_data import Table, digits, real_tables, terrain
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.planning.noise import usual_norm
from dpdpca_user.planning.rehearsal import play_chain, play_round
from dpdpca_user.results.tables import rows_of_table

KINDS = ("numeric", "mixed", "missing")
_EPSILONS = (0.1, 0.3, 1.0, 3.0)
_MOST_LEVELS = 8
_STEPS = (0.1, 0.4, 0.7, 0.95)
_MISSING = 0.2
_CLIPS = (0.02, 0.1, 0.3, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True)
class Case:
    """A table of one kind.

    Attributes:
        features: its features, as in a draft.
        columns: what the owners have, with gaps.
        whole: the same without gaps.
    """

    name: str
    features: list[dict[str, Any]]
    columns: Mapping[str, Any]
    whole: Mapping[str, Any]

    @property
    def records(self) -> int:
        return len(next(iter(self.whole.values())))

    def base(self, epsilon: float, **terms: Any) -> dict[str, Any]:
        """The draft of a chain."""
        return {
            "title": self.name,
            "purpose": "To measure.",
            "participants": "enrolled",
            "features": self.features,
            "epsilon": epsilon,
            "max_records": self.records,
            "missing": "midpoint",
        } | terms

    def plain(self, epsilon: float, **terms: Any) -> Manifest:
        """The plain draft's manifest."""
        categories = sum("levels" in feature for feature in self.features)
        norm = usual_norm(len(self.features) - categories, categories)
        return complete(self.base(epsilon, **terms) | {"release": "joint", "clip_norm": f"{norm:.2g}"})

    def owners(self, count: int) -> list[dict[str, Any]]:
        return [
            {name: column[start::count] for name, column in self.columns.items()} for start in range(count)
        ]

    @cached_property
    def centred(self) -> Floats:
        """(n, d) complete records about their mean, in scaled units, not clipped."""
        manifest = self.plain(1.0)
        units = np.array([float(unit) for _, unit in manifest.feature_units])
        rows = rows_of_table(self.whole, manifest) / units
        return np.asarray(rows - rows.mean(axis=0))

    @cached_property
    def scatter(self) -> Floats:
        return np.asarray(self.centred.T @ self.centred / self.records)

    def captured(self, vectors: Floats, k: int = 5) -> float:
        """The share of the variance of the best k components that these (k, d) components capture."""
        k = min(k, len(self.scatter))
        best = np.linalg.eigvalsh(self.scatter)[-k:].sum()
        return float(np.einsum("ki,ij,kj->", vectors[:k], self.scatter, vectors[:k]) / best)


def case_of(table: Table, kind: str, times: float) -> Case:
    """The table with bounds that are `times` too wide, and with levels or gaps if its kind has them.

    Bounds about 0 are widened on both sides, other bounds on the upper side.
    """
    below = np.where(table.lower < 0, times * table.lower, table.lower)
    above = np.where(table.lower < 0, times * table.upper, table.lower + times * (table.upper - table.lower))
    features: list[dict[str, Any]] = []
    columns: dict[str, Any] = {}
    for j in range(table.d):
        name = f"x{j}"
        columns[name] = table.rows[:, j]
        if kind == "mixed" and j >= table.d // 2:
            levels, columns[name] = _levels(table.rows[:, j])
            features.append({"name": name, "levels": levels})
        else:
            features.append({"name": name, "lower": float(below[j]), "upper": float(above[j])})
    whole = dict(columns)
    if kind == "missing":
        entropy = np.random.default_rng(7)  # noqa: TID251 - which values are missing, the same in every run
        gaps = entropy.random(table.rows.shape) < _MISSING
        columns = {name: np.where(gaps[:, j], np.nan, whole[name]) for j, name in enumerate(whole)}
    return Case(f"{table.name}, {kind}, × {times:g}", features, columns, whole)


def _levels(values: Floats) -> tuple[list[str], Any]:
    """Names of levels, and the level of each value: its own, or one of five ranges of many values."""
    found = np.unique(values)
    if len(found) > _MOST_LEVELS:
        found = np.unique(np.quantile(values, _STEPS))
        found = np.append(found, np.inf)
    names = [f"level {number}" for number in range(len(found))]
    return names, np.array(names, dtype=object)[np.searchsorted(found, values)]


def by_chain(case: Case, epsilon: float, owners: int, **terms: Any) -> tuple[float, str]:
    """cv_5 of a chain, and the blocks of its rounds."""
    played = play_chain(case.base(epsilon, **terms), complete, case.owners(owners), OS_RANDOMNESS)
    rounds = [
        next((name for name in each.chosen.blocks if name != "pair-norms"), str(each.chosen.release))
        for each in played.rounds
    ]
    return case.captured(played.components.vectors), " ".join(rounds)


def by_plain_draft(case: Case, epsilon: float, owners: int, **terms: Any) -> float:
    """cv_5 of the plain draft."""
    manifest = case.plain(epsilon, **terms)
    noisy = play_round(manifest, case.owners(owners), OS_RANDOMNESS)
    assert isinstance(noisy, NoisyScatter)
    fitted = fit_components(noisy, manifest.figures, EncodedSpace.of(manifest), owners=owners)
    return case.captured(fitted.vectors)


def by_central_method(case: Case, epsilon: float, runs: int) -> float:
    """Mean cv_5 of the central method, with the same total ρ."""
    rho, rows = float(case.plain(epsilon).figures.rho), case.centred
    norms, d = np.linalg.norm(rows, axis=1), rows.shape[1]
    entropy = np.random.default_rng()  # noqa: TID251 - a continuous central method for comparison
    found = []
    for clip in {float(np.quantile(norms, level)) for level in _CLIPS} - {0.0}:
        clipped = rows * np.minimum(1, clip / np.maximum(norms, 1e-300))[:, None]
        scatter, shares = clipped.T @ clipped, []
        for _ in range(runs):
            drawn = entropy.normal(scale=clip**2 / sqrt(2 * rho), size=(d, d))
            noise = np.triu(drawn, 1) + np.triu(drawn, 1).T + np.diag(sqrt(2) * np.diag(drawn))
            shares.append(case.captured(np.linalg.eigh(scatter + noise)[1][:, ::-1].T))
        found.append(np.mean(shares))
    return float(max(found))


def lines(tables: list[Table], runs: int, owners: int, **terms: Any) -> Iterator[str]:
    yield "| table | ε | chain | plain draft | central | rounds |\n|---|---|---|---|---|---|"
    shares: dict[float, list[tuple[float, float, float]]] = {epsilon: [] for epsilon in _EPSILONS}
    for table, kind, times in product(tables, KINDS, (1.0, 10.0)):
        case = case_of(table, kind, times)
        for epsilon in _EPSILONS:
            played = [by_chain(case, epsilon, owners, **terms) for _ in range(runs)]
            chain = np.mean([found for found, _ in played])
            plain = np.mean([by_plain_draft(case, epsilon, owners, **terms) for _ in range(runs)])
            central = by_central_method(case, epsilon, runs)
            shares[epsilon].append((float(chain), float(plain), central))
            rounds = " / ".join(sorted({each for _, each in played}))
            yield f"| {case.name} | {epsilon:g} | {chain:.3f} | {plain:.3f} | {central:.3f} | {rounds} |"
    for epsilon, found in shares.items():
        means = " | ".join(f"{mean:.3f}" for mean in np.mean(found, axis=0))
        lost = max(0.0, *(plain - chain for chain, plain, _ in found))
        yield f"| all, means | {epsilon:g} | {means} | at most {lost:.3f} below the plain draft |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="?", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder with the larger reference data sets")
    parser.add_argument("--owners", type=int, help="so many owners draw the noise, of whom one may collude")
    options = parser.parse_args()
    tables = [terrain(), digits()] if options.data is None else real_tables(options.data)
    terms = {}
    if options.owners is not None:
        count = options.owners
        terms = {"noise_by": "owners", "max_colluding": 1, "min_owners": count, "max_owners": count}
    for line in lines(tables, options.runs, options.owners or 3, **terms):
        print(line, flush=True)


if __name__ == "__main__":
    main()
