"""Turns a request into a known caller and a complete, authentic body.

Every route begins with these checks. The order matters. The signature of the request's head is checked before
a byte of the body is read, the role before the body is kept, and the digest before the nonce is used. For
large bodies, the permission to send one now is checked before any of it is read.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_protocol.errors import AuthenticationError, MessageError, NotAllowedError
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_proxy.carried import sign_answer
from dpdpca_proxy.enrolment import party_of, remember_nonce
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.parties import PartyRow
from dpdpca_runtime.asgi.identity import ReceivedHead, SignatureVerifier, SignedHead
from dpdpca_runtime.asgi.limits import LargeBodies, declared_length, read_body

ANY_ROLE = frozenset({"owner", "user"})
OWNER = frozenset({"owner"})
USER = frozenset({"user"})

StudyPath = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The study's id.")]
PartyPath = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The caller's own id.")]
PositionPath = Annotated[
    str, Path(pattern="^(0|[1-9][0-9]{0,8})$", description="The index of the chunk, from 0.")
]


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """An authenticated request of a party with a suitable role. It was not replayed."""

    caller: PartyRow
    body: bytes


async def signed_request(
    request: Request,
    roles: frozenset[str],
    *,
    media_type: str = JSON_MEDIA_TYPE,
    max_bytes: int = 0,
    may_be_carried: bool = False,
) -> SignedRequest:
    """The sender of `request`, and its body.

    Args:
        request: untrusted.
        roles: the roles that may use the route.
        media_type: the media type of the body.
        max_bytes: the largest body; 0 for a route without a body.
        may_be_carried: whether an owner's carried request is accepted (see `SignatureVerifier.verify_head`).

    Raises:
        AuthenticationError, NotAllowedError, MessageError, LimitError: see `identity`, `limits` and `rate`.
    """
    known = await _known_head(request, roles, may_be_carried)
    body = b""
    if max_bytes:
        body = await read_body(request, media_type, max_bytes)
    elif ReceivedHead.of(request).has_body:
        raise MessageError("malformed", "this route accepts no body", "send the request without a body")
    await run_in_threadpool(_accept, request, known, body)
    return SignedRequest(known.caller, body)


@asynccontextmanager
async def large_request(
    request: Request,
    roles: frozenset[str],
    most_bytes: Callable[[PartyRow], int],
    large: LargeBodies,
    *,
    may_be_carried: bool = False,
) -> AsyncIterator[SignedRequest]:
    """Like `signed_request`, for large bodies. A body that would be refused is not read.

    Args:
        request: untrusted.
        roles: the roles that may use the route.
        most_bytes: returns the largest allowed body, or raises if the caller may not send one now.
            `most_bytes` is called in a thread.
        large: reserves memory for the declared length, or for the largest body if no length is declared.
        may_be_carried: as for `signed_request`.

    Raises:
        UnavailableError: `busy`, there is no room for the body now.
        DpdpcaError: all errors of `most_bytes` and `signed_request`.
    """
    known = await _known_head(request, roles, may_be_carried)
    size = await run_in_threadpool(most_bytes, known.caller)
    with large.room(known.caller.party, min(size, declared_length(request) or size)):
        body = await read_body(request, JSON_MEDIA_TYPE, size)
        await run_in_threadpool(_accept, request, known, body)
        yield SignedRequest(known.caller, body)


async def check_addressed_here(request: Request) -> None:
    """Checks that a request, signed or not, is addressed to this proxy.

    So the first request of an enrolment already detects a reverse proxy that breaks signatures.

    Raises:
        AuthenticationError: `wrong-address`.
        MessageError: `malformed`, no usable host.
    """
    proxy_of(request).settings.known_addresses.arrived_at(ReceivedHead.of(request).lines("host"))


def proxy_of(request: Request) -> Proxy:
    proxy = request.app.state.proxy
    assert isinstance(proxy, Proxy)
    return proxy


def study_id(text: str) -> StudyId:
    return StudyId.parse(text)


def json_response(content: bytes, status: int = 200) -> Response:
    """A response with bytes that are already JSON."""
    return Response(
        content, status_code=status, media_type=JSON_MEDIA_TYPE, headers={"Cache-Control": "no-store"}
    )


@dataclass(frozen=True, slots=True)
class _KnownHead:
    """The head of a request that an enrolled party signed. `_accept` checks later that it is not a replay."""

    verifier: SignatureVerifier
    signed: SignedHead
    caller: PartyRow
    now: datetime


async def _known_head(request: Request, roles: frozenset[str], may_be_carried: bool) -> _KnownHead:
    proxy = proxy_of(request)
    head = ReceivedHead.of(request)
    known = await run_in_threadpool(_verify, proxy, head, proxy.now(), may_be_carried)
    request.app.state.rate.take(known.caller.party)
    role = known.caller.role
    if role not in roles:
        raise NotAllowedError(
            "wrong-role", f"this route is for the {' or '.join(sorted(roles))}, not for the {role}", ""
        )
    return known


def _verify(proxy: Proxy, head: ReceivedHead, now: datetime, may_be_carried: bool) -> _KnownHead:
    found: list[PartyRow] = []

    def find_key(party: PartyId) -> bytes | None:
        row = party_of(proxy, party)
        if row is None:
            return None
        found.append(row)
        return row.ed25519

    verifier = SignatureVerifier(proxy.settings.known_addresses, find_key)
    signed = verifier.verify_head(head, now, may_be_carried=may_be_carried)
    (caller,) = found
    if signed.is_carried and caller.role not in OWNER:
        raise AuthenticationError("bad-signature", "only owners carry requests", "sign the request anew")
    return _KnownHead(verifier, signed, caller, now)


def _accept(request: Request, known: _KnownHead, body: bytes) -> None:
    proxy = proxy_of(request)
    if body:
        known.verifier.check_body(known.signed, body)
    if known.signed.is_carried:
        sign_answer(request.scope, known.signed.nonce)
        return
    created = known.signed.created
    known.verifier.check_unseen(
        known.signed, lambda party, nonce, at: remember_nonce(proxy, party, nonce, at, created), known.now
    )
