"""Measures how near the first variance of a chain comes to that of the records before clipping.

python -m dpdpca_lab.benchmarks.variances 5                    made-up tables, four of them with long tails
python -m dpdpca_lab.benchmarks.variances 5 --data FOLDER      also the tables of the grid

A component of a noisy release is not the true one. So each figure is given against the largest variance there
is, and against the variance that the first component captures.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

from dpdpca_lab.benchmarks.grid import case_of
from dpdpca_lab.benchmarks.played_chains import complete
from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.reference_data import Repeatable, Table, covtype, digits, insurance, musk, terrain
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_user.planning.rehearsal import play_chain
from dpdpca_user.results.clipping import assess_clipping

_KINDS = ("numeric", "mixed")
_EPSILONS = (0.3, 1.0, 3.0)
_NEAR = 0.15
_FACTORS = 4
_SPREADS: dict[str, Callable[[Floats], Floats]] = {
    "log-normal 0.6": lambda normals: np.exp(0.6 * normals[0]),
    "log-normal 1": lambda normals: np.exp(normals[0]),
    "t with 3 degrees": lambda normals: normals[0] / np.sqrt((normals[1:] ** 2).mean(axis=0)),
    "gamma 0.5": lambda normals: normals[0] ** 2 / 2,
    "normal": lambda normals: normals[0],
    "binary": lambda normals: np.where(normals[0] > 1, 1.0, 0.0),
}
"""How values are spread, made from four normal ones."""
_OWNERS = 3

Found = tuple[float, float, float, bool | None]
"""The first variance ÷ the largest; the same ÷ what the component captures; the total ÷ the true one; whether
the interval contains the largest."""


def made_up(records: int = 8000) -> list[Table]:
    """Tables of 40 features with four factors, always the same."""
    tables = []
    for name, of_normals in _SPREADS.items():
        draws = RealDraws(Repeatable(name))
        loadings = draws.normals(_FACTORS, 40) * 0.75 ** np.arange(_FACTORS)[:, None]
        factors, own = (of_normals(draws.normals(4, records, width)) for width in (_FACTORS, 40))
        rows = factors @ loadings + own
        bound = np.abs(rows).max(axis=0)
        tables.append(Table(name, rows, -bound, bound))
    return tables


def lines(tables: list[Table], runs: int) -> Iterator[str]:
    yield "| table | ε | ÷ largest | ÷ captured | total | within 15 % of largest, captured | in interval |"
    yield "|---|---|---|---|---|---|---|"
    every: list[Found] = []
    for table, epsilon in product(tables, _EPSILONS):
        found = [
            first_variance(table, kind, times, epsilon)
            for kind, times, _ in product(_KINDS, (1.0, 10.0), range(runs))
        ]
        every += found
        yield f"| {table.name} | {epsilon:g} | {_summary(found)} |"
    yield f"| all | | {_summary(every)} |"


def first_variance(table: Table, kind: str, times: float, epsilon: float) -> Found:
    """One chain. A chain without a component above the noise has the first variance 0."""
    case = case_of(table, kind, times)
    played = play_chain(case.base(epsilon), complete, case.owners(_OWNERS), OS_RANDOMNESS)
    noisy, components = played.rounds[-1].result, played.components
    assert isinstance(noisy, NoisyScatter)
    told = assess_clipping(noisy, played.main.figures, components, _OWNERS)
    first, total, inside = float(components.captured[0]), components.total_variance, None
    largest = float(np.linalg.eigvalsh(case.scatter)[-1])
    if told is not None and told.total_variance is not None and len(told.variances):
        first, total = float(told.variances[0]), told.total_variance
        inside = bool(told.low[0] <= largest <= told.high[0])
    vector = components.vectors[0]
    captured = float(vector @ case.scatter @ vector)
    return first / largest, first / captured, total / float(np.trace(case.scatter)), inside


def _summary(found: list[Found]) -> str:
    numbers = np.array([each[:3] for each in found])
    inside = [each[3] for each in found if each[3] is not None]
    near = (np.abs(numbers[:, :2] - 1) <= _NEAR).mean(axis=0)
    middle = " | ".join(f"{value:.2f}" for value in np.median(numbers, axis=0))
    covered = f"{np.mean(inside):.2f}" if inside else ""
    return f"{middle} | {near[0]:.2f}, {near[1]:.2f} | {covered}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="?", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder with the larger reference data sets")
    options = parser.parse_args()
    tables = made_up()
    if options.data is not None:
        tables += [terrain(), digits(), *(load(options.data) for load in (covtype, insurance, musk))]
    for line in lines(tables, options.runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
