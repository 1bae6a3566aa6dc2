"""What is measured at one point of an experiment."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.central.result import captured_energy, explained_rank, subspace_errors
from dpdpca_lab.papers import halves
from dpdpca_lab.papers.accuracy import classifier, fit_and_predict_seconds, scored, split_of
from dpdpca_lab.papers.asymptotics import (
    CALIBRATIONS,
    LINES,
    POPULATIONS,
    TRADE_OFFS,
    calibrated_beta,
    people,
    subspace_error,
    tradeoff_curve,
    worst_case,
)
from dpdpca_lab.papers.cells import Cell
from dpdpca_lab.papers.chains import trace, traced
from dpdpca_lab.papers.class_scores import point_by_owners, scores_on_components, split_by_owners
from dpdpca_lab.papers.declared import Option
from dpdpca_lab.papers.formulas import formula
from dpdpca_lab.papers.methods import NO_DELTA, Family, Point, method
from dpdpca_lab.papers.owners_time import LINES as TIMED
from dpdpca_lab.papers.owners_time import spent_by
from dpdpca_lab.papers.prepared import Problem, problem
from dpdpca_lab.peers.declared import LIBRARIES, MAKE, library
from dpdpca_lab.peers.process import Limits, fits
from dpdpca_protocol.errors import UsageError

Values = dict[str, tuple[float, ...]]
_QUICK_DRAWS = 20
_SWEEPS = (30, 5)
"""Of chains in high dimension: before the first draw, and from draw to draw."""
_ADVISORY = "advisory: in the limit only"
_SHORT: dict[str, Option] = {"burn_in": 5, "sweeps": 5}


@dataclass(frozen=True, slots=True)
class Measured:
    """What one cell gave.

    Attributes:
        values: by measure, one value for each repetition.
        at: by measure, the place of each value on the axis; empty where all are at that of the cell.
        label, family, guarantee: of the method.
        claimed, real: ε; None where it has no meaning. `real` is infinite without any guarantee.
        facts: n, d, k, and where the rows come from; empty for formulas.
        seconds: of the processor, without that of other libraries.
        note: why there are fewer values than wanted; empty if there are not.
    """

    values: Values
    label: str
    family: Family
    guarantee: str = ""
    claimed: float | None = None
    real: float | None = None
    facts: Mapping[str, int | str] | None = None
    seconds: float = 0.0
    note: str = ""
    at: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measure:
    """A kind of measurement.

    Attributes:
        run: measures a cell.
        versions: all that decides about the values of a cell, but its data.
        is_light: whether a cell takes less time than to start a process.
        is_timed: whether it measures time, so that cells must not run beside each other.
    """

    run: Callable[[Cell, Path | None], Measured]
    versions: Callable[[Cell], tuple[int, ...]]
    is_light: bool = False
    is_timed: bool = False


def measure(name: str) -> Measure:
    """The measure with this name.

    Raises:
        UsageError: there is none.
    """
    if name not in MEASURES:
        raise UsageError(
            "unknown-measure", f"there is no measure {name!r}; the measures are {', '.join(MEASURES)}"
        )
    return MEASURES[name]


def run_cell(cell: Cell, folder: Path | None) -> Measured:
    """What the cell measures. A worker process may call this."""
    begin = time.process_time()
    measured = measure(cell.measure).run(cell, folder)
    return replace(measured, seconds=time.process_time() - begin)


def point_of(cell: Cell, table: Problem) -> Point:
    """The terms of a cell, with δ for the table's number of records. A quick run has short chains."""
    options = cell.line.options | (_SHORT if cell.quick else {})
    return Point(Fraction(str(cell.epsilon)), _delta(cell.delta, table.n), min(cell.k, table.d), options)


def _delta(declared: float | str | None, n: int) -> Fraction:
    if declared is None:
        return NO_DELTA
    if declared == "1/n^2":
        return Fraction(1, n * n)
    return Fraction(9, 10 * n) if declared == "0.9/n" else Fraction(str(declared))


def table_of(cell: Cell, folder: Path | None) -> Problem:
    return problem(cell.panel, folder, cell.quick, cell.records)


def _directions(cell: Cell, folder: Path | None) -> Measured:
    """Energy of the directions, and their distance from the best.

    `energy` is q_F = tr V A Vᵀ for A a mean over the rows; `captured` is its share of the most that k
    directions can have; `ratio` is its share of tr A; `distance` is ‖P − P*‖_F².
    """
    table, chosen = table_of(cell, folder), method(cell.line.method)
    point = point_of(cell, table)
    if chosen.draws is None:
        energy = point.k / table.d * float(table.levels.sum())
        values = _values(table, point.k, [energy], [2 * (point.k - point.k**2 / table.d)])
    else:
        drawn = islice(chosen.draws(table, point), cell.repetitions if chosen.repeats else 1)
        values = _judged(table, point.k, list(drawn))
    return Measured(
        values,
        chosen.label,
        chosen.family,
        chosen.guarantee,
        float(point.epsilon) if chosen.real_epsilon else None,
        chosen.real_epsilon(table, point) if chosen.real_epsilon else None,
        facts_of(table, point.k),
    )


