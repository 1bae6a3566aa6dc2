"""Measures how near the first variance of a chain comes to that of the records before clipping.

python -m dpdpca_lab.benchmarks.variances 5                    made-up tables, four of them with long tails
python -m dpdpca_lab.benchmarks.variances 5 --data FOLDER      also the tables of the grid

A component of a noisy release is not the true one. So each figure is given against the largest variance there
is, and against the variance that the first component captures. The last column says how often percentiles of
shares and cos² contain those of the complete records before clipping.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from dpdpca_lab.benchmarks.grid import KINDS, Case, case_of
from dpdpca_lab.benchmarks.played_chains import complete
from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.reference_data import Repeatable, Table, real_tables
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import leading_pairs
from dpdpca_user.planning.rehearsal import play_chain
from dpdpca_user.results.reliability import Reliability, assess_release

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


@dataclass(frozen=True)
class Found:
    """What a chain says about one table, beside the truth before clipping and without gaps.

    Attributes:
        of_largest: the first variance ÷ the largest there is.
        of_captured: the same ÷ what the first component captures.
        total: the total ÷ the true one.
        is_inside: whether the interval of the first variance contains the largest; None without one.
        shares, cosines: whether the percentiles of each share, and of each cos², contain the true one.
    """

    of_largest: float
    of_captured: float
    total: float
    is_inside: bool | None
    shares: tuple[bool, ...]
    cosines: tuple[bool, ...]


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
    yield (
        "| table | kind | ε | ÷ largest | ÷ captured | total | within 15 % of largest, captured |"
        " in interval | share, cos² in percentiles |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    every: dict[str, list[Found]] = {kind: [] for kind in KINDS}
    for table, kind, epsilon in product(tables, KINDS, _EPSILONS):
        found = [
            played(case_of(table, kind, times), epsilon) for times, _ in product((1.0, 10.0), range(runs))
        ]
        every[kind] += found
        yield f"| {table.name} | {kind} | {epsilon:g} | {_summary(found)} |"
    for kind, found in every.items():
        yield f"| all | {kind} | | {_summary(found)} |"


def played(case: Case, epsilon: float) -> Found:
    """One chain. A chain without a component above the noise has the first variance 0."""
    chain = play_chain(case.base(epsilon), complete, case.owners(_OWNERS), OS_RANDOMNESS)
    noisy, components = chain.rounds[-1].result, chain.components
    assert isinstance(noisy, NoisyScatter)
    reliability = assess_release(noisy, chain.main.figures, components, OS_RANDOMNESS, _OWNERS)
    told = reliability.clipping
    first, total, inside = float(components.captured[0]), components.total_variance, None
    largest = float(np.linalg.eigvalsh(case.scatter)[-1])
    if told is not None and told.total_variance is not None and len(told.variances):
        first, total = float(told.variances[0]), told.total_variance
        inside = bool(told.low[0] <= largest <= told.high[0])
    vector = components.vectors[0]
    shares, cosines = contained(reliability, components.vectors, case)
    return Found(
        of_largest=first / largest,
        of_captured=first / float(vector @ case.scatter @ vector),
        total=total / float(np.trace(case.scatter)),
        is_inside=inside,
        shares=shares,
        cosines=cosines,
    )


def contained(
    reliability: Reliability, vectors: Floats, case: Case
) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Whether the percentiles of each share, and of each cos², contain that of the complete records before
    clipping; nothing without percentiles.

    Args:
        reliability: with the percentiles.
        vectors: (k, d) the components, at least those with percentiles.
        case: with the complete records.
    """
    k = len(reliability.share_low)
    vectors, best = vectors[:k], leading_pairs(case.scatter, max(k, 1))[1][:k]
    shares = [case.captured(vectors, index) for index in range(1, k + 1)]
    cosines = np.einsum("ki,ki->k", vectors, best) ** 2
    return (
        _between(reliability.share_low, shares, reliability.share_high),
        _between(reliability.overlap_low, cosines, reliability.overlap_high),
    )


def _between(low: Floats, values: ArrayLike, high: Floats) -> tuple[bool, ...]:
    return tuple(((low <= np.asarray(values)) & (np.asarray(values) <= high)).tolist())


def _summary(found: list[Found]) -> str:
    numbers = np.array([(each.of_largest, each.of_captured, each.total) for each in found])
    near = (np.abs(numbers[:, :2] - 1) <= _NEAR).mean(axis=0)
    middle = " | ".join(f"{value:.2f}" for value in np.median(numbers, axis=0))
    inside = _part(each.is_inside for each in found if each.is_inside is not None)
    shares = _part(held for each in found for held in each.shares)
    cosines = _part(held for each in found for held in each.cosines)
    return f"{middle} | {near[0]:.2f}, {near[1]:.2f} | {inside} | {shares}, {cosines}"


def _part(held: Iterable[bool]) -> str:
    """The part of these that are true; empty for none."""
    kept = list(held)
    return f"{np.mean(kept):.2f}" if kept else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="?", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder with the larger reference data sets")
    options = parser.parse_args()
    tables = made_up()
    if options.data is not None:
        tables += real_tables(options.data)
    for line in lines(tables, options.runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
