"""The requests that owners and data users send to a proxy, from its OpenAPI document and this module.

The document knows bodies, answers and refusals. This module adds what it cannot know: the order in which the
parties need the requests, who sends them, and what a repetition does.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dpdpca_protocol.paillier.chunks import CHUNK_CIPHERTEXTS
from dpdpca_protocol.wire.http import (
    CHUNK_MEDIA_TYPE,
    COMPONENTS_LIMIT_BYTES,
    EVENTS_MEDIA_TYPE,
    JSON_MEDIA_TYPE,
    MANIFEST_LIMIT_BYTES,
    PROBLEM_MEDIA_TYPE,
    STATEMENT_LIMIT_BYTES,
)
from dpdpca_proxy.routes.contract import BODY, EVERYWHERE, SIGNED, STATEMENT
from dpdpca_proxy.routes.shares import SHARE_STATEMENT_LIMIT_BYTES
from dpdpca_runtime.asgi.problem_table import PROBLEMS
from reference_pages.markdown import code, plain, table
from reference_pages.rest import proxy_document
from reference_pages.terms import kind

PREFIX: Final = "/v1/"
"""Where the routes of the protocol begin. The others are for the machine's operator."""
ANYBODY: Final = "anybody"
_ID_PATTERN: Final = "^[0-9a-f]{64}$"


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        caller: who sends it; `ANYBODY` signs nothing.
        method, path: as in the OpenAPI document.
        again: what the same request does when it is sent again; empty for a request that only reads.
    """

    caller: str
    method: str
    path: str
    again: str = ""


_STUDY: Final = "/v1/studies/{study}"

REQUESTS: Final = (
    Request(ANYBODY, "get", "/v1/proxy"),
    Request(ANYBODY, "get", "/v1/proxy/rotations"),
    Request(ANYBODY, "post", "/v1/parties", "same key and invitation: same answer"),
    Request("both", "get", "/v1/parties"),
    Request("both", "get", "/v1/parties/rotations"),
    Request("user", "put", "/v1/feature-lists/{sha256}", "same list: 204 again"),
    Request("both", "get", "/v1/feature-lists/{sha256}"),
    Request("user", "post", "/v1/studies", "same manifest: 200 and the same id"),
    Request("both", "get", "/v1/studies"),
    Request("owner", "get", "/v1/inbox"),
    Request("both", "get", f"{_STUDY}/manifest"),
    Request("both", "get", _STUDY),
    Request("owner", "get", f"{_STUDY}/share"),
    Request(
        "owner", "put", f"{_STUDY}/share/chunks/{{position}}", "same chunk, even if sealed anew: 204 again"
    ),
    Request("owner", "post", f"{_STUDY}/share/complete", "same statement: same receipt, at any later time"),
    Request("owner", "delete", f"{_STUDY}/share", "same statement: same receipt, at any later time"),
    Request("owner", "post", f"{_STUDY}/decline", "same statement: 204 again, at any later time"),
    Request("both", "get", f"{_STUDY}/events"),
    Request("both", "get", f"{_STUDY}/transcript"),
    Request("user", "post", f"{_STUDY}/close", "204 again, unless the study was cancelled or failed"),
    Request("user", "delete", _STUDY, "204 again"),
    Request("user", "get", f"{_STUDY}/count"),
    Request("user", "post", f"{_STUDY}/count", "same statement: 204 again"),
    Request("user", "get", f"{_STUDY}/release"),
    Request("user", "get", f"{_STUDY}/release/chunks/{{position}}"),
    Request("user", "put", f"{_STUDY}/opened", "same statement: 204 again"),
    Request("user", "put", f"{_STUDY}/components", "same statement: 204 again"),
    Request("both", "get", f"{_STUDY}/components"),
    Request("both", "post", "/v1/parties/{party}/rotations", "same statement: same answer"),
)
"""In the order in which the parties need them; the last one at any time."""

LATER: Final = frozenset({408, 429, 503, 507})
"""Statuses after which the same request can succeed without any change."""
REPEATS: Final[Mapping[str, str]] = {
    "cohort-too-small": "later",
    "not-ready": "later",
    "replayed-request": "with a new nonce",
    "share-incomplete": "after the missing chunks",
    "stale-request": "with the right time",
}
"""Refusals with another status after which the request is repeated, and how."""


def _listed(slugs: Iterable[str]) -> str:
    *most, last = [code(slug) for slug in sorted(slugs)]
    return f"{', '.join(most)} or {last}"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >> 20 else f"{count >> 10} KiB"


_CALLERS: Final = f"""
The column *caller* says who may send a request: the owner, the data user, both, or anybody. A request of
anybody has no HTTP signature. The caller signs each of the other requests as described above. A body or an
answer in code font is one statement of this kind (section 13), without anything around it. A name that begins
with a capital letter is a body in the next table. Both have the media type {code(JSON_MEDIA_TYPE)}. An answer
204 has no body. A request without a body in the table must have none. A request that reads can be repeated at
any time; for the others, *repeated* says what the proxy answers if the caller did not receive the first
answer.
"""

_LIMITS: Final = f"""
A body has at most {_size(STATEMENT_LIMIT_BYTES)}. The exceptions are a manifest
({_size(MANIFEST_LIMIT_BYTES)}), a `share` statement ({_size(SHARE_STATEMENT_LIMIT_BYTES)}), `components`
(what the cohort needs, at most {_size(COMPONENTS_LIMIT_BYTES)}) and a chunk (up to {CHUNK_CIPHERTEXTS:,}
ciphertexts).
"""

_UNSIGNED: Final = """
The proxy does not sign these bodies; only the statements in them prove anything. A newer proxy may add
members to an answer, so a caller ignores unknown members of these objects, but not of statements. A statement
in such a body is the same object as in its own message, with its four members. `EnrolmentRequest` is the only
one that a party sends. It is canonical JSON.
"""

_REFUSED: Final = f"""
A refusal has the media type {code(PROBLEM_MEDIA_TYPE)}. Its body is an object with `type`, `title`, `status`,
`detail` and `next_step`, and sometimes `retry_after_seconds` (the same number as in `Retry-After`) or
`incident`. Programs decide by `type`. A refused request has changed nothing except that its nonce is used,
with two exceptions: with `statement-differs` the proxy stores the second statement as evidence, and
`count-out-of-range` ends the study.

