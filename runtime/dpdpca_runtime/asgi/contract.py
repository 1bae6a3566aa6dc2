"""The OpenAPI document for routes that read and write raw bytes.

A route passes `**operation(...)` to its decorator. `describe` combines all routes in one document.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from dpdpca_protocol.messages.schemas import BODIES, statement_schema
from dpdpca_protocol.terms.members import manifest_schema
from dpdpca_protocol.wire.http import (
    CHUNK_MEDIA_TYPE,
    EVENTS_MEDIA_TYPE,
    JSON_MEDIA_TYPE,
    PROBLEM_MEDIA_TYPE,
    PROBLEM_TYPE_PREFIX,
)
from dpdpca_runtime.asgi.examples import example_of
from dpdpca_runtime.asgi.problem_table import PROBLEMS
from dpdpca_runtime.bodies import STATEMENT_MARK

_REFERENCE: Final = "#/components/schemas/{model}"

Content = Mapping[str, Any]
"""Media type → OpenAPI media type object."""

PROBLEM_SCHEMA: Final[Mapping[str, Any]] = {
    "title": "Problem",
    "description": "A problem document (RFC 9457). `type` identifies the problem and never changes.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "pattern": f"^{PROBLEM_TYPE_PREFIX}[a-z0-9-]+$"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "What is wrong, and with which value."},
        "next_step": {"type": "string", "description": "What to do about the problem. May be empty."},
        "retry_after_seconds": {"type": "integer", "minimum": 0},
        "incident": {"type": "string", "description": "Id of an unexpected error in the service's log."},
    },
    "required": ["detail", "next_step", "status", "title", "type"],
}


def signed(kind: str) -> Content:
    """A body that consists of a signed statement."""
    return {JSON_MEDIA_TYPE: {"schema": {STATEMENT_MARK: kind}}}


def json_body(kind: type[BaseModel]) -> Content:
    """A JSON body that `kind` describes. The route parses the body itself."""
    schema = kind.model_json_schema(ref_template=_REFERENCE)
    name = str(schema["title"])
    reference = {"$ref": _REFERENCE.format(model=name), "$defs": {name: schema}}
    return {JSON_MEDIA_TYPE: {"schema": reference}}


def binary(media_type: str = CHUNK_MEDIA_TYPE) -> Content:
    return {media_type: {"schema": {"type": "string", "format": "binary"}}}


def text(media_type: str) -> Content:
    return {media_type: {"schema": {"type": "string"}}}


def events(**kinds: type[BaseModel]) -> Content:
    """A stream of server-sent events. `kinds` maps the name of an event to the JSON model of its data."""
    return {
        EVENTS_MEDIA_TYPE: {"schema": {"oneOf": [_event(name, kind) for name, kind in kinds.items()]}},
    }


def _event(name: str, kind: type[BaseModel]) -> dict[str, Any]:
    data = {
        "type": "string",
        "contentMediaType": JSON_MEDIA_TYPE,
        "contentSchema": kind.model_json_schema(ref_template=_REFERENCE),
    }
    return {
        "type": "object",
        "title": f"The event {name}",
        "properties": {"event": {"const": name}, "data": data},
        "required": ["data", "event"],
    }


def operation(
    answer: type[BaseModel] | Content | None,
    problems: Sequence[str],
    *,
    status: int = 200,
    described: str = "Done.",
    also: Mapping[int, str] | None = None,
    body: Content | None = None,
    body_described: str = "",
    is_open: bool = False,
    otherwise: Mapping[int, type[BaseModel]] | None = None,
) -> dict[str, Any]:
    """Arguments for a route's decorator.

    Args:
        answer: the body of a success; None for an empty body.
        problems: slugs of `PROBLEMS` that the route can give.
        status: the status of a success.
        described: the meaning of a success.
        also: further statuses of a success with the same answer, and their meanings.
        body: the body that the route reads.
        body_described: the description of that body.
        is_open: whether the route needs no credentials.
        otherwise: answers of a failure that are not problem documents.
    """
    responses: dict[int | str, dict[str, Any]] = {}
    for code, meaning in {status: described, **(also or {})}.items():
        responses[code] = {"description": meaning, **_content(answer)}
    responses |= _problem_responses(problems)
    for code, kind in (otherwise or {}).items():
        responses[code] = {"description": kind.__doc__ or "", "model": kind}
    extra: dict[str, Any] = {"security": []} if is_open else {}
    if body is not None:
        extra["requestBody"] = {"description": body_described, "required": True, "content": dict(body)}
    return {"status_code": status, "responses": responses, "openapi_extra": extra}


def _content(answer: type[BaseModel] | Content | None) -> dict[str, Any]:
    if answer is None:
        return {}
    return {"model": answer} if isinstance(answer, type) else {"content": dict(answer)}


def _problem_responses(slugs: Sequence[str]) -> dict[int | str, dict[str, Any]]:
    by_status: dict[int, list[str]] = {}
    for slug in sorted(set(slugs)):
        by_status.setdefault(PROBLEMS[slug].status, []).append(slug)
    return {status: _problem_response(named) for status, named in sorted(by_status.items())}


def _problem_response(slugs: Sequence[str]) -> dict[str, Any]:
    media = {
        "schema": {"$ref": _REFERENCE.format(model="Problem")},
        "examples": {slug: {"$ref": f"#/components/examples/{slug}"} for slug in slugs},
    }
    return {
        "description": ", ".join(f"`{slug}`" for slug in slugs),
        "content": {PROBLEM_MEDIA_TYPE: media},
    }


def describe(
    app: FastAPI, security_schemes: Mapping[str, Any], schemas: Mapping[str, Any] | None = None
) -> None:
    """Makes `app.openapi` describe exactly what its routes declare with `operation`.

    Args:
        app: the application with all of its routes.
        security_schemes: the schemes that a request needs, all together, unless its route is open.
        schemas: further components that routes refer to.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title,
                version=app.version,
                summary=app.summary,
                description=app.description,
                routes=app.routes,
            )
            app.openapi_schema = _completed(document, security_schemes, schemas or {})
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation says


