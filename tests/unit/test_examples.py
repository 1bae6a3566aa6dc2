"""Every program and every notebook in `examples/` runs as it stands."""

import importlib.util
import json
import re
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from numpy.typing import NDArray
from proxy_world import PATIENCE_SECONDS, ProxyWorld, free_port, wait_for
from study_parties import Parties
from user_world import UserWorld

from dpdpca_lab.reference_data import reference_folder
from dpdpca_owner.records.open import open_source, read_batches
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.terms.features import Feature
from dpdpca_user.results.model import claim
from dpdpca_user_service.app import make_app
from dpdpca_user_service.stages import Stage

FOLDER = Path(__file__).parents[2] / "examples"
GENOMES = "thousand_genomes_2504x23770.npz"
DRAFT = """
title = "What varies together"
purpose = "An example."
participants = "enrolled"
release = "joint"
epsilon = 1
clip_norm = 1
max_records = 5000
min_records = 10
min_owners = 2
closing = "when-complete"

[[features]]
name = "age"
lower = 18
upper = 100

[[features]]
name = "weight"
lower = 30
upper = 150
"""


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What stands before and after the first colon of each printed line."""
    lines = capsys.readouterr().out.splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


def test_the_list_names_every_example() -> None:
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+\.(?:py|ipynb))`", listed, re.MULTILINE)
    kept = [*FOLDER.glob("*.py"), *FOLDER.glob("*.ipynb")]
    assert sorted(named) == sorted(path.name for path in kept)


def run_notebook(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the names of a notebook stand for after all its cells ran in their order, in `folder`."""
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}.ipynb, {cell['id']}", "exec"), names)
    return names


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_kept_without_results(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("code", "markdown")
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


def test_the_notebook_about_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_notebook("one_table", tmp_path, monkeypatch)
    assert found["pca"].n_trusted_components_ == 2
    assert list(found["pca"].feature_names_in_) == ["height", "weight", "waist", "arm"]
    assert found["error"] < 0.3
    assert list(found["unusual"]) == [False, True, False]
    assert found["parts"].loc["T²"].idxmax() == "height"
    assert not list(tmp_path.iterdir())


def test_the_notebook_about_a_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variance of a uniform age from 20 to 90 is 408; clipping takes some of the largest away."""
    found = run_notebook("federation", tmp_path, monkeypatch)
    assert found["pca"].n_samples_ == 6000
    assert abs(found["pca"].components_[0][0]) > 0.8
    assert found["covariance"][0, 0] == pytest.approx(408, rel=0.3)
    assert list(found["unusual"]) == [False, False, True]
    assert "Hospital C" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.npz", "report.html"]


def test_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "one_table.py"), run_name="__main__")
    shown = printed(capsys)
    assert shown["promise"] == "1.0 4e-08 replace-one"
    assert shown["components above the noise"] == "2 of 2"


def test_many_analyses(capsys: pytest.CaptureFixture[str]) -> None:
    """The truth: coefficients 0.60 and 0.18, and two factors explain 58 to 69 % of each mark.

    The noise has a standard deviation of 0.034 on the first coefficient and less elsewhere, so each bound
    leaves it more than five deviations.
    """
    runpy.run_path(str(FOLDER / "many_analyses.py"), run_name="__main__")
    shown = printed(capsys)
    coefficients = [float(each) for each in shown["physics on algebra and history"].strip("[]").split()]
    assert coefficients == pytest.approx([0.60, 0.18], abs=0.2)
    shares = shown["share of each mark that two factors explain"].strip("[]").split()
    assert all(0.4 < float(share) < 0.8 for share in shares)


def test_federation(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "federation.py"), run_name="__main__")
    shown = printed(capsys)
    assert shown["records"] == "3300"
    assert abs(float(shown["first component, age"])) > 0.8


def read_biobanks(folder: Path, sites: list[str]) -> NDArray[Any]:
    """(people, sites) of all three, as an owner's program reads them."""
    features, found = [Feature(site, "numeric") for site in sites], []
    for name in ("north.bed", "middle.pgen", "south.bed"):
        for columns in read_batches(open_source(DataLocation(str(folder / name)), features), features):
            found.append(np.stack(list(columns.values()), axis=1))
    return np.concatenate(found)


def test_biobanks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each person is in the panel or in one biobank, with all of its genotypes."""
    genotypes = np.arange(40)[:, None] // 3 ** np.arange(4) % 3  # no two people are alike
    table = tmp_path / "table.npz"
    sites = np.array([f"{i + 1}:{i + 7}:A:C".encode() for i in range(5)])
    np.savez(
        table,
        G=np.column_stack([genotypes, np.zeros(40)]).astype(np.uint8),
        sites=sites,
        superpop=genotypes[:, 0].astype(np.uint8),
        superpop_names=np.array(["AFR", "EAS", "EUR"]),
    )
    example("biobanks").main(str(table), str(tmp_path / "out"))
    assert "north: 12 people, 4 sites" in capsys.readouterr().out
    names = sites.astype(str).tolist()[:4]
    found = read_biobanks(tmp_path / "out", names)
    assert len(found) == 32
    assert len(np.unique(found, axis=0)) == 32
    assert {tuple(row) for row in found.tolist()} <= {tuple(row) for row in genotypes.tolist()}
    labels = [
        label
        for name in ("north", "middle", "south")
        for label in (tmp_path / "out" / f"{name}-populations.csv").read_text().split()[1:]
    ]
    assert labels == [["AFR", "EAS", "EUR"][int(first)] for first in found[:, 0]]
    left = [row for row in genotypes.tolist() if tuple(row) not in {tuple(each) for each in found.tolist()}]
    panel = (tmp_path / "out" / "panel.csv").read_text().splitlines()[1:]
    assert panel == [f"{name},{p:.4f}" for name, p in zip(names, np.mean(left, axis=0) / 2, strict=True)]


def test_biobanks_with_more_people_and_fewer_sites(tmp_path: Path) -> None:
    genotypes = np.arange(40)[:, None] // 3 ** np.arange(4) % 3
    np.savez(
        tmp_path / "table.npz",
        G=genotypes.astype(np.uint8),
        sites=np.array([f"{i + 1}:{i + 7}:A:C".encode() for i in range(4)]),
        superpop=np.zeros(40, dtype=np.uint8),
        superpop_names=np.array(["EUR"]),
    )
    example("biobanks").main(str(tmp_path / "table.npz"), str(tmp_path), 2, 3)
    assert [line.split(",")[0] for line in (tmp_path / "panel.csv").read_text().split()[1:]] == [
        "1:7:A:C",
        "4:10:A:C",
    ]
    found = read_biobanks(tmp_path, ["1:7:A:C", "4:10:A:C"])
    north = found[:24]
    assert len(found) == 64
    assert (north[:12] == north[12:]).all()
    assert len((tmp_path / "south-populations.csv").read_text().split()) == 1 + 16


def test_populations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scores.csv").write_text("component 1,component 2,t2\n1,2,9\n3,4,9\n-1,0,9\n")
    (tmp_path / "people.csv").write_text("population\nEUR\nEUR\nAFR\n")
    plot = tmp_path / "plot.svg"
    example("populations").main(str(plot), str(tmp_path / "scores.csv"), str(tmp_path / "people.csv"))
    assert "<svg" in plot.read_text(encoding="utf-8")
    assert printed(capsys) == {"AFR": "1 people, about (-1.0, 0.0)", "EUR": "2 people, about (2.0, 3.0)"}


@pytest.mark.nightly
def test_biobanks_of_the_1000_genomes(tmp_path: Path) -> None:
    data = reference_folder()
    if data is None or not (data / GENOMES).is_file():
        pytest.skip(f"DPDPCA_REFERENCE_DATA names the folder that has {GENOMES}")
    example("biobanks").main(str(data / GENOMES), str(tmp_path))
    names = [line.split(",")[0] for line in (tmp_path / "panel.csv").read_text().splitlines()[1:]]
    assert len(names) > 20_000
    found = read_biobanks(tmp_path, names)
    assert found.shape == (2504 - 500, len(names))
    assert set(np.unique(found)) == {0, 1, 2}


@pytest.fixture
def world(tmp_path: Path, parties: Parties) -> Iterator[UserWorld]:
    world = ProxyWorld(tmp_path / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof)
    world.start()
    world.enrol_all()
    user = UserWorld(world, tmp_path / "user")
    yield user
    user.service.close()
    world.stop()


@pytest.fixture
def service_url(world: UserWorld) -> Iterator[str]:
    port = free_port()
    application = make_app(world.service, drive=False)
    server = uvicorn.Server(uvicorn.Config(application, port=port, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started or not thread.is_alive())
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


def example(name: str) -> Any:
    """The program as a module, not yet run."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rest_api_and_read_model(
    world: UserWorld, service_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program waits while owners deliver, as between organisations; then a model file is read."""
    (tmp_path / "draft.toml").write_text(DRAFT)
    program = example("rest_api")
    program.PAUSE_SECONDS = 0.05
    arguments = (service_url, str(world.home / "token"), str(tmp_path / "draft.toml"))
    running = threading.Thread(target=program.main, args=arguments)
    running.start()
    wait_for(lambda: bool(world.service.store.all()))
    row = world.advance_to(world.service.store.all()[0], Stage.OPEN)
    world.deliver_all(row)
    row = world.advance_to(row, Stage.PUBLISHED)
    running.join(PATIENCE_SECONDS)
    assert not running.is_alive()
    out = capsys.readouterr().out
    model = world.service.model_of(row.id)
    assert claim(model) in out
    assert re.search(
        r"^scores of a record at the middle of all bounds: \[\[-?[\d.]+.*\]\]$", out, re.MULTILINE
    )

    (tmp_path / "model.npz").write_bytes(model.to_bytes())
    example("read_model").main(str(tmp_path / "model.npz"))
    shown = printed(capsys)
    assert shown["study"] == row.known_study.hex()
    assert shown["records"].startswith("600 - promise: 1")
    assert re.match(r"\d+% of the variance, ", shown["component 1"])
