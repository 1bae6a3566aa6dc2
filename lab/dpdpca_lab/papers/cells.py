"""The points of an experiment. Each is measured alone, so that cores can share them and a run can go on."""

from dataclasses import dataclass

from dpdpca_lab.papers.declared import Experiment, Line, Panel, X

QUICK_DRAWS = 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One method at one point of the grid of one panel.

    Attributes:
        measure: what is measured.
        x: the value on the axis; the last one of a curve.
        epsilon, delta, k: the terms here; δ as it was declared. ε is 1 where nothing spends it.
        records: how many to take; None for all.
        quick: whether the table is cut.
        grid: all values on the axis, where one cell gives a curve.
    """

    measure: str
    panel: Panel
    line: Line
    x: X
    epsilon: float
    delta: float | str | None
    k: int
    records: int | None
    repetitions: int
    quick: bool
    grid: tuple[X, ...] = ()


def cells_of(experiment: Experiment, quick: bool) -> list[Cell]:
    """All points, panel by panel, so that a worker seldom prepares a table twice."""
    axis = experiment.axis
    values = axis.quick if quick else axis.values
    is_curve = axis.name == "curve"
    grid = values if is_curve else ()
    return [
        _cell(experiment, panel, line, x, quick, grid)
        for panel in experiment.panels
        for x in (values[-1:] if is_curve else values)
        for line in experiment.lines
        if x in (panel.only or (x,)) and x in (line.only or (x,)) and (line.quick or not quick)
    ]


def _cell(experiment: Experiment, panel: Panel, line: Line, x: X, quick: bool, grid: tuple[X, ...]) -> Cell:
    ours, common, axis = line.terms, experiment.terms, experiment.axis.name
    epsilon = ours.epsilon or (float(x) if axis == "epsilon" else common.epsilon) or 1.0
    repetitions = line.repetitions or experiment.repetitions
    return Cell(
        experiment.measure,
        panel,
        line,
        x,
        epsilon * panel.epsilon_times,
        next((delta for delta in (ours.delta, panel.delta, common.delta) if delta is not None), None),
        ours.k or panel.k or common.k or 1,
        int(x) if axis == "records" else panel.records,
        min(repetitions, QUICK_DRAWS) if quick else repetitions,
        quick,
        grid,
    )
