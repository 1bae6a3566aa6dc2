"""What an owner's commands do with files of genotypes, and with names of columns in a file of their own."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from genotype_files import SITES, write_bed, write_npy, write_pgen
from owner_scene import MakeScene, OwnerCommands, Scene

from dpdpca_owner import actions
from dpdpca_owner.records.source import DataLocation, Reading
from dpdpca_owner.sources import RegisteredSource
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import InputError

GENOTYPES = np.array([[0, 1, 2.0, np.nan, 0, 1], [1, 2, 0, 0, np.nan, 2], [2, 0, np.nan, 1, 2, 0]])
SWAPPED = "1:100:G:A"


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    features = [{"name": name, "lower": 0, "upper": 2} for name in (SWAPPED, SITES[1], SITES[3])]
    return make_scene(features=features, missing="midpoint")


def test_review_and_join_with_a_bed_file(scene: Scene, tmp_path: Path) -> None:
    location = write_bed(tmp_path / "cohort", GENOTYPES, SITES)
    with pytest.raises(InputError, match="--flip") as caught:
        actions.review(scene.desk, scene.address, location)
    assert caught.value.slug == "alleles-swapped"
    flipped = replace(location, reading=Reading(flip=True))
    sheet = actions.review(scene.desk, scene.address, flipped)
    assert sheet.dry_run is not None
    notes = " ".join(sheet.dry_run.notes)
    assert "1 of the study's sites" in notes
    assert f"lack a value in '{SITES[3]}'" in notes
    prepared = actions.prepare_join(scene.desk, scene.address, flipped)
    settled = actions.join(scene.desk, scene.address, prepared, Watcher())
    assert settled.receipt.version == 1
    # The folder of the study keeps what was said, so that the same share is made again from either format.
    again = write_pgen(tmp_path / "again", GENOTYPES, SITES)
    repeated = actions.prepare_join(scene.desk, scene.address, again)
    assert repeated.contribution.digest == prepared.contribution.digest
    with pytest.raises(InputError, match="--flip"):
        actions.review(scene.desk, scene.address, replace(again, reading=Reading(flip=False)))


def test_the_options_are_kept_with_the_study_and_with_a_source(run: OwnerCommands, tmp_path: Path) -> None:
    rows = np.array([[50, 120, 80.0], [60, 130, 70]])
    table = write_npy(tmp_path / "table.npy", rows, ("age", "systolic", "weight")).data
    (tmp_path / "table.features.txt").unlink()
    names = tmp_path / "names.txt"
    names.write_text("weight\nsystolic\nage\n")
    address = str(run.scene.address)
    status, out, err = run("review", address, "--data", table, "--names", str(names), "--json")
    assert status == 0, err
    assert any("different order" in note for note in json.loads(out)["dry_run"]["notes"])
    said = ("--names", str(names), "--flip")
    status, out, err = run("data", "add", "table", "--data", table, *said, "--json")
    assert status == 0, err
    assert (json.loads(out)["names"], json.loads(out)["flip"]) == (str(names), True)
    status, out, err = run("join", address, "--source", "table", "--yes")
    assert status == 0, err
    reading = run.scene.desk.home.study(run.scene.address.study).reading()
    assert reading == Reading(names=str(names), flip=True)
    assert str(reading) == f"--names '{names}' --flip"
    status, _, err = run("join", address, "--source", "table", "--names", str(names))
    assert status == 2, "a source says already how its records are read"


def test_what_is_not_said_is_not_written(run: OwnerCommands) -> None:
    """So that earlier versions read the files of a home, and later ones those of earlier versions."""
    source = RegisteredSource("old", str(run.scene.location.data))
    assert not {"names", "flip"} & source.to_body().keys()
    assert RegisteredSource.parse("old", source.to_body()) == source
    body = replace(source, reading=Reading(names="n", flip=False)).to_body()
    assert (body["names"], body["flip"]) == ("n", False)


def test_other_formats_ignore_the_options(run: OwnerCommands, tmp_path: Path) -> None:
    """They are kept with a study, whatever file comes next."""
    location = DataLocation(run.scene.location.data, reading=Reading(names="/nowhere", flip=True))
    assert actions.review(run.scene.desk, run.scene.address, location).dry_run is not None
