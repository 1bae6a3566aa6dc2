"""Plots: ours and published noise solid, methods without a guarantee dashed, bounds thin and grey."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpdpca_lab.papers.declared import Experiment
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.tables import Row, epsilon_words

_COLOURS = {
    Family.OURS: ("#08306b", "#2171b5", "#41ab5d", "#006d2c", "#54278f", "#6baed6"),
    Family.PUBLISHED: ("#d94801", "#a63603", "#fd8d3c", "#7f2704", "#e6a700", "#8c6d1f"),
    Family.NO_GUARANTEE: ("#b30000", "#c51b8a", "#e34a33", "#7a0177"),
    Family.BOUND: ("#999999",),
}
_MARKERS = "osD^vPX*"
_GREY_STYLES = ("-", ":", "-.", "--")


def save(experiment: Experiment, rows: Sequence[Row], svg: Path, png: Path) -> None:
    """Draw the experiment's measure over its axis, one picture for each panel, and write both files.

    The same rows give the same SVG, byte for byte.
    """
    with matplotlib.rc_context({"svg.hashsalt": experiment.name, "svg.fonttype": "none", "font.size": 9}):
        figure = _figure(experiment, [row for row in rows if row.measure == experiment.plot.measure])
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # it stays as it is: a second layout would take a second
        figure.savefig(png, dpi=120)


def _figure(experiment: Experiment, rows: Sequence[Row]) -> Figure:
    panels = list(dict.fromkeys(row.panel for row in rows))
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(1.5 + 4.2 * across, 1.9 + 3.0 * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    looks = _looks(rows)
    for panel, picture in zip(panels, axes, strict=False):
        _draw(picture, experiment, [row for row in rows if row.panel == panel], looks)
        picture.set_title(panel, fontsize=9)
    for unused in axes[len(panels) :]:
        unused.set_axis_off()
    entries = dict[str, Artist]()
    for picture in figure.axes:
        for handle, label in zip(*picture.get_legend_handles_labels(), strict=True):
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


def _looks(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    """The number of each line, and that in its family: the same in all pictures."""
    counts, looks = dict.fromkeys(Family, 0), dict[str, tuple[int, int]]()
    for row in rows:
        if row.line not in looks:
            looks[row.line] = (len(looks), counts[row.family])
            counts[row.family] += 1
    return looks


def _draw(
    picture: Axes, experiment: Experiment, rows: Sequence[Row], looks: dict[str, tuple[int, int]]
) -> None:
    plot = experiment.plot
    shown = [row for row in rows if not plot.only or row.x in plot.only]
    texts = [str(x) for x in dict.fromkeys(row.x for row in shown) if isinstance(x, str)]
    for name in dict.fromkeys(row.line for row in shown):
        number, place = looks[name]
        mine = [row for row in shown if row.line == name]
        family = mine[0].family
        places = [texts.index(row.x) if isinstance(row.x, str) else row.x for row in mine]
        means = [row.mean for row in mine]
        style: dict[str, Any] = {"linestyle": _style(family, place)}
        if texts or len(mine) == 1:
            style = {"linestyle": "none", "marker": _MARKERS[number % len(_MARKERS)]}
        colours = _COLOURS[family]
        grey = family is Family.BOUND
        picture.errorbar(
            places,
            means,
            yerr=None if all(row.repetitions == 1 for row in mine) else [row.sd for row in mine],
            label=_legend(mine),
            color=colours[place % len(colours)],
            linewidth=0.8 if grey else 1.4,
            elinewidth=0.6,
            capsize=2,
            **style,
        )
    if texts:
        picture.set_xticks(range(len(texts)), texts)
        picture.margins(x=0.2)
    if plot.log_x:
        picture.set_xscale("log")
    if plot.log_y:
        picture.set_yscale("log")
    picture.set_xlabel(experiment.axis.label)
    picture.set_ylabel(plot.label)
    picture.grid(visible=True, linewidth=0.3, alpha=0.5)


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
