"""What clipping and gaps did, as report, JSON, model file, estimator, REST and terminal tell it.

The releases have no noise, although their figures state some. So shares are exact.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_service import make_home
from plain_study import FEATURES, plain_model
from report_page import Page
from scripted import SILENCE
from starlette.testclient import TestClient
from typed_commands import Run, typed_by_user

from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_user import FederatedPCA
from dpdpca_user.commands import app as commands
from dpdpca_user.results.clipping import ClippingFigures
from dpdpca_user.results.figures import number
from dpdpca_user.results.model import Model
from dpdpca_user.results.reliability import (
    ABOUT_CLIPPED,
    CLIPPING_IS_ALLOWED_FOR,
    NO_INTERVALS,
    Reliability,
)
from dpdpca_user.results.report import render_report
from dpdpca_user.service_client import ServiceClient
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


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({}, "A missing value counts as the centre, so gaps lower variances"),
        ({"release": "pairs"}, "A missing value is left out of the difference, so gaps lower variances"),
        ({"missing": "reject"}, None),
        ({"clip_share": "0.01"}, None),
    ],
)
def test_gaps_that_nothing_shows_are_told(
    make_model: Callable[..., Model], terms: dict[str, str], said: str | None
) -> None:
    """Not where records with gaps are left out, or where the study tells how many values are missing."""
    model = make_model(**terms)
    older = replace(model, reliability=None)
    for each in (model, older) if "clip_share" not in terms else (model,):
        for text in (each.facts()["not_included"], Page(render_report([each], "now")).words):
            assert ("so gaps lower variances" in text) == (said is not None)
            assert said is None or said in text


# --- most records were clipped, and noise hides what that took away ---------------------------------------


@pytest.fixture(scope="module")
def hidden(real_key: SecretKey, people: dict[str, list[Any]]) -> Model:
    """All records are clipped, and the noise on their lengths is far larger than these."""
    return plain_model(
        real_key, people, noise=SILENCE, clip_norm="0.5", clip_share="0.0000001", missing="reject"
    )


def test_intervals_of_clipped_records_only_are_not_drawn(hidden: Model) -> None:
    reliability, found = reliability_of(hidden), clipping_of(hidden)
    assert found.share == 1
    assert found.factor is None
    assert 2 <= hidden.components.trusted_count < 5
    assert reliability.draws == 0
    assert len(reliability.share_low) == len(reliability.overlap_low) == 0
    assert not reliability.of_unclipped
    assert NO_INTERVALS in reliability.about_clipping
    assert not reliability.has_intervals


def test_intervals_stay_where_few_records_were_clipped_though_noise_hides_the_rest(
    real_key: SecretKey, people: dict[str, list[Any]]
) -> None:
    few = plain_model(real_key, people, noise=SILENCE, clip_norm="1.3", clip_share="0.0000001")
    reliability, found = reliability_of(few), clipping_of(few)
    assert 0 < found.share < 0.5
    assert found.factor is None
    assert reliability.draws > 0
    assert len(reliability.share_low) == few.components.trusted_count
    assert ABOUT_CLIPPED in reliability.about_clipping
    page = Page(render_report([few], "now"))
    assert "≥ " in page.words
    assert "ellipse" in page.tags


def test_the_report_shows_no_interval_of_clipped_records_only(hidden: Model) -> None:
    page = Page(render_report([hidden], "now"))
    k = hidden.components.trusted_count
    assert page.values["Variance captured by the first 5, as a share of what the best 5 capture"] == "–"
    assert page.values["Total variance"] == number(hidden.components.total_variance)
    header, *rows = page.rows["Spectrum"]
    at = header.index("share of the best k")
    assert [row[at] for row in rows] == [
        f"{hidden.components.captured_share(index)[0]:.0%}" if index <= k else "–" for index in range(1, 6)
    ]
    for column in (index for index, name in enumerate(header) if name == "5 % point"):
        assert {row[column] for row in rows} == {"–"}
    assert {"Correlation circle", "Loadings of component 1"} <= set(page.drawings)
    assert "ellipse" not in page.tags
    assert not [value for tag, name, value in page.attributes if (name, value) == ("class", "spread")]
    for gone in ("≥", "drawing the known noise", "a lower bound (", "within its ellipse", "Thin lines"):
        assert gone not in page.words, gone
    titles = [text for text in page.text if text.startswith("height: ")]
    assert titles
    assert not any("±" in title for title in titles)
    assert NO_INTERVALS in page.words


@pytest.fixture
def run(
    told: Model,
    hidden: Model,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Run]:
    """Commands of a data user whose service has both models."""
    token = make_home(tmp_path / "user", [told, hidden])
    service = open_service(load_settings(tmp_path / "user"))
    client = TestClient(make_app(service, drive=False))

    def open_client(url: str | None, home: Path | None) -> ServiceClient:
        return ServiceClient("http://127.0.0.1:1", token, transport=client._transport)

    monkeypatch.setattr(commands, "open_client", open_client)
    yield typed_by_user(capsys)
    service.close()


def test_the_terminal_shows_variances_before_clipping(
    run: Run, told: Model, hidden: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    found, out = clipping_of(told), run("result", told.study.hex())[1]
    assert found.total_variance is not None
    assert found.total_variance_deviation is not None
    lines = [line for line in out.splitlines() if "±" in line and "total variance" not in line]
    shown = [line.split("│")[5].strip() for line in lines[: len(found.variances)]]
    assert shown == [
        f"{value:.4g} ± {deviation:.2g}"
        for value, deviation in zip(found.variances.tolist(), found.deviations.tolist(), strict=True)
    ]
    assert " before clipping, without gaps " in out
    whole = f"{found.total_variance:.4g} ± {found.total_variance_deviation:.2g}"
    released = f"{told.components.total_variance:.4g} ± {reliability_of(told).total_variance_deviation:.2g}"
    assert f"total variance: {released} as released, {whole} before clipping, without gaps\n" in out
    assert "before clipping" not in run("result", hidden.study.hex())[1]


def test_the_terminal_shows_no_bound_of_clipped_records_only(run: Run, told: Model, hidden: Model) -> None:
    out = {model.study: run("result", model.study.hex())[1] for model in (told, hidden)}
    assert "at least" in out[told.study]
    assert "of the variance that the best 5 capture" in out[told.study]
    assert "of the variance that the best" not in out[hidden.study]
    assert NO_INTERVALS in out[hidden.study]
