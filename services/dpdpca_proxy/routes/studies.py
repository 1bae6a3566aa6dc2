"""Routes for studies: open, read, close, cancel."""

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.http import MANIFEST_LIMIT_BYTES, STATEMENT_LIMIT_BYTES
from dpdpca_proxy.routes.callers import (
    ANY_ROLE,
    USER,
    StudyPath,
    json_response,
    large_request,
    proxy_of,
    signed_request,
    study_id,
)
from dpdpca_proxy.routes.contract import OF_ITS_USER, SIGNED, STATEMENT, STUDY
from dpdpca_proxy.studies import (
    accept_manifest,
    cancel,
    close_by_user,
    detail,
    manifest_bytes,
    summaries,
    transcript_of,
)
from dpdpca_runtime.asgi.contract import operation, signed
from dpdpca_runtime.bodies import OpenedStudy, Studies, StudyDetail, Transcript

router = APIRouter(prefix="/v1/studies", tags=["studies"])


@router.post(
    "",
    summary="Open a study with a signed manifest",
    **operation(
        OpenedStudy,
        [
            *SIGNED,
            *STATEMENT,
            "cohort-too-close",
            "feature-list-differs",
            "feature-list-missing",
            "key-given-up",
            "manifest-refused",
            "not-the-study-owner",
            "unfit-blinding-key",
            "unfit-modulus",
            "unfit-sealing-key",
            "wrong-role",
        ],
        status=201,
        described="The study is open.",
        also={200: "The study was already opened with the same manifest."},
        body=signed("manifest"),
        body_described="The manifest as a statement signed by the data user.",
    ),
)
async def open_study(request: Request) -> Response:
    async with large_request(
        request, USER, lambda caller: MANIFEST_LIMIT_BYTES, request.app.state.statements
    ) as signed:
        accepted = await to_thread.run_sync(
            accept_manifest, proxy_of(request), signed.caller, signed.body, limiter=request.app.state.heavy
        )
    text = accepted.study.hex()
    response = json_response(canonical_json({"study": text}), 201 if accepted.is_new else 200)
    response.headers["Location"] = f"/v1/studies/{text}"
    return response


@router.get(
    "",
    summary="List all studies in short form",
    **operation(Studies, SIGNED, described="All studies."),
)
async def read_studies(request: Request) -> Response:
    await signed_request(request, ANY_ROLE)
    listed = await run_in_threadpool(summaries, proxy_of(request))
    return json_response(canonical_json({"studies": listed}))


@router.get(
    "/{study}",
    summary="Read one study: state, owners and progress",
    **operation(StudyDetail, STUDY, described="The study."),
)
async def read_study(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, ANY_ROLE, may_be_carried=True)
    known = await run_in_threadpool(detail, proxy_of(request), signed.caller, study_id(study))
    progress = request.app.state.jobs.progress(study_id(study))
    return json_response(canonical_json(known | {"progress": progress.to_body() if progress else None}))


@router.get(
    "/{study}/manifest",
    summary="Read the signed manifest, byte for byte",
    **operation(signed("manifest"), STUDY, described="The manifest."),
)
async def read_manifest(request: Request, study: StudyPath) -> Response:
    await signed_request(request, ANY_ROLE, may_be_carried=True)
    return json_response(await run_in_threadpool(manifest_bytes, proxy_of(request), study_id(study)))


@router.get(
    "/{study}/transcript",
    summary="Read the signed chain of the study's events, and what the data user signed about its end",
    **operation(Transcript, STUDY, described="All events so far."),
)
async def read_transcript(request: Request, study: StudyPath) -> Response:
    await signed_request(request, ANY_ROLE, may_be_carried=True)
    return json_response(await run_in_threadpool(transcript_of, proxy_of(request), study_id(study)))


@router.post(
    "/{study}/close",
    summary="Close a study early",
    **operation(
        None,
        [*OF_ITS_USER, *STATEMENT, "cohort-too-small", "study-closed", "wrong-state"],
        status=204,
        described="The study was closed.",
        body=signed("close"),
        body_described="A close statement signed by the data user.",
    ),
)
async def close_study(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, USER, max_bytes=STATEMENT_LIMIT_BYTES)
    await run_in_threadpool(close_by_user, proxy_of(request), signed.caller, study_id(study), signed.body)
    return Response(status_code=204)


@router.delete(
    "/{study}",
    summary="Cancel a study",
    **operation(
        None,
        [*OF_ITS_USER, *STATEMENT, "noise-already-drawn", "study-closed", "wrong-state"],
        status=204,
        described="The study was cancelled.",
        body=signed("cancel"),
        body_described="A cancel statement signed by the data user.",
    ),
)
async def cancel_study(request: Request, study: StudyPath) -> Response:
    signed = await signed_request(request, USER, max_bytes=STATEMENT_LIMIT_BYTES)
    await run_in_threadpool(cancel, proxy_of(request), signed.caller, study_id(study), signed.body)
    return Response(status_code=204)
