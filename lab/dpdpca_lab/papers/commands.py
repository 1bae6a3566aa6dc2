"""Runs experiments of papers for people: progress, and the files of each."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from dpdpca_lab.papers import plots, tables
from dpdpca_lab.papers.declared import Experiment
from dpdpca_lab.papers.runner import Result, run
from dpdpca_runtime.files import write_shared
from dpdpca_runtime.workers import core_count


def run_and_write(
    experiments: Sequence[Experiment], folder: Path | None, out: Path, quick: bool
) -> dict[str, list[Path]]:
    """Run experiments one after another, each on all cores, and write their tables and plots.

    A quick run stays in this process, because starting others would take longer than the run.

    Args:
        experiments: what to run.
        folder: the reference data; None to use stand-ins.
        out: where to write.
        quick: few points, few rows and one draw each. The names of its files end with `-quick`.

    Returns:
        The files by the name of the experiment.
    """
    written: dict[str, list[Path]] = {}
    with _progress() as shown:
        for experiment in experiments:
            task = shown.add_task(experiment.name, total=None)

            def tell(known: int, total: int, task: TaskID = task) -> None:
                shown.update(task, completed=known, total=total)

            results = run(
                experiment, folder, out, quick=quick, workers=1 if quick else core_count(), progress=tell
            )
            written[experiment.name] = _write(experiment, results, out, quick)
    return written


def _write(experiment: Experiment, results: list[Result], out: Path, quick: bool) -> list[Path]:
    rows = tables.rows_of(results)
    left_out = [line.label or line.method for line in experiment.lines if not line.quick]
    stem = out / f"{experiment.name}{'-quick' if quick else ''}"
    texts = {
        ".csv": tables.as_csv(rows),
        ".md": tables.as_markdown(experiment, rows, left_out if quick else ()),
        ".json": tables.as_json(tables.facts(experiment, results, quick)),
    }
    for ending, text in texts.items():
        write_shared(stem.with_suffix(ending), text.encode())
    plots.save(experiment, rows, stem.with_suffix(".svg"), stem.with_suffix(".png"))
    return [stem.with_suffix(ending) for ending in (*texts, ".svg", ".png")]


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
