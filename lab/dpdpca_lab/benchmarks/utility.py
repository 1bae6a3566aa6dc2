"""Measures the variance that chains of studies capture on real tables: the figures of docs/utility.md.

python -m dpdpca_lab.benchmarks.utility                     the bundled tables, means of 5 runs
python -m dpdpca_lab.benchmarks.utility 9 --data FOLDER     also the larger sets, means of 9 runs
python -m dpdpca_lab.benchmarks.utility 40 --owners 5       who draws the noise: the proxy, or five owners
"""

import argparse
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

from dpdpca_lab.benchmarks.played_chains import (
    captured_by,
    chain,
    in_clear,
    naive,
    with_noise_of_owners,
)
from dpdpca_lab.reference_data import Table, covtype, digits, insurance, musk, terrain

_EPSILONS = (0.1, 0.3, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("repeats", nargs="?", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder with the larger reference data sets")
    parser.add_argument(
        "--owners", type=int, help="compare noise by the proxy with noise by this number of owners"
    )
    options = parser.parse_args()
    tables = [terrain(), digits()]
    if options.data is not None:
        tables += [load(options.data) for load in (covtype, insurance, musk)]
    if options.owners is None:
        lines = _single_or_chain(tables, options.repeats)
    else:
        lines = _who_draws(tables, options.repeats, options.owners)
    for line in lines:
        print(line, flush=True)


def _single_or_chain(tables: Iterable[Table], repeats: int) -> Iterator[str]:
    yield "| table | bounds | ε | joint, r = √d | chain | ended as |\n|---|---|---|---|---|---|"
    for given, times, epsilon in product(tables, (1.0, 10.0), _EPSILONS):
        table = given.widened(times)
        alone = np.mean([naive(table, epsilon) for _ in range(repeats)])
        played = [chain(table, epsilon) for _ in range(repeats)]
        found = np.mean([captured_by(each, table) for each in played])
        ends = "/".join(sorted({str(each.main.release) for each in played}))
        yield f"| {table.name} | × {times:g} | {epsilon:g} | {alone:.2f} | {found:.2f} | {ends} |"


def _who_draws(tables: Iterable[Table], repeats: int, owners: int) -> Iterator[str]:
    """Differences have their standard errors. Sealed and in clear are one chain with two last rounds."""
    yield "| table | ε | proxy, sealed | proxy, in clear | owners | owners − sealed | owners − in clear |"
    yield "|---|---|---|---|---|---|---|"
    for table, epsilon in product(tables, _EPSILONS):
        chains = [chain(table, epsilon) for _ in range(repeats)]
        sealed = np.array([captured_by(each, table) for each in chains])
        clear = np.array([captured_by(in_clear(each, table), table) for each in chains])
        shared = [with_noise_of_owners(table, epsilon, owners) for _ in range(repeats)]
        by_owners = np.array([captured_by(each, table) for each in shared])
        means = " | ".join(f"{each.mean():.3f}" for each in (sealed, clear, by_owners))
        differences = " | ".join(
            f"{by_owners.mean() - other.mean():+.3f} ± {np.hypot(_error(by_owners), _error(other)):.3f}"
            for other in (sealed, clear)
        )
        yield f"| {table.name} | {epsilon:g} | {means} | {differences} |"


def _error(values: np.ndarray) -> float:
    """The standard error of the mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


if __name__ == "__main__":
    main()
