"""Plots: ours and published noise solid, methods without a guarantee dashed, bounds thin and grey."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpdpca_lab.papers.declared import Experiment, Picture
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.tables import Row, epsilon_words

_COLOURS = {
    Family.OURS: ("#08306b", "#2171b5", "#41ab5d", "#006d2c", "#54278f", "#6baed6"),
    Family.PUBLISHED: ("#d94801", "#a63603", "#fd8d3c", "#7f2704", "#e6a700", "#8c6d1f"),
    Family.NO_GUARANTEE: ("#b30000", "#c51b8a", "#e34a33", "#7a0177"),
    Family.BOUND: ("#999999",),
}
_MARKERS = "osD^vPX*"
_CLOUDS = ("#d94801", "#7a0177", "#2171b5", "#41ab5d", "#e6a700")
_GREY_STYLES = ("-", ":", "-.", "--")


def save(experiment: Experiment, rows: Sequence[Row], svg: Path, png: Path) -> None:
    """Draw what the experiment's plot declares over its axis, for each panel, and write both files.

    The same rows give the same SVG, byte for byte.
    """
    with matplotlib.rc_context({"svg.hashsalt": experiment.name, "svg.fonttype": "none", "font.size": 9}):
        figure = _figure(experiment, rows)
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # it stays as it is: a second layout would take a second
        figure.savefig(png, dpi=120)


def _figure(experiment: Experiment, rows: Sequence[Row]) -> Figure:
    panels = dict.fromkeys(row.panel for row in rows)
    wanted = [(panel, picture) for panel in panels for picture in experiment.plot.pictures]
    across = min(2, len(wanted))
    down = -(-len(wanted) // across)
    figure = Figure(figsize=(1.5 + 4.2 * across, 1.9 + 3.0 * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    looks = _looks(rows)
    for (panel, picture), place in zip(wanted, axes, strict=False):
        inside = [row for row in rows if row.panel == panel]
        labels = experiment.axis.label, picture.label
        if experiment.plot.kind == "clouds":
            labels = experiment.plot.over
            _draw_clouds(place, [row for row in inside if row.measure != picture.measure])
        else:
            _draw(place, experiment, picture, inside, looks)
        place.set_title(panel, fontsize=9)
        place.set_xlabel(labels[0])
        place.set_ylabel(labels[1])
        place.grid(visible=True, linewidth=0.3, alpha=0.5)
    for unused in axes[len(wanted) :]:
        unused.set_axis_off()
    entries = dict[str, Artist]()
    for place in figure.axes:
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=2,
        fontsize=7.5,
        frameon=False,
    )
    return figure


def _draw_clouds(place: Axes, rows: Sequence[Row]) -> None:
    for number, name in enumerate(dict.fromkeys(row.measure for row in rows)):
        mine = [row for row in rows if row.measure == name]
        place.plot(
            [row.x for row in mine],
            [row.mean for row in mine],
            linestyle="none",
            marker="o",
            markersize=2,
            color=_CLOUDS[number % len(_CLOUDS)],
            label=name,
        )


def _looks(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """The number of each line, and that in its family: the same in all pictures."""
    counts, looks = dict.fromkeys(Family, 0), dict[str, tuple[int, int]]()
    for row in rows:
        if row.line not in looks:
            looks[row.line] = (len(looks), counts[row.family])
            counts[row.family] += 1
    return looks


def _draw(
    place: Axes,
    experiment: Experiment,
    picture: Picture,
    rows: Sequence[Row],
    looks: dict[str, tuple[int, int]],
) -> None:
    plot = experiment.plot
    allowed = [row for row in rows if not plot.only or row.x in plot.only]
    shown = [row for row in allowed if row.measure == picture.measure]
    lengths = Counter(row.line for row in shown)
    texts = [str(x) for x in dict.fromkeys(row.x for row in shown) if isinstance(x, str)]
    for name in (each for each in dict.fromkeys(row.line for row in rows) if lengths[each]):
        number, rank = looks[name]
        mine = [row for row in shown if row.line == name]
        family = mine[0].family
        places = [texts.index(row.x) if isinstance(row.x, str) else row.x for row in mine]
        means = [row.mean for row in mine]
        style: dict[str, Any] = {"linestyle": _style(family, rank)}
        if texts or len(mine) == 1 or 4 * len(mine) < max(lengths.values()):  # points on others' lines
            style = {"linestyle": "none", "marker": _MARKERS[number % len(_MARKERS)]}
        colours = _COLOURS[family]
        colour, grey = colours[rank % len(colours)], family is Family.BOUND
        place.errorbar(
            places,
            means,
            yerr=None if all(row.repetitions == 1 for row in mine) else [row.sd for row in mine],
            label=_legend(mine),
            color=colour,
            linewidth=0.8 if grey else 1.4,
            elinewidth=0.6,
            capsize=2,
            **style,
        )
        if picture.band is not None:
            _draw_band(place, [row for row in allowed if row.line == name], picture.band, colour)
    if texts:
        place.set_xticks(range(len(texts)), texts)
        place.margins(x=0.2)
    if picture.log_x:
        place.set_xscale("log")
    if picture.log_y:
        place.set_yscale("log")


def _draw_band(place: Axes, rows: Sequence[Row], band: tuple[str, str], colour: str) -> None:
    """The area between two measures of one line, where it has them."""
    lower, upper = ([row for row in rows if row.measure == side] for side in band)
    if lower:
        ends = [row.mean for row in lower], [row.mean for row in upper]
        place.fill_between([row.x for row in lower], ends[0], ends[1], color=colour, alpha=0.2, linewidth=0)


def _style(family: Family, number: int) -> str:
    if family is Family.BOUND:
        return _GREY_STYLES[number % len(_GREY_STYLES)]
    return "--" if family is Family.NO_GUARANTEE else "-"


def _legend(rows: Sequence[Row]) -> str:
    """The name of a line, with the ε that it really gives where that is not the claim."""
    name, family = rows[0].line, rows[0].family
    if family is Family.NO_GUARANTEE:
        return f"{name}: no guarantee"
    words = epsilon_words(rows)
    return f"{name}: real ε {words}" if family is Family.PUBLISHED and words != "–" else name
