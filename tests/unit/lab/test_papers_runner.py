"""The runner of the papers' experiments: what it declares, keeps, goes on with, and measures anew."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpdpca_cli import main as cli
from dpdpca_lab import papers
from dpdpca_lab.commands import app
from dpdpca_lab.papers import methods, plots, tables
from dpdpca_lab.papers.cells import cells_of
from dpdpca_lab.papers.declared import Axis, Experiment, Line, Panel, Plot, Terms, experiments, parse
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.runner import CELLS, key, run
from dpdpca_protocol.errors import IntegrityError, UsageError

SMALL = Experiment(
    name="small",
    paper="nobody",
    item="Figure 0",
    shows="nothing",
    reported="nothing",
    ran=(),
    measure="directions",
    repetitions=2,
    terms=Terms(delta=0.01, k=2),
    axis=Axis(name="epsilon", label="ε", values=(0.5, 1.0), quick=(1.0,)),
    panels=(Panel(title="synthetic", data="css13-normal", records=300),),
    lines=(Line(method="gaussian"), Line(method="optimum"), Line(method="floor")),
    plot=Plot(measure="captured", label="captured"),
)


def kept(out: Path) -> set[str]:
    return {path.name for path in (out / CELLS).iterdir()}


def test_a_second_run_measures_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    first = run(SMALL, None, tmp_path, progress=lambda known, total: told.append((known, total)))
    assert told == [(known, 6) for known in range(7)]
    assert [len(result.measured.values["captured"]) for result in first[:3]] == [2, 1, 1]

    def refuse(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("dpdpca_lab.papers.runner.run_cell", refuse)
    told.clear()
    assert run(SMALL, None, tmp_path, progress=lambda known, total: told.append((known, total))) == first
    assert told == [(6, 6)]


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """A process is killed in the middle. The next run measures the rest, and keeps what was there."""
    slow = """
import time, sys
from pathlib import Path
from dpdpca_lab.papers import runner
from dpdpca_lab.papers.declared import Experiment
measured = runner.run_cell
def slowly(cell, folder):
    time.sleep(0.2)
    return measured(cell, folder)
