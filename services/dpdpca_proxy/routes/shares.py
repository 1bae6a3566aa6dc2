"""Routes for an owner's share: send chunks, read its state, complete, withdraw, decline."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.messages.share import CHUNK_OVERHEAD_BYTES
from dpdpca_protocol.paillier.chunks import CHUNK_CIPHERTEXTS
from dpdpca_protocol.paillier.keys import MOST_BITS
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.http import CHUNK_MEDIA_TYPE, STATEMENT_LIMIT_BYTES
from dpdpca_proxy.routes.callers import (
    OWNER,
    PositionPath,
    StudyPath,
    json_response,
    large_request,
    proxy_of,
    signed_request,
    study_id,
)
from dpdpca_proxy.routes.contract import BODY, DECLINES, OF_ONE_ROLE, SHARE, STATEMENT
from dpdpca_proxy.shares import complete, decline, put_chunk, status_of, withdraw
from dpdpca_runtime.asgi.contract import binary, operation, signed
from dpdpca_runtime.bodies import ShareStatus

CHUNK_LIMIT_BYTES = CHUNK_CIPHERTEXTS * MOST_BITS // 4 + CHUNK_OVERHEAD_BYTES
"""The largest chunk of any study. The exact length follows from the manifest."""

SHARE_STATEMENT_LIMIT_BYTES = 1024 * 1024
"""The largest share statement. A share statement lists every chunk of the share."""

VersionQuery = Annotated[
    str,
    Query(pattern="^[1-9][0-9]{0,9}$", description="The version of the share to which the chunk belongs."),
]

router = APIRouter(prefix="/v1/studies/{study}", tags=["shares"])


@router.put(
    "/share/chunks/{position}",
    summary="Send one chunk of the caller's share",
    **operation(
        None,
        [
            *SHARE,
            *BODY,
            "blinded-share-is-final",
            "chunk-differs",
            "ciphertext-not-a-unit",
            "ciphertext-out-of-range",
            "ciphertext-repeated",
            "sealed-body-does-not-open",
            "shares-deleted",
        ],
        status=204,
        described="The chunk was stored.",
        body=binary(),
        body_described="The chunk, sealed to the proxy's `kem`.",
    ),
)
async def send_chunk(
    request: Request, study: StudyPath, position: PositionPath, version: VersionQuery
) -> Response:
    signed = await signed_request(
        request, OWNER, media_type=CHUNK_MEDIA_TYPE, max_bytes=CHUNK_LIMIT_BYTES, may_be_carried=True
    )
    await to_thread.run_sync(
        put_chunk,
        proxy_of(request),
        signed.caller,
        study_id(study),
        int(version),
        int(position),
        signed.body,
        limiter=request.app.state.heavy,
    )
    return Response(status_code=204)


@router.get(
    "/share",
    summary="Read which chunks arrived, and the receipt",
    **operation(ShareStatus, OF_ONE_ROLE, described="The caller's share."),
)
async def read_share(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, OWNER, may_be_carried=True)
    status = await run_in_threadpool(status_of, proxy_of(request), signed.caller, study_id(study))
    return json_response(
        canonical_json(
            {
                "chunks": list(status.chunks),
                "receipt": parse_canonical(status.receipt) if status.receipt else None,
                "state": str(status.state),
                "version": status.version,
            }
        )
    )


@router.post(
    "/share/complete",
    summary="Complete the share; the answer is the signed receipt",
    **operation(
        signed("receipt"),
        [
            *SHARE,
            *STATEMENT,
            "blinded-share-is-final",
            "chunk-differs",
            "chunk-of-another-owner",
            "ciphertext-repeated",
            "share-incomplete",
            "shares-deleted",
            "statement-differs",
            "unfit-sealing-key",
        ],
        described="The proxy's signed receipt for the complete share.",
        body=signed("share"),
        body_described="A share statement signed by the owner.",
    ),
)
async def complete_share(request: Request, study: StudyPath) -> Response:
    async with large_request(
        request,
        OWNER,
        lambda caller: SHARE_STATEMENT_LIMIT_BYTES,
        request.app.state.statements,
        may_be_carried=True,
    ) as signed:
        receipt = await to_thread.run_sync(
            complete,
            proxy_of(request),
            signed.caller,
            study_id(study),
            signed.body,
            limiter=request.app.state.heavy,
        )
    return json_response(receipt)


@router.delete(
    "/share",
    summary="Withdraw the share; the answer is the signed receipt",
    **operation(
        signed("receipt"),
        [*SHARE, *STATEMENT, "statement-differs"],
        described="The proxy's signed receipt for the withdrawal.",
        body=signed("withdrawal"),
        body_described="A withdrawal statement signed by the owner, under the next version.",
    ),
)
async def withdraw_share(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, OWNER, max_bytes=STATEMENT_LIMIT_BYTES, may_be_carried=True)
    receipt = await run_in_threadpool(
        withdraw, proxy_of(request), signed.caller, study_id(study), signed.body
    )
    return json_response(receipt)


@router.post(
    "/decline",
    summary="Tell the data user that the caller does not take part",
    **operation(
        None,
        DECLINES,
        status=204,
        described="The statement is stored. Only the data user of the study is told.",
        body=signed("decline"),
        body_described="A decline statement signed by the owner.",
    ),
)
async def decline_study(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, OWNER, max_bytes=STATEMENT_LIMIT_BYTES)
    await run_in_threadpool(decline, proxy_of(request), signed.caller, study_id(study), signed.body)
    return Response(status_code=204)
