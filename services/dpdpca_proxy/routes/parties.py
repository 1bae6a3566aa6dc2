"""The proxy's card, enrolment, and the enrolled parties."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.wire.canonical import canonical_json, named_list, parse_canonical
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE, STATEMENT_LIMIT_BYTES
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_proxy.enrolment import all_parties, enrol, party_statements
from dpdpca_proxy.rotation import all_rotations, rotate_party
from dpdpca_proxy.routes.callers import ANY_ROLE, PartyPath, json_response, proxy_of, signed_request
from dpdpca_proxy.routes.contract import EVERYWHERE, SIGNED, STATEMENT, WRITES
from dpdpca_proxy.store.parties import PartyRow
from dpdpca_runtime.asgi.contract import json_body, operation, signed
from dpdpca_runtime.asgi.limits import read_body
from dpdpca_runtime.bodies import Enrolled, EnrolmentRequest, Parties, Rotations, Successor

router = APIRouter(prefix="/v1", tags=["parties"])

StatementsQuery = Annotated[
    Literal["true", "false"],
    Query(description="Whether to show the enrolment or rotation in which each party has signed its keys."),
]


@router.get(
    "/proxy",
    summary="Read the proxy's self-signed card: name, address and keys",
    **operation(signed("proxy"), EVERYWHERE, described="The card.", is_open=True),
)
async def read_card(request: Request) -> Response:
    card = await run_in_threadpool(lambda: proxy_of(request).card)
    return json_response(card.encoded)


@router.get(
    "/proxy/rotations",
    summary="Read the rotations that lead from the proxy's first key to the key in its card",
    **operation(Rotations, EVERYWHERE, described="The proxy's own rotations.", is_open=True),
)
async def read_proxy_rotations(request: Request) -> Response:
    return _rotations([statement.encoded for statement in proxy_of(request).keys.rotations])


@router.post(
    "/parties",
    summary="Enrol with an invitation",
    **operation(
        Enrolled,
        [
            *WRITES,
            *STATEMENT,
            "already-enrolled",
            "clock-behind",
            "invitation-expired",
            "invitation-unknown",
            "invitation-used",
            "unfit-blinding-key",
            "unfit-sealing-key",
            "wrong-proxy",
        ],
        status=201,
        described="The party is enrolled.",
        body=json_body(EnrolmentRequest),
        body_described="An enrolment statement and the invitation's token.",
        is_open=True,
    ),
)
async def enrol_party(request: Request) -> Response:
    proxy = proxy_of(request)
    body = await read_body(request, JSON_MEDIA_TYPE, STATEMENT_LIMIT_BYTES)
    row = await run_in_threadpool(enrol, proxy, body)
    answer = {"party": row.party.hex(), "proxy": parse_canonical(proxy.card.encoded)}
    return json_response(canonical_json(answer), 201)


@router.get(
    "/parties",
    summary="List the enrolled parties and their keys",
    **operation(Parties, SIGNED, described="All parties."),
)
async def read_parties(request: Request, statements: StatementsQuery = "false") -> Response:
    await signed_request(request, ANY_ROLE, may_be_carried=True)
    rows = await run_in_threadpool(all_parties, proxy_of(request))
    shown: list[dict[str, Any]] = [_shown(row) for row in rows]
    if statements == "true":
        signed = await run_in_threadpool(party_statements, proxy_of(request))
        for row, each in zip(rows, shown, strict=True):
            each["statement"] = parse_canonical(signed[row.party])
    return json_response(canonical_json({"parties": shown}))


@router.get(
    "/parties/rotations",
    summary="List the key rotations of enrolled parties, each signed by both keys",
    **operation(Rotations, SIGNED, described="The rotations of all parties."),
)
async def read_rotations(request: Request) -> Response:
    await signed_request(request, ANY_ROLE, may_be_carried=True)
    return _rotations(await run_in_threadpool(all_rotations, proxy_of(request)))


@router.post(
    "/parties/{party}/rotations",
    summary="Replace the caller's own key",
    **operation(
        Successor,
        [
            *SIGNED,
            *STATEMENT,
            "already-enrolled",
            "already-rotated",
            "rotation-not-newer",
            "too-many-rotations",
            "unfit-blinding-key",
            "unfit-sealing-key",
        ],
        described="The key was replaced.",
        body=signed("rotation"),
        body_described="A rotation statement signed by the old key and the new.",
    ),
)
async def rotate(request: Request, party: PartyPath) -> Response:
    signed = await signed_request(request, ANY_ROLE, max_bytes=STATEMENT_LIMIT_BYTES)
    successor = await run_in_threadpool(
        rotate_party, proxy_of(request), signed.caller, PartyId.parse(party), signed.body
    )
    return json_response(canonical_json({"party": successor.hex()}))


def _rotations(statements: list[bytes]) -> Response:
    return json_response(b"{" + named_list("rotations", statements) + b"}")


def _shown(row: PartyRow) -> dict[str, str | None]:
    return {
        "ed25519": row.ed25519.hex(),
        "enrolled_at": time_text(row.enrolled_at),
        "name": row.name,
        "party": row.party.hex(),
        "role": row.role,
        "successor": row.successor.hex() if row.successor else None,
    }
