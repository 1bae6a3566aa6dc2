"""In every test, each problem that a service answers with stands in its OpenAPI document, at its route."""

from collections.abc import Iterator

import pytest
from contract import Contract, Part
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from dpdpca_protocol.wire.http import PROBLEM_MEDIA_TYPE

# By the routes of a service: those of a test's service are those of the next test's.
_contracts: dict[tuple[str, ...], Contract] = {}
_undeclared: list[str] = []


@pytest.fixture(scope="session", autouse=True)
def problems_are_noted() -> Iterator[None]:
    """Looks at the answers of all services of this process; those without a document of ours are left out."""
    answer = FastAPI.__call__

    async def noting(app: FastAPI, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {}
        content = bytearray()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            elif _is_problem(start):
                content.extend(message.get("body", b""))
            await send(message)

        await answer(app, scope, receive, sending)
        if _is_problem(start) and "openapi" in vars(app):  # as `describe` leaves it
            routes = tuple(str(route) for route in app.routes)
            contract = _contracts[routes] = _contracts.get(routes) or Contract(app.openapi())
            part = Part(PROBLEM_MEDIA_TYPE, bytes(content))
            contract.judge(scope["method"], scope["path"], Part("", b""), start["status"], part)
            _undeclared.extend(contract.faults)
            contract.faults.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastAPI, "__call__", noting)
        yield


@pytest.fixture(autouse=True)
def problems_are_declared(problems_are_noted: None) -> Iterator[None]:
    """Fails where a service answered a problem that its document does not name."""
    yield
    found = [*_undeclared]
    _undeclared.clear()
    assert found == []


def _is_problem(start: Message) -> bool:
    headers = dict(start.get("headers", ()))
    return headers.get(b"content-type") == PROBLEM_MEDIA_TYPE.encode()
