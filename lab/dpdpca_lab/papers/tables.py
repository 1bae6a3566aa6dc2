"""What a run writes beside its plot: all points as CSV, a short table, and how it was run."""

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Self

from dpdpca_lab.papers.declared import Experiment, X
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.runner import Result

_MOST_COLUMNS = 7


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value of one method at one point.

    Attributes:
        mean, sd: over the repetitions; the deviation of a single draw is 0.
        claimed_epsilon, real_epsilon: None where they have no meaning; `real_epsilon` is infinite without any
            guarantee.
        note: why there are fewer repetitions than wanted, or none; empty if there are not.
    """

    panel: str
    line: str
    family: Family
    guarantee: str
    x: X
    measure: str
    mean: float
    sd: float
    repetitions: int
    claimed_epsilon: float | None
    real_epsilon: float | None
    note: str = ""

    @classmethod
    def of(cls, result: Result) -> list[Self]:
        found, cell = result.measured, result.cell
        return [
            cls(
                cell.panel.title,
                result.label,
                found.family,
                found.guarantee,
                x,
                name,
                statistics.fmean(here),
                statistics.stdev(here) if len(here) > 1 else 0.0,
                len(here),
                found.claimed,
                found.real,
                found.note,
            )
            for name, values in found.values.items()
            for x, here in _by_place(values, found.at.get(name, ()), cell.x).items()
        ]


def _by_place(values: Sequence[float], at: Sequence[float], otherwise: X) -> dict[X, list[float]]:
    places: Sequence[X] = at or [otherwise] * len(values)
    found: dict[X, list[float]] = {}
    for place, value in zip(places, values, strict=True):
        found.setdefault(place, []).append(value)
    return found


def rows_of(results: Iterable[Result]) -> list[Row]:
    return [row for result in results for row in Row.of(result)]


def as_csv(rows: Sequence[Row]) -> str:
    """All rows. Measured values have six digits; an infinite ε is `inf`. Notes have a column if any."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [name for name in Row.__dataclass_fields__ if name != "note" or any(row.note for row in rows)]
    writer.writerow(names)
    for row in rows:
        body = asdict(row)
        writer.writerow([_cell(body[name], 12 if name == "x" else 6) for name in names])
    return text.getvalue()


def from_csv(text: str) -> list[Row]:
    """The rows of `as_csv`.

    Raises:
        KeyError, ValueError: this is no such text.
    """
    return [
        Row(
            entry["panel"],
            entry["line"],
            Family(entry["family"]),
            entry["guarantee"],
            _number_or_text(entry["x"]),
            entry["measure"],
            float(entry["mean"]),
            float(entry["sd"]),
            int(entry["repetitions"]),
            float(entry["claimed_epsilon"]) if entry["claimed_epsilon"] else None,
            float(entry["real_epsilon"]) if entry["real_epsilon"] else None,
            entry.get("note", ""),
        )
        for entry in csv.DictReader(io.StringIO(text))
    ]


def as_markdown(experiment: Experiment, rows: Sequence[Row], left_out: Sequence[str] = ()) -> str:
    """Each drawn measure: a table for each panel, a row for each line, at most seven values of the axis.

    Tables of the other measures that the plot names follow.

    Args:
        experiment: what was run.
        rows: what came out.
        left_out: names of lines that a quick run does not have.
    """
    parts: list[str] = []
    for picture in experiment.plot.pictures:
        drawn = _shown(rows, picture.measure)
        spread = "; mean ± standard deviation" if any(row.repetitions > 1 for row in drawn) else ""
        parts += ["", f"{picture.label}, by {experiment.axis.label}{spread}."]
        parts += _panels(experiment, drawn, picture.measure)
    for measure in experiment.plot.also:
        others = [row for row in rows if row.measure == measure]
        parts += ["", f"{measure.capitalize()}:", *_panels(experiment, others, measure)]
    if left_out:
        parts += ["", f"Not in a quick run: {', '.join(left_out)}."]
    return "\n".join(parts[1:]) + "\n"


