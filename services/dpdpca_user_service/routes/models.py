"""Routes for models: the components of a study as numbers, file and report, and the projection of rows."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_runtime.asgi.contract import binary, json_body, operation, text
from dpdpca_runtime.asgi.limits import BoundedStream, read_large_body, run_until_cancelled
from dpdpca_user.results.model import Model
from dpdpca_user.results.moment_files import arrow_table, check_size, moment_facts
from dpdpca_user.results.moments import MeanTable, Moments, MomentTable
from dpdpca_user_service.bodies import MeanBody, ModelBody, ModelsBody, MomentsBody, Rows, ScoresBody
from dpdpca_user_service.operations import model_facts, model_file, model_of, report_of, study_facts
from dpdpca_user_service.routes.contract import EVERYWHERE, MODEL
from dpdpca_user_service.routes.requests import StudyPath, json_response, media_type_of, service_of
from dpdpca_user_service.transform.scores import (
    ARROW_MEDIA_TYPE,
    BODY_LIMIT_BYTES,
    LIMITS,
    MOST_SECONDS,
    Scores,
    check_components,
    transform,
)

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get(
    "",
    summary="List all models",
    **operation(ModelsBody, EVERYWHERE, described="All studies that have a model."),
)
async def list_models(request: Request) -> Response:
    service = service_of(request)
    rows = await run_in_threadpool(service.store.modelled)
    return json_response({"models": [study_facts(service, row) for row in rows]})


@router.get(
    "/{study}",
    summary="Read a model: components, eigenvalues, noise edge and privacy statement",
    **operation(ModelBody, MODEL, described="The model."),
)
async def read_model(request: Request, study: StudyPath) -> Response:
    return json_response(await run_in_threadpool(model_facts, service_of(request), study))


@router.get(
    "/{study}/file",
    summary="Read the model as a .npz file",
    response_class=Response,
    **operation(binary(), MODEL, described="The file."),
)
async def read_model_file(request: Request, study: StudyPath) -> Response:
    content = await run_in_threadpool(model_file, service_of(request), study)
    return Response(content, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})


KeepNoise = Annotated[bool, Query(description="Leave the noise in the figures.")]
Positive = Annotated[bool, Query(description="Make the table positive semidefinite.")]
_EACH = (
    "Each figure has the standard deviation of its noise beside it. An Arrow stream, for requests that accept"
    f" `{ARROW_MEDIA_TYPE}`, has a row for each figure. The tables cost no further privacy."
)


def _square(compute: Callable[[Moments], MomentTable]) -> Callable[[Moments], MomentTable]:
    """Refuses a table that is too large before it takes memory."""

    def checked(found: Moments) -> MomentTable:
        check_size(len(found.variances))
        return compute(found)

    return checked


async def _moments(
    request: Request, study: str, compute: Callable[[Moments], MomentTable | MeanTable]
) -> Response:
    def answer() -> Response:
        model = model_of(service_of(request), study)
        table = compute(model.moments)
        if ARROW_MEDIA_TYPE not in request.headers.get("accept", ""):
            return json_response({"study": model.study.hex(), **moment_facts(table)})
        rows, sink = arrow_table(table), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        headers = {"Cache-Control": "no-store"}
        return Response(sink.getvalue().to_pybytes(), media_type=ARROW_MEDIA_TYPE, headers=headers)

    return await run_in_threadpool(answer)


def _moments_operation(body: type[Any], described: str, *problems: str) -> dict[str, Any]:
    formats = {**json_body(body), **binary(ARROW_MEDIA_TYPE)}
    return operation(
        formats, [*MODEL, "model-too-old", "no-correlation", "too-large", *problems], described=described
    )


@router.get(
    "/{study}/covariance",
    summary="Read the covariances: JSON or an Arrow stream",
    description=_EACH,
    **_moments_operation(MomentsBody, "The covariances.", "components-missing"),
)
async def read_covariance(
    request: Request, study: StudyPath, keep_noise: KeepNoise = False, positive: Positive = False
) -> Response:
    return await _moments(request, study, _square(lambda found: found.covariance(not keep_noise, positive)))


@router.get(
    "/{study}/correlation",
    summary="Read the correlations: JSON or an Arrow stream",
    description=_EACH,
    **_moments_operation(MomentsBody, "The correlations.", "components-missing"),
)
async def read_correlation(
    request: Request, study: StudyPath, keep_noise: KeepNoise = False, positive: Positive = False
) -> Response:
    return await _moments(request, study, _square(lambda found: found.correlation(not keep_noise, positive)))


@router.get(
    "/{study}/mean",
    summary="Read the means of a joint study: JSON or an Arrow stream",
    description=_EACH,
    **_moments_operation(MeanBody, "The means.", "no-mean"),
)
async def read_mean(request: Request, study: StudyPath) -> Response:
    return await _moments(request, study, lambda found: found.means())


async def transform_slot(request: Request) -> AsyncIterator[None]:
    """Holds one of the slots for transforms, from before the body is read until the client has read the
    answer."""
    async with request.app.state.transforms.take():
        yield


@router.post(
    "/{study}/transform",
    summary="Project rows onto the components: JSON or an Arrow stream",
    description='JSON is `{"rows": [{"feature": value, …}, …]}`, or lists of the encoded numbers. An Arrow'
    f" stream has a column for each feature. The answer has the format of the body. {LIMITS}",
    dependencies=[Depends(transform_slot)],
    **operation(
        {**json_body(ScoresBody), **binary(ARROW_MEDIA_TYPE)},
        [
            *MODEL,
            "bad-argument",
            "deadline",
            "duplicated-column",
            "malformed-rows",
            "missing-column",
            "not-a-level",
            "not-a-number",
            "ragged-columns",
            "too-large",
            "unknown-level",
            "unsupported-media-type",
            "value-missing",
        ],
        described="One list of scores for each row.",
        body={**json_body(Rows), **binary(ARROW_MEDIA_TYPE)},
        body_described="Rows as JSON, or an Arrow stream with a column for each feature.",
    ),
)
async def transform_rows(
    request: Request,
    study: StudyPath,
    components: Annotated[
        int | None, Query(ge=1, description="Number of scores for each row; default: all.")
    ] = None,
) -> Response:
    media_type = media_type_of(request, (JSON_MEDIA_TYPE, ARROW_MEDIA_TYPE))
    model = await run_in_threadpool(model_of, service_of(request), study)
    check_components(model, components)
    scores = await _scores(request, model, media_type, components)
    return BoundedStream(
        scores.encode(media_type), media_type=media_type, headers={"Cache-Control": "no-store"}
    )


async def _scores(request: Request, model: Model, media_type: str, components: int | None) -> Scores:
    """All scores. The memory of the body is freed before this returns."""
    body = await read_large_body(request, media_type, BODY_LIMIT_BYTES)
    return await run_until_cancelled(
        request, lambda stop: transform(model, media_type, body, components, stop), MOST_SECONDS
    )


@router.get(
    "/{study}/report",
    summary="Read the report as one HTML file",
    response_class=Response,
    **operation(text("text/html"), MODEL, described="The report."),
)
async def read_report(request: Request, study: StudyPath) -> Response:
    html = await run_in_threadpool(report_of, service_of(request), study)
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(html, media_type="text/html; charset=utf-8", headers=headers)