Any request can get {_listed(EVERYWHERE)}. A signed request can also get
{_listed({*SIGNED} - {*EVERYWHERE})}, and a request with a body {_listed(BODY)} or, if the body is JSON,
{_listed({*STATEMENT} - {*BODY})}. The table of requests lists the other refusals of each request.

*Repeat* says whether the caller sends the same request again: later (after the seconds in `Retry-After`, if
the answer has this header), in the way that the table says, or not. A caller also repeats a request if it
received no answer, or if a server in between answered with 502 or 504. Each repetition has a signature of its
own, with a new nonce and a new time.
"""


def _paragraphs(text: str) -> list[str]:
    return [line for part in text.strip().split("\n\n") for line in (" ".join(part.split()), "")]


def section() -> str:
    """The tables of requests, of bodies that are not one statement, and of refusals."""
    document = proxy_document()
    return "\n".join([*_requests(document), *_bodies(document), *_refusals(document)]).rstrip()


def _requests(document: Mapping[str, Any]) -> list[str]:
    rows = [_row(request, document) for request in REQUESTS]
    return [
        "### The requests, in order",
        "",
        *_paragraphs(_CALLERS),
        *table(("request", "caller", "purpose", "body", "answer", "repeated", "own refusals"), rows),
        *_paragraphs(_LIMITS),
    ]


def _row(request: Request, document: Mapping[str, Any]) -> tuple[str, ...]:
    operation = document["paths"][request.path][request.method]
    query = "&".join(
        f"{each['name']}={each['name'].upper()}"
        for each in operation.get("parameters", [])
        if each["in"] == "query"
    )
    path = re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), request.path)
    return (
        code(f"{request.method.upper()} {path}" + (f"?{query}" if query else "")),
        request.caller,
        plain(operation["summary"]),
        _content(operation.get("requestBody", {})),
        "; ".join(_answers(operation)),
        request.again,
        ", ".join(code(slug) for slug in sorted(own_refusals(operation))),
    )


def _answers(operation: Mapping[str, Any]) -> Iterator[str]:
    for status, answer in operation["responses"].items():
        if int(status) < 300:
            yield f"{status} {_content(answer)}".strip()


def _content(part: Mapping[str, Any]) -> str:
    return " or ".join(_medium(name, media["schema"]) for name, media in part.get("content", {}).items())


def _medium(media_type: str, schema: Mapping[str, Any]) -> str:
    words = {CHUNK_MEDIA_TYPE: "bytes", EVENTS_MEDIA_TYPE: "events"}.get(media_type)
    return f"{words} ({code(media_type)})" if words else _form(schema)


def refusals(operation: Mapping[str, Any]) -> set[str]:
    """The types of all problems that a route can answer with."""
    return {
        slug
        for answer in operation["responses"].values()
        for slug in answer.get("content", {}).get(PROBLEM_MEDIA_TYPE, {}).get("examples", {})
    }


def own_refusals(operation: Mapping[str, Any]) -> set[str]:
    """Those that not every signed request or every request with a body can get."""
    return refusals(operation) - {*SIGNED, *STATEMENT}


def _bodies(document: Mapping[str, Any]) -> list[str]:
    bodies = named_bodies(document)
    rows: list[tuple[str, ...]] = []
    for name, body in bodies.items():
        base = _base(name, bodies)
        known = bodies[base]["properties"] if base else {}
        if base:
            rows.append((name, "", f"all members of {base}, and", ""))
        rows += [
            (name, code(member), _form(schema), plain(schema.get("description", "")))
            for member, schema in body["properties"].items()
            if member not in known
        ]
    return [
        "### Bodies that are not one statement",
        "",
        *_paragraphs(_UNSIGNED),
        *table(("body", "member", "form", "meaning"), rows),
    ]


def _base(name: str, bodies: Mapping[str, Mapping[str, Any]]) -> str | None:
    """A body of at least three members, all of which the body `name` has, too."""
    members = bodies[name]["properties"].keys()
    return next(
        (
            other
            for other, body in bodies.items()
            if len(body["properties"]) > 2 and body["properties"].keys() < members
        ),
        None,
    )


def named_bodies(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The JSON objects in requests and answers that are not statements, by name, in order of appearance."""
    schemas = document["components"]["schemas"]
    found: dict[str, Mapping[str, Any]] = {}

    def visit(schema: Any) -> None:
        if isinstance(schema, list):
            for each in schema:
                visit(each)
        elif isinstance(schema, dict):
            if "$ref" in schema:
                name = schema["$ref"].rpartition("/")[2]
                if name not in found and _statement_kind(schemas[name]) is None:
                    found[name] = schemas[name]
                    visit(schemas[name]["properties"])
                return
            if "contentSchema" in schema:
                body = schema["contentSchema"]
                found.setdefault(body["title"], body)
            visit(list(schema.values()))

    for request in REQUESTS:
        operation = document["paths"][request.path][request.method]
        parts = [operation.get("requestBody", {}), *operation["responses"].values()]
        for part in parts:
            for media_type, media in part.get("content", {}).items():
                if media_type != PROBLEM_MEDIA_TYPE:
                    visit(media["schema"])
    return found


