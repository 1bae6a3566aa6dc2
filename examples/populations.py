"""A plot of people by their first two components, with a colour for each population.

Each biobank makes the scores of its own people with `dpdpca owner transform`. SCORES is that file, and
POPULATIONS has the column `population`, one row for each person in the same order. Scores are as sensitive as
the records: a biobank plots its own people, and shows nobody else's. It needs the extra `lab` for matplotlib.

Run: python examples/populations.py PLOT.svg SCORES.csv POPULATIONS.csv [SCORES.csv POPULATIONS.csv …]
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure


def main(plot: str, *tables: str) -> None:
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for scores, populations in zip(tables[::2], tables[1::2], strict=True):
        with Path(scores).open(newline="") as rows, Path(populations).open(newline="") as labels:
            for row, label in zip(csv.DictReader(rows), csv.DictReader(labels), strict=True):
                first, second, *_ = row.values()
                points[label["population"]].append((float(first), float(second)))
    rcParams["svg.hashsalt"] = "populations"  # the same picture for the same points
    figure = Figure(figsize=(6, 4.5))
    axes = figure.subplots()
    for name, found in sorted(points.items()):
        axes.scatter(*zip(*found, strict=True), s=5, label=f"{name} ({len(found)})", rasterized=True)
    axes.set_xlabel("component 1")
    axes.set_ylabel("component 2")
    axes.legend(markerscale=3, frameon=False)
    figure.tight_layout()
    figure.savefig(plot, dpi=110, metadata={"Date": None} if plot.endswith(".svg") else None)
    for name, found in sorted(points.items()):
        middle = [sum(each) / len(found) for each in zip(*found, strict=True)]
        print(f"{name}: {len(found)} people, about ({middle[0]:.1f}, {middle[1]:.1f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