def _judged(table: Problem, k: int, drawn: Sequence[Floats]) -> Values:
    matrix, best = table.target / table.n, table.axes[:k]
    return _values(
        table,
        k,
        [captured_energy(vectors, matrix) for vectors in drawn],
        [subspace_errors(vectors, best).frobenius_squared for vectors in drawn],
    )


def _values(table: Problem, k: int, energy: Sequence[float], distance: Sequence[float]) -> Values:
    most, trace = float(table.levels[:k].sum()), float(table.levels.sum())
    return {
        "energy": tuple(energy),
        "captured": tuple(value / most for value in energy),
        "ratio": tuple(value / trace for value in energy),
        "distance": tuple(distance),
    }


def _peers(cell: Cell, folder: Path | None) -> Measured:
    """`directions`, where the method may be another library.

    Those also have `fits`: 1 for each fit, and 0 for each that took too long, or for none at all. Options are
    `seconds`, the limit of a fit, and `most`, after which no other fit starts at this point.
    """
    if cell.line.method not in LIBRARIES:
        return _directions(cell, folder)
    asked, table = library(cell.line.method), table_of(cell, folder)
    point = point_of(cell, table)
    measured = Measured(
        {"fits": (0.0,)},
        asked.label,
        Family.NO_GUARANTEE,
        asked.guarantee,
        facts=facts_of(table, point.k),
        note=f"not installed: {MAKE}",
    )
    if not asked.is_installed:
        return measured
    limits = Limits(point.number("seconds", 20), point.number("most", 60))
    found = fits(asked.program, table.rows, float(point.epsilon), point.k, cell.repetitions, limits)
    outcomes = (1.0,) * len(found.components) + (0.0,) * found.slow
    values = {**_judged(table, point.k, found.components), "fits": outcomes or (0.0,)}
    label = f"{asked.label} {found.version}".rstrip()
    return replace(measured, values=values, label=label, note=found.note)


def _peers_versions(cell: Cell) -> tuple[int, ...]:
    if cell.line.method not in LIBRARIES:
        return MEASURES["directions"].versions(cell)
    asked = library(cell.line.method)
    return (1, asked.version, int(asked.is_installed))


def facts_of(table: Problem, k: int) -> dict[str, int | str]:
    return {"n": table.n, "d": table.d, "k": k, "origin": table.origin}


def _spectrum(cell: Cell, folder: Path | None) -> Measured:
    """A figure of the data set that is not private: `x` names it. The line `printed` has the paper's."""
    table = table_of(cell, folder)
    k = min(cell.k, table.d)
    printed = cell.line.method == "printed"
    if printed:
        value = float(cell.panel.options[str(cell.x)])
    else:
        levels = table.levels
        energy = levels[:k].sum()
        value = {
            "n": float(table.n),
            "d": float(table.d),
            "k": float(k),
            "k at 85 %": float(explained_rank(levels, 0.85)),
            "q_F": float(energy),
            "q_F / tr A": float(energy / levels.sum()),
            "q_F / ‖A‖_F": float(energy / np.sqrt((levels**2).sum())),
        }[str(cell.x)]
    family = Family.PUBLISHED if printed else Family.OURS
    return Measured({"value": (value,)}, cell.line.method, family, facts=facts_of(table, k))


def _formula(cell: Cell, folder: Path | None) -> Measured:
    """A closed form at `x`, with the options of panel and line."""
    chosen = formula(cell.line.method)
    options = {**cell.panel.options, **cell.line.options}
    value = chosen.value(float(cell.x), {name: float(option) for name, option in options.items()})
    return Measured({"value": (value,)}, chosen.label, chosen.family)


def _accuracy(cell: Cell, folder: Path | None) -> Measured:
    """`accuracy` on test rows, and `error` in per cent."""
    split, chosen = split_of(cell, folder), classifier(cell.line.method)
    point = point_of(cell, split.train)
    accuracy = scored(cell, split, point)
    private = chosen.real_epsilon is not None
    return Measured(
        {"accuracy": accuracy, "error": tuple(100 * (1 - share) for share in accuracy)},
        chosen.label,
        chosen.family,
        chosen.guarantee,
        float(point.epsilon) if private else None,
        chosen.real_epsilon(split.train, point) if chosen.real_epsilon else None,
        facts_of(split.train, point.k),
    )


