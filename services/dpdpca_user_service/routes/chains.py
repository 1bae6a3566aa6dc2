"""Routes for chains: run one from a base draft, follow it, cancel it."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_runtime.asgi.contract import operation
from dpdpca_user_service.bodies import ChainBody, ChainsBody
from dpdpca_user_service.chains import cancel_chain, chain_facts, create_chain
from dpdpca_user_service.routes.contract import (
    BASE_BODY,
    CANCELS,
    DRAFT_DESCRIBED,
    EVERYWHERE,
    FOR_A_PROXY,
    STUDY,
)
from dpdpca_user_service.routes.requests import (
    InClearQuery,
    ProxyQuery,
    PublishQuery,
    RecordsQuery,
    ScalesQuery,
    json_response,
    received_draft,
    service_of,
)

ChainPath = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="The id of the chain.")]

router = APIRouter(prefix="/v1/chains", tags=["chains"])


@router.post(
    "",
    summary="Run a chain of studies from a base draft (TOML or JSON)",
    **operation(
        ChainBody,
        [*FOR_A_PROXY, "chain-differs", "no-chain"],
        status=202,
        described="The chain was stored and runs by itself.",
        body=BASE_BODY,
        body_described=DRAFT_DESCRIBED,
    ),
)
async def run_chain(
    request: Request,
    publish: PublishQuery = True,
    proxy: ProxyQuery = None,
    in_clear: InClearQuery = False,
    records: RecordsQuery = None,
    scales: ScalesQuery = False,
    again: Annotated[
        bool, Query(description="Create a new chain even if this draft already has one.")
    ] = False,
) -> Response:
    async with received_draft(request) as (draft, media_type):
        facts = await run_in_threadpool(
            partial(
                create_chain, publish=publish, in_clear=in_clear, records=records, scales=scales, again=again
            ),
            service_of(request),
            draft,
            media_type,
            proxy,
        )
        return json_response(facts, 202, {"Location": f"/v1/chains/{facts['id']}"})


@router.get(
    "",
    summary="List all chains, newest first",
    **operation(ChainsBody, EVERYWHERE, described="All chains."),
)
async def list_chains(request: Request) -> Response:
    service = service_of(request)
    rows = await run_in_threadpool(service.chains.all)
    return json_response({"chains": [await run_in_threadpool(chain_facts, service, row) for row in rows]})


@router.get(
    "/{chain}",
    summary="Read one chain: its rounds, and the reasons for each choice",
    **operation(ChainBody, STUDY, described="The chain."),
)
async def read_chain(request: Request, chain: ChainPath) -> Response:
    service = service_of(request)
    row = await run_in_threadpool(service.chains.find, chain)
    return json_response(await run_in_threadpool(chain_facts, service, row))


@router.delete(
    "/{chain}",
    summary="Cancel a chain and its current study",
    **operation(ChainBody, CANCELS, described="The chain was cancelled."),
)
async def end_chain(request: Request, chain: ChainPath) -> Response:
    return json_response(await run_in_threadpool(cancel_chain, service_of(request), chain))
