"""The studies that wait for an owner."""

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_proxy.routes.callers import OWNER, json_response, proxy_of, signed_request
from dpdpca_proxy.routes.contract import SIGNED
from dpdpca_proxy.studies import inbox
from dpdpca_runtime.asgi.contract import operation
from dpdpca_runtime.bodies import Studies

router = APIRouter(prefix="/v1", tags=["studies"])


@router.get(
    "/inbox",
    summary="List the open studies that name the caller, under any of its keys, or that anybody may join",
    **operation(
        Studies,
        [*SIGNED, "wrong-role"],
        described="The studies. An owner that has joined one still finds it here while the study is open.",
    ),
)
async def read_inbox(request: Request) -> Response:
    signed = await signed_request(request, OWNER)
    listed = await run_in_threadpool(inbox, proxy_of(request), signed.caller)
    return json_response(canonical_json({"studies": listed}))
