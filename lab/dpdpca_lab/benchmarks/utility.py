"""Measures the variance that chains of studies capture on real tables: the figures of docs/utility.md.

python -m dpdpca_lab.benchmarks.utility                     the bundled tables, means of 5 runs
python -m dpdpca_lab.benchmarks.utility 9 --data FOLDER     also the larger sets, means of 9 runs
"""

import argparse
from itertools import product
from pathlib import Path

import numpy as np

from dpdpca_lab.benchmarks.played_chains import captured_by, chain, naive
from dpdpca_lab.reference_data import covtype, digits, insurance, musk, terrain


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("repeats", nargs="?", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder with the larger reference data sets")
    options = parser.parse_args()
    repeats = options.repeats
    tables = [terrain(), digits()]
    if options.data is not None:
        tables += [load(options.data) for load in (covtype, insurance, musk)]
    print("| table | bounds | ε | joint, r = √d | chain | ended as |\n|---|---|---|---|---|---|")
    for given, times, epsilon in product(tables, (1.0, 10.0), (0.1, 0.3, 1.0)):
        table = given.widened(times)
        alone = np.mean([naive(table, epsilon) for _ in range(repeats)])
        played = [chain(table, epsilon) for _ in range(repeats)]
        found = np.mean([captured_by(each, table) for each in played])
        ends = "/".join(sorted({str(each.main.release) for each in played}))
        print(
            f"| {table.name} | × {times:g} | {epsilon:g} | {alone:.2f} | {found:.2f} | {ends} |", flush=True
        )


if __name__ == "__main__":
    main()
