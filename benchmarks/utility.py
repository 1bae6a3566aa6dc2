"""What chains of studies capture on real tables, every round paid for: the figures of docs/utility.md.

Run `python benchmarks/utility.py [REPEATS]` from the checkout. Real encoding, exact noise, nothing encrypted.
The larger tables are looked for as the tests do (tests/support/reference_data.py) and left out without.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import pytest
from played_chains import captured_by, chain, naive
from reference_data import Table, covtype, digits, insurance, musk, terrain

CASES: tuple[tuple[Callable[[], Table], float, float], ...] = tuple(
    (load, times, epsilon)
    for load in (terrain, digits, covtype, insurance, musk)
    for times in (1.0, 10.0)
    for epsilon in (0.1, 0.3, 1.0)
)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print("| table | bounds | ε | joint, r = √d | chain | ended as |\n|---|---|---|---|---|---|")
    for load, times, epsilon in CASES:
        try:
            table = load().widened(times)
        except pytest.skip.Exception:  # the table is not here
            continue
        alone = np.mean([naive(table, epsilon) for _ in range(repeats)])
        played = [chain(table, epsilon) for _ in range(repeats)]
        found = np.mean([captured_by(each, table) for each in played])
        ends = "/".join(sorted({str(each.main.release) for each in played}))
        print(
            f"| {table.name} | × {times:g} | {epsilon:g} | {alone:.2f} | {found:.2f} | {ends} |", flush=True
        )


if __name__ == "__main__":
    main()
