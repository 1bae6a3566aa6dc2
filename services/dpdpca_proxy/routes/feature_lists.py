"""Routes for lists of features, which manifests name by their digests."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.terms.feature_list import LIST_LIMIT_BYTES
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy.feature_lists import list_bytes, put_list
from dpdpca_proxy.routes.callers import ANY_ROLE, USER, large_request, proxy_of, signed_request
from dpdpca_proxy.routes.contract import BODY, FEATURE_LIST, SIGNED
from dpdpca_runtime.asgi.contract import operation
from dpdpca_runtime.asgi.limits import BoundedStream, in_pieces

ListPath = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the list.")]

router = APIRouter(prefix="/v1/feature-lists", tags=["studies"])


@router.put(
    "/{sha256}",
    summary="Store a list of features, before a manifest names it",
    **operation(
        None,
        [
            *SIGNED,
            *BODY,
            "feature-list-differs",
            "key-given-up",
            "too-many-feature-lists",
            "wrong-role",
        ],
        status=204,
        described="The list is stored. Sending it again changes nothing.",
        body=FEATURE_LIST,
        body_described="The list, a canonical JSON array of features.",
    ),
)
async def send_list(request: Request, sha256: ListPath) -> Response:
    async with large_request(
        request, USER, lambda caller: LIST_LIMIT_BYTES, request.app.state.large
    ) as signed:
        await to_thread.run_sync(
            put_list,
            proxy_of(request),
            signed.caller,
            Digest.parse(sha256),
            signed.body,
            limiter=request.app.state.heavy,
        )
    return Response(status_code=204)


@router.get(
    "/{sha256}",
    summary="Read a list of features, byte for byte",
    response_class=Response,
    **operation(FEATURE_LIST, [*SIGNED, "feature-list-missing"], described="The list."),
)
async def read_list(request: Request, sha256: ListPath) -> Response:
    await signed_request(request, ANY_ROLE, may_be_carried=True)
    content = await run_in_threadpool(list_bytes, proxy_of(request), Digest.parse(sha256))
    return BoundedStream(
        in_pieces(content),
        media_type=JSON_MEDIA_TYPE,
        headers={"Cache-Control": "no-store", "Content-Length": str(len(content))},
    )
