"""Published components: opened by their owner alone, saved, and applied to its own records."""

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from genotype_files import SITES, write_bed, write_csv
from owner_scene import MakeScene, Scene
from rich.console import Console

from dpdpca_owner import actions
from dpdpca_owner.commands.display import show_components
from dpdpca_owner.commands.outliers import outlier_facts, outlier_lines
from dpdpca_owner.projection import Wanted, record_count
from dpdpca_protocol.errors import (
    AuthenticationError,
    CryptographicError,
    InputError,
    MessageError,
    NotFoundError,
    UsageError,
)
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.result.components import Components, EncodedSpace
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.sealing import components_info, seal
from dpdpca_protocol.wire.signing import IdentityKey

SEX = {"name": "sex", "kind": "categorical", "levels": ["f", "m"]}
AGE = {"name": "age", "lower": 0, "upper": 100}


def made_up(manifest: Manifest) -> Components:
    space = EncodedSpace.of(manifest)
    d = len(space.names)
    ones = np.ones(d)
    return Components(
        space=space, count=120, vectors=np.eye(d), eigenvalues=ones, noise_edges=ones / 2, captured=ones,
        signals=ones, overlaps=ones, noise_scale=0.1, noise_edge=0.2, total_variance=float(d),
        mean=space.centre if manifest.release is ReleaseKind.JOINT else None,
    )  # fmt: skip


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    return make_scene(features=[SEX, AGE], missing="midpoint")


def publish(
    scene: Scene,
    *,
    signer: IdentityKey | None = None,
    receiver: Any = None,
    owner: Any = None,
    change: Callable[[Components], Components] = lambda components: components,
) -> Components:
    manifest = actions.review(scene.desk, scene.address, None).manifest
    components, study = change(made_up(manifest)), scene.address.study
    key = receiver or scene.parties.owners[0].public.sealing_key
    copy = seal(encode_components(study, components), key, components_info(study))
    sealed = SealedComponents(study, {owner or scene.proxy.owner: copy})
    scene.proxy.components = sealed.sign(signer or scene.parties.user)
    return components


def records(scene: Scene, text: str) -> Any:
    Path(scene.location.data).write_text(text, encoding="utf-8")
    return scene.location


def test_components_open_and_are_saved_privately(scene: Scene, tmp_path: Path) -> None:
    components = publish(scene)
    out = tmp_path / "model.npz"
    found, _manifest = actions.components(scene.desk, scene.address, out)
    np.testing.assert_array_equal(found.vectors, components.vectors)
    with np.load(out, allow_pickle=False) as saved:
        assert saved["names"].tolist() == ["sex = f", "sex = m", "age"]
        np.testing.assert_array_equal(saved["components"], np.eye(3))
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_a_study_of_pairs_counts_two_records_a_pair(make_scene: MakeScene, tmp_path: Path) -> None:
    """As the data user counts them; what is released is the number of pairs."""
    scene = make_scene(features=[SEX, AGE], release="pairs")
    publish(scene)
    found, manifest = actions.components(scene.desk, scene.address, tmp_path / "model.npz")
    assert (found.count, record_count(found, manifest)) == (120, 240)
    with np.load(tmp_path / "model.npz", allow_pickle=False) as saved:
        assert saved["records"] == 240


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"signer": IdentityKey.generate()}, AuthenticationError),
        ({"receiver": IdentityKey.generate().public.sealing_key}, CryptographicError),
        ({"owner": PartyId.of(b"another")}, NotFoundError),
    ],
)
def test_components_by_or_for_others_do_not_open(
    scene: Scene, change: dict[str, Any], kind: type[Exception]
) -> None:
    publish(scene, **change)
    with pytest.raises(kind):
        actions.components(scene.desk, scene.address)


def in_space(**changes: Any) -> Callable[[Components], Components]:
    return lambda components: replace(components, space=replace(components.space, **changes))


@pytest.mark.parametrize(
    "change",
    [
        in_space(names=("sex = f", "sex = m", "\x1b]0;owned\x07\x1b[2J")),
        in_space(names=("sex = m", "sex = f", "age")),
        in_space(common=True),
        in_space(centre=np.array([0.0, 0.0, 51.0])),
        in_space(half_range=np.array([1.0, 1.0, 49.0])),
        lambda components: replace(components, mean=None),
        lambda components: replace(components, count=10**15),
        lambda components: replace(
            components,
            space=replace(
                components.space,
                names=components.space.names[:2],
                centre=components.space.centre[:2],
                half_range=components.space.half_range[:2],
            ),
            vectors=np.eye(3)[:2, :2],
            mean=np.zeros(2),
            **dict.fromkeys(("eigenvalues", "noise_edges", "captured", "signals", "overlaps"), np.ones(2)),
        ),
    ],
)
def test_components_of_other_features_than_the_manifests_are_refused(
    scene: Scene, tmp_path: Path, change: Callable[[Components], Components]
) -> None:
    publish(scene, change=change)
    with pytest.raises(MessageError) as caught:
        actions.components(scene.desk, scene.address, tmp_path / "model.npz")
    assert caught.value.slug == "components-differ"
    assert "\x1b" not in str(caught.value)
    assert not (tmp_path / "model.npz").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda components: replace(components, mean=components.space.centre),
        lambda components: replace(components, count=1),
    ],
)
def test_a_masked_study_has_no_mean_and_keeps_its_least_count(
    make_scene: MakeScene, change: Callable[[Components], Components]
) -> None:
    scene = make_scene(release="masked")
    publish(scene)
    found, _manifest = actions.components(scene.desk, scene.address)
    assert found.mean is None
    publish(scene, change=change)
    with pytest.raises(MessageError, match="do not match the manifest"):
        actions.components(scene.desk, scene.address)


