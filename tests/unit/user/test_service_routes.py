"""The service's REST as applications see it: who gets in, what is refused, and what a model answers."""

import errno
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from proxy_world import ProxyWorld
from sqlalchemy import update
from starlette.testclient import TestClient
from study_parties import Parties
from user_world import DRAFT, UserWorld

from dpdpca_user.results.model import Model
from dpdpca_user.results.moment_files import arrow_table, moment_facts
from dpdpca_user.results.moments import Moments
from dpdpca_user.service_client import ServiceClient
from dpdpca_user_service.app import make_app
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.tables import chunks as stored_chunks

TOKEN = {"authorization": "Bearer open sesame"}
PROBLEM = "urn:dpdpca:problem:"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, parties: Parties) -> Iterator[UserWorld]:
    """A data user with one published joint study."""
    folder = tmp_path_factory.mktemp("routes")
    world = ProxyWorld(folder / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof)
    world.start()
    world.enrol_all()
    user = UserWorld(world, folder / "user")
    row = user.advance_to(user.create(), Stage.OPEN)
    user.deliver_all(row)
    user.advance_to(row, Stage.PUBLISHED)
    yield user
    user.service.close()
    world.stop()


@pytest.fixture(scope="module")
def client(finished: UserWorld) -> TestClient:
    return TestClient(make_app(finished.service, drive=False), headers=TOKEN)


@pytest.fixture(scope="module")
def study(finished: UserWorld) -> str:
    return finished.service.store.modelled()[0].known_study.hex()


