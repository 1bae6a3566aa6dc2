"""Two figures of the report as inline SVG: sorted bars of loadings, and the correlation circle.

Both show the uncertainty that the noise leaves, unless it would be that of clipped records only.
"""

from collections.abc import Sequence

import numpy as np

from dpdpca_protocol.result.components import Floats
from dpdpca_user.results.figures import PLOT_HEIGHT, PLOT_WIDTH, escaped, labels, number
from dpdpca_user.results.moments import Moments

BAR_COMPONENTS = 3
BARS = 12
CIRCLE_FEATURES = 20

_TWO = 1.96
"""Deviations on either side that contain 95 %."""
_ELLIPSE = 2.45
"""Half-axes, in deviations, of the ellipse that contains 95 % of a normal pair."""
_WIDTH, _ROW, _NAME, _PAD = 720, 24, 190, 12
_RADIUS = 205
_LONGEST_NAME = 26


def loading_bars(moments: Moments) -> list[str]:
    """A chart for each of the first components above its noise edge: the largest loadings, sorted, with bars
    for twice their standard deviation."""
    loadings, deviations = moments.loadings()
    names = moments.components.space.names
    return [
        _bars(index + 1, names, loadings[index], deviations[index] if has_spreads(moments) else None)
        for index in range(min(len(loadings), BAR_COMPONENTS))
    ]


def has_spreads(moments: Moments) -> bool:
    """Whether the figures show standard deviations and ellipses."""
    return moments.clipping is None or not moments.clipping.forbids_intervals


def _bars(component: int, names: Sequence[str], loadings: Floats, deviations: Floats | None) -> str:
    largest = np.argsort(-np.abs(loadings), kind="stable")[:BARS]
    order = largest[np.argsort(-loadings[largest], kind="stable")]
    spreads = np.zeros_like(loadings) if deviations is None else _TWO * deviations
    reach = float((np.abs(loadings) + spreads)[order].max()) or 1.0
    middle = _NAME + (_WIDTH - _NAME - _PAD) / 2
    unit = (_WIDTH - _NAME - _PAD) / 2 / reach
    rows = []
    for row, feature in enumerate(order):
        value, spread = float(loadings[feature]), float(spreads[feature])
        y = _ROW * row + _ROW / 2
        left, right = sorted((middle, middle + unit * value))
        told, line = number(value), ""
        if deviations is not None:
            told = f"{told} ± {number(float(deviations[feature]))}"
            low, high = middle + unit * (value - spread), middle + unit * (value + spread)
            line = f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'
        rows.append(
            f"<g><title>{escaped(names[feature])}: {told}</title>"
            f'<text class="tick" x="{_NAME - 8}" y="{y + 4}" text-anchor="end">'
            f"{escaped(names[feature], _LONGEST_NAME)}</text>"
            f'<rect class="{"plus" if value >= 0 else "minus"}" x="{left:.1f}" y="{y - 7:.1f}"'
            f' width="{right - left:.1f}" height="14"/>{line}</g>'
        )
    height = _ROW * len(order)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Loadings of component {component}">'
        f'<line class="grid" x1="{middle}" x2="{middle}" y1="0" y2="{height}"/>{"".join(rows)}</svg>'
    )


def correlation_circle(moments: Moments) -> str:
    """The correlations of features with the first two components, each with the ellipse that contains it with
    95 %, if `has_spreads`; empty unless two components are above their noise edges."""
    known = np.flatnonzero(moments.known_variances)
    correlations, deviations = moments.correlations_with_components()
    if len(correlations) < 2 or not len(known):
        return ""
    points, spreads = correlations[:2, known], deviations[:2, known]
    order = np.argsort(-np.hypot(*points), kind="stable")[:CIRCLE_FEATURES]
    x0, y0 = PLOT_WIDTH / 2, PLOT_HEIGHT / 2
    heads = np.column_stack([x0 + _RADIUS * points[0], y0 - _RADIUS * points[1]])
    axes = _RADIUS * _ELLIPSE * spreads
    names = [moments.components.space.names[feature] for feature in known]

    def cloud(index: int) -> str:
        return (
            f'<ellipse class="cloud" cx="{heads[index, 0]:.1f}" cy="{heads[index, 1]:.1f}"'
            f' rx="{axes[0, index]:.1f}" ry="{axes[1, index]:.1f}"/>'
        )

    arrows = "".join(
        f"<g><title>{escaped(names[index])}: {number(float(points[0, index]))} and"
        f" {number(float(points[1, index]))}</title>"
        f"{cloud(index) if has_spreads(moments) else ''}"
        f'<line class="arrow" x1="{x0}" y1="{y0}" x2="{heads[index, 0]:.1f}" y2="{heads[index, 1]:.1f}"/></g>'
        for index in order
    )
    return (
        f'<svg viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" role="img" aria-label="Correlation circle">'
        f'<circle class="grid" cx="{x0}" cy="{y0}" r="{_RADIUS}" fill="none"/>'
        f'<line class="grid" x1="{x0 - _RADIUS}" x2="{x0 + _RADIUS}" y1="{y0}" y2="{y0}"/>'
        f'<line class="grid" y1="{y0 - _RADIUS}" y2="{y0 + _RADIUS}" x1="{x0}" x2="{x0}"/>{arrows}'
        f'<text class="tick" x="{x0}" y="{PLOT_HEIGHT - 4}" text-anchor="middle">→ component 1</text>'
        f'<text class="tick" x="14" y="{y0}" text-anchor="middle" transform="rotate(-90 14 {y0})">'
        f"→ component 2</text>{labels([int(index) for index in order], heads, names)}</svg>"
    )