def facts(experiment: Experiment, results: Sequence[Result], quick: bool) -> dict[str, Any]:
    """How it was run: command, version, processor time, and the size and origin of each table."""
    panels = {
        result.cell.panel.title: dict(result.measured.facts)
        for result in results
        if result.measured.facts is not None
    }
    return {
        "experiment": experiment.name,
        "command": f"dpdpca experiments run {experiment.name}{' --quick' if quick else ''}",
        "version": version("dpdpca"),
        "numpy": version("numpy"),
        "quick": quick,
        "cpu_minutes": round(sum(result.measured.seconds for result in results) / 60, 2),
        "panels": panels,
    }


def as_json(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def epsilon_words(rows: Sequence[Row]) -> str:
    """The real ε of a line, over its points, for people."""
    pairs = [
        (row.real_epsilon, row.claimed_epsilon)
        for row in rows
        if row.real_epsilon is not None and row.claimed_epsilon
    ]
    if not pairs:
        return "–"
    if any(math.isinf(real) for real, _ in pairs):
        return "none"
    ratios = [real / claimed for real, claimed in pairs]
    least, most = min(ratios), max(ratios)
    if least == most == 1:
        return "as claimed"
    if most < 0.01:
        return "below 0.01 × claimed"
    if f"{least:.2g}" == f"{most:.2g}":
        return f"{most:.2g} × claimed"
    return f"{least:.2g} to {most:.2g} × claimed"


def _panels(experiment: Experiment, rows: Sequence[Row], measure: str) -> list[str]:
    parts: list[str] = []
    for panel in dict.fromkeys(row.panel for row in rows):
        inside = [row for row in rows if row.panel == panel]
        columns = _columns(experiment, list(dict.fromkeys(row.x for row in inside)))
        parts += ["", f"**{panel}**", "", *_table(columns, inside, measure)]
    return parts


def _shown(rows: Sequence[Row], measure: str) -> list[Row]:
    """The rows of a measure, and one row with a note for each point that has none."""
    chosen: dict[tuple[str, str, X], Row] = {}
    for row in rows:
        place = (row.panel, row.line, row.x)
        if row.measure == measure or (row.note and place not in chosen):
            chosen[place] = row
    return list(chosen.values())


def _columns(experiment: Experiment, values: list[X]) -> list[X]:
    wanted = [x for x in values if x in experiment.plot.in_table] or values
    if len(wanted) <= _MOST_COLUMNS:
        return wanted
    last = len(wanted) - 1
    return [wanted[round(step * last / (_MOST_COLUMNS - 1))] for step in range(_MOST_COLUMNS)]


def _table(columns: Sequence[X], rows: Sequence[Row], measure: str) -> list[str]:
    has_guarantees = any(row.guarantee for row in rows)
    heads = ["line", *(("guarantee", "real ε") if has_guarantees else ()), *map(_text, columns)]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name in dict.fromkeys(row.line for row in rows):
        mine = [row for row in rows if row.line == name]
        at = {row.x: _value(row, measure) for row in mine}
        about = (mine[0].guarantee or "–", epsilon_words(mine)) if has_guarantees else ()
        lines.append(f"| {' | '.join([name, *about, *(at.get(x, '–') for x in columns)])} |")
    return lines


def _value(row: Row, measure: str) -> str:
    if row.measure != measure:
        return row.note
    return f"{_with_spread(row)} ({row.note})" if row.note else _with_spread(row)


def _with_spread(row: Row) -> str:
    mean = _text(row.mean)
    return mean if row.repetitions == 1 else f"{mean} ± {row.sd:.1g}"


def _text(value: X) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def _cell(value: object, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _number_or_text(text: str) -> X:
    try:
        return float(text)
    except ValueError:
        return text
