"""The figures of the report as inline SVG: a scree plot with the noise edge, and a biplot of the loadings.

Every text from outside is passed through `escaped`. Colours are CSS variables of the report's page.
"""

from collections.abc import Sequence
from html import escape, unescape

import numpy as np

from dpdpca_protocol.result.components import BELOW_THE_EDGE, Components, Floats

SCREE_COMPONENTS = 30
BIPLOT_LABELS = 14

_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 18, 44
PLOT_WIDTH, PLOT_HEIGHT, _REACH = 720, 480, 205
_LETTER, _LINE = 6.6, 14
_SHORTEST_NAMED = 0.05


def escaped(text: str, limit: int = 80) -> str:
    """`text` made harmless for HTML and SVG: printable, at most `limit` characters, with markup escaped."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return escape(printable if len(printable) <= limit else printable[: limit - 1] + "…", quote=True)


def number(value: float) -> str:
    """Three significant digits, with an exponent only where it is shorter."""
    return f"{value:.3g}"


def scree_plot(components: Components) -> str:
    """Plot the released eigenvalues, the part of each that is signal, and the noise edge."""
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
    """Draw the direction of each feature in the plane of the first two components; empty if there is only
    one.

    Arrow lengths are loadings times the square root of the variance that the component captures. For a
    component below the noise, the released eigenvalue is used instead.
    """
    if components.component_count < 2:
        return ""
    spread = np.where(
        components.captured[:2] > 0, components.captured[:2], np.abs(components.eigenvalues[:2])
    )
    ends = (components.vectors[:2] * np.sqrt(spread)[:, None]).T
    reach = float(np.abs(ends).max())
    ends = ends / reach if reach > 0 else ends
    x0, y0 = PLOT_WIDTH / 2, PLOT_HEIGHT / 2
    heads = np.column_stack([x0 + _REACH * ends[:, 0], y0 - _REACH * ends[:, 1]])
    order = np.argsort(-np.hypot(ends[:, 0], ends[:, 1]), kind="stable")
    arrows = "".join(
        f'<line class="arrow" x1="{x0}" y1="{y0}" x2="{x:.1f}" y2="{y:.1f}" marker-end="url(#head)"/>'
        for x, y in heads[order[:200]]
    )
    named = [
        int(index)
        for index in order[:BIPLOT_LABELS]
        if np.hypot(ends[index, 0], ends[index, 1]) >= _SHORTEST_NAMED
    ]
    low, high = y0 - _REACH - 10, y0 + _REACH + 10
    axes = (
        f'<line class="grid" x1="{x0 - _REACH - 10}" x2="{x0 + _REACH + 10}" y1="{y0}" y2="{y0}"/>'
        f'<line class="grid" y1="{low}" y2="{high}" x1="{x0}" x2="{x0}"/>'
        f'<text class="tick" x="{x0}" y="{PLOT_HEIGHT - 4}" text-anchor="middle">'
        f"→ component 1{_warning(components, 0)}</text>"
        f'<text class="tick" x="14" y="{y0}" text-anchor="middle" transform="rotate(-90 14 {y0})">'
        f"→ component 2{_warning(components, 1)}</text>"
    )
    return (
        f'<svg viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" role="img"'
        ' aria-label="Biplot of components 1 and 2">'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6"'
        ' orient="auto"><path class="head" d="M0,0L8,4L0,8z"/></marker></defs>'
        f"{axes}{arrows}{labels(named, heads, components.space.names)}</svg>"
    )


def _warning(components: Components, index: int) -> str:
    return f" ({BELOW_THE_EDGE})" if components.label(index) else ""


def labels(order: Sequence[int], heads: Floats, names: Sequence[str]) -> str:
    """Names beside the arrow heads, longest arrow first; a name that would cover another is moved."""
    taken: list[tuple[float, float, float]] = []
    texts = []
    for index in order:
        name = escaped(names[index], 24)
        x, y = (float(value) for value in heads[index])
        right = x >= PLOT_WIDTH / 2
        width = _LETTER * len(unescape(name))
        left = x + 7 if right else x - 7 - width
        steps = (sign * step for step in range(0, 12 * _LINE, _LINE // 2) for sign in (1, -1))
        place = next((y + step for step in steps if _is_free(taken, left, width, y + step)), y)
        taken.append((left, left + width, place))
        if abs(place - y) > _LINE:
            texts.append(
                f'<line class="leader" x1="{x:.1f}" y1="{y:.1f}" x2="{x + (5 if right else -5):.1f}"'
                f' y2="{place:.1f}"/>'
            )
        texts.append(
            f'<text class="name" x="{x + (7 if right else -7):.1f}" y="{place + 4:.1f}"'
            f' text-anchor="{"start" if right else "end"}">{name}</text>'
        )
    return "".join(texts)


def _is_free(taken: Sequence[tuple[float, float, float]], left: float, width: float, place: float) -> bool:
    return not any(
        left < other_right and other_left < left + width and abs(place - other) < _LINE
        for other_left, other_right, other in taken
    )


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
