"""Experiments whose cells give whole curves or clouds: their points, tables, pictures, and what is kept."""

from pathlib import Path

import numpy as np
import pytest

from dpdpca_lab.central.asymptotic import RELATIONS
from dpdpca_lab.papers import plots, tables
from dpdpca_lab.papers.asymptotics import POPULATIONS, calibrated_beta, people, tradeoff_curve, worst_case
from dpdpca_lab.papers.cells import cells_of
from dpdpca_lab.papers.chains import traced
from dpdpca_lab.papers.declared import Axis, Experiment, Line, Panel, Picture, Plot, Terms, experiments
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.prepared import Problem, problem
from dpdpca_lab.papers.runner import key, run
from dpdpca_lab.reference_data import reference_folder
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


GENOMES = Panel(title="genomes", data="genomes", prepare="variable-sites")


def with_spectrum(levels: np.ndarray, n: int) -> Problem:
    """A table with these eigenvalues of the paper's Σ, and no rows that matter."""
    p = len(levels)
    return Problem(
        np.zeros((n, p)),
        np.zeros(n, dtype=np.int64),
        np.zeros(p),
        np.diag(levels * n / p),
        False,
        levels / p,
        np.eye(p),
        "made up",
        1.0,
    )


CHECK = with_spectrum(np.concatenate([[3.0, 2.0], np.linspace(0.895, 1.495, 98)[::-1]]), 2000)


def test_betas_of_the_check_spectrum() -> None:
    assert calibrated_beta("limit", CHECK, 1, 0.5, RELATIONS[0]) == pytest.approx(4.391418, abs=6e-7)
    assert calibrated_beta("limit", CHECK, 1, 0.5, RELATIONS[1]) == pytest.approx(1.558127, abs=6e-7)
    assert calibrated_beta("limit", CHECK, 1, 0.1998, RELATIONS[0]) is None
    assert worst_case(CHECK, 1, 0.5) == pytest.approx(100**2 * 4.391418 / 2000 / 2)
    assert worst_case(CHECK, 1, 0.1) == float("inf")


def test_the_caption_lies_on_the_curve_of_one_relation() -> None:
    for sigma, beta in ((0.5, 1.2), (1.0, 3.97), (1.5, 8.47)):
        assert calibrated_beta("printed", CHECK, 2, sigma, RELATIONS[0]) == beta
        assert calibrated_beta("fitted", CHECK, 2, sigma, "add-or-remove") == pytest.approx(beta, rel=1e-4)
    assert calibrated_beta("fitted", CHECK, 2, 0.5, "replace-one") == pytest.approx(1.27, abs=1e-9)
    assert calibrated_beta("fitted", CHECK, 2, 1.5, "replace-one") == pytest.approx(8.47)
    assert calibrated_beta("printed", CHECK, 2, 0.7, RELATIONS[0]) is None
    assert calibrated_beta("fitted", CHECK, 2, 0.46, "add-or-remove") is None
    with pytest.raises(UsageError, match="printed"):
        calibrated_beta("no", CHECK, 2, 0.5, RELATIONS[0])


def test_trade_off_curves() -> None:
    grid = np.array([0.05, 0.5])
    predicted = tradeoff_curve("predicted", CHECK, 1, 0.5, grid, 1, 1, 1)["error"]
    assert predicted[0] == pytest.approx(0.873865, abs=6e-7)
    assert tradeoff_curve("pure", CHECK, 1, 0.5, grid, 1, 1, 1)["error"] == pytest.approx([0, 0], abs=1e-4)
    found = tradeoff_curve("measured", CHECK, 1, 0.5, grid, 400, 1, 1)
    assert set(found) == {"error", "lower", "upper"}
    assert (found["lower"] >= 0).all()
    assert (found["lower"] <= found["error"]).all()
    assert (found["error"] <= found["upper"]).all()
    assert (found["upper"] <= 1).all()
    # More than six deviations of a share of 400 draws above a threshold that 400 others set.
    assert found["error"][1] == pytest.approx(predicted[1], abs=0.2)
    assert tradeoff_curve("measured", CHECK, 1, 0.1, grid, 400, 1, 1) == {}
    with pytest.raises(UsageError, match="predicted"):
        tradeoff_curve("no", CHECK, 1, 0.5, grid, 1, 1, 1)


