"""`dpdpca experiments`: lists and runs the small experiments."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dpdpca_runtime.command_options import AsJson

app = typer.Typer(
    help="Run small experiments, each of which shows one statement about a mechanism.", no_args_is_help=True
)


@app.command("list", epilog="Example: dpdpca experiments list")
def list_experiments(as_json: AsJson = False) -> None:
    """List the experiments by name, and what each of them shows."""
    from dpdpca_lab.experiments import EXPERIMENTS

    if as_json:
        listed = [{"name": experiment.name, "shows": experiment.shows} for experiment in EXPERIMENTS]
        typer.echo(json.dumps({"experiments": listed}, ensure_ascii=False))
        return
    width = max(len(experiment.name) for experiment in EXPERIMENTS)
    for experiment in EXPERIMENTS:
        typer.echo(f"{experiment.name:<{width}}  {experiment.shows}")


@app.command("run", epilog="Example: dpdpca experiments run sn-support")
def run_experiment(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of an experiment, as `list` shows it.")
    ],
    data: Annotated[
        Path | None, typer.Option(help="Folder with the larger reference data sets, used by `spectra`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run one experiment and print its table."""
    from dpdpca_lab.experiments import Outcome, find_experiment

    experiment = find_experiment(name)
    outcome: Outcome = experiment.run(data)
    if as_json:
        body = {
            "experiment": experiment.name,
            "shows": experiment.shows,
            "note": outcome.note,
            "columns": outcome.columns,
            "rows": outcome.rows,
        }
        typer.echo(json.dumps(body, ensure_ascii=False))
        return
    cells = [outcome.columns, *(tuple(_text(cell) for cell in row) for row in outcome.rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(outcome.columns))]
    for row in cells:
        typer.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    typer.echo(f"\n{experiment.shows}: {outcome.note}")


def _text(cell: str | int | float | None) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
