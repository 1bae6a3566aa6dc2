"""From a request to a known caller and a whole, genuine body: the first lines of every route.

The order matters. The head's signature is checked before a byte of the body is read, the role before the
body is kept, the digest before the nonce is spent.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpdpca_asgi.identity import ReceivedHead, SignatureVerifier, SignedHead
from dpdpca_asgi.limits import read_body
from dpdpca_protocol.errors import MessageError, NotAllowedError
from dpdpca_protocol.identifiers import PartyId, StudyId
from dpdpca_protocol.wire import JSON_MEDIA_TYPE
from dpdpca_proxy.enrolment import party_of, remember_nonce
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.parties import PartyRow

ANY_ROLE = frozenset({"owner", "user"})
OWNER = frozenset({"owner"})
USER = frozenset({"user"})

StudyPath = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The study's id.")]
PositionPath = Annotated[str, Path(pattern="^(0|[1-9][0-9]{0,8})$", description="A chunk's place, from 0.")]


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request that a party with the right role made, once."""

    caller: PartyRow
    body: bytes


async def signed_request(
    request: Request, roles: frozenset[str], *, media_type: str = JSON_MEDIA_TYPE, max_bytes: int = 0
) -> SignedRequest:
    """Who sent `request`, and its body.

    Args:
        request: untrusted.
        roles: who may use the route.
        media_type: of the body.
        max_bytes: largest body; 0 for a route that takes none.

    Raises:
        AuthenticationError, NotAllowedError, MessageError, LimitError: see `identity` and `limits`.
    """
    proxy = proxy_of(request)
    head = ReceivedHead.of(request)
    now = proxy.now()
    verifier, signed, caller = await run_in_threadpool(_verify, proxy, head, now)
    if caller.role not in roles:
        raise NotAllowedError(
            "wrong-role", f"this route is for the {' or '.join(sorted(roles))}, not for the {caller.role}", ""
        )
    body = b""
    if max_bytes:
        body = await read_body(request, media_type, max_bytes)
    elif head.has_body:
        raise MessageError("malformed", "this route takes no body", "send the request without one")
    await run_in_threadpool(_accept, proxy, verifier, signed, body, now)
    return SignedRequest(caller, body)


def proxy_of(request: Request) -> Proxy:
    proxy = request.app.state.proxy
    assert isinstance(proxy, Proxy)
    return proxy


def study_id(text: str) -> StudyId:
    return StudyId.parse(text)


def json_response(content: bytes, status: int = 200) -> Response:
    """Bytes that are JSON already, sent as they are."""
    return Response(
        content, status_code=status, media_type=JSON_MEDIA_TYPE, headers={"Cache-Control": "no-store"}
    )


def _verify(
    proxy: Proxy, head: ReceivedHead, now: datetime
) -> tuple[SignatureVerifier, SignedHead, PartyRow]:
    found: list[PartyRow] = []

    def find_key(party: PartyId) -> bytes | None:
        row = party_of(proxy, party)
        if row is None:
            return None
        found.append(row)
        return row.ed25519

    verifier = SignatureVerifier(proxy.settings.authorities, find_key)
    signed = verifier.verify_head(head, now)
    (caller,) = found
    return verifier, signed, caller


def _accept(
    proxy: Proxy, verifier: SignatureVerifier, signed: SignedHead, body: bytes, now: datetime
) -> None:
    if body:
        verifier.check_body(signed, body)
    verifier.check_unseen(signed, lambda party, nonce, at: remember_nonce(proxy, party, nonce, at), now)
