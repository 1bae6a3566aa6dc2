"""Common code of the routes: the service, the parsing of drafts, and JSON answers."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_runtime.asgi.limits import read_body
from dpdpca_user.planning.lint import TOML_MEDIA_TYPE
from dpdpca_user_service.service import UserService

DRAFT_LIMIT_BYTES = 4 * 1024 * 1024

StudyPath = Annotated[
    str, Path(pattern="^[0-9a-f]{32}([0-9a-f]{32})?$", description="The id of the study or of its draft.")
]
ProxyQuery = Annotated[str | None, Query(description="Address of the proxy; needed if several are known.")]
PublishQuery = Annotated[bool, Query(description="Send the sealed components to the owners.")]
InClearQuery = Annotated[
    bool,
    Query(description="Make components that may be published in clear; for this, a second noise is added."),
]
RecordsQuery = Annotated[
    int | None, Query(ge=1, lt=2**53, description="Expected number of records of all owners together.")
]
ScalesQuery = Annotated[bool, Query(description="Begin with a study of every feature's scale.")]


def service_of(request: Request) -> UserService:
    service = request.app.state.service
    assert isinstance(service, UserService)
    return service


@asynccontextmanager
async def received_draft(request: Request) -> AsyncIterator[tuple[bytes, str]]:
    """A draft in TOML or JSON, and its format.

    Only one draft is handled at a time, because parsing takes a hundred times the draft's size in memory. A
    request waits for its turn after its body has arrived, so that a slow client does not block others.
    """
    media_type = media_type_of(request, (TOML_MEDIA_TYPE, JSON_MEDIA_TYPE))
    draft = await read_body(request, media_type, DRAFT_LIMIT_BYTES)
    async with request.app.state.drafts.take():
        yield draft, media_type


def media_type_of(request: Request, taken: tuple[str, ...]) -> str:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in taken:
        raise MessageError(
            "unsupported-media-type", f"this route accepts only {' or '.join(taken)}", f"send {taken[0]}"
        )
    return given


def json_response(
    facts: Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = JSON_MEDIA_TYPE,
) -> Response:
    return Response(
        json.dumps(facts, allow_nan=False),
        status,
        {"Cache-Control": "no-store"} | dict(headers or {}),
        media_type=media_type,
    )