def _completed(
    document: dict[str, Any], security_schemes: Mapping[str, Any], schemas: Mapping[str, Any]
) -> dict[str, Any]:
    examples: set[str] = set()
    for operations in document["paths"].values():
        for described in operations.values():
            responses = described["responses"]
            if JSON_MEDIA_TYPE in responses.get("422", {}).get("content", {}):
                del responses[
                    "422"
                ]  # FastAPI's own answer, which we do not use: invalid requests get status 400
            for response in responses.values():
                for media in response.get("content", {}).values():
                    examples |= media.get("examples", {}).keys() & PROBLEMS.keys()
    components = document.setdefault("components", {})
    made = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        made.pop(name, None)
    made["Problem"] = dict(PROBLEM_SCHEMA)
    made |= {name: dict(schema) for name, schema in schemas.items()}
    found: dict[str, Any] = {}
    document = _with_references(document, found)
    document["components"]["schemas"] |= found
    _add_examples(document)
    document["components"]["examples"] = {slug: {"value": example(slug)} for slug in sorted(examples)}
    document["components"]["securitySchemes"] = dict(security_schemes)
    document["security"] = [{name: [] for name in security_schemes}]
    return document


def _add_examples(document: dict[str, Any]) -> None:
    """Adds an example to each JSON body that has none yet."""
    schemas = document["components"]["schemas"]
    for operations in document["paths"].values():
        for described in operations.values():
            for part in [described.get("requestBody", {}), *described["responses"].values()]:
                for media_type, media in part.get("content", {}).items():
                    if media_type == JSON_MEDIA_TYPE and not media.keys() & {"example", "examples"}:
                        media["example"] = example_of(media["schema"], schemas)


def example(slug: str) -> dict[str, Any]:
    """An example of a problem document."""
    known = PROBLEMS[slug]
    return {
        "type": PROBLEM_TYPE_PREFIX + slug,
        "title": slug.replace("-", " "),
        "status": known.status,
        "detail": known.meaning,
        "next_step": known.remedy,
    }


def _with_references(part: Any, found: dict[str, Any]) -> Any:
    """`part` with references in place of marked statements and definitions.

    The statements and definitions are collected in `found`.
    """
    if isinstance(part, list):
        return [_with_references(each, found) for each in part]
    if not isinstance(part, dict):
        return part
    if STATEMENT_MARK in part:
        name = _name(part[STATEMENT_MARK])
        found[name] = _statement(part[STATEMENT_MARK])
        return {"$ref": _REFERENCE.format(model=name)}
    for name, schema in part.get("$defs", {}).items():
        found[name] = _with_references(schema, found)
    return {name: _with_references(value, found) for name, value in part.items() if name != "$defs"}


def _statement(kind: str) -> dict[str, Any]:
    body = component(manifest_schema()) if kind == "manifest" else BODIES[kind]
    return component(statement_schema(kind, body))


def _name(kind: str) -> str:
    return "".join(word.capitalize() for word in kind.split("-")) + "Statement"


def component(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Embeds a complete JSON Schema document in another one. The title of the embedded document becomes its
    description."""
    part = {name: value for name, value in schema.items() if name not in ("$schema", "title")}
    return {"description": schema["title"], **part}


def operation_id(route: APIRoute) -> str:
    """The id of an operation: the name of its route function."""
    return route.name
