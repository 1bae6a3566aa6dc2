"""What applications and the data user's own commands ask for: parse, call, answer; no rule lives here."""

import json
import secrets
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_runtime.asgi.limits import BoundedStream, read_body, read_large_body, run_while_wanted
from dpdpca_user.planning.lint import TOML_MEDIA_TYPE
from dpdpca_user.results.model import Model
from dpdpca_user_service.acts import (
    cancel_study,
    close_study,
    create_study,
    evidence_of,
    model_facts,
    model_file,
    model_of,
    publish_study,
    report_of,
    result_of,
    study_facts,
)
from dpdpca_user_service.chains import cancel_chain, chain_facts, create_chain
from dpdpca_user_service.service import UserService
from dpdpca_user_service.transform.scores import (
    ARROW_MEDIA_TYPE,
    BODY_LIMIT_BYTES,
    LIMITS,
    MOST_SECONDS,
    Scores,
    check_components,
    transform,
)

DRAFT_LIMIT_BYTES = 4 * 1024 * 1024

StudyPath = Annotated[str, Path(pattern="^[0-9a-f]{32}([0-9a-f]{32})?$", description="Study id or draft id.")]
ChainPath = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="Chain id.")]
PositionPath = Annotated[str, Path(pattern="^(0|[1-9][0-9]{0,8})$", description="A chunk's place, from 0.")]

studies = APIRouter(prefix="/v1/studies", tags=["studies"])
chains = APIRouter(prefix="/v1/chains", tags=["chains"])
models = APIRouter(prefix="/v1/models", tags=["models"])


def service_of(request: Request) -> UserService:
    service = request.app.state.service
    assert isinstance(service, UserService)
    return service


async def draft_place(request: Request) -> AsyncIterator[None]:
    """The place for drafts, whose parsers need a hundred times their size."""
    async with request.app.state.drafts.take():
        yield


@studies.post(
    "",
    status_code=202,
    summary="Create a study from a draft (TOML or JSON)",
    dependencies=[Depends(draft_place)],
)
async def create(
    request: Request,
    publish: Annotated[bool, Query(description="Send the components to the owners, sealed.")] = True,
    proxy: Annotated[str | None, Query(description="The proxy's address, where several are known.")] = None,
    in_clear: Annotated[
        bool, Query(description="Make components that may be published in clear: a second noise is added.")
    ] = False,
) -> Response:
    media_type = _media_type(request, (TOML_MEDIA_TYPE, JSON_MEDIA_TYPE))
    draft = await read_body(request, media_type, DRAFT_LIMIT_BYTES)
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
    return _json(facts, 202, {"Location": f"/v1/studies/{row_id}"})


@studies.get("", summary="All studies, newest first")
async def list_studies(request: Request) -> Response:
    service = service_of(request)
    rows = await run_in_threadpool(service.store.all)
    return _json({"studies": [study_facts(row) for row in rows]})


@studies.get("/{study}", summary="One study: state, owners, progress, and its id once there is one")
async def read_study(request: Request, study: StudyPath) -> Response:
    row = await run_in_threadpool(service_of(request).store.find, study)
    return _json(study_facts(row))


@studies.post("/{study}/close", summary="Close a study before its time")
async def close(request: Request, study: StudyPath) -> Response:
    return _json(await run_in_threadpool(close_study, service_of(request), study))


@studies.delete("/{study}", summary="Cancel a study")
async def cancel(request: Request, study: StudyPath) -> Response:
    return _json(await run_in_threadpool(cancel_study, service_of(request), study))


@studies.post("/{study}/publish", status_code=202, summary="Send the components to the owners, sealed")
async def publish_components(request: Request, study: StudyPath) -> Response:
    return _json(await run_in_threadpool(publish_study, service_of(request), study), 202)


@studies.get("/{study}/result", summary="The released numbers of a pre-study")
async def read_result(request: Request, study: StudyPath) -> Response:
    return _json(await run_in_threadpool(result_of, service_of(request), study))


@studies.get("/{study}/evidence", summary="The signed statements of a study, for offline verification")
async def read_evidence(request: Request, study: StudyPath) -> Response:
    evidence = await run_in_threadpool(evidence_of, service_of(request), study)
    return Response(evidence, media_type=JSON_MEDIA_TYPE, headers={"Cache-Control": "no-store"})


@studies.get("/{study}/evidence/chunks/{position}", summary="One chunk of the release as it was received")
async def read_chunk(request: Request, study: StudyPath, position: PositionPath) -> Response:
    service = service_of(request)
    row = await run_in_threadpool(service.store.find, study)
    chunk = await run_in_threadpool(service.store.chunk, row, int(position))
    if chunk is None:
        raise MessageError("no-such-chunk", "the release has no such chunk here")
    return Response(chunk, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})


