"""Shows the components of a study on a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

import typer

from dpdpca_user.commands.parts import show_table
from dpdpca_user.results.clipping import ClippingFigures

_CAPTURED = {"variance": "captured", "lower bound": "captured, at least"}
_ROWS, _FIRST = 20, 5


def show_components(facts: Mapping[str, Any]) -> None:
    """Print the answer of `GET /v1/models/{id}`."""
    clipping = _clipping_of(facts)
    rows = zip(
        facts["eigenvalues"], facts["noise_edges"], facts["captured_variance"], facts["labels"], strict=True
    )
    before = () if clipping is None or clipping.factor is None else (clipping.before,)
    show_table(
        f"{facts['title']}: {facts['records']:,} records, variances in {facts['metric']}",
        ["#", "released", "noise edge", _CAPTURED[facts["variance_kind"]], *before, ""],
        [
            [
                *(str(index + 1), f"{value:.4g}", f"{edge:.4g}", f"{captured:.4g}"),
                *(_before_clipping(clipping, index) for _ in before),
                label,
            ]
            for index, (value, edge, captured, label) in enumerate(list(rows)[:_ROWS])
        ],
    )
    for line in (
        *_total(facts, clipping),
        *_captured_share(facts, clipping),
        facts["not_included"],
        *facts["notes"],
        facts["claim"],
        *facts["privacy"]["statements"],
    ):
        typer.echo(line)


def _clipping_of(facts: Mapping[str, Any]) -> ClippingFigures | None:
    reliability = facts["reliability"]
    told = None if reliability is None else reliability["clipping"]
    return None if told is None else ClippingFigures.parse(told)


def _before_clipping(clipping: ClippingFigures | None, index: int) -> str:
    if clipping is None or index >= len(clipping.variances):
        return "–"
    return f"{clipping.variances[index]:.4g} ± {clipping.deviations[index]:.2g}"


def _total(facts: Mapping[str, Any], clipping: ClippingFigures | None) -> Iterator[str]:
    if clipping is None or clipping.total_variance is None:
        return
    released = facts["total_variance"], facts["reliability"]["total_variance_deviation"]
    whole = clipping.total_variance, clipping.total_variance_deviation
    yield (
        f"total variance: {released[0]:.4g} ± {released[1]:.2g} as released,"
        f" {whole[0]:.4g} ± {whole[1]:.2g} {clipping.before}"
    )


def _captured_share(facts: Mapping[str, Any], clipping: ClippingFigures | None) -> Iterator[str]:
    k = min(_FIRST, len(facts["captured_shares"]))
    is_bound = facts["captured_shares_are_bounds"][k - 1]
    if is_bound and clipping is not None and clipping.forbids_intervals:
        return
    yield (
        f"the first {k} components capture {'at least' if is_bound else 'about'}"
        f" {facts['captured_shares'][k - 1]:.0%} of the variance that the best {k} capture"
    )
