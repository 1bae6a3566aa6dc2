"""The page on the papers, and the results that are kept beside it."""

import json
import re
from pathlib import Path

import pytest

from dpdpca_lab.papers.cells import cells_of
from dpdpca_lab.papers.declared import experiments
from dpdpca_lab.papers.tables import from_csv
from reference_pages.__main__ import PAPERS, papers_page
from reference_pages.papers import RESULTS

NAMES = {experiment.name: experiment for experiment in experiments()}
KEPT = sorted(path.stem for path in RESULTS.glob("*.csv"))


def test_the_page_is_as_the_declarations_and_results_would_have_it() -> None:
    assert PAPERS.read_text(encoding="utf-8") == papers_page(), "run: make reference (docs/papers.md)"


def test_every_experiment_has_a_section() -> None:
    heads = re.findall(r"^## (\S+)$", PAPERS.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(NAMES) <= set(heads)
    assert len(heads) == len(set(heads))


def test_results_are_whole_and_of_experiments_that_exist() -> None:
    found = {path.name for path in RESULTS.iterdir()}
    assert found == {f"{name}{ending}" for name in KEPT for ending in (".csv", ".json", ".svg")}
    assert set(KEPT) <= set(NAMES)


@pytest.mark.parametrize("name", KEPT)
def test_a_result_is_that_of_a_full_run_of_what_is_declared(name: str) -> None:
    rows = from_csv((RESULTS / f"{name}.csv").read_text(encoding="utf-8"))
    facts = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert facts["quick"] is False
    assert not [panel for panel in facts["panels"].values() if "stand-in" in panel["origin"]]
    declared = cells_of(NAMES[name], quick=False)
    is_curve = NAMES[name].axis.name == "curve"
    points = {(row.panel, row.line, None if is_curve else row.x) for row in rows}
    assert len(points) == len(declared)
    assert {row.panel for row in rows} == {cell.panel.title for cell in declared}
    assert {row.x for row in rows} >= {cell.x for cell in declared}
    assert is_curve or {row.x for row in rows} <= {cell.x for cell in declared}


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(KEPT)))
def test_what_was_not_run_in_full_has_no_verdict_from_a_run(name: str) -> None:
    assert NAMES[name].verdict.result in ("open", "cannot be")


def test_results_are_small() -> None:
    assert max((path.stat().st_size for path in Path(RESULTS).iterdir()), default=0) < 300_000
