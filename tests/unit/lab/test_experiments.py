"""The experiments and their commands: names, tables, JSON, and the figures that are exact."""

import json
import math
from fractions import Fraction
from typing import Any

import pytest
from typer.testing import CliRunner

from dpdpca_cli import main as cli
from dpdpca_lab import comparison
from dpdpca_lab.commands import app
from dpdpca_lab.experiments import EXPERIMENTS, find_experiment
from dpdpca_lab.papers.declared import experiments
from dpdpca_protocol.errors import UsageError


def run_json(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def table_of(name: str) -> list[Any]:
    body = run_json("run", name)
    assert body["experiment"] == name
    assert all(len(row) == len(body["columns"]) for row in body["rows"])
    rows: list[Any] = body["rows"]
    return rows


def test_the_list_names_every_experiment() -> None:
    listed = run_json("list")["experiments"]
    statements = [entry["name"] for entry in listed if entry["group"] == "statements"]
    assert statements == [experiment.name for experiment in EXPERIMENTS]
    declared = [entry["name"] for group in ("papers", "peers") for entry in listed if entry["group"] == group]
    assert sorted(declared) == [experiment.name for experiment in experiments()]
    assert len(listed) == len(statements) + len(declared)
    text = CliRunner().invoke(app, ["list"]).stdout
    assert text.count("\n") == len(listed) + 3
    assert "sn-support" in text


def test_published_calibration() -> None:
    rows = table_of("as-published")
    assert [round(row[2], 3) for row in rows[:4]] == [0.276, 0.917, 1.61, 3.511]
    assert all(row[3] > row[1] and row[4] > row[2] > row[0] for row in rows)


def test_the_discretizer_forgets_how_large_its_grid_is() -> None:
    rows = table_of("discretizer")
    assert all(row[3] > row[0] * row[2] ** 2 for row in rows if row[2] > 1)
    assert {round(row[4], 3) for row in rows} == {3.511}


def test_modsulq_looseness() -> None:
    rows = table_of("modsulq-looseness")
    assert [round(row[2], 1) for row in rows] == [10.9, 69.9, 346.4]


def test_laplace_sensitivity() -> None:
    for d, reached, bound, by_norms, published in table_of("laplace-sensitivity"):
        assert reached <= bound * (1 + 1e-12)
        assert bound < 1.05 * reached
        assert bound < by_norms < published
        if d % 2 == 0:
            assert reached == pytest.approx(math.sqrt((d * d + 2 * d + 2) / 2))


@pytest.mark.parametrize(
    "name", [pytest.param("sn-support", marks=pytest.mark.nightly), "exact-bingham", "phase-transition"]
)
def test_what_is_drawn_comes_with_its_expectation(name: str) -> None:
    """Ten standard errors: the laws themselves are tested in tests/statistical."""
    columns = {"sn-support": (2, 3, 4), "exact-bingham": (2, 3, 4)}.get(name)
    for row in table_of(name):
        if columns:
            measured, expected, error = (row[column] for column in columns)
            assert abs(measured - expected) < 10 * error
        else:
            ratio, _, measured, limit, _, sigma = row
            assert abs(measured - limit) < 0.1
            assert (sigma is not None) == (ratio > 1)


def test_mechanisms_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "COMPARED", comparison.COMPARED[:1] + comparison.COMPARED[-1:])
    rows = table_of("captured-variance")
    assert [row[0] for row in rows] == ["gaussian", "wishart (SN)"]
    assert all(0 < share <= 1 for row in rows for share in row[2:])


def test_every_compared_mechanism_gives_orthonormal_directions() -> None:

    import numpy as np

    from dpdpca_lab.tables import encode_table

    table = encode_table(np.eye(6)[np.arange(40) % 6] - 0.5, (-1.0, 1.0))
    for _, guarantee, directions in comparison.COMPARED:
        vectors = directions(table, Fraction(5), Fraction(1, 10**6), 5)
        assert vectors.shape == (5, 6)
        assert np.allclose(vectors @ vectors.T, np.eye(5))
        assert guarantee


def test_a_table_for_people() -> None:
    done = CliRunner().invoke(app, ["run", "modsulq-looseness"], catch_exceptions=False)
    lines = done.stdout.splitlines()
    assert len({len(line) for line in lines[:4]}) == 1
    assert "69.89" in done.stdout
    assert "rows of norm 1" in lines[-1]
    assert "–" in CliRunner().invoke(app, ["run", "phase-transition"]).stdout


def test_the_command_of_the_whole_program_finds_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["experiments", "run", "nonsense"])
    assert left.value.code == 2
    assert "sn-support" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        cli.main(["experiments", "list"])
    assert left.value.code == 0
    assert "spectra" in capsys.readouterr().out


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="spectra"):
        find_experiment("nonsense")
