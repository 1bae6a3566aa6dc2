"""`dpdpca user result --combine`: one result over the records of several studies."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_runtime.files import write_private
from dpdpca_user.commands.parts import show_table
from dpdpca_user.commands.tables import write_tables
from dpdpca_user.results.combined import combine
from dpdpca_user.results.model import Model

_ROWS = 20


def show_combination(
    files: Sequence[bytes],
    wanted: Mapping[str, Path],
    out: Path | None,
    as_json: bool,
    *,
    remove_noise: bool,
    positive: bool,
) -> None:
    """Combine models, show the result, and write what is wanted.

    Args:
        files: the `.npz` files of the models.
        wanted: as for `write_tables`.
        out: where to write the result, or None.
        as_json: whether to print JSON.
        remove_noise, positive: as for `write_tables`.
    """
    found = combine([Model.from_bytes(file) for file in files], OS_RANDOMNESS)
    written = write_tables(found.moments, wanted, remove_noise=remove_noise, positive=positive)
    if out is not None:
        write_private(out, found.to_bytes())
        written.append(f"the result is in {out}")
    facts, components = found.facts(), found.components
    if as_json:
        typer.echo(json.dumps(facts))
        return
    show_table(
        f"{len(files)} studies, {facts['records']:,} records",
        ["#", "released", "noise edge", "captured", ""],
        [
            [
                str(index + 1),
                f"{components.eigenvalues[index]:.4g}",
                f"{components.noise_edges[index]:.4g}",
                f"{components.captured[index]:.4g}",
                components.label(index),
            ]
            for index in range(min(components.component_count, _ROWS))
        ],
    )
    show_table(
        "What each study tells",
        ["study", "records", "clipped", "variance before clipping", "missing values"],
        [_row(each) for each in facts["by_study"]],
    )
    for line in (facts["not_included"], found.claim, *written):
        typer.echo(line)


def _row(of: Mapping[str, Any]) -> list[str]:
    return [
        of["study"][:16],
        f"{of['records']:,}",
        _or_dash(of["clipped_share"], ".1%"),
        _or_dash(of["factor"], ".3g", "× "),
        _or_dash(of["missing_share"], ".1%"),
    ]


def _or_dash(value: float | None, form: str, before: str = "") -> str:
    return "–" if value is None else f"{before}{value:{form}}"
