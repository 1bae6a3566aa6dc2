"""The numbers of a pre-study on a terminal."""

from typing import Any

import typer

from dpdpca_user.commands.parts import show_table
from dpdpca_user.planning.prestudy import Histogram, PreStudyResult

_SHOWN_FEATURES = 20


def show_numbers(facts: dict[str, Any]) -> None:
    """Print what `GET /v1/studies/{id}/result` answered."""
    result = PreStudyResult.parse(facts)
    typer.echo(f"{facts['title']}: {result.records:,} records, {result.encoded_features} encoded features")
    for name, histogram in (
        ("norms of records", result.norms),
        ("norms of differences over √2", result.pair_norms),
    ):
        if histogram is not None:
            show_table(
                f"{name}, in scaled units; noise ± {histogram.noise:.3g} on each count",
                ["up to", "count"],
                _rows(histogram),
            )
    if result.total is not None:
        show_table(
            f"mean about the public centre, in scaled units; noise ± {result.total.noise:.3g}",
            ["feature", "mean"],
            [[name, f"{value:.4g}"] for name, value in zip(result.names, result.total.mean, strict=True)],
        )
    if result.octaves is not None:
        typer.echo(f"octaves of {len(result.octaves)} features: see --json")
    typer.echo(facts["claim"])


def _rows(histogram: Histogram) -> list[list[str]]:
    """The bins from the first to the last that stand out from their noise."""
    loud = [k for k, count in enumerate(histogram.counts) if count > 2 * histogram.noise]
    if not loud:
        return [["(no bin stands out from the noise)", ""]]
    shown = range(loud[0], loud[-1] + 1)
    return [[f"{histogram.edges[k]:.4g}", str(histogram.counts[k])] for k in shown]