runner.run_cell = slowly
runner.run(Experiment.model_validate_json(sys.argv[1]), None, Path(sys.argv[2]))
"""
    long = SMALL.model_copy(
        update={"axis": Axis(name="epsilon", label="ε", values=tuple(range(1, 60)), quick=(1.0,))}
    )
    process = subprocess.Popen([sys.executable, "-c", slow, long.model_dump_json(), str(tmp_path)])
    folder = tmp_path / CELLS
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not folder.exists() or len(list(folder.glob("*.json"))) < 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
    process.wait()
    before = {path: path.read_bytes() for path in folder.glob("*.json")}
    total = len(cells_of(long, quick=False))
    assert 3 <= len(before) < total
    told: list[int] = []
    results = run(long, None, tmp_path, progress=lambda known, total: told.append(known))
    assert told[0] == len(before)
    assert told[-1] == len(results) == total
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_damaged_result_is_measured_anew(tmp_path: Path) -> None:
    first = run(SMALL, None, tmp_path)
    paths = sorted((tmp_path / CELLS).iterdir())
    for path, content in zip(paths, (b"", b"{", b"[]", b"{}", b'{"values": 3}', b"null"), strict=True):
        path.write_bytes(content)
    again = run(SMALL, None, tmp_path)
    assert [each.measured.values.keys() for each in again] == [each.measured.values.keys() for each in first]
    assert kept(tmp_path) == {path.name for path in paths}


@pytest.mark.parametrize(
    "change",
    [
        {"repetitions": 3},
        {"terms": Terms(delta=0.02, k=2)},
        {"terms": Terms(delta=0.01, k=1)},
        {"axis": Axis(name="epsilon", label="ε", values=(0.6,), quick=(1.0,))},
        {"panels": (Panel(title="synthetic", data="css13-normal", records=301),)},
        {"panels": (Panel(title="synthetic", data="css13-normal", records=300, prepare="centre"),)},
        {"panels": (Panel(title="synthetic", data="css13-normal", records=300, epsilon_times=2),)},
        {"panels": (Panel(title="synthetic", data="insurance", records=300),)},
        {"lines": (Line(method="gaussian", options={"anything": 1}),)},
        {"lines": (Line(method="joint"),)},
    ],
)
def test_what_decides_about_a_result_is_in_its_key(change: dict[str, object]) -> None:
    before = key(cells_of(SMALL, quick=False)[0], None)
    assert key(cells_of(SMALL.model_copy(update=change), quick=False)[0], None) != before


def test_a_panel_and_a_line_may_have_only_some_values_of_the_axis() -> None:
    before = {key(cell, None) for cell in cells_of(SMALL, quick=False)}
    fewer = SMALL.model_copy(update={"lines": (Line(method="gaussian", only=(1.0,)), *SMALL.lines[1:])})
    cells = cells_of(fewer, quick=False)
    assert [(cell.line.method, cell.x) for cell in cells] == [
        ("optimum", 0.5),
        ("floor", 0.5),
        ("gaussian", 1.0),
        ("optimum", 1.0),
        ("floor", 1.0),
    ]
    assert {key(cell, None) for cell in cells} < before
    panel = SMALL.panels[0].model_copy(update={"only": (0.5,)})
    assert {cell.x for cell in cells_of(SMALL.model_copy(update={"panels": (panel,)}), quick=False)} == {0.5}


def test_the_short_table_shows_what_else_the_plot_names(tmp_path: Path) -> None:
    rows = tables.rows_of(run(SMALL, None, tmp_path, quick=True))
    also = SMALL.model_copy(update={"plot": Plot(measure="captured", label="share", also=("distance",))})
    assert "distance" not in tables.as_markdown(SMALL, rows).lower()
    shown = tables.as_markdown(also, rows)
    assert shown.startswith(tables.as_markdown(SMALL, rows).replace("captured, by", "share, by"))
    assert shown.count("| without noise |") == 2
    assert "Distance:" in shown


def test_titles_and_labels_are_not_in_the_key_and_versions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(cells_of(SMALL, quick=False)[0], None)
    renamed = {
        "panels": (Panel(title="other", data="css13-normal", records=300),),
        "lines": (Line(method="gaussian", label="other"),),
    }
    assert key(cells_of(SMALL.model_copy(update=renamed), quick=False)[0], None) == before
    newer = replace(methods.METHODS["gaussian"], version=methods.METHODS["gaussian"].version + 1)
    monkeypatch.setitem(methods.METHODS, "gaussian", newer)
    assert key(cells_of(SMALL, quick=False)[0], None) != before


def test_the_content_of_the_data_is_in_the_key(tmp_path: Path) -> None:
    panel = {"panels": (Panel(title="musk", data="musk"),)}
    cell = cells_of(SMALL.model_copy(update=panel), quick=False)[0]
    keys = {key(cell, None), key(cell, tmp_path)}
    assert len(keys) == 1
    for content in (b"one", b"two"):
        (tmp_path / "musk2.parquet").write_bytes(content)
        keys.add(key(cell, tmp_path))
    assert len(keys) == 3


def test_processes_share_the_work(tmp_path: Path) -> None:
    results = run(SMALL, None, tmp_path, workers=2)
    assert [(result.cell.x, result.label) for result in results] == [
        (x, label)
        for x in (0.5, 1.0)
        for label in ("proved Gaussian on R", "without noise", "random subspace, expected")
    ]
    assert [result.measured.values["captured"] for result in results[1::3]] == [pytest.approx((1.0,))] * 2
    assert len(kept(tmp_path)) == 6


def test_a_quick_run_is_small() -> None:
    for experiment in experiments():
        cells = cells_of(experiment, quick=True)
        assert {cell.repetitions for cell in cells} == {1}
        assert len({str(cell.x) for cell in cells}) <= 3
        if experiment.axis.name != "records":
            assert {cell.x for cell in cells} <= {*experiment.axis.values}, experiment.name


def test_every_experiment_says_what_people_need() -> None:
    for experiment in experiments():
        texts = (experiment.paper, experiment.item, experiment.shows, experiment.reported, experiment.ran)
        assert all(texts), experiment.name
        assert (experiment.verdict.result == "open") == (experiment.verdict.because == ""), experiment.name


def test_a_declaration_is_checked() -> None:
    text = "name = 'x'\npaper = 'y'\n"
    with pytest.raises(IntegrityError, match=r"x\.toml"):
        parse(text, "x.toml")
    with pytest.raises(IntegrityError, match=r"y\.toml"):
        parse("name = ", "y.toml")


@pytest.mark.parametrize(
    ("panel", "method", "known"),
    [
        (Panel(title="a", data="css13-normal"), "no", "mod-sulq"),
        (Panel(title="a", data="no"), "optimum", "kddcup"),
        (Panel(title="a", data="css13-normal", prepare="no"), "optimum", "z-score"),
    ],
)
def test_unknown_methods_data_and_recipes_are_refused(
    panel: Panel, method: str, known: str, tmp_path: Path
) -> None:
    broken = SMALL.model_copy(update={"panels": (panel,), "lines": (Line(method=method),)})
    with pytest.raises(UsageError, match=known):
        run(broken, None, tmp_path)


def test_unknown_names_are_refused_with_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(["experiments", "run", "css13-fig5", "nonsense", "--quick"])
    assert left.value.code == 2
    refusal = capsys.readouterr().err
    assert "css13-fig5" in refusal
    assert "sn-support" in refusal
    assert list(tmp_path.iterdir()) == []


def test_without_the_plotting_library_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("plots", "commands"):  # as if nothing had imported them yet
        monkeypatch.delitem(sys.modules, f"dpdpca_lab.papers.{name}", raising=False)
        monkeypatch.delattr(papers, name, raising=False)
    with pytest.raises(SystemExit) as left:
        cli.main(["experiments", "run", "css13-fig5", "--quick", "--out", str(tmp_path)])
    assert left.value.code == 1
    assert "matplotlib" in (refusal := capsys.readouterr().err)
    assert ".[lab]" in refusal
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_took_where_data_is_missing(tmp_path: Path) -> None:
    out, empty = tmp_path / "out", tmp_path / "empty"
    empty.mkdir()
    words = ["run", "css13-table1", "--quick", "--out", str(out), "--data", str(empty)]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "stand-in" in done.stdout
    facts = json.loads((out / "css13-table1-quick.json").read_text())
    assert "stand-in" in facts["panels"]["kddcup"]["origin"]
    assert facts["quick"] is True


def test_the_same_rows_give_the_same_plot_and_the_csv_keeps_them(tmp_path: Path) -> None:
    rows = tables.rows_of(run(SMALL, None, tmp_path, quick=True))
    read = tables.from_csv(tables.as_csv(rows))
    assert [(row.line, row.family, row.x, row.measure) for row in read] == [
        (row.line, row.family, row.x, row.measure) for row in rows
    ]
    assert [row.mean for row in read] == pytest.approx([row.mean for row in rows], rel=1e-5)
    for name in ("one", "two"):
        plots.save(SMALL, read, tmp_path / f"{name}.svg", tmp_path / f"{name}.png")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_real_epsilon_of_a_line_in_words() -> None:
    def row(claimed: float | None, real: float | None) -> tables.Row:
        return tables.Row("p", "l", Family.PUBLISHED, "g", 1.0, "m", 0.5, 0.0, 1, claimed, real)

    assert tables.epsilon_words([row(None, None)]) == "–"
    assert tables.epsilon_words([row(1, 1), row(2, 2)]) == "as claimed"
    assert tables.epsilon_words([row(1, 3.511), row(0.5, 0.8)]) == "1.6 to 3.5 × claimed"
    assert tables.epsilon_words([row(1, 0.0001)]) == "below 0.01 × claimed"
    assert tables.epsilon_words([row(1, float("inf"))]) == "none"