def _form(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        statement = _statement_kind(proxy_document()["components"]["schemas"][name])
        return code(statement) if statement else str(name)
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return " or ".join(_form(each) for each in schema[several])
    if schema.get("type") == "array":
        return f"list of {_form(schema['items'])}"
    if schema.get("pattern") == _ID_PATTERN:
        return "32 bytes in hex"
    if "minimum" in schema:
        schema = {**schema, "minimum": int(schema["minimum"])}
    return kind(schema)


def _statement_kind(schema: Mapping[str, Any]) -> str | None:
    """The kind of statement that a schema describes, if it does."""
    properties = schema.get("properties", {})
    if properties.keys() != {"body", "kind", "signature", "signer"}:
        return None
    return str(properties["kind"]["const"])


def _refusals(document: Mapping[str, Any]) -> list[str]:
    operations = [document["paths"][request.path][request.method] for request in REQUESTS]
    rows = [
        (
            code(slug),
            str(PROBLEMS[slug].status),
            plain(PROBLEMS[slug].meaning),
            repeat_of(slug),
            plain(PROBLEMS[slug].remedy),
        )
        for slug in sorted({slug for operation in operations for slug in refusals(operation)})
    ]
    return [
        "### Refusals",
        "",
        *_paragraphs(_REFUSED),
        *table(("type", "status", "what happened", "repeat", "what to do"), rows),
    ]


def repeat_of(slug: str) -> str:
    """Whether a request that was refused in this way is sent again."""
    return "later" if PROBLEMS[slug].status in LATER else REPEATS.get(slug, "no")
