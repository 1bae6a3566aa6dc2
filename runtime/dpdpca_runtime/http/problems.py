"""Turns a problem document (RFC 9457) back into the error class that the peer raised."""

import json
from collections.abc import Mapping
from typing import Any

from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    CryptographicError,
    DpdpcaError,
    InputError,
    IntegrityError,
    LimitError,
    MessageError,
    NotAllowedError,
    NotFoundError,
    PolicyError,
    UnavailableError,
    printable,
)
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES, PROBLEM_TYPE_PREFIX
from dpdpca_runtime.http.connection import Peer

_BY_STATUS: dict[int, type[DpdpcaError]] = {
    400: MessageError,
    401: AuthenticationError,
    403: NotAllowedError,
    404: NotFoundError,
    405: MessageError,
    408: LimitError,
    409: ConflictError,
    413: LimitError,
    415: MessageError,
    421: AuthenticationError,
    422: CryptographicError,
    429: LimitError,
    500: IntegrityError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
    507: UnavailableError,
}
_BY_SLUG: dict[tuple[int, str], type[DpdpcaError]] = {
    # Slugs of classes that share a status with another class.
    (403, "manifest-refused"): PolicyError,
    (403, "records-out-of-range"): PolicyError,
    (422, "malformed-rows"): InputError,
}


_BETWEEN = "a server in front of {name}"
_BY_SOMETHING_ELSE: dict[int, tuple[str, str]] = {
    301: (
        "the address points elsewhere",
        "give the address of {name} itself; redirects are not followed. A network that asks for a login does"
        " the same: open a web page in a browser on this machine",
    ),
    400: (
        f"{_BETWEEN} does not understand the request",
        "check the address, and whether it begins with https",
    ),
    404: (
        "the program at this address is not a {kind}",
        "check the address; a {kind} needs its own host name or port and cannot be under a path",
    ),
    408: (
        f"sending took longer than {_BETWEEN} allows",
        "the operator can raise client_body_timeout (nginx)",
    ),
    429: (
        f"{_BETWEEN} accepts no more requests now",
        "try again later; the operator can raise limit_req (nginx)",
    ),
    502: (
        f"{_BETWEEN} cannot reach {{name}}",
        "the operator must check that {name} is running and listens where proxy_pass (nginx) points",
    ),
    503: (f"{_BETWEEN} accepts no more requests now, or {{name}} is stopped", "try again later"),
    504: (
        f"{_BETWEEN} got no answer from {{name}} in time",
        "try again later; the operator can raise proxy_read_timeout (nginx)",
    ),
}
"""Status of an answer that did not come from one of our services → its meaning, and what to do."""
_LOGINS = (407, 511)
"""Status with which a company's proxy and a network ask for a login."""
_ANOTHER_PAGE = (
    "a web page came instead of {name}'s answer, as from a network that asks for a login or from the web"
    " filter of a company",
    "open a web page in a browser on this machine and log in, or ask your IT to let this machine reach"
    " {name}. If neither helps, check the address: {name} needs its own host name and cannot be under a path",
)


def error_from_response(
    peer: Peer, status: int, media_type: str, content: bytes, retry_after: str | None, sent_bytes: int = 0
) -> DpdpcaError:
    """The error for a response with `status` ≥ 300, or for one that did not come from the peer.

    Args:
        peer: the service.
        status: the HTTP status.
        media_type: from the Content-Type header; may be empty.
        content: the body, untrusted. The text of the body is made printable and truncated.
        retry_after: the Retry-After header. Only the form in seconds is used.
        sent_bytes: the length of the request's body.
    """
    problem = _problem(content)
    wait = _seconds(problem.get("retry_after_seconds"), retry_after)
    kind = problem.get("type")
    if not isinstance(kind, str) or not kind.startswith(PROBLEM_TYPE_PREFIX):
        return _foreign(peer, status, media_type, wait, sent_bytes)
    slug = printable(kind.removeprefix(PROBLEM_TYPE_PREFIX), 60)
    raised = _BY_SLUG.get((status, slug)) or _BY_STATUS.get(
        status, MessageError if status < 500 else IntegrityError
    )
    detail = problem.get("detail") or problem.get("title")
    next_step = problem.get("next_step")
    return raised(
        slug,
        printable(detail) if isinstance(detail, str) else f"{peer.name} answered {status}",
        printable(next_step) if isinstance(next_step, str) else "",
        retry_after_seconds=wait,
    )


def _problem(content: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _seconds(member: Any, header: str | None) -> int | None:
    if type(member) is int and 0 <= member <= 86_400:
        return member
    if header is not None and header.isascii() and header.isdigit() and len(header) <= 5:
        return int(header)
    return None


def _foreign(peer: Peer, status: int, media_type: str, wait: int | None, sent_bytes: int) -> DpdpcaError:
    """The error for an answer from a server in between, or from a program that is not one of our services."""
    answer = f"answer {status}, {printable(media_type, 60) or 'no media type'}"
    if status == 413:
        return LimitError(
            "too-large-on-the-way",
            f"a server in front of {peer.name} refuses a body of {sent_bytes:,} bytes ({answer})",
            f"the operator must allow {COMPONENTS_LIMIT_BYTES >> 20} MiB (nginx: client_max_body_size)",
        )
    is_page = media_type.startswith("text/html")
    if status in _LOGINS or (is_page and (status < 300 or status == 403)):
        meaning, next_step = _ANOTHER_PAGE
    else:
        meaning, next_step = _BY_SOMETHING_ELSE.get(
            301 if 300 <= status < 400 else status, _BY_SOMETHING_ELSE[404]
        )
    meaning, next_step = (words.format(name=peer.name, kind=peer.kind) for words in (meaning, next_step))
    if status in (408, 429, 502, 503, 504):
        return UnavailableError("gateway", f"{meaning} ({answer})", next_step, retry_after_seconds=wait)
    return MessageError("not-a-proxy", f"{meaning} ({answer})", next_step)