def _accuracy_of_halves(cell: Cell, folder: Path | None) -> Measured:
    """`accuracy` in per cent, for some draws of each of the panel's `permutations`."""
    table, chosen = table_of(cell, folder), classifier(cell.line.method)
    found: list[float] = []
    real = None
    for permutation in range(1 if cell.quick else int(cell.panel.options["permutations"])):
        half, train, test = halves.halves(table, permutation)
        point = point_of(cell, half)
        scores = halves.scored(cell.line.method, table, half, train, test, point)
        found += islice(scores, cell.repetitions)
        real = chosen.real_epsilon(half, point) if chosen.real_epsilon else None
    return Measured(
        {"accuracy": tuple(100 * share for share in found)},
        chosen.label,
        chosen.family,
        chosen.guarantee,
        cell.epsilon if chosen.real_epsilon else None,
        real,
        facts_of(table, min(cell.k, table.d)),
    )


def _running_time(cell: Cell, folder: Path | None) -> Measured:
    """Seconds of the processor, on one core: `fit` from the training rows, `predict` for all test rows."""
    split, chosen = split_of(cell, folder), classifier(cell.line.method)
    point = point_of(cell, split.train)
    with threadpool_limits(1):
        next(chosen.predictors(split.train, point))  # imports, and the calibration of the noise
        seconds = [fit_and_predict_seconds(chosen, split, point) for _ in range(cell.repetitions)]
    return Measured(
        {"fit": tuple(fit for fit, _ in seconds), "predict": tuple(predict for _, predict in seconds)},
        chosen.label,
        chosen.family,
        facts=facts_of(split.train, point.k),
    )


def _owners_time(cell: Cell, folder: Path | None) -> Measured:
    """Seconds of one core for `x` owners: `seconds` of all that wait for each other, and their parts.

    `transmission` is apart: the seconds for all bytes at 10 MB/s. The panel's option `columns` cuts d.
    """
    table = table_of(cell, folder)
    rows = np.asarray(table.rows[:, : int(cell.panel.options["columns"])], dtype=np.float64)
    with threadpool_limits(1):
        runs = [
            spent_by(cell.line.method, rows, int(cell.x), point_of(cell, table), cell.quick)
            for _ in range(cell.repetitions)
        ]
    label, family = TIMED[cell.line.method]
    values = {
        "seconds": tuple(run.seconds for run in runs),
        "transmission": tuple(run.transmission for run in runs),
        "owners": tuple(run.owners for run in runs),
        "proxy": tuple(run.proxy for run in runs),
        "user": tuple(run.user for run in runs),
    }
    return Measured(values, label, family, facts=facts_of(table, rows.shape[1]) | {"d": rows.shape[1]})


def _class_scores(cell: Cell, folder: Path | None) -> Measured:
    """Means over the classes on test rows: `precision`, `recall` and `f1`.

    `cell.records` are those of one owner.
    """
    split, chosen = split_by_owners(cell, folder), method(cell.line.method)
    point = point_by_owners(cell, split.train, point_of(cell, split.train))
    scores = list(scores_on_components(chosen, split, point, cell.repetitions))
    return Measured(
        {
            "f1": tuple(each.f1 for each in scores),
            "precision": tuple(each.precision for each in scores),
            "recall": tuple(each.recall for each in scores),
        },
        chosen.label,
        chosen.family,
        chosen.guarantee,
        float(point.epsilon) if chosen.real_epsilon else None,
        chosen.real_epsilon(split.train, point) if chosen.real_epsilon else None,
        facts_of(split.train, point.k),
    )


def _subspace_error(cell: Cell, folder: Path | None) -> Measured:
    """`error` of the leading subspace; `x` is β over the threshold H_k."""
    table = table_of(cell, folder)
    k = min(cell.k, table.d)
    count, *sweeps = (_QUICK_DRAWS, 5, 1) if cell.quick else (cell.repetitions, *_SWEEPS)
    errors = subspace_error(cell.line.method, table, k, float(cell.x), count, *sweeps)
    label, family = LINES[cell.line.method]
    return Measured({"error": errors}, label, family, _ADVISORY, facts=facts_of(table, k))


def _calibration(cell: Cell, folder: Path | None) -> Measured:
    """`beta` whose σ is `x`, and `reachable`, which is 0 where there is none."""
    table, line = table_of(cell, folder), cell.line.method
    k = min(cell.k, table.d - 1)
    beta = calibrated_beta(line, table, k, float(cell.x), str(cell.panel.options["relation"]))
    found: Values = {"reachable": (float(beta is not None),), "beta": () if beta is None else (beta,)}
    label, family = CALIBRATIONS[line]
    return Measured(found, label, family, _ADVISORY, facts=facts_of(table, k))