def test_before_there_are_components(scene: Scene) -> None:
    with pytest.raises(NotFoundError):
        actions.components(scene.desk, scene.address)


def test_scores_keep_the_records_order_and_take_the_centre_for_what_is_missing(
    scene: Scene, tmp_path: Path
) -> None:
    publish(scene)
    location = records(scene, "age,x,sex\n100,1,m\n,1,f\n250,1,\n")
    out = tmp_path / "scores.parquet"
    assert actions.transform(scene.desk, scene.address, location, out).records == 3
    scores = np.column_stack([column.to_numpy() for column in pyarrow.parquet.read_table(out).columns])
    np.testing.assert_allclose(scores, [[0, 1, 1], [1, 0, 0], [0, 0, 4]])
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert all(line.startswith("GET") for line in scene.proxy.received)


@pytest.mark.parametrize(("clip_norm", "is_said"), [("1", True), ("1.4142136", False)])
def test_variances_are_said_to_be_those_of_shortened_records(
    make_scene: MakeScene, tmp_path: Path, clip_norm: str, is_said: bool
) -> None:
    """Unless no record can be longer than the clip norm: age is within 1 of its centre, and a level is 1."""
    scene = make_scene(features=[SEX, AGE], missing="midpoint", clip_norm=clip_norm)
    publish(scene)
    found, manifest = actions.components(scene.desk, scene.address)
    with (tmp_path / "shown.txt").open("w") as file:
        show_components(found, manifest, Console(file=file, width=200))
    location, wanted = records(scene, "age,sex\n100,m\n"), Wanted(t2=True)
    done = actions.transform(scene.desk, scene.address, location, tmp_path / "scores.csv", wanted)
    assert done.outliers is not None
    said = "\n".join(outlier_lines(outlier_facts(done.outliers, wanted)))
    for text in ((tmp_path / "shown.txt").read_text(), said):
        assert ("The variances are those of shortened records" in text) == is_said


def test_dropped_records_have_empty_scores(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene(features=[SEX, AGE], missing="reject")
    publish(scene)
    location = records(scene, "age,sex\n100,m\n,f\n50,f\n")
    actions.transform(scene.desk, scene.address, location, tmp_path / "scores.csv")
    rows = pyarrow.csv.read_csv(tmp_path / "scores.csv").to_pylist()
    assert [row["component_3"] for row in rows] == [1.0, None, 0.0]


def test_a_projection_that_fails_leaves_the_old_file_alone(scene: Scene, tmp_path: Path) -> None:
    publish(scene)
    out = tmp_path / "scores.csv"
    out.write_text("old", encoding="utf-8")
    location = records(scene, "age,sex\n" + "1,f\n" * 100_000 + "1,unknown\n")
    with pytest.raises(InputError):
        actions.transform(scene.desk, scene.address, location, out)
    with pytest.raises(UsageError, match="parquet"):
        actions.transform(scene.desk, scene.address, location, tmp_path / "scores.xls")
    assert out.read_text(encoding="utf-8") == "old"
    assert not list(tmp_path.glob(".*.part"))
    assert not (tmp_path / "scores.xls").exists()


def test_genotypes_are_projected_as_from_a_text_file(make_scene: MakeScene, tmp_path: Path) -> None:
    genotypes = np.array([[0, 1, 2.0], [1, 2, 0], [2, np.nan, 0], [0, 0, 1]])
    asked = [{"name": name, "lower": 0, "upper": 2} for name in SITES[:2]]
    scene, found = make_scene(features=asked, missing="midpoint"), []
    publish(scene)
    for write in (write_csv, write_bed):
        out = tmp_path / "scores.parquet"
        location = write(tmp_path / "cohort", genotypes, SITES[:3])
        actions.transform(scene.desk, scene.address, location, out)
        found.append(pyarrow.parquet.read_table(out))
    assert found[0].equals(found[1])
    assert found[0].num_rows == 4
