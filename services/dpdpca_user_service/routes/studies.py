"""Routes for studies: create one from a draft, follow, close, cancel, publish, and verify it."""

import secrets
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_runtime.asgi.contract import binary, operation
from dpdpca_user_service.bodies import (
    CreatedStudyBody,
    EvidenceBody,
    ResultBody,
    StudiesBody,
    StudyBody,
)
from dpdpca_user_service.operations import (
    cancel_study,
    close_study,
    create_study,
    evidence_of,
    publish_study,
    result_of,
    study_facts,
)
from dpdpca_user_service.routes.contract import (
    CANCELS,
    CLOSES,
    DRAFT_BODY,
    DRAFT_DESCRIBED,
    EVERYWHERE,
    FOR_A_PROXY,
    STUDY,
)
from dpdpca_user_service.routes.requests import (
    InClearQuery,
    ProxyQuery,
    PublishQuery,
    StudyPath,
    json_response,
    received_draft,
    service_of,
)

PositionPath = Annotated[
    str, Path(pattern="^(0|[1-9][0-9]{0,8})$", description="The index of the chunk, from 0.")
]

router = APIRouter(prefix="/v1/studies", tags=["studies"])


@router.post(
    "",
    summary="Create a study from a draft (TOML or JSON)",
    **operation(
        CreatedStudyBody,
        [*FOR_A_PROXY, "wrong-round"],
        status=202,
        described="The draft was accepted; its key is being made.",
        body=DRAFT_BODY,
        body_described=DRAFT_DESCRIBED,
    ),
)
async def create(
    request: Request,
    publish: PublishQuery = True,
    proxy: ProxyQuery = None,
    in_clear: InClearQuery = False,
) -> Response:
    async with received_draft(request) as (draft, media_type):
        row_id = secrets.token_hex(16)
        facts = await run_in_threadpool(
            partial(create_study, in_clear=in_clear),
            service_of(request),
            row_id,
            draft,
            media_type,
            proxy,
            publish,
        )
        return json_response(facts, 202, {"Location": f"/v1/studies/{row_id}"})


@router.get(
    "",
    summary="List all studies, newest first",
    **operation(StudiesBody, EVERYWHERE, described="All studies."),
)
async def list_studies(request: Request) -> Response:
    service = service_of(request)
    rows = await run_in_threadpool(service.store.all)
    return json_response({"studies": [study_facts(service, row) for row in rows]})


@router.get(
    "/{study}",
    summary="Read one study: state, owners, progress, and its id once it has one",
    **operation(StudyBody, STUDY, described="The study."),
)
async def read_study(request: Request, study: StudyPath) -> Response:
    service = service_of(request)
    row = await run_in_threadpool(service.store.find, study)
    return json_response(study_facts(service, row))


@router.post(
    "/{study}/close",
    summary="Close a study early",
    **operation(StudyBody, CLOSES, described="The study was closed."),
)
async def close(request: Request, study: StudyPath) -> Response:
    return json_response(await run_in_threadpool(close_study, service_of(request), study))


@router.delete(
    "/{study}",
    summary="Cancel a study",
    **operation(StudyBody, CANCELS, described="The study was cancelled."),
)
async def cancel(request: Request, study: StudyPath) -> Response:
    return json_response(await run_in_threadpool(cancel_study, service_of(request), study))


@router.post(
    "/{study}/publish",
    summary="Send the sealed components to the owners",
    **operation(
        StudyBody,
        [*STUDY, "no-components", "wrong-state"],
        status=202,
        described="The components are sent as soon as they exist.",
    ),
)
async def publish_components(request: Request, study: StudyPath) -> Response:
    return json_response(await run_in_threadpool(publish_study, service_of(request), study), 202)


@router.get(
    "/{study}/result",
    summary="Read the released numbers of a pre-study",
    **operation(ResultBody, [*STUDY, "has-components", "not-ready"], described="The numbers."),
)
async def read_result(request: Request, study: StudyPath) -> Response:
    return json_response(await run_in_threadpool(result_of, service_of(request), study))


@router.get(
    "/{study}/evidence",
    summary="Read the signed statements of a study, for offline verification",
    **operation(EvidenceBody, [*STUDY, "not-ready"], described="The statements."),
)
async def read_evidence(request: Request, study: StudyPath) -> Response:
    evidence = await run_in_threadpool(evidence_of, service_of(request), study)
    return Response(evidence, media_type=JSON_MEDIA_TYPE, headers={"Cache-Control": "no-store"})


@router.get(
    "/{study}/evidence/chunks/{position}",
    summary="Read one chunk of the release, as it was received",
    response_class=Response,
    **operation(binary(), [*STUDY, "no-such-chunk"], described="The chunk."),
)
async def read_chunk(request: Request, study: StudyPath, position: PositionPath) -> Response:
    service = service_of(request)
    row = await run_in_threadpool(service.store.find, study)
    chunk = await run_in_threadpool(service.store.chunk, row, int(position))
    if chunk is None:
        raise MessageError("no-such-chunk", "this service has no such chunk of the release")
    return Response(chunk, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})
