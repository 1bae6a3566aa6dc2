"""Routes for drafts: their schema, checks, and forecasts."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.terms.figures import MAX_ROUNDS
from dpdpca_protocol.terms.members import draft_schema
from dpdpca_runtime.asgi.contract import operation
from dpdpca_user_service.bodies import LintBody, PlanBody
from dpdpca_user_service.drafts import lint_draft, plan_draft
from dpdpca_user_service.routes.contract import (
    BASE_BODY,
    DRAFT,
    DRAFT_DESCRIBED,
    EVERYWHERE,
    SCHEMA_CONTENT,
    SCHEMA_MEDIA_TYPE,
)
from dpdpca_user_service.routes.requests import (
    RecordsQuery,
    ScalesQuery,
    json_response,
    received_draft,
    service_of,
)

MOST_SPECTRUM = 4096

SpectrumQuery = Annotated[
    list[Annotated[float, Query(ge=0, le=1e100, allow_inf_nan=False)]],
    Query(max_length=MOST_SPECTRUM, description="Known variances or shares of variance, the largest first."),
]
PreStudiesQuery = Annotated[
    list[Annotated[str, Query(pattern="^[0-9a-f]{32}([0-9a-f]{32})?$")]],
    Query(alias="from", max_length=MAX_ROUNDS, description="Choose the round that follows these rounds."),
]

router = APIRouter(prefix="/v1", tags=["drafts"])


@router.get(
    "/draft-schema",
    summary="Read the JSON Schema (2020-12) of a draft",
    response_class=Response,
    **operation(SCHEMA_CONTENT, EVERYWHERE, described="The schema."),
)
async def read_draft_schema() -> Response:
    return json_response(draft_schema(), media_type=SCHEMA_MEDIA_TYPE)


@router.post(
    "/drafts/lint",
    summary="Check a draft against all rules that need no key, and suggest improvements",
    **operation(
        LintBody,
        [*DRAFT, "no-chain"],
        described="The draft is valid.",
        body=BASE_BODY,
        body_described=DRAFT_DESCRIBED,
    ),
)
async def lint(request: Request, records: RecordsQuery = None) -> Response:
    async with received_draft(request) as (draft, media_type):
        return json_response(
            await run_in_threadpool(lint_draft, service_of(request), draft, media_type, records)
        )


@router.post(
    "/drafts/plan",
    summary="Forecast noise and cost of a draft for every kind of release, or plan a chain's next round",
    **operation(
        PlanBody,
        [
            *DRAFT,
            "has-components",
            "no-chain",
            "not-found",
            "not-ready",
            "nothing-in-the-sketch",
            "too-few-records",
        ],
        described="A forecast for every kind of release, or the planned round if begin or from is given.",
        body=BASE_BODY,
        body_described=DRAFT_DESCRIBED,
    ),
)
async def plan(
    request: Request,
    records: RecordsQuery = None,
    spectrum: SpectrumQuery = [],  # noqa: B006 # FastAPI copies the default
    anyway: Annotated[bool, Query(description="Plan even if the components would be noise.")] = False,
    begin: Annotated[bool, Query(description="Plan the first round of a chain.")] = False,
    scales: ScalesQuery = False,
    pre_studies: PreStudiesQuery = [],  # noqa: B006 # FastAPI copies the default
) -> Response:
    async with received_draft(request) as (draft, media_type):
        planning = partial(
            plan_draft,
            spectrum=spectrum,
            anyway=anyway,
            begin=begin,
            scales=scales,
            pre_studies=pre_studies,
        )
        return json_response(
            await run_in_threadpool(planning, service_of(request), draft, media_type, records)
        )
