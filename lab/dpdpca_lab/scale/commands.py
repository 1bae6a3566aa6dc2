"""`dpdpca bench scale`: measures unit costs, and checks the model of docs/scale.md by simulation."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command(epilog="Example: dpdpca bench scale --owners 10000")
def scale(
    owners: Annotated[
        int, typer.Option(min=100, max=1_000_000, help="The largest number of owners to simulate.")
    ] = 10_000,
    save: Annotated[
        Path | None, typer.Option(help="File for the measurements, from which docs/scale.md is written.")
    ] = None,
) -> None:
    """Measure what each role spends on an owner, and check the model with simulated owners in one process."""
    from dpdpca_lab.scale.checked import check
    from dpdpca_lab.scale.units import measure
    from dpdpca_protocol.errors import UsageError
    from dpdpca_runtime.files import write_shared

    if save is not None and not save.absolute().parent.is_dir():  # measuring takes minutes
        raise UsageError(
            "bad-option", f"the folder {save.absolute().parent} does not exist", "choose another --save"
        )
    typer.echo("Measuring unit costs", err=True)
    checked = check(
        measure(),
        owners,
        lambda study: typer.echo(f"Simulating {study.owners:,} owners: {study.kind}", err=True),
    )
    for name, value in asdict(checked.units).items():
        typer.echo(f"{name:<24} {value:.4g}")
    for row in checked.rows:
        typer.echo(f"\n{row.kind:<24} {row.owners:,} owners")
        for name, ratio in row.ratios(checked.units).items():
            typer.echo(f"{name:<24} {getattr(row, name):.4g}, {ratio:.2f} of the prediction")
    if save is not None:
        write_shared(save, checked.to_json().encode())
