"""Routes after closing: the count and its answer, the release, the components."""

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.wire.http import CHUNK_MEDIA_TYPE, JSON_MEDIA_TYPE, STATEMENT_LIMIT_BYTES
from dpdpca_proxy.carried import leave_unsigned
from dpdpca_proxy.releases import (
    answer_count,
    challenge_of,
    components_of,
    publication_limit,
    publish,
    release_bundle,
    release_chunk,
    take_opened,
)
from dpdpca_proxy.routes.callers import (
    ANY_ROLE,
    USER,
    PositionPath,
    StudyPath,
    json_response,
    large_request,
    proxy_of,
    signed_request,
    study_id,
)
from dpdpca_proxy.routes.contract import OF_ITS_USER, STATEMENT, STUDY
from dpdpca_runtime.asgi.contract import binary, operation, signed
from dpdpca_runtime.asgi.limits import BoundedStream, in_pieces
from dpdpca_runtime.bodies import Published, Release

router = APIRouter(prefix="/v1/studies/{study}", tags=["releases"])


@router.get(
    "/count",
    summary="Read E[N] of a masked study as a signed challenge",
    **operation(
        signed("count-challenge"),
        [*OF_ITS_USER, "no-count", "not-ready", "wrong-state"],
        described="The challenge.",
    ),
)
async def read_count(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, USER)
    return json_response(
        await run_in_threadpool(challenge_of, proxy_of(request), signed.caller, study_id(study))
    )


@router.post(
    "/count",
    summary="Answer the count challenge: N with its proof",
    **operation(
        None,
        [
            *OF_ITS_USER,
            *STATEMENT,
            "count-already-answered",
            "count-out-of-range",
            "count-proof-false",
            "no-count",
            "not-ready",
            "wrong-state",
        ],
        status=204,
        described="The answer was accepted.",
        body=signed("count-answer"),
        body_described="A count answer signed by the data user.",
    ),
)
async def send_count(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, USER, max_bytes=STATEMENT_LIMIT_BYTES)
    await to_thread.run_sync(
        answer_count,
        proxy_of(request),
        signed.caller,
        study_id(study),
        signed.body,
        limiter=request.app.state.heavy,
    )
    return Response(status_code=204)


@router.get(
    "/release",
    summary="Read the signed release, its cohort's statements, and transcript and log up to it",
    **operation(Release, [*OF_ITS_USER, "not-ready", "wrong-state"], described="The release."),
)
async def read_release(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, USER)
    return json_response(
        await run_in_threadpool(release_bundle, proxy_of(request), signed.caller, study_id(study))
    )


@router.get(
    "/release/chunks/{position}",
    summary="Read one chunk of the release",
    response_class=Response,
    **operation(binary(), [*OF_ITS_USER, "not-ready", "wrong-state"], described="The chunk."),
)
async def read_release_chunk(request: Request, study: StudyPath, position: PositionPath) -> Response:
    signed = await signed_request(request, USER)
    content = await run_in_threadpool(
        release_chunk, proxy_of(request), signed.caller, study_id(study), int(position)
    )
    return Response(content, media_type=CHUNK_MEDIA_TYPE, headers={"Cache-Control": "no-store"})


@router.put(
    "/opened",
    summary="State which release the data user opens",
    **operation(
        None,
        [*OF_ITS_USER, *STATEMENT, "not-ready", "opened-differs", "wrong-state"],
        status=204,
        described="The statement is in the transcript.",
        body=signed("opened"),
        body_described="An `opened` statement signed by the data user.",
    ),
)
async def send_opened(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, USER, max_bytes=STATEMENT_LIMIT_BYTES)
    await run_in_threadpool(take_opened, proxy_of(request), signed.caller, study_id(study), signed.body)
    return Response(status_code=204)


@router.put(
    "/components",
    summary="Publish the components, sealed to each owner",
    **operation(
        None,
        [*OF_ITS_USER, *STATEMENT, "components-differ", "not-ready", "wrong-state"],
        status=204,
        described="The components were published.",
        body=signed("components"),
        body_described="A components statement signed by the data user.",
    ),
)
async def publish_components(request: Request, study: StudyPath) -> Response:
    proxy, name = proxy_of(request), study_id(study)
    async with large_request(
        request, USER, lambda caller: publication_limit(proxy, caller, name), request.app.state.large
    ) as signed:
        await to_thread.run_sync(
            publish, proxy, signed.caller, name, signed.body, limiter=request.app.state.heavy
        )
    return Response(status_code=204)


@router.get(
    "/components",
    summary="Read the components that were published to the cohort",
    **operation(
        Published, [*STUDY, "not-in-the-cohort", "not-ready", "wrong-state"], described="The statement."
    ),
)
async def read_components(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, ANY_ROLE, may_be_carried=True)
    leave_unsigned(request.scope)  # the data user has signed the content, which may be large
    statement = await run_in_threadpool(components_of, proxy_of(request), signed.caller, study_id(study))
    return BoundedStream(
        in_pieces(b'{"components":', statement, b"}"),
        media_type=JSON_MEDIA_TYPE,
        headers={"Cache-Control": "no-store", "Content-Length": str(len(statement) + 15)},
    )
