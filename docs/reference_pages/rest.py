"""Both REST APIs, from the OpenAPI documents that the services publish."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpdpca_proxy.app import create_app
from dpdpca_proxy.initialise import initialise
from dpdpca_proxy.proxy import open_proxy
from dpdpca_user.home import UserHome
from dpdpca_user_service.app import make_app
from dpdpca_user_service.service import open_service
from dpdpca_user_service.settings import load_settings
from reference_pages.markdown import code, plain, table
from reference_pages.terms import kind

_PROXY = """
# REST API of the proxy

The commands of owners and the data user's service call this API. You rarely need to call this API yourself.
Bodies are canonical JSON (RFC 8785) unless a route says otherwise. A running proxy shows the same reference
at `/docs` and serves the OpenAPI document at `/openapi.json`.
"""

_USER = """
# REST API of the data user's service

Applications call this API with the bearer token from the data user's home folder: `Authorization: Bearer
TOKEN`. A running service shows the same reference at `/docs` and serves the OpenAPI document at
`/openapi.json`. The program `examples/rest_api.py` in the source shows how to call this API.
"""

_METHODS = ("get", "put", "post", "delete")


def proxy_page() -> str:
    return _page(_PROXY, proxy_document())


def user_page() -> str:
    return _page(_USER, user_document())


@cache
def proxy_document() -> dict[str, Any]:
    """The OpenAPI document of a proxy that has just been made."""
    with TemporaryDirectory() as folder:
        settings, _, _ = initialise(Path(folder) / "proxy", "The proxy", "http://localhost:8440")
        proxy = open_proxy(settings)
        document = create_app(proxy).openapi()
        proxy.database.close()
    return document


@cache
def user_document() -> dict[str, Any]:
    """The OpenAPI document of a data user's service that has just been made."""
    with TemporaryDirectory() as folder:
        home = Path(folder) / "user"
        UserHome(home).create("The data user", None)
        service = open_service(load_settings(home))
        document = make_app(service, drive=False).openapi()
        service.close()
    return document


def _page(introduction: str, document: Mapping[str, Any]) -> str:
    lines = [*introduction.strip().splitlines(), ""]
    for path, method, operation in _operations(document):
        lines += [f"## {method.upper()} {path}", "", *_operation(operation)]
    lines += ["## Schemas", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name}", "", *_described(schema)]
    return "\n".join(lines)


def _operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield path, method, item[method]


def _operation(operation: Mapping[str, Any]) -> list[str]:
    lines = [plain(f"{operation['summary']}.".replace("..", ".")), ""]
    if text := operation.get("description"):
        lines += [*plain(text).splitlines(), ""]
    if operation.get("security") == []:
        lines += ["Anybody may call this route.", ""]
    lines += table(
        ("parameter", "in", "form", "meaning"),
        (
            (code(each["name"]), each["in"], kind(each["schema"]), plain(each.get("description", "")))
            for each in operation.get("parameters", [])
        ),
    )
    if body := operation.get("requestBody"):
        lines += table(("request body", "form", "meaning"), _contents(body))
    return lines + table(
        ("answer", "body", "meaning"),
        ((str(status), _body(answer), _meaning(answer)) for status, answer in operation["responses"].items()),
    )


def _contents(body: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for media_type, media in body["content"].items():
        yield code(media_type), kind(media["schema"]), plain(body.get("description", ""))


def _body(answer: Mapping[str, Any]) -> str:
    contents = answer.get("content", {})
    return " or ".join(f"{kind(media['schema'])} ({code(name)})" for name, media in contents.items())


def _meaning(answer: Mapping[str, Any]) -> str:
    return plain(answer["description"])


def _described(schema: Mapping[str, Any]) -> list[str]:
    lines = [*plain(schema["description"]).splitlines(), ""] if "description" in schema else []
    if not schema.get("properties"):
        return [*lines, f"{kind(schema)[:1].upper()}{kind(schema)[1:]}.", ""]
    needed = schema.get("required", [])
    return lines + table(
        ("member", "required", "form", "meaning"),
        (
            (code(name), "yes" if name in needed else "no", kind(each), plain(each.get("description", "")))
            for name, each in schema["properties"].items()
        ),
    )
