"""The report's drawings, as inline SVG text: scree plot with the noise edge, and biplot of the loadings.

Every text that comes from outside goes through `escaped`. Colours are CSS variables of the report's page.
"""

from collections.abc import Sequence
from html import escape

import numpy as np

from dpdpca_protocol.components import BELOW_THE_EDGE, Components, Floats

SCREE_COMPONENTS = 30
BIPLOT_LABELS = 14

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 18, 44
_SIDE, _RIM = 520, 110


def escaped(text: str, limit: int = 80) -> str:
    """`text` inert in HTML and SVG: printable, at most `limit` characters, markup and quotes escaped."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return escape(printable if len(printable) <= limit else printable[: limit - 1] + "…", quote=True)


def number(value: float) -> str:
    """Three significant digits, plain where that is short."""
    return f"{value:.3g}"


def scree_plot(components: Components) -> str:
    """Eigenvalues as released, the part of each that is signal, and the edge that noise alone reaches."""
    shown = min(components.component_count, SCREE_COMPONENTS)
    values, edges = components.eigenvalues[:shown], components.noise_edges[:shown]
    captured = components.captured[:shown]
    top = 1.08 * max(float(values.max()), float(edges.max()), 1e-300)
    bottom = min(1.08 * float(values.min()), 0.0)

    def at(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (top - value) / (top - bottom)

    step = (_WIDTH - _LEFT - _RIGHT) / shown
    bars, path = [], []
    for index in range(shown):
        left = _LEFT + index * step
        value, signal = float(values[index]), float(captured[index])
        label = components.label(index)
        title = f"component {index + 1}: {number(value)} released, {number(signal)} captured" + (
            f"; {label}" if label else ""
        )
        bars.append(
            f"<g><title>{title}</title>"
            + _bar(left + 0.15 * step, 0.7 * step, at(max(value, 0)), at(min(value, 0)), "noisy")
            + _bar(left + 0.15 * step, 0.7 * step, at(signal), at(0), "signal")
            + "</g>"
        )
        y = at(float(edges[index]))
        path.append(f"{'M' if index == 0 else 'L'}{left:.1f},{y:.1f}L{left + step:.1f},{y:.1f}")
    axis = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at(tick):.1f}" y2="{at(tick):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{at(tick) + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        for tick in _ticks(bottom, top)
    )
    every = max(1, -(-shown // 15))
    numbers = "".join(
        f'<text class="tick" x="{_LEFT + (index + 0.5) * step:.1f}" y="{_HEIGHT - _BOTTOM + 18}"'
        f' text-anchor="middle">{index + 1}</text>'
        for index in range(0, shown, every)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Scree plot with the noise edge">'
        f"{axis}{''.join(bars)}"
        f'<path class="edge" d="{"".join(path)}"/>'
        f'<text class="edge-label" x="{_WIDTH - _RIGHT - 4}" y="{at(float(edges[-1])) - 6:.1f}"'
        f' text-anchor="end">noise edge</text>{numbers}'
        f'<text class="tick" x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 6}"'
        ' text-anchor="middle">component</text></svg>'
    )


def biplot(components: Components) -> str:
    """Where each feature points in the plane of the first two components; empty if there is only one.

    Arrow lengths are loadings times the square root of what the component captures (of what was released,
    where nothing stands above the noise).
    """
    if components.component_count < 2:
        return ""
    spread = np.where(
        components.captured[:2] > 0, components.captured[:2], np.abs(components.eigenvalues[:2])
    )
    ends = (components.vectors[:2] * np.sqrt(spread)[:, None]).T
    reach = float(np.abs(ends).max())
    ends = ends / reach if reach > 0 else ends
    middle, radius = _SIDE / 2, _SIDE / 2 - _RIM
    lengths = np.hypot(ends[:, 0], ends[:, 1])
    arrows = "".join(
        f'<line class="arrow" x1="{middle}" y1="{middle}" x2="{middle + radius * x:.1f}"'
        f' y2="{middle - radius * y:.1f}" marker-end="url(#head)"/>'
        for x, y in ends[np.argsort(-lengths, kind="stable")[:200]]
    )
    labelled = np.argsort(-lengths, kind="stable")[:BIPLOT_LABELS]
    labels = _labels(labelled.tolist(), ends, components.space.names, middle, radius)
    axes = (
        f'<line class="grid" x1="{_RIM / 2}" x2="{_SIDE - _RIM / 2}" y1="{middle}" y2="{middle}"/>'
        f'<line class="grid" y1="{_RIM / 2}" y2="{_SIDE - _RIM / 2}" x1="{middle}" x2="{middle}"/>'
        f'<text class="tick" x="{middle}" y="{_SIDE - 8}" text-anchor="middle">'
        f"component 1{_warning(components, 0)}</text>"
        f'<text class="tick" x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"component 2{_warning(components, 1)}</text>"
    )
    return (
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" role="img" aria-label="Biplot of components 1 and 2">'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6"'
        ' orient="auto"><path class="head" d="M0,0L8,4L0,8z"/></marker></defs>'
        f"{axes}{arrows}{labels}</svg>"
    )


def _warning(components: Components, index: int) -> str:
    return f" ({BELOW_THE_EDGE})" if components.label(index) else ""


def _labels(order: Sequence[int], ends: Floats, names: Sequence[str], middle: float, radius: float) -> str:
    """Names beside the arrow heads, moved down where they would cover one another."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    texts = []
    for index in sorted(order, key=lambda feature: -float(ends[feature, 1])):
        x, y = float(ends[index, 0]), float(ends[index, 1])
        right = x >= 0
        place = middle - radius * y + 4
        while any(abs(place - other) < 13 for other in taken[right]):
            place += 3
        taken[right].append(place)
        texts.append(
            f'<text class="name" x="{middle + radius * x + (6 if right else -6):.1f}" y="{place:.1f}"'
            f' text-anchor="{"start" if right else "end"}">{escaped(names[index], 24)}</text>'
        )
    return "".join(texts)


def _bar(left: float, width: float, top: float, bottom: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}"'
        f' height="{max(bottom - top, 0):.1f}"/>'
    )


def _ticks(bottom: float, top: float) -> list[float]:
    span = top - bottom
    step = 10.0 ** np.floor(np.log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    first = int(np.ceil(bottom / step))
    return [float(index * step) for index in range(first, int(np.floor(top / step)) + 1)]
