"""Pages from the package of a service. The pages load nothing from other sites and cannot be framed."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE

DOCS_PATHS: Final = ("/docs", "/docs.js", "/page.css", "/openapi.json")
"""The paths that `install_docs` serves."""

_PAGE: Final = Path(__file__).parent / "page"
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
PAGE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def install_files(app: FastAPI, files: Mapping[str, Path]) -> None:
    """Serves files of a package by path. Each file is read once."""
    for path, file in files.items():
        app.add_route(path, _file_route(file.read_bytes(), _TYPES[file.suffix]))


def install_style(app: FastAPI) -> None:
    """Serves `/page.css`, the style of all pages."""
    install_files(app, {"/page.css": _PAGE / "page.css"})


def install_docs(app: FastAPI) -> None:
    """Serves `/docs` and the document that it shows, `/openapi.json`."""
    install_style(app)
    install_files(app, {"/docs": _PAGE / "docs.html", "/docs.js": _PAGE / "docs.js"})
    document: asyncio.Future[bytes] | None = None

    async def read_document(_request: Request) -> Response:
        nonlocal document
        if document is None:  # made once, because strangers may request it as often as they like
            document = asyncio.ensure_future(run_in_threadpool(lambda: json.dumps(app.openapi()).encode()))
        content = await asyncio.shield(document)
        return Response(content, media_type=JSON_MEDIA_TYPE, headers=PAGE_HEADERS)

    app.add_route("/openapi.json", read_document)


def _file_route(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def read_file(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=PAGE_HEADERS)

    return read_file
