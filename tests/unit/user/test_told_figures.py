"""What clipping and gaps did, as report, JSON, model file, estimator and REST tell it.

The releases have no noise, although their figures state some. So shares are exact.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_service import make_home
from plain_study import FEATURES, plain_model
from report_page import Page
from scripted import SILENCE
from starlette.testclient import TestClient

from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_user import FederatedPCA
from dpdpca_user.results.clipping import ClippingFigures
from dpdpca_user.results.figures import number
from dpdpca_user.results.model import Model
from dpdpca_user.results.reliability import (
    CLIPPING_IS_ALLOWED_FOR,
    Reliability,
)
from dpdpca_user.results.report import render_report
from dpdpca_user_service.app import make_app
from dpdpca_user_service.service import open_service
from dpdpca_user_service.settings import load_settings

CLIP_NORM = 1.1
NAMES = [feature["name"] for feature in FEATURES]


def with_gaps(people: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The same people, each feature missing in every tenth record, and never two in one."""
    return {
        name: [
            (None if name == "<b>sex</b>" else math.nan) if (7 * row + 3 * column) % 10 == 0 else value
            for row, value in enumerate(people[name])
        ]
        for column, name in enumerate(NAMES)
    }


def norms_of(people: dict[str, list[Any]]) -> np.ndarray:
    """The norms of these records in half-ranges about the public centres; a missing value counts as one."""
    squares = np.zeros(len(people["height"]))
    for name, centre, half in (("height", 160, 60), ("weight", 75, 80), ("age", 55, 55)):
        squares += np.nan_to_num((np.array(people[name]) - centre) / half) ** 2
    return np.asarray(np.sqrt(squares + [sex is not None for sex in people["<b>sex</b>"]]))


