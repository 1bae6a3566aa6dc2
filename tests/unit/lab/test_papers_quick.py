"""Each experiment of a paper runs quickly, and writes a table and a plot. No test compares with a paper."""

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dpdpca_lab.papers import tables
from dpdpca_lab.papers.cells import cells_of
from dpdpca_lab.papers.commands import run_and_write
from dpdpca_lab.papers.declared import Experiment, experiments
from dpdpca_lab.reference_data import reference_folder

pytestmark = pytest.mark.system  # long


@pytest.mark.parametrize("experiment", experiments(), ids=lambda experiment: experiment.name)
def test_an_experiment_has_a_finite_table_and_a_plot(experiment: Experiment, tmp_path: Path) -> None:
    run_and_write([experiment], reference_folder(), tmp_path, quick=True)
    stem = tmp_path / f"{experiment.name}-quick"
    rows = tables.from_csv(stem.with_suffix(".csv").read_text())
    is_curve = experiment.axis.name == "curve"
    points = {(row.panel, row.line, None if is_curve else row.x) for row in rows}
    assert len(points) == len(cells_of(experiment, quick=True))
    assert not is_curve or len({row.x for row in rows}) > 1
    assert {row.panel for row in rows} == {panel.title for panel in experiment.panels}
    assert all(math.isfinite(row.mean) and math.isfinite(row.sd) for row in rows)
    assert {picture.measure for picture in experiment.plot.pictures} <= {row.measure for row in rows}
    assert all(row.real_epsilon is None or row.real_epsilon >= 0 for row in rows)
    shown = stem.with_suffix(".md").read_text()
    assert all(panel.title in shown for panel in experiment.panels)
    assert json.loads(stem.with_suffix(".json").read_text())["experiment"] == experiment.name
    ElementTree.parse(stem.with_suffix(".svg"))
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
