"""Drafts are linted and planned over REST as the commands do it, and nothing is kept of them."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from proxy_world import ProxyWorld
from starlette.testclient import TestClient
from starlette.types import Message
from study_parties import Parties
from typer.testing import CliRunner
from user_world import DRAFT, UserWorld

from dpdpca_cli.main import app as cli
from dpdpca_protocol.terms.members import draft_schema
from dpdpca_user_service.app import make_app
from dpdpca_user_service.routes.requests import DRAFT_LIMIT_BYTES

TOKEN = {"authorization": "Bearer open sesame"}
BASE = {name: value for name, value in DRAFT.items() if name not in ("release", "clip_norm")}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, parties: Parties) -> Iterator[TestClient]:
    """A service whose proxy does not run: none of these routes asks it."""
    folder = tmp_path_factory.mktemp("drafts")
    world = ProxyWorld(folder / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof)
    world.start()
    user = UserWorld(world, folder / "user")
    world.stop()
    yield TestClient(make_app(user.service, drive=False), headers=TOKEN, raise_server_exceptions=False)
    user.service.close()


def said(*command: str) -> Any:
    outcome = CliRunner().invoke(cli, [*command, "--json"])
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


def slug(answer: Any) -> str:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return str(answer.json()["type"]).removeprefix("urn:dpdpca:problem:")


def test_the_schema_of_drafts_is_published(client: TestClient) -> None:
    answer = client.get("/v1/draft-schema")
    assert answer.headers["content-type"] == "application/schema+json"
    assert answer.json() == draft_schema()


def test_lint_says_what_the_command_says(client: TestClient, tmp_path: Path) -> None:
    draft = tmp_path / "draft.json"
    draft.write_text(json.dumps(DRAFT))
    answer = client.post("/v1/drafts/lint?records=300", json=DRAFT)
    assert answer.json() == said("user", "study", "lint", str(draft), "--records", "300")
    assert any("max_records = 5,000" in line for line in answer.json()["advice"])
    assert any("will shorten" in line for line in answer.json()["advice"])
    draft.write_text(json.dumps(BASE))
    answer = client.post("/v1/drafts/lint", json=BASE)
    assert answer.json() == said("user", "study", "lint", str(draft))
    assert answer.json()["release"] is None


@pytest.mark.parametrize(
    ("draft", "query", "options"),
    [
        (DRAFT, "records=5000", ["--records", "5000"]),
        (BASE, "records=5000", ["--records", "5000"]),
        (
            DRAFT,
            "records=5000&spectrum=0.5&spectrum=0.3",
            ["--records", "5000", "--spectrum", "0.5,0.3"],
        ),
        (DRAFT, "records=9&anyway=true", ["--records", "9", "--anyway"]),
        (BASE, "records=5000&begin=true", ["--records", "5000", "--begin"]),
        (BASE, "records=5000&begin=true&scales=true", ["--records", "5000", "--begin", "--scales"]),
    ],
)
def test_plan_says_what_the_command_says(
    client: TestClient, tmp_path: Path, draft: dict[str, Any], query: str, options: list[str]
) -> None:
    file = tmp_path / "draft.json"
    file.write_text(json.dumps(draft))
    answer = client.post(f"/v1/drafts/plan?{query}", json=draft)
    assert answer.status_code == 200, answer.text
    assert answer.json() == said("user", "plan", str(file), *options)


@pytest.mark.parametrize(
    ("route", "draft", "status", "kind"),
    [
        ("lint", BASE | {"missing": "reject"}, 403, "no-chain"),
        ("lint", DRAFT | {"epsilon": -1}, 403, "manifest-refused"),
        ("lint", [], 400, "malformed"),
        ("lint?records=0", DRAFT, 400, "malformed"),
        ("plan", DRAFT, 400, "malformed"),
        ("plan?records=9", DRAFT, 403, "too-few-records"),
        ("plan?records=5000", BASE | {"release": "open"}, 403, "manifest-refused"),
        ("plan?records=5000", BASE | {"release": ["joint"]}, 400, "malformed"),
        ("plan?records=5000", BASE | {"features": 7}, 400, "malformed"),
        ("plan?records=5000&begin=true", BASE | {"features": 7}, 400, "malformed"),
        ("plan?records=5000&begin=true", BASE | {"features": [7]}, 400, "malformed"),
        ("plan?records=5000&begin=true", BASE | {"features": []}, 400, "malformed"),
        (
            "plan?records=5000&begin=true",
            BASE | {"features": [{"name": "a", "levels": []}]},
            400,
            "malformed",
        ),
        ("lint", DRAFT | {"max_records": None}, 400, "malformed"),
        ("plan?records=5000&spectrum=0", DRAFT, 400, "malformed"),
        ("plan?records=5000&spectrum=-1", DRAFT, 400, "malformed"),
        ("plan?records=5000&spectrum=nan", DRAFT, 400, "malformed"),
        (f"plan?from={'0' * 64}", BASE, 404, "not-found"),
        ("plan?from=zero", BASE, 400, "malformed"),
    ],
)
def test_a_draft_that_cannot_be_is_refused(
    client: TestClient, route: str, draft: object, status: int, kind: str
) -> None:
    answer = client.post(f"/v1/drafts/{route}", json=draft)
    assert (answer.status_code, slug(answer)) == (status, kind), answer.text


@pytest.mark.parametrize("route", ["lint", "plan?records=5000"])
def test_drafts_are_bounded_as_those_of_studies(client: TestClient, route: str) -> None:
    url, toml = f"/v1/drafts/{route}", {"content-type": "application/toml"}
    answer = client.post(url, content=b"#" * (DRAFT_LIMIT_BYTES + 1), headers=toml)
    assert (answer.status_code, slug(answer)) == (413, "too-large")
    answer = client.post(url, content=b"a = [" + b"1," * 200_001 + b"]", headers=toml)
    assert (answer.status_code, slug(answer)) == (413, "too-large")
    answer = client.post(url, content=b"{}", headers={"content-type": "text/plain"})
    assert (answer.status_code, slug(answer)) == (415, "unsupported-media-type")


def test_nothing_is_kept(client: TestClient) -> None:
    client.post("/v1/drafts/lint", json=DRAFT)
    client.post("/v1/drafts/plan?records=5000", json=DRAFT)
    assert client.get("/v1/studies").json() == {"studies": []}
    assert client.get("/v1/chains").json() == {"chains": []}


def test_a_draft_that_arrives_slowly_keeps_no_other_out(client: TestClient) -> None:
    """The one slot for drafts is taken when a body is whole."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/drafts/lint",
        "raw_path": b"/v1/drafts/lint",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"authorization", TOKEN["authorization"].encode()),
        ],
    }

    async def ask_beside_a_slow_one() -> httpx.Response:
        reading = asyncio.Event()

        async def body_that_does_not_come() -> Message:
            reading.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sends more")

        async def nobody_listens(_message: Message) -> None: ...

        slow = asyncio.ensure_future(client.app(scope, body_that_does_not_come, nobody_listens))
        await reading.wait()
        transport = httpx.ASGITransport(app=client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=TOKEN) as other:
            answer = await other.post("/v1/drafts/lint", json=DRAFT)
        slow.cancel()
        return answer

    assert asyncio.run(ask_beside_a_slow_one()).status_code == 200