@chains.post(
    "",
    status_code=202,
    summary="Run a chain of studies from a base draft (TOML or JSON)",
    dependencies=[Depends(draft_place)],
)
async def run_chain(
    request: Request,
    publish: Annotated[bool, Query(description="Send the components to the owners, sealed.")] = True,
    proxy: Annotated[str | None, Query(description="The proxy's address, where several are known.")] = None,
    in_clear: Annotated[bool, Query(description="Components that may be published in clear.")] = False,
    records: Annotated[
        int | None, Query(ge=1, lt=2**53, description="Records that are expected in all.")
    ] = None,
    scales: Annotated[bool, Query(description="Begin with the scale of every feature.")] = False,
    again: Annotated[bool, Query(description="A new chain even where this draft had one.")] = False,
) -> Response:
    media_type = _media_type(request, (TOML_MEDIA_TYPE, JSON_MEDIA_TYPE))
    draft = await read_body(request, media_type, DRAFT_LIMIT_BYTES)
    facts = await run_in_threadpool(
        partial(
            create_chain, publish=publish, in_clear=in_clear, records=records, scales=scales, again=again
        ),
        service_of(request),
        draft,
        media_type,
        proxy,
    )
    return _json(facts, 202, {"Location": f"/v1/chains/{facts['id']}"})


@chains.get("", summary="All chains, newest first")
async def list_chains(request: Request) -> Response:
    service = service_of(request)
    rows = await run_in_threadpool(service.chains.all)
    return _json({"chains": [await run_in_threadpool(chain_facts, service, row) for row in rows]})


@chains.get("/{chain}", summary="One chain: its rounds, and why each was chosen")
async def read_chain(request: Request, chain: ChainPath) -> Response:
    service = service_of(request)
    row = await run_in_threadpool(service.chains.find, chain)
    return _json(await run_in_threadpool(chain_facts, service, row))


@chains.delete("/{chain}", summary="Cancel a chain and its study under way")
async def end_chain(request: Request, chain: ChainPath) -> Response:
    return _json(await run_in_threadpool(cancel_chain, service_of(request), chain))


@models.get("", summary="Models that are there")
async def list_models(request: Request) -> Response:
    rows = await run_in_threadpool(service_of(request).store.modelled)
    return _json({"models": [study_facts(row) for row in rows]})


@models.get("/{study}", summary="Components, eigenvalues, noise edge, privacy statement")
async def read_model(request: Request, study: StudyPath) -> Response:
    return _json(await run_in_threadpool(model_facts, service_of(request), study))


@models.get("/{study}/file", summary="The model as a .npz file")
async def read_model_file(request: Request, study: StudyPath) -> Response:
    content = await run_in_threadpool(model_file, service_of(request), study)
    return Response(content, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})


async def transform_place(request: Request) -> AsyncIterator[None]:
    """One of the places for transforms, from before the body is read until the answer is."""
    async with request.app.state.transforms.take():
        yield


@models.post(
    "/{study}/transform",
    summary="Rows in, scores out: JSON or an Arrow stream",
    description='JSON is `{"rows": [{"feature": value, …}, …]}`, or lists of the encoded numbers; Arrow has a'
    f" column for each feature. The answer has the format of the body. {LIMITS}",
    dependencies=[Depends(transform_place)],
)
async def transform_rows(
    request: Request,
    study: StudyPath,
    components: Annotated[
        int | None, Query(ge=1, description="How many scores a row; all by default.")
    ] = None,
) -> Response:
    media_type = _media_type(request, (JSON_MEDIA_TYPE, ARROW_MEDIA_TYPE))
    model = await run_in_threadpool(model_of, service_of(request), study)
    check_components(model, components)
    scores = await _scores(request, model, media_type, components)
    return BoundedStream(
        scores.encode(media_type), media_type=media_type, headers={"Cache-Control": "no-store"}
    )


async def _scores(request: Request, model: Model, media_type: str, components: int | None) -> Scores:
    """All of them; the body is gone when they are there."""
    body = await read_large_body(request, media_type, BODY_LIMIT_BYTES)
    return await run_while_wanted(
        request, lambda stop: transform(model, media_type, body, components, stop), MOST_SECONDS
    )


@models.get("/{study}/report", summary="The report as one HTML file")
async def read_report(request: Request, study: StudyPath) -> Response:
    html = await run_in_threadpool(report_of, service_of(request), study)
    headers = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(html, media_type="text/html; charset=utf-8", headers=headers)


def _media_type(request: Request, taken: tuple[str, ...]) -> str:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in taken:
        raise MessageError(
            "unsupported-media-type", f"this route takes {' or '.join(taken)}", f"send {taken[0]}"
        )
    return given


def _json(facts: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        json.dumps(facts, allow_nan=False),
        status,
        {"Cache-Control": "no-store"} | (headers or {}),
        media_type=JSON_MEDIA_TYPE,
    )
