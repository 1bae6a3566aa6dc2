"""The only place that turns an error into a status and a problem document (RFC 9457).

`ProblemMiddleware` is the outermost layer. Whatever happens inside, the client gets a problem document with a
stable `type`, and the log gets one line. Neither the document nor the log line ever repeats rejected input.
An unexpected exception becomes `internal` with an opaque id and no details.
"""

import errno
import json
import logging
import re
import secrets
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dpdpca_protocol.errors import (
    DpdpcaError,
    IntegrityError,
    NotFoundError,
    PolicyError,
    UnavailableError,
    UsageError,
)
from dpdpca_protocol.wire.http import PROBLEM_MEDIA_TYPE, PROBLEM_TYPE_PREFIX

_STATUS_BY_SLUG = {
    "deadline": 408,
    "length-required": 411,
    "unsupported-media-type": 415,
    "wrong-address": 421,
    "too-many": 429,
    "storage-full": 507,
}
"""Slugs with a more specific status than their class."""

_FRAMEWORK_PROBLEMS = {
    400: ("malformed", "the request is not valid for this route", "compare the request with /docs"),
    404: ("not-found", "there is nothing at this path", "compare the request with /docs"),
    405: ("method-not-allowed", "this path does not support this method", "compare the request with /docs"),
    406: ("not-acceptable", "this representation is not available", "compare the request with /docs"),
    413: ("too-large", "the request is larger than this route accepts", ""),
    415: (
        "unsupported-media-type",
        "this route does not accept this content type",
        "compare the request with /docs",
    ),
}

_PREFIXED_PATH = re.compile(r"/(?!v1/).+/v1/")
_PREFIX_PROBLEM = (
    "there is nothing at this path: it has a prefix before /v1/, but this service has no prefix",
    "give the service its own host name or port (nginx: location /), and use an address without a path",
)

_logger = logging.getLogger("dpdpca.problems")

Observer = Callable[[str], None]


def status_of(error: DpdpcaError) -> int:
    if error.place is not None and isinstance(error, NotFoundError | PolicyError):
        return IntegrityError.status  # our own files are missing or open to others; the peer is not at fault
    return _STATUS_BY_SLUG.get(error.slug, error.status)


def problem_document(error: DpdpcaError) -> dict[str, Any]:
    """The problem document for the client. The error's texts are our own and contain no input."""
    document: dict[str, Any] = {
        "type": PROBLEM_TYPE_PREFIX + error.slug,
        "title": error.slug.replace("-", " "),
        "status": status_of(error),
        "detail": error.problem,
        "next_step": error.public_advice,
    }
    if error.retry_after_seconds is not None:
        document["retry_after_seconds"] = error.retry_after_seconds
    return document


def problem_response(error: DpdpcaError, headers: Mapping[str, str] | None = None) -> Response:
    """The problem document of `error` as a response.

    A `UsageError` is a bug of ours, so it shows no details.
    """
    if isinstance(error, UsageError):
        return internal_response(error)
    if status_of(error) == IntegrityError.status:
        _logger.error("integrity", extra={"slug": error.slug, "file": error.place})
    response = _respond(status_of(error), problem_document(error))
    if error.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(error.retry_after_seconds)
    for name, value in (headers or {}).items():
        response.headers[name] = value
    return response


def internal_response(error: BaseException) -> Response:
    """`internal` with an opaque id; see `log_incident`."""
    incident = log_incident(error)
    return _respond(
        500,
        {
            "type": PROBLEM_TYPE_PREFIX + "internal",
            "title": "internal",
            "status": 500,
            "detail": "unexpected internal error",
            "next_step": f"tell the operator this id: {incident}",
            "incident": incident,
        },
    )


def log_incident(error: BaseException) -> str:
    """Logs an unexpected error, and returns its opaque id.

    The log gets the id, the class and the code location, never the message.
    """
    incident = secrets.token_hex(8)
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    _logger.error(
        "internal",
        extra={
            "incident": incident,
            "error_class": type(error).__name__,
            "place": " < ".join(f"{_tail(frame.filename)}:{frame.lineno}" for frame in reversed(frames)),
        },
    )
    return incident


