"""Errors at the edge: one shape, the right status, no echo of what was sent."""

import errno
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from dpdpca_protocol.errors import (
    ConflictError,
    DpdpcaError,
    IntegrityError,
    LimitError,
    MessageError,
    UnavailableError,
    UsageError,
)
from dpdpca_runtime.asgi.problems import (
    as_dpdpca_error,
    install_problem_handlers,
    problem_document,
    problem_response,
    status_of,
)

SECRET = "s3cret-4711"


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: int
    named: dict[str, int] = {}


@pytest.fixture
def observed() -> list[str]:
    return []


@pytest.fixture
def client(observed: list[str]) -> httpx.AsyncClient:
    app = FastAPI()

    @app.get("/planned")
    async def planned() -> None:
        raise UnavailableError("busy", "not now", "try again", retry_after_seconds=7)

    @app.get("/bug")
    async def bug() -> None:
        raise ValueError(SECRET)

    @app.get("/usage")
    async def usage() -> None:
        raise UsageError("wrong-order", SECRET)

    @app.get("/full")
    async def full() -> None:
        raise OSError(errno.ENOSPC, SECRET)

    @app.post("/body")
    async def body(_body: Body, count: int) -> None: ...

    @app.delete("/body")
    async def no_body() -> None: ...

    install_problem_handlers(app, observed.append)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def ask(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> httpx.Response:
    async with client:
        return await client.request(method, path, **options)


def run(client: httpx.AsyncClient, method: str, path: str, **options: Any) -> httpx.Response:
    import asyncio

    return asyncio.run(ask(client, method, path, **options))


@pytest.mark.parametrize(
    ("method", "path", "status", "slug"),
    [
        ("GET", "/planned", 503, "busy"),
        ("GET", "/bug", 500, "internal"),
        ("GET", "/usage", 500, "internal"),
        ("GET", "/full", 507, "storage-full"),
        ("GET", "/nowhere", 404, "not-found"),
        ("PUT", "/planned", 405, "method-not-allowed"),
    ],
)
def test_every_failure_is_a_problem_document(
    client: httpx.AsyncClient, observed: list[str], method: str, path: str, status: int, slug: str
) -> None:
    response = run(client, method, path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["type"] == f"urn:dpdpca:problem:{slug}"
    assert document["status"] == status
    assert {"title", "detail", "next_step"} <= document.keys()
    assert SECRET not in response.text
    assert observed == [slug]


def test_retry_after_is_in_header_and_document(client: httpx.AsyncClient) -> None:
    response = run(client, "GET", "/planned")
    assert response.headers["retry-after"] == "7"
    assert response.json()["retry_after_seconds"] == 7


def test_a_wrong_method_names_the_right_ones(client: httpx.AsyncClient) -> None:
    assert run(client, "PUT", "/planned").headers["allow"] == "GET"


def test_a_wrong_method_names_those_of_every_route_at_the_path(client: httpx.AsyncClient) -> None:
    assert run(client, "PUT", "/body").headers["allow"] == "DELETE, POST"


@pytest.mark.parametrize(
    "content",
    [
        b'{"count":NaN}',
        b'{"count":1e999}',
        b'{"count":"\\ud800"}',
        b'{"count":"s3cret-4711"}',
        b'{"count":1,"s3cret-4711":1}',
        b'{"count":1,"named":{"s3cret-4711":"x"}}',
        b"\xff\xfe",
        b"[" * 100_000,
        b"",
        b"s3cret-4711",
    ],
)
def test_rejected_input_is_not_repeated(client: httpx.AsyncClient, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = run(client, "POST", "/body?count=s3cret-4711", content=content, headers=headers)
    assert response.status_code == 400
    assert SECRET not in response.text
    assert response.json()["type"] == "urn:dpdpca:problem:malformed"


def test_the_log_of_a_bug_holds_the_place_and_not_the_message(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    response = run(client, "GET", "/bug")
    (record,) = [record for record in caplog.records if record.name == "dpdpca.problems"]
    assert vars(record)["incident"] == response.json()["incident"]
    assert "test_asgi_problems.py" in vars(record)["place"]
    assert SECRET not in json.dumps({name: str(value) for name, value in vars(record).items()})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MessageError("malformed", ""), 400),
        (MessageError("unsupported-media-type", ""), 415),
        (ConflictError("study-closed", ""), 409),
        (LimitError("too-large", ""), 413),
        (LimitError("too-many", ""), 429),
        (LimitError("deadline", ""), 408),
        (UnavailableError("storage-full", ""), 507),
        (IntegrityError("state-corrupt", ""), 500),
    ],
)
def test_the_status_follows_from_class_and_slug(error: DpdpcaError, status: int) -> None:
    assert status_of(error) == status == problem_document(error)["status"]
    assert problem_response(error).status_code == status


def test_what_nobody_planned_is_not_translated() -> None:
    assert as_dpdpca_error(ValueError()) is None
    assert as_dpdpca_error(OSError(errno.ENOENT, "")) is None
    planned = as_dpdpca_error(OSError(errno.EMFILE, ""))
    assert planned is not None
    assert planned.slug == "busy"
