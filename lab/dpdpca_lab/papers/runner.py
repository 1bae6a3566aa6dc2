"""Runs experiments: on all cores, with progress, and never twice what is already known.

A cell's result is kept in a file that is named by everything that decides about it: what the cell declares,
the versions of its method and measure, and the content of its data. So a run that was stopped goes on where
it stopped, and a changed grid, method or data set is measured anew.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from dpdpca_lab.papers.cells import Cell, cells_of
from dpdpca_lab.papers.declared import Experiment
from dpdpca_lab.papers.measures import Measured, Values, measure, run_cell
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.prepared import VERSION, content
from dpdpca_runtime.files import write_shared
from dpdpca_runtime.workers import WorkerProcesses

_FORMAT = 1
CELLS = "cells"
"""The folder of the results of single points, inside that of the tables and plots."""

Progress = Callable[[int, int], None]
"""Called with the number of points that are known, and the number of all."""


@dataclass(frozen=True, slots=True)
class Result:
    """A point and what was measured there."""

    cell: Cell
    measured: Measured

    @property
    def label(self) -> str:
        return self.cell.line.label or self.measured.label


def run(
    experiment: Experiment,
    folder: Path | None,
    out: Path,
    *,
    quick: bool = False,
    workers: int = 1,
    progress: Progress = lambda known, total: None,
) -> list[Result]:
    """Measure all points that are not known yet.

    Args:
        experiment: what to run.
        folder: the reference data; None to use stand-ins.
        out: its subfolder `cells` keeps the results.
        quick: few points, few rows and one draw each.
        workers: number of processes; with 1 everything runs in this one.
        progress: told after each point.

    Returns:
        All points in the order of the declaration.

    Raises:
        DpdpcaError: a point cannot be measured. Those that are finished stay.
    """
    cells = cells_of(experiment, quick)
    paths = [out / CELLS / f"{key(cell, folder)}.json" for cell in cells]
    known = {path: kept for path in paths if (kept := _kept(path)) is not None}
    missing = {path: cell for cell, path in zip(cells, paths, strict=True) if path not in known}
    total = len(set(paths))
    (out / CELLS).mkdir(parents=True, exist_ok=True)
    progress(len(known), total)
    chosen = measure(experiment.measure)
    count = 1 if chosen.is_light or chosen.is_timed else workers
    for path, measured in _measured(missing, folder, count):
        write_shared(path, _written(measured))
        known[path] = measured
        progress(len(known), total)
    return [Result(cell, known[path]) for cell, path in zip(cells, paths, strict=True)]


def key(cell: Cell, folder: Path | None) -> str:
    """The name of a point: a digest of all that decides about its result, and of no title or label."""
    panel = cell.panel.model_dump(exclude={"title", "only"})
    line = cell.line.model_dump(exclude={"label", "only", "quick"})
    fields = {name: value for name, value in asdict(cell).items() if name != "grid" or value}
    declared = {
        "cell": fields | {"panel": panel, "line": line},
        "data": content(cell.panel, folder),
        "versions": [_FORMAT, VERSION, *measure(cell.measure).versions(cell)],
    }
    text = json.dumps(declared, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _measured(
    missing: Mapping[Path, Cell], folder: Path | None, workers: int
) -> Iterator[tuple[Path, Measured]]:
    """Results as they come, in any order."""
    if workers == 1 or len(missing) < 2:
        for path, cell in missing.items():
            with threadpool_limits(1):  # small matrices: threads cost more than they save
                measured = run_cell(cell, folder)
            yield path, measured
        return
    with WorkerProcesses(min(workers, len(missing))) as pool:
        started: dict[Future[Measured], Path] = {
            pool.submit(run_cell, cell, folder): path for path, cell in missing.items()
        }
        for done in as_completed(started):
            yield started[done], done.result()


def _written(measured: Measured) -> bytes:
    return json.dumps(asdict(measured), ensure_ascii=False).encode()


def _kept(path: Path) -> Measured | None:
    """A result from its file; None if there is none, or if it cannot be read."""
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
        values, at = (_numbers(body.pop(name, {})) for name in ("values", "at"))
        return Measured(values, family=Family(body.pop("family")), at=at, **body)
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _numbers(found: dict[str, list[float]]) -> Values:
    return {name: tuple(map(float, each)) for name, each in found.items()}