def as_dpdpca_error(error: BaseException) -> DpdpcaError | None:
    """`error` as a `DpdpcaError`, if possible: our own errors, and a full or failing disk. Otherwise None."""
    if isinstance(error, DpdpcaError):
        return None if isinstance(error, UsageError) else error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UnavailableError(
            "storage-full", "the service's disk is full", "try again later", retry_after_seconds=60
        )
    if isinstance(error, OSError) and error.errno in (errno.EIO, errno.EROFS):
        return UnavailableError(
            "storage-failing", "the storage of the service fails", "try again later", retry_after_seconds=60
        )
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return UnavailableError(
            "busy", "the service has too many open files", "try again", retry_after_seconds=2
        )
    return None


def install_problem_handlers(app: FastAPI, observe: Observer = lambda slug: None) -> None:
    """Converts the framework's exceptions and adds `ProblemMiddleware` as the outermost layer.

    Call it last.
    """

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        slug, detail, next_step = _FRAMEWORK_PROBLEMS.get(
            error.status_code, ("malformed", "the request was refused", "")
        )
        if error.status_code == 404 and _PREFIXED_PATH.match(request.url.path):
            detail, next_step = _PREFIX_PROBLEM
        observe(slug)
        response = _respond(
            error.status_code,
            {
                "type": PROBLEM_TYPE_PREFIX + slug,
                "title": slug.replace("-", " "),
                "status": error.status_code,
                "detail": detail,
                "next_step": next_step,
            },
        )
        if error.status_code == 405:
            response.headers["Allow"] = ", ".join(_methods_at(request))
        return response

    async def on_validation_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        observe("malformed")
        fields = sorted({_known_field(item) for item in error.errors()})
        return _respond(
            400,
            {
                "type": PROBLEM_TYPE_PREFIX + "malformed",
                "title": "malformed",
                "status": 400,
                "detail": "not valid: " + ", ".join(fields),
                "next_step": "compare the request with /docs",
            },
        )

    async def on_planned_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, DpdpcaError)
        observe("internal" if isinstance(error, UsageError) else error.slug)
        return problem_response(error)

    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(DpdpcaError, on_planned_error)
    app.add_middleware(ProblemMiddleware, observe=observe)


class ProblemMiddleware:
    """Answers with a problem document for every exception inside, unless a response has already begun."""

    def __init__(self, app: ASGIApp, observe: Observer = lambda slug: None) -> None:
        self._app = app
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watching_send(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watching_send)
        except ClientDisconnect:
            # The peer disconnected during its own request. This is counted but not logged, and there is
            # nobody to answer.
            self._observe("disconnected")
        except Exception as error:
            planned = as_dpdpca_error(error)
            self._observe(planned.slug if planned else "internal")
            response = problem_response(planned) if planned else internal_response(error)
            if not begun:
                await response(scope, receive, send)


def _respond(status: int, document: Mapping[str, Any]) -> Response:
    return Response(
        json.dumps(document, ensure_ascii=True).encode(),
        status_code=status,
        media_type=PROBLEM_MEDIA_TYPE,
        headers={"Cache-Control": "no-store"},
    )


def _methods_at(request: Request) -> list[str]:
    """The methods that the path supports; the framework itself names only those of the path's first route."""
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return sorted({method for route in matching for method in getattr(route, "methods", None) or ()})


def _known_field(item: Mapping[str, Any]) -> str:
    """The place of the error in our own words.

    The place only names members of our models, so nothing that the client invented (an extra member, the key
    of a mapping) is repeated.
    """
    location = [str(part) for part in item.get("loc", ())][:2]
    if item.get("type") in ("extra_forbidden", "json_invalid", "invalid_key", "union_tag_invalid"):
        location = location[:1]
    return ".".join(part for part in location if part.isidentifier() and len(part) <= 40) or "the request"


def _tail(path: str) -> str:
    return "/".join(path.rsplit("/", 2)[-2:])
