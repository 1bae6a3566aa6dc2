"""A service's OpenAPI document as a judge of its answers."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("get", "put", "post", "delete", "patch")
JSON = ("application/json", "application/problem+json", "application/schema+json")


def closed(schema: Any) -> Any:
    """The schema with no room for members that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {name: closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        tight.setdefault("additionalProperties", False)
    return tight


@dataclass
class Contract:
    """The document of one service.

    Attributes:
        document: OpenAPI 3.1.
        faults: what answers broke, one line each.
        seen: operation and status of every answer that was judged.
    """

    document: dict[str, Any]
    faults: list[str] = field(default_factory=list)
    seen: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._components = closed(self.document["components"])

    def operations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """ "METHOD path" and what is said of it."""
        for path, operations in self.document["paths"].items():
            for method, operation in operations.items():
                assert method in METHODS, f"{path} has a member {method}"
                yield f"{method.upper()} {path}", operation

    def validator(self, schema: Mapping[str, Any]) -> Draft202012Validator:
        return Draft202012Validator({**closed(schema), "components": self._components})

    def resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema that a reference names."""
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    def judge(self, method: str, path: str, request: "Part", status: int, answer: "Part") -> None:
        """Notes what a request that succeeded, or an answer to any, has that is not declared."""
        known = self._operation(method, path)
        if known is None:
            return
        name, operation = known
        self.seen.add((name, status))
        if status < 300:
            self._judge_body(f"{name} takes", operation.get("requestBody"), request)
        responses = operation["responses"]
        declared = responses.get(str(status))
        if declared is None:
            self.faults.append(f"{name} answers {status}, undeclared: {answer.content[:200]!r}")
            return
        self._judge_body(f"{name} answers {status} with", declared, answer)
        if status >= 400 and answer.media_type == "application/problem+json":
            slug = json.loads(answer.content)["type"].rpartition(":")[2]
            if slug not in declared["content"].get(answer.media_type, {}).get("examples", {}):
                self.faults.append(f"{name} answers {status} {slug}, undeclared")

    def _operation(self, method: str, path: str) -> tuple[str, dict[str, Any]] | None:
        for template, operations in self.document["paths"].items():
            pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
            if method.lower() in operations and re.fullmatch(pattern, path):
                return f"{method} {template}", operations[method.lower()]
        return None

    def _judge_body(self, where: str, declared: Mapping[str, Any] | None, part: "Part") -> None:
        content = (declared or {}).get("content", {})
        if not part.content and not content:
            return
        media = content.get(part.media_type)
        if media is None:
            self.faults.append(f"{where} {part.media_type or 'a body'}, undeclared")
        elif part.media_type in JSON:
            for error in self.validator(media["schema"]).iter_errors(json.loads(part.content)):
                self.faults.append(f"{where} {error.json_path}: {error.message[:300]}")


@dataclass(frozen=True)
class Part:
    """A body and its media type."""

    media_type: str
    content: bytes

    @classmethod
    def of(cls, headers: list[tuple[bytes, bytes]], content: bytes) -> "Part":
        named = dict(headers).get(b"content-type", b"").decode("latin-1")
        return cls(named.partition(";")[0].strip().lower(), content)


class Judged:
    """An application whose every answer a contract judges."""

    def __init__(self, app: ASGIApp, contract: Contract) -> None:
        self._app, self._contract = app, contract

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        taken, given, begun = bytearray(), bytearray(), []

        async def listening() -> Message:
            message = await receive()
            taken.extend(message.get("body", b""))
            return message

        async def speaking(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)
            else:
                given.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, listening, speaking)
        (start,) = begun
        self._contract.judge(
            scope["method"],
            scope["path"],
            Part.of(scope["headers"], bytes(taken)),
            start["status"],
            Part.of(start["headers"], bytes(given)),
        )
