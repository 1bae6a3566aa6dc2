"""`dpdpca experiments`: lists and runs the experiments of the papers, and those that show a statement."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpdpca_protocol.errors import UsageError
from dpdpca_runtime.command_options import AsJson

app = typer.Typer(
    help="Run the experiments of the papers again, comparisons with peers, and small ones on one statement.",
    no_args_is_help=True,
)
GROUPS = ("papers", "peers")
"""Of declared experiments; `run` takes a group's name for all of them."""


@app.command("list", epilog="Example: dpdpca experiments list")
def list_experiments(as_json: AsJson = False) -> None:
    """List the experiments by name, in three groups: papers, peers and statements."""
    from dpdpca_lab.experiments import EXPERIMENTS
    from dpdpca_lab.papers.declared import experiments

    groups = {
        group: [
            (found.name, f"{found.paper}, {found.item}: {found.shows}")
            for found in experiments()
            if found.group == group
        ]
        for group in GROUPS
    }
    groups["statements"] = [(found.name, found.shows) for found in EXPERIMENTS]
    if as_json:
        listed = [
            {"name": name, "group": group, "shows": shows}
            for group, found in groups.items()
            for name, shows in found
        ]
        typer.echo(json.dumps({"experiments": listed}, ensure_ascii=False))
        return
    width = max(len(name) for found in groups.values() for name, _ in found)
    for group, found in groups.items():
        typer.echo(f"{group}:")
        for name, shows in found:
            typer.echo(f"  {name:<{width}}  {shows}")


@app.command("run", epilog="Example: dpdpca experiments run css13-fig5 --quick")
def run_experiments(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME…", help="Names as `list` shows them; `papers` or `peers` for all of that group."
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few points, few rows and one draw each: to see that it works.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the larger reference data sets; default: DPDPCA_REFERENCE_DATA, else"
            " shared/data beside the source folder. Where a set is missing, the experiment says what it took."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for tables, plots, and the results that are kept.")
    ] = Path("experiments"),
    as_json: AsJson = False,
) -> None:
    """Run experiments. Those of papers and peers write a table and a plot; a statement prints its table.

    A run that was stopped goes on where it stopped. What is known already is not measured again.
    """
    from dpdpca_lab.experiments import EXPERIMENTS
    from dpdpca_lab.papers.declared import experiments
    from dpdpca_lab.reference_data import reference_folder

    papers = {found.name: found for found in experiments()}
    statements = {found.name: found for found in EXPERIMENTS}
    groups = {group: [found.name for found in papers.values() if found.group == group] for group in GROUPS}
    wanted = list(dict.fromkeys(name for given in names for name in groups.get(given, [given])))
    unknown = [name for name in wanted if name not in papers and name not in statements]
    if unknown:
        raise UsageError(
            "unknown-experiment",
            f"there is no experiment {unknown[0]!r}; the experiments are {', '.join([*papers, *statements])}",
        )
    chosen = [papers[name] for name in wanted if name in papers]
    reports = []
    if chosen:
        from dpdpca_lab.papers.commands import run_and_write

        for name, files in run_and_write(chosen, reference_folder(data), out, quick).items():
            reports.append({"experiment": name, "files": [str(path) for path in files]})
            if not as_json:
                _show_paper(files)
    for name in wanted:
        if name in statements:
            reports.append(_statement(name, data, as_json))
    if as_json:
        body = reports[0] if len(reports) == 1 else {"experiments": reports}
        typer.echo(json.dumps(body, ensure_ascii=False))


def _show_paper(files: Sequence[Path]) -> None:
    """The short table, where the rows come from, and what was written."""
    by_ending = {path.suffix: path for path in files}
    facts = json.loads(by_ending[".json"].read_text(encoding="utf-8"))
    typer.echo(f"{facts['experiment']}\n\n{by_ending['.md'].read_text(encoding='utf-8')}")
    for title, panel in facts["panels"].items():
        typer.echo(f"{title}: n = {panel['n']}, d = {panel['d']}, k = {panel['k']}; {panel['origin']}")
    typer.echo(f"written: {', '.join(str(path) for path in files)}\n")


def _statement(name: str, data: Path | None, as_json: bool) -> dict[str, Any]:
    from dpdpca_lab.experiments import Outcome, find_experiment

    experiment = find_experiment(name)
    outcome: Outcome = experiment.run(data)
    if not as_json:
        cells = [outcome.columns, *(tuple(_text(cell) for cell in row) for row in outcome.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(outcome.columns))]
        for row in cells:
            typer.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
        typer.echo(f"\n{experiment.shows}: {outcome.note}")
    return {
        "experiment": experiment.name,
        "shows": experiment.shows,
        "note": outcome.note,
        "columns": outcome.columns,
        "rows": outcome.rows,
    }


def _text(cell: str | int | float | None) -> str:
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