def test_the_most_variable_sites_show_the_papers_pattern() -> None:
    """k = 1 and 2 meet every σ, k = 3 only the largest. Needs the shared data."""
    folder = reference_folder()
    if folder is None or not (folder / "thousand_genomes_2504x23770.npz").is_file():
        pytest.skip("the shared data are not here")
    table = problem(GENOMES, folder, quick=False)
    assert table.rows.shape == (2504, 600)
    assert (np.linalg.norm(table.rows, axis=1) <= 1).all()
    betas = {
        k: [calibrated_beta("limit", table, k, s, RELATIONS[0]) for s in (0.5, 1.0, 1.5)] for k in (2, 3)
    }
    assert betas[2] == pytest.approx([0.48, 1.83, 4.09], abs=0.006)
    assert betas[3][:2] == [None, None]
    for k, plateau in ((1, 0.067), (2, 0.215), (3, 1.119)):
        below, above = (calibrated_beta("limit", table, k, s * plateau, RELATIONS[0]) for s in (0.99, 1.01))
        assert below is None
        assert above is not None


def test_people_on_exact_and_on_drawn_components() -> None:
    """Far above the threshold, a draw shows nearly what the exact components show; far below, nothing."""
    table = problem(GENOMES, None, quick=True)
    exact = people(table, 0)
    assert exact.beta is None
    assert exact.captured == pytest.approx([1, 1])
    assert exact.scores.shape == (table.n, 2)
    assert (exact.scores**2).sum(axis=0) / table.n == pytest.approx(table.levels[:2] * table.d)
    near, far = people(table, 500, burn_in=2), people(table, 0.01, burn_in=2)
    assert near.captured.min() > 0.9
    assert np.abs(near.scores - exact.scores).mean() < 0.3 * np.abs(exact.scores).mean()
    assert far.captured.max() < near.captured.min()
    spread = np.abs(near.scores.T @ near.scores / table.n)
    assert spread[0, 0] > spread[1, 1] > 20 * spread[0, 1]  # turned onto its own axes


def test_clouds_are_drawn_by_measure(tmp_path: Path) -> None:
    declared = next(each for each in experiments() if each.name == "yd25-fig1")
    rows = tables.rows_of(run(declared, None, tmp_path, quick=True))
    assert {row.measure for row in rows} == {"captured", *POPULATIONS}
    plots.save(declared, rows, tmp_path / "one.svg", tmp_path / "one.png")
    text = (tmp_path / "one.svg").read_text()
    assert all(f">{name}</text>" in text for name in POPULATIONS)
    assert "captured" not in text
    assert text.count("second component") == len(declared.panels)


def test_a_band_is_drawn_and_a_line_of_few_points_has_markers(tmp_path: Path) -> None:
    def row(line: str, x: float, measure: str, mean: float) -> tables.Row:
        return tables.Row("p", line, Family.OURS, "", x, measure, mean, 0.0, 1, None, None)

    rows = [row("many", x, name, x) for x in range(9) for name in ("F", "lower", "upper")]
    few = [row("few", x, "F", x) for x in (2.0, 5.0)]
    texts = []
    for band in (None, ("lower", "upper")):
        shown = TRACES.model_copy(update={"plot": Plot(measure="F", label="F", band=band)})
        plots.save(shown, rows + few, tmp_path / "one.svg", tmp_path / "one.png")
        texts.append((tmp_path / "one.svg").read_text())
    assert "FillBetween" not in texts[0]
    assert "FillBetween" in texts[1]
