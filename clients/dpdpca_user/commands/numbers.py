"""Shows the numbers of a pre-study or a sketch on a terminal."""

from typing import Any

import typer

from dpdpca_user.commands.parts import show_table
from dpdpca_user.planning.prestudy import Histogram, PreStudyResult
from dpdpca_user.results.wide.sketch import SketchReading


def show_numbers(facts: dict[str, Any]) -> None:
    """Print the answer of `GET /v1/studies/{id}/result`."""
    result = PreStudyResult.parse(facts)
    typer.echo(f"{facts['title']}: {result.records:,} records, {result.encoded_features} encoded features")
    for name, histogram in (
        ("norms of records", result.norms),
        ("norms of differences divided by √2", result.pair_norms),
    ):
        if histogram is not None:
            show_table(
                f"{name}, in scaled units; noise of each count: ± {histogram.noise:.3g}",
                ["up to", "count"],
                _rows(histogram),
            )
    if result.total is not None:
        show_table(
            f"mean of records, shortened to {result.total.clip_norm:.3g}, relative to the public centre, in"
            f" scaled units; noise: ± {result.total.noise:.3g}",
            ["feature", "mean"],
            [[name, f"{value:.4g}"] for name, value in zip(result.names, result.total.mean, strict=True)],
        )
    if result.octaves is not None:
        typer.echo(f"{len(result.octaves)} features have histograms of differences: --json prints them")
    if (far := result.far_pairs) is not None:
        typer.echo(
            f"far pairs: {far.count:,} ± {far.noise:.3g} of about {result.records // 2:,}. In these pairs,"
            " the records are closer to each other than, on average, to the public centre"
        )
    if result.sketch is not None:
        _show_sketch(result.sketch.reading)
    typer.echo(facts["claim"])


def _show_sketch(reading: SketchReading) -> None:
    shown = max(reading.seen_count, 1)
    show_table(
        f"the leading of {reading.rows} directions, as shares of all variance",
        ["#", "share", "can be told from noise above"],
        [
            [str(index), f"{height:.2%}", f"{width:.2%}"]
            for index, (height, width) in enumerate(
                zip(
                    reading.heights[:shown] / reading.trace,
                    reading.widths[:shown] / reading.trace,
                    strict=True,
                ),
                1,
            )
        ],
    )
    typer.echo(f"{reading.seen_count} directions cannot be noise")


def _rows(histogram: Histogram) -> list[list[str]]:
    """The bins from the first to the last whose count is clearly above its noise."""
    loud = [k for k, count in enumerate(histogram.counts) if count > 2 * histogram.noise]
    if not loud:
        return [["(no count is clearly above the noise)", ""]]
    shown = range(loud[0], loud[-1] + 1)
    return [[f"{histogram.edges[k]:.4g}", str(histogram.counts[k])] for k in shown]
