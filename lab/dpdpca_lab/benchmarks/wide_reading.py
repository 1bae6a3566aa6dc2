"""Measures what it takes the data user to read a sketch, a lift and its intervals, for many features.

python -m dpdpca_lab.benchmarks.wide_reading                          d = 100,000 and k = 10
python -m dpdpca_lab.benchmarks.wide_reading 200000 100 1024          d, k and the rows of the sketch

Values are noise with one or two strong directions, since the work does not depend on them.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import sqrt
from typing import TypeVar

import numpy as np

from dpdpca_protocol.privacy.mechanisms import NoiseLaw
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_user.results.deviates import normal_deviates, symmetric_noise
from dpdpca_user.results.wide.choice import visibility
from dpdpca_user.results.wide.estimates import wide_components
from dpdpca_user.results.wide.lift import read_lift
from dpdpca_user.results.wide.redrawing import redraw
from dpdpca_user.results.wide.rule import lift_rule
from dpdpca_user.results.wide.sketch import read_sketch

Result = TypeVar("Result")

_UNIT = 10**9
_COUNT = 100_000


def lines(d: int, k: int, rows: int) -> Iterator[str]:
    """One line for each step: its seconds, and the megabytes that it took beyond its arguments."""
    noise = symmetric_noise(rows, 1.0, sqrt(0.5), OS_RANDOMNESS)
    noise += np.diag([4e3, 2e3, *[1e3] * (rows - 2)])
    whole = np.rint(_UNIT * noise).astype(np.int64).tolist()
    noisy = NoisyScatter(_COUNT, tuple(tuple(_COUNT * each for each in row) for row in whole), (0,) * rows)
    law = NoiseLaw(Fraction(_UNIT**2), Fraction(_UNIT**2, 2), Fraction(1), 0, 0)
    values = np.rint(_UNIT * normal_deviates(d * k, OS_RANDOMNESS).reshape(d, k)).astype(np.int64)
    values[:, 0] *= 5
    gram = np.eye(k, dtype=np.int64) * _UNIT
    sketch, said = _measured("sketch", lambda: read_sketch(noisy, law))
    yield said
    yield _measured("rule", lambda: lift_rule(sketch, k))[1]
    lift, said = _measured("lift", lambda: read_lift(values, gram, float(_UNIT)))
    yield said
    seen = visibility(sketch)
    shown = wide_components(sketch, seen, lift)
    yield _measured("intervals", lambda: redraw(shown, seen, lift, None, OS_RANDOMNESS))[1]


def _measured(name: str, step: Callable[[], Result]) -> tuple[Result, str]:
    tracemalloc.start()
    began = time.perf_counter()
    result = step()
    seconds = time.perf_counter() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, f"| {name} | {seconds:.2f} s | {peak / 2**20:.0f} MB |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("features", nargs="?", type=int, default=100_000)
    parser.add_argument("columns", nargs="?", type=int, default=10)
    parser.add_argument("rows", nargs="?", type=int, default=656)
    options = parser.parse_args()
    for line in lines(options.features, options.columns, options.rows):
        print(line, flush=True)


if __name__ == "__main__":
    main()
