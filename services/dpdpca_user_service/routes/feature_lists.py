"""The route for lists of features, which drafts name in place of their features."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.terms.feature_list import LIST_LIMIT_BYTES
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_runtime.asgi.contract import operation
from dpdpca_runtime.asgi.limits import read_body
from dpdpca_user_service.bodies import FeatureListBody
from dpdpca_user_service.operations import keep_list
from dpdpca_user_service.routes.contract import DRAFT, FEATURE_LIST
from dpdpca_user_service.routes.requests import json_response, service_of

ListPath = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the list.")]

router = APIRouter(prefix="/v1/feature-lists", tags=["drafts"])


@router.put(
    "/{sha256}",
    summary="Store a list of features, before a draft names it",
    **operation(
        FeatureListBody,
        [*DRAFT, "feature-list-differs", "not-canonical"],
        described="The list is stored. A draft names it by this answer, as its `feature_list`.",
        body=FEATURE_LIST,
        body_described="The list, a canonical JSON array of features.",
    ),
)
async def store_list(request: Request, sha256: ListPath) -> Response:
    content = await read_body(request, JSON_MEDIA_TYPE, LIST_LIMIT_BYTES)
    async with request.app.state.drafts.take():
        return json_response(await run_in_threadpool(keep_list, service_of(request), sha256, content))