def kind_of(response: Any) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["type"]).removeprefix(PROBLEM)


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", "Basic open sesame", "Bearer open sesamé"]
)
def test_without_the_token_nobody_gets_in(client: TestClient, study: str, given: str | None) -> None:
    stranger = TestClient(client.app)
    headers = {} if given is None else {"authorization": given.encode("utf-8")}
    for method, path in (
        ("GET", "/v1/studies"),
        ("POST", "/v1/studies"),
        ("GET", f"/v1/models/{study}"),
        ("GET", f"/v1/models/{study}/report"),
        ("GET", "/nothing"),
    ):
        response = stranger.request(method, path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert kind_of(response) == "bad-token"


def test_health_needs_no_token(client: TestClient) -> None:
    stranger = TestClient(client.app)
    assert stranger.get("/healthz").json() == {"status": "ok"}
    assert stranger.get("/readyz").status_code == 200


def test_a_storage_that_refuses_is_not_ready(finished: UserWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to make the service write anything."""
    stranger = TestClient(make_app(finished.service, drive=False))

    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dpdpca_runtime.probe.write_private", refuse)
        answer = stranger.get("/readyz")
        assert (answer.status_code, answer.json()["reason"]) == (
            503,
            "the storage cannot be written: No space left on device",
        )
        assert stranger.get("/healthz").status_code == 200


def test_a_draft_is_taken_as_toml_or_json(client: TestClient) -> None:
    toml = "\n".join(
        [
            'title = "From TOML"',
            'purpose = "A test."',
            'release = "joint"',
            "epsilon = 1.5",
            "clip_norm = 1",
            "max_records = 5000",
            "closes_at = 2031-01-01T00:00:00Z",
            "[[features]]",
            'name = "a"',
            "lower = 0",
            "upper = 2.5",
        ]
    )
    for content, media_type in ((toml, "application/toml"), (json.dumps(DRAFT), "application/json")):
        response = client.post("/v1/studies", content=content, headers={"content-type": media_type})
        assert response.status_code == 202, response.text
        facts = response.json()
        assert response.headers["location"] == f"/v1/studies/{facts['id']}"
        assert (facts["state"], facts["study"]) == ("drafted", None)
        again = client.get(f"/v1/studies/{facts['id']}").json()
        assert (again["progress"], again["key_search"]) == (None, None)


@pytest.mark.parametrize(
    ("content", "media_type", "status", "kind"),
    [
        (b"", "application/toml", 400, "malformed"),
        (b"= 1", "application/toml", 400, "malformed"),
        (b"\xff\xfe", "application/toml", 400, "malformed"),
        (b"[" * 5000, "application/json", 400, "malformed"),
        (b"[]", "application/json", 400, "malformed"),
        (b'{"title": NaN}', "application/json", 400, "malformed"),
        (b"{}", "text/plain", 415, "unsupported-media-type"),
        (b"x" * (5 * 1024 * 1024), "application/toml", 413, "too-large"),
        (json.dumps(DRAFT | {"epsilon": -1}).encode(), "application/json", 403, "manifest-refused"),
        (
            json.dumps(DRAFT | {"relation": "add-or-remove"}).encode(),
            "application/json",
            403,
            "manifest-refused",
        ),
        (json.dumps(DRAFT | {"noise_by": "nobody"}).encode(), "application/json", 403, "manifest-refused"),
        (json.dumps(DRAFT | {"surprise": 1}).encode(), "application/json", 400, "malformed"),
        (json.dumps(DRAFT | {"features": []}).encode(), "application/json", 403, "manifest-refused"),
        (json.dumps(DRAFT | {"title": "a\x1b[31m"}).encode(), "application/json", 403, "manifest-refused"),
    ],
)
def test_a_bad_draft_changes_nothing(
    client: TestClient, content: bytes, media_type: str, status: int, kind: str
) -> None:
    before = client.get("/v1/studies").json()
    response = client.post("/v1/studies", content=content, headers={"content-type": media_type})
    assert (response.status_code, kind_of(response)) == (status, kind)
    assert client.get("/v1/studies").json() == before


@pytest.mark.parametrize(
    "unproved", [{"mechanism": "wishart"}, {"mechanism": "mod-sulq"}, {"calibration": "as-published"}]
)
def test_a_draft_with_noise_of_the_lab_is_refused_with_the_reason(
    client: TestClient, unproved: dict[str, str]
) -> None:
    before = client.get("/v1/studies").json()
    for route in ("/v1/studies", "/v1/drafts/lint", "/v1/drafts/plan?records=5000"):
        response = client.post(route, json=DRAFT | unproved)
        assert (response.status_code, kind_of(response)) == (403, "manifest-refused")
        assert "has no proof of privacy here; it exists only in the lab" in response.json()["detail"]
    assert client.get("/v1/studies").json() == before


def test_a_draft_for_an_unknown_proxy_is_refused(client: TestClient) -> None:
    response = client.post("/v1/studies", json=DRAFT, params={"proxy": "https://elsewhere.example"})
    assert (response.status_code, kind_of(response)) == (404, "not-enrolled")


def test_unknown_studies_and_names_that_are_none(client: TestClient) -> None:
    assert kind_of(client.get(f"/v1/studies/{'0' * 64}")) == "not-found"
    for name in ("x", "..%2f..", "0" * 63, "A" * 64, "0" * 33):
        assert client.get(f"/v1/studies/{name}").status_code in (400, 404)
    unready = client.post("/v1/studies", json=DRAFT).json()["id"]
    for path in ("", "/file", "/report", "/covariance", "/correlation", "/mean"):
        response = client.get(f"/v1/models/{unready}{path}")
        assert (response.status_code, kind_of(response)) == (409, "not-ready")
    assert kind_of(client.get(f"/v1/studies/{unready}/evidence")) == "not-ready"


def test_models_are_listed_and_told(client: TestClient, study: str) -> None:
    assert [model["study"] for model in client.get("/v1/models").json()["models"]] == [study]
    facts = client.get(f"/v1/models/{study}").json()
    assert facts["study"] == study
    assert facts["records"] == 600
    assert facts["noise_edge"] > 0
    assert "against the data user" in facts["claim"]
    report = client.get(f"/v1/models/{study}/report")
    assert report.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in report.headers["content-security-policy"]
    assert study in report.text


def test_the_report_says_what_verify_says(client: TestClient, finished: UserWorld, study: str) -> None:
    """The lines are those of the stored statements, so a changed chunk shows when the report is made."""
    service = finished.service
    row = service.store.find(study)
    path = f"/v1/models/{study}/report"
    text = client.get(path).text
    for line in (
        "the manifest names the pinned proxy",
        "is an unbroken signed chain with the cohort&#x27;s receipts",
        "chunks have the signed digests and are well formed",
        "is an unbroken chain of",
    ):
        assert line in text, line
    assert "A check failed" not in text
    kept = service.store.chunk(row, 0)
    assert kept is not None
    count = client.get(f"/v1/studies/{study}/evidence").json()["chunk_count"]
    chunks = [service.store.chunk(row, position) for position in range(count)]
    assert f"<td>{sum(len(chunk or b'') for chunk in chunks):,}</td>" in text

    def store(content: bytes) -> None:
        with service.store.database.transaction("change a chunk") as connection:
            connection.execute(
                update(stored_chunks)
                .where(stored_chunks.c.id == row.id, stored_chunks.c.position == 0)
                .values(content=content)
            )

    store(bytes(len(kept)))
    try:
        damaged = client.get(path).text
    finally:
        store(kept)
    assert "A check failed:</strong> chunk 0 of the release is not the one that the proxy signed" in damaged
    assert "well formed" not in damaged


def test_tables_are_told_in_json_and_in_arrow(client: TestClient, finished: UserWorld, study: str) -> None:
    model: Model = finished.service.model_of(finished.service.store.find(study).id)
    arrow = {"accept": "application/vnd.apache.arrow.stream"}
    for name, table in (
        ("covariance", model.moments.covariance(remove_noise=False, positive=True)),
        ("correlation", model.moments.correlation(remove_noise=False, positive=True)),
        ("mean", model.moments.means()),
    ):
        path = f"/v1/models/{study}/{name}"
        asked = {} if name == "mean" else {"keep_noise": "true", "positive": "true"}
        facts = client.get(path, params=asked).json()
        assert facts == {"study": study, **moment_facts(table)}
        told = client.get(path, params=asked, headers=arrow)
        assert told.headers["content-type"] == arrow["accept"]
        assert pa.ipc.open_stream(told.content).read_all().equals(arrow_table(table))
    cleaned = client.get(f"/v1/models/{study}/covariance").json()
    assert cleaned["values"] == model.moments.covariance().values.tolist()


def test_a_table_that_is_too_large_is_refused_before_it_is_made(
    client: TestClient, study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdpca_user.results.moment_files.MOST_FEATURES", 2)
    monkeypatch.setattr(Moments, "covariance", None)  # would fail if it were called
    for accept in ("application/json", "application/vnd.apache.arrow.stream"):
        for name in ("covariance", "correlation"):
            answer = client.get(f"/v1/models/{study}/{name}", headers={"accept": accept})
            assert (answer.status_code, kind_of(answer)) == (413, "too-large")
    assert client.get(f"/v1/models/{study}/mean").status_code == 200


def test_rows_are_projected_from_json_and_from_arrow(
    client: TestClient, finished: UserWorld, study: str
) -> None:
    model: Model = finished.service.model_of(finished.service.store.find(study).id)
    rows = np.array([[0.1, -0.2, 0.3], [0.5, 0.5, -0.5]])
    expected = model.components.scores(rows)
    path = f"/v1/models/{study}/transform"
    assert np.allclose(client.post(path, json={"rows": rows.tolist()}).json()["scores"], expected)
    named = [dict(zip(("f2", "f0", "f1"), (row[2], row[0], row[1]), strict=True)) for row in rows.tolist()]
    two = client.post(path, json={"rows": named}, params={"components": 2}).json()["scores"]
    assert np.allclose(two, expected[:, :2])

    table = pa.table({"f1": rows[:, 1], "other": ["a", "b"], "f0": rows[:, 0], "f2": rows[:, 2]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    media_type = "application/vnd.apache.arrow.stream"
    answer = client.post(path, content=sink.getvalue(), headers={"content-type": media_type})
    assert answer.headers["content-type"] == media_type
    scores = pa.ipc.open_stream(answer.content).read_all()
    assert scores.column_names == ["component_1", "component_2", "component_3"]
    assert np.allclose(np.column_stack([column.to_numpy() for column in scores.columns]), expected)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[1]", 400),
        (b'{"rows": []}', 422),
        (b'{"rows": [[1, 2]]}', 422),
        (b'{"rows": [[1, 2, 1e999]]}', 422),
        (b'{"rows": [[1, 2, NaN]]}', 422),
        (b'{"rows": [["tall", 2, 3]]}', 422),
        (b'{"rows": [[1, 2, 3]], "more": 1}', 400),
        (b'{"rows": ' + b"[" * 4000, 400),
    ],
)
def test_rows_that_do_not_fit_are_refused(client: TestClient, study: str, body: bytes, status: int) -> None:
    response = client.post(
        f"/v1/models/{study}/transform", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == status
    kind_of(response)
    assert "tall" not in response.text


def test_arrow_that_is_none_is_refused(client: TestClient, study: str) -> None:
    media_type = "application/vnd.apache.arrow.stream"
    for body in (b"", b"ARROW1", b"\xff" * 64):
        response = client.post(
            f"/v1/models/{study}/transform", content=body, headers={"content-type": media_type}
        )
        assert (response.status_code, kind_of(response)) == (400, "malformed")


def test_the_client_of_the_commands_reads_it_all(client: TestClient, finished: UserWorld, study: str) -> None:
    with ServiceClient("http://127.0.0.1:1", "open sesame", transport=client._transport) as service:
        assert service.model(study)["study"] == study
        assert Model.from_bytes(service.model_file(study)).study.hex() == study
        assert service.study(study)["state"] == "published"
        assert b"<!doctype html>" in service.report(study)
        evidence = service.evidence(study)
        assert evidence["chunk_count"] == 1
        row = finished.service.store.find(study)
        assert service.evidence_chunk(study, 0) == finished.service.store.chunk(row, 0)
        assert {facts["id"] for facts in service.studies()} >= {row.id}


def test_the_database_and_its_folder_are_private(finished: UserWorld) -> None:
    home: Path = finished.home
    assert home.stat().st_mode & 0o777 == 0o700
    for file in home.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file.name
