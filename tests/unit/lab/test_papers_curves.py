"""Experiments whose cells give whole curves or clouds: their points, tables, pictures, and what is kept."""

from pathlib import Path

import numpy as np
import pytest

from dpdpca_lab.papers import plots, tables
from dpdpca_lab.papers.cells import cells_of
from dpdpca_lab.papers.chains import traced
from dpdpca_lab.papers.declared import Axis, Experiment, Line, Panel, Picture, Plot, Terms
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.prepared import problem
from dpdpca_lab.papers.runner import key, run
from dpdpca_protocol.errors import UsageError

TRACES = Experiment(
    name="traces",
    paper="nobody",
    item="Figure 0",
    shows="nothing",
    reported="nothing",
    ran=(),
    measure="chain-trace",
    repetitions=3,
    terms=Terms(epsilon=0.5, k=2),
    axis=Axis(name="curve", label="sweeps", values=(1, 2, 4), quick=(1, 2)),
    panels=(Panel(title="synthetic", data="css13-normal", records=300),),
    lines=(
        Line(method="columns-uniform"),
        Line(method="columns-leading", options={"most": 2}, repetitions=1),
        Line(method="signs"),
        Line(method="optimum"),
    ),
    plot=Plot(measure="F", label="F", log_x=True, beside=Picture(measure="energy", label="energy")),
)


def test_one_cell_gives_a_curve_and_keeps_it(tmp_path: Path) -> None:
    cells = cells_of(TRACES, quick=False)
    assert [(cell.x, cell.grid) for cell in cells] == [(4, (1, 2, 4))] * 4
    first = run(TRACES, None, tmp_path)
    assert run(TRACES, None, tmp_path) == first
    rows = tables.rows_of(first)
    counts = {(row.line, row.measure, row.x): row.repetitions for row in rows}
    uniform, leading = "columns, from uniform starts", "columns, from V_k"
    for x in (1.0, 2.0, 4.0):
        assert counts[uniform, "F", x] == counts[uniform, "energy", x] == 3
        assert ((leading, "F", x) in counts) == (x <= 2)
    assert [row.mean for row in rows if row.family is Family.BOUND and row.measure == "F"] == pytest.approx(
        [1, 2**-0.5, 0.5]
    )
    assert tables.from_csv(tables.as_csv(rows))[0].x == 1


def test_the_grid_of_a_curve_is_in_its_key() -> None:
    other = TRACES.model_copy(update={"axis": TRACES.axis.model_copy(update={"values": (1, 3, 4)})})
    assert key(cells_of(TRACES, False)[0], None) != key(cells_of(other, False)[0], None)


def test_both_pictures_have_tables_and_are_drawn(tmp_path: Path) -> None:
    rows = tables.rows_of(run(TRACES, None, tmp_path, quick=True))
    shown = tables.as_markdown(TRACES, rows)
    assert shown.count("**synthetic**") == 2
    assert "F, by sweeps" in shown
    assert "energy, by sweeps" in shown
    plots.save(TRACES, rows, tmp_path / "two.svg", tmp_path / "two.png")
    one = TRACES.model_copy(update={"plot": Plot(measure="F", label="F")})
    plots.save(one, rows, tmp_path / "one.svg", tmp_path / "one.png")
    texts = [(tmp_path / f"{name}.svg").read_text() for name in ("one", "two")]
    assert [text.count("synthetic</text>") for text in texts] == [1, 2]


def test_the_statistic_of_a_trace_has_its_expectation() -> None:
    """T F² is 1 on average. At most it spreads like χ² of one degree: a mean of 60 is above 2.6 or below 0.2
    with a probability below 10⁻⁹. It would be near 30 if the signs stayed.
    """
    table = problem(TRACES.panels[0], None, quick=False)
    found = traced("columns-uniform", table, 2, 0.5, [1, 30], 60)
    assert found["F"].shape == found["energy"].shape == (60, 2)
    assert found["F"][:, 0] == pytest.approx(1)
    assert 0.2 < found["T F²"][:, 1].mean() < 2.6
    assert (found["energy"] <= table.levels[:2].sum() + 1e-12).all()
    assert np.array_equal(traced("optimum", table, 2, 0.5, [7], 1)["energy"], [[table.levels[:2].sum()]])
    with pytest.raises(UsageError, match="signs"):
        traced("no", table, 2, 0.5, [1], 1)