def _trade_off(cell: Cell, folder: Path | None) -> Measured:
    """`error` of type II over that of type I, for the panel's σ, with `lower` and `upper`."""
    table, line = table_of(cell, folder), cell.line.method
    k, levels = min(cell.k, table.d - 1), np.array([float(x) for x in cell.grid])
    options = cell.panel.options
    count, *sweeps = (_QUICK_DRAWS, 5, 1) if cell.quick else (int(options["draws"]), *_SWEEPS)
    sigma = float(options["sigma"])
    found = tradeoff_curve(line, table, k, sigma, levels, count, *sweeps)
    label, family = TRADE_OFFS[line]
    guarantee = f"pure ε = {worst_case(table, k, sigma):,.0f}, add-or-remove" if line == "pure" else _ADVISORY
    return Measured(
        {name: tuple(map(float, values)) for name, values in found.items()},
        label,
        family,
        guarantee,
        facts=facts_of(table, k),
        at={name: tuple(map(float, levels)) for name in found},
    )


def _people(cell: Cell, folder: Path | None) -> Measured:
    """Every tenth person on two components, by super-population, at β/H_2 = `ratio` of the panel.

    `captured` is the share of the best energy that one component has, and that both have.
    """
    table = table_of(cell, folder)
    found = people(table, float(cell.panel.options["ratio"]), 5 if cell.quick else 30)
    shown = np.arange(0, table.n, 10)
    groups = {
        name: found.scores[shown[table.labels[shown] == place]].round(4)
        for place, name in enumerate(POPULATIONS)
    }
    places = {"captured": (1.0, 2.0)} | {name: tuple(map(float, here[:, 0])) for name, here in groups.items()}
    values = {"captured": tuple(map(float, found.captured))}
    values |= {name: tuple(map(float, here[:, 1])) for name, here in groups.items()}
    facts, is_exact = facts_of(table, len(found.captured)), found.beta is None
    label = "without noise" if is_exact else f"one draw at β = {found.beta:.3g}"
    guarantee = "not private" if is_exact else "none for a finite chain; scores are not private"
    family = Family.BOUND if is_exact else Family.NO_GUARANTEE
    return Measured(values, label, family, guarantee, facts=facts, at=places)


def _chain_trace(cell: Cell, folder: Path | None) -> Measured:
    """`F`, `T F²` and `energy` of chains over the number of sweeps; the option `most` ends a line."""
    table, chosen = table_of(cell, folder), trace(cell.line.method)
    k, most = min(cell.k, table.d), float(cell.line.options.get("most", math.inf))
    counts = [int(x) for x in cell.grid if float(x) <= most]
    found = traced(cell.line.method, table, k, cell.epsilon, counts, cell.repetitions)
    return Measured(
        {name: tuple(map(float, values.ravel())) for name, values in found.items()},
        chosen.label,
        chosen.family,
        "none for a finite chain" if chosen.is_chain else "not private",
        cell.epsilon if chosen.is_chain else None,
        math.inf if chosen.is_chain else None,
        facts_of(table, k),
        at={name: tuple(map(float, counts)) * len(values) for name, values in found.items()},
    )


MEASURES: dict[str, Measure] = {
    "chain-trace": Measure(_chain_trace, lambda cell: (1,)),
    "people": Measure(_people, lambda cell: (1,), is_light=True),
    "trade-off": Measure(_trade_off, lambda cell: (1,)),
    "calibration": Measure(_calibration, lambda cell: (1,), is_light=True),
    "subspace-error": Measure(_subspace_error, lambda cell: (1,)),
    "owners-time": Measure(_owners_time, lambda cell: (1,), is_timed=True),
    "running-time": Measure(
        _running_time, lambda cell: (1, classifier(cell.line.method).version), is_timed=True
    ),
    "class-scores": Measure(_class_scores, lambda cell: (1, method(cell.line.method).version)),
    "accuracy": Measure(_accuracy, lambda cell: (1, classifier(cell.line.method).version)),
    "accuracy-of-halves": Measure(
        _accuracy_of_halves, lambda cell: (1, classifier(cell.line.method).version)
    ),
    "formula": Measure(_formula, lambda cell: (1, formula(cell.line.method).version), is_light=True),
    "peers": Measure(_peers, _peers_versions),
    "directions": Measure(_directions, lambda cell: (1, method(cell.line.method).version)),
    "spectrum": Measure(_spectrum, lambda cell: (1,), is_light=True),
}
