"""A problem document (RFC 9457) turned back into the error class that the peer raised."""

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
from dpdpca_protocol.wire import PROBLEM_TYPE_PREFIX

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
    # Classes that share a status with another one.
    (403, "manifest-refused"): PolicyError,
    (403, "records-out-of-range"): PolicyError,
    (422, "malformed-rows"): InputError,
}


def error_from_response(status: int, media_type: str, content: bytes, retry_after: str | None) -> DpdpcaError:
    """The error that a response of `status` ≥ 400 stands for.

    Args:
        status: HTTP status.
        media_type: of the Content-Type header, may be empty.
        content: the body, untrusted; its text is made printable and cut.
        retry_after: the Retry-After header; only its form in seconds is used.
    """
    problem = _problem(content)
    wait = _seconds(problem.get("retry_after_seconds"), retry_after)
    kind = problem.get("type")
    if not isinstance(kind, str) or not kind.startswith(PROBLEM_TYPE_PREFIX):
        return _foreign(status, media_type, wait)
    slug = printable(kind.removeprefix(PROBLEM_TYPE_PREFIX), 60)
    raised = _BY_SLUG.get((status, slug)) or _BY_STATUS.get(
        status, MessageError if status < 500 else IntegrityError
    )
    detail = problem.get("detail") or problem.get("title")
    next_step = problem.get("next_step")
    return raised(
        slug,
        printable(detail) if isinstance(detail, str) else f"the proxy answered {status}",
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


def _foreign(status: int, media_type: str, wait: int | None) -> DpdpcaError:
    """Something on the way answered, or it is no proxy of ours."""
    what = (
        f"the address answered {status} ({printable(media_type, 60) or 'no media type'}), not as a proxy does"
    )
    if status in (429, 502, 503, 504):
        return UnavailableError("gateway", what, "try again later", retry_after_seconds=wait)
    return MessageError("not-a-proxy", what, "check the address: a proxy is at the root of its host and port")