@pytest.fixture(scope="module")
def gappy(people: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return with_gaps(people)


@pytest.fixture(scope="module")
def told(real_key: SecretKey, gappy: dict[str, list[Any]]) -> Model:
    """A study of records with gaps that tells everything."""
    return plain_model(
        real_key,
        gappy,
        noise=SILENCE,
        clip_norm=str(CLIP_NORM),
        clip_share="0.01",
        clip_cap="3",
        epsilon="0.5",
    )


def reliability_of(model: Model) -> Reliability:
    assert model.reliability is not None
    return model.reliability


def clipping_of(model: Model) -> ClippingFigures:
    found = reliability_of(model).clipping
    assert found is not None
    return found


@pytest.fixture
def client(told: Model, tmp_path: Path) -> Iterator[TestClient]:
    """The service that has this model."""
    token = make_home(tmp_path / "user", [told])
    service = open_service(load_settings(tmp_path / "user"))
    yield TestClient(make_app(service, drive=False), headers={"authorization": f"Bearer {token}"})
    service.close()


def test_shares_are_those_of_the_records(told: Model, gappy: dict[str, list[Any]]) -> None:
    """A record counts as clipped if rounding could lift it above the clip norm."""
    found, norms = clipping_of(told), norms_of(gappy)
    rounding = math.sqrt(5) / (2 * told.manifest.figures.grid)
    assert found.share == np.mean(norms > CLIP_NORM - rounding)
    assert 0.2 < found.share < 0.5
    assert found.gaps is not None
    assert found.gaps.share == pytest.approx(0.1)
    assert found.factor == pytest.approx(
        (norms**2).mean() / (np.minimum(norms, CLIP_NORM) ** 2).mean(), rel=0.01
    )
    assert 2 <= len(found.variances) < 5


def test_the_report_shows_them(told: Model) -> None:
    reliability, found = reliability_of(told), clipping_of(told)
    page = Page(render_report([told], "now"))
    assert found.gaps is not None
    assert found.total_variance is not None
    assert found.total_variance_deviation is not None
    assert page.values["Clipped records"] == f"{found.share:.1%} ± {found.share_deviation:.1%}"
    assert page.values["Missing values"] == f"10.0% ± {found.gaps.share_deviation:.1%}"
    assert page.values["Total variance before clipping, without gaps"] == (
        f"{number(found.total_variance)} ± {number(found.total_variance_deviation)}"
    )
    header, *rows = page.rows["Spectrum"]
    k = len(found.variances)
    at = header.index("before clipping, without gaps")
    assert [row[at] for row in rows[:k]] == [
        f"{number(value)} ± {number(deviation)}"
        for value, deviation in zip(found.variances.tolist(), found.deviations.tolist(), strict=True)
    ]
    assert header[at + 1] == "5 to 95 %"
    assert [row[at + 1] for row in rows[:k]] == [
        f"{number(low)} to {number(high)}"
        for low, high in zip(found.low.tolist(), found.high.tolist(), strict=True)
    ]
    assert {cell for row in rows[k:] for cell in row[at : at + 2]} == {"–"}
    points = [index for index, name in enumerate(header) if name == "5 % point"]
    for column, values in zip(points, (reliability.overlap_low, reliability.share_low), strict=True):
        assert [row[column] for row in rows[:k]] == [number(value) for value in values.tolist()]
    for sentence in (found.sentences("records"), CLIPPING_IS_ALLOWED_FOR):
        assert sentence in page.words


def test_facts_and_rest_tell_them(told: Model, client: TestClient) -> None:
    found = clipping_of(told)
    for facts in (told.facts(), client.get(f"/v1/models/{told.study.hex()}").json()):
        body = facts["reliability"]["clipping"]
        assert body == json.loads(json.dumps(found.to_body()))
        assert body["share"] == found.share
        assert body["variances"] == found.variances.tolist()
        assert body["gaps"]["share"] == pytest.approx(0.1)
        assert facts["reliability"]["of_unclipped"] is True
        assert facts["reliability"]["share_low"] == reliability_of(told).share_low.tolist()
        assert facts["not_included"] == reliability_of(told).about_clipping


def test_a_model_file_keeps_them(told: Model) -> None:
    again = Model.from_bytes(told.to_bytes())
    assert reliability_of(again).to_body() == reliability_of(told).to_body()
    assert clipping_of(again).to_body() == clipping_of(told).to_body()
    assert again.facts()["not_included"] == told.facts()["not_included"]


def test_estimators_have_them(told: Model, tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_bytes(told.to_bytes())
    found = clipping_of(told)
    for k in (1, None):
        pca = FederatedPCA.from_model(tmp_path / "model.npz", n_components=k)
        assert pca.clipped_share_ == found.share
        assert pca.clipped_share_deviation_ == found.share_deviation
        assert pca.unclipped_variance_ is not None
        assert pca.unclipped_variance_deviation_ is not None
        assert pca.unclipped_variance_.tolist() == found.variances[:k].tolist()
        assert pca.unclipped_variance_deviation_.tolist() == found.deviations[:k].tolist()
        assert pca.unclipped_total_variance_ == found.total_variance
        assert pca.unclipped_total_variance_deviation_ == found.total_variance_deviation
        assert pca.missing_share_ == pytest.approx(0.1)
        assert found.gaps is not None
        assert pca.missing_share_deviation_ == found.gaps.share_deviation


def test_a_study_that_does_not_tell_has_none_of_them(joint_model: Model, tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_bytes(joint_model.to_bytes())
    pca = FederatedPCA.from_model(tmp_path / "model.npz")
    for name in ("clipped_share_", "unclipped_variance_", "unclipped_total_variance_", "missing_share_"):
        assert getattr(pca, name) is None
    page = Page(render_report([joint_model], "now"))
    assert not {"Clipped records", "Missing values"} & page.values.keys()
    assert not any("before clipping" in name for name in (*page.values, *page.rows["Spectrum"][0]))
    assert joint_model.facts()["reliability"]["clipping"] is None
