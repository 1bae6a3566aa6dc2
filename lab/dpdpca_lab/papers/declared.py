"""What an experiment declares: data, preprocessing, methods, grid, measure and plot.

Each experiment is one TOML file in this folder, with the name of the experiment.
"""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dpdpca_protocol.errors import IntegrityError

X = float | str
Option = float | str | bool
Delta = float | Literal["0.9/n", "1/n^2"]


class _Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Terms(_Declared):
    """Privacy terms. A line's terms take the place of a panel's, and these that of the experiment's.

    Attributes:
        epsilon: ε; the axis may vary it instead.
        delta: δ as a number, as "0.9/n" or as "1/n^2".
        k: number of components.
    """

    epsilon: float | None = None
    delta: Delta | None = None
    k: int | None = None


class Axis(_Declared):
    """The grid: what varies, its values, and the values of a quick run.

    Attributes:
        name: `epsilon` and `records` change the terms and the number of records; a formula and a table get
            the value as it is. With `curve`, one cell gives the values at all points of the grid.
    """

    name: Literal["epsilon", "records", "value", "curve"]
    label: str
    values: tuple[X, ...]
    quick: tuple[X, ...]


class Panel(_Declared):
    """One picture of the plot: a data set and how it is prepared.

    Attributes:
        data: a set of `dpdpca_lab.papers.prepared`; empty for formulas.
        prepare: a recipe there.
        k, delta: see `Terms`.
        records: how many records to take, by a fixed shuffle; None for all.
        epsilon_times: ε of this panel over the ε on the axis; above 1 to have the noise of a larger table.
        only: the values of the axis that this panel has; all if empty.
        options: read by the measure.
    """

    title: str
    data: str = ""
    prepare: str = "largest-norm"
    k: int | None = None
    delta: Delta | None = None
    records: int | None = None
    epsilon_times: float = 1.0
    only: tuple[X, ...] = ()
    options: dict[str, Option] = {}


class Line(_Declared):
    """One line of the plot: a method.

    Attributes:
        label: in legends and tables; by default that of the method.
        quick: whether a quick run has it. Lines of other libraries are not in it.
        repetitions: instead of those of the experiment.
        only: the values of the axis that this line has; all if empty.
        options: read by the method.
    """

    method: str
    label: str | None = None
    quick: bool = True
    terms: Terms = Terms()
    repetitions: int | None = None
    only: tuple[X, ...] = ()
    options: dict[str, Option] = {}


class Picture(_Declared):
    """What one picture shows of a panel.

    Attributes:
        measure: which of the measured values is drawn.
        band: two measures, with the area between them drawn; none if empty.
    """

    measure: str
    label: str
    log_x: bool = False
    log_y: bool = False
    band: tuple[str, str] | None = None


class Plot(Picture):
    """The plot.

    Attributes:
        kind: `clouds` draws every measure as points of its own colour, but `measure`, which is for the table.
        over: the labels of both axes of clouds.
        beside: a second picture of each panel.
        also: other measures that the page shows, each in a table of its own.
        only: values of the axis that are drawn; all if empty.
        in_table: values of the axis that the short table shows; at most seven in equal steps if empty.
    """

    kind: Literal["lines", "clouds"] = "lines"
    over: tuple[str, str] = ("", "")
    beside: Picture | None = None
    also: tuple[str, ...] = ()
    only: tuple[X, ...] = ()
    in_table: tuple[X, ...] = ()

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return (self,) if self.beside is None else (self, self.beside)


class Verdict(_Declared):
    """What a full run showed. `open` until there is one; `compared` where no paper has values."""

    result: Literal["open", "agrees", "differs", "cannot be", "compared"] = "open"
    because: str = ""


class Experiment(_Declared):
    """One figure or table of a paper, or a comparison with peers.

    Attributes:
        group: the experiments that one word runs.
        paper, item: for people.
        shows: what the experiment is about, in a few words.
        reported: what the paper shows.
        ran: what we ran: preprocessing, seeds, and cuts.
        measure: one of `dpdpca_lab.papers.measures`.
        repetitions: draws for each point.
    """

    name: str
    group: Literal["papers", "peers"] = "papers"
    paper: str
    item: str
    shows: str
    reported: str
    ran: tuple[str, ...]
    measure: str
    repetitions: int = 1
    terms: Terms = Terms()
    axis: Axis
    panels: tuple[Panel, ...]
    lines: tuple[Line, ...]
    plot: Plot
    verdict: Verdict = Verdict()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        titles = [panel.title for panel in self.panels]
        if len(set(titles)) != len(titles) or not titles or not self.lines:
            raise ValueError("there must be panels with different titles, and lines")
        return self


@cache
def experiments() -> tuple[Experiment, ...]:
    """All experiments, in the order of their names.

    Raises:
        IntegrityError: a file does not declare an experiment.
    """
    found = [
        parse(entry.read_text(encoding="utf-8"), entry.name)
        for entry in files(__package__).iterdir()
        if entry.name.endswith(".toml")
    ]
    return tuple(sorted(found, key=lambda experiment: experiment.name))


def parse(text: str, file: str) -> Experiment:
    """The experiment that this file declares.

    Raises:
        IntegrityError: the file does not declare an experiment with its own name.
    """
    try:
        declared = Experiment.model_validate(tomllib.loads(text))
    except (ValidationError, tomllib.TOMLDecodeError) as error:
        raise IntegrityError("state-corrupt", f"{file} declares no experiment: {error}") from error
    if file != f"{declared.name}.toml":
        raise IntegrityError("state-corrupt", f"{file} declares an experiment with another name")
    return declared
