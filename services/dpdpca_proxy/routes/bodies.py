"""What the OpenAPI page says of bodies that routes read themselves, from raw bytes under a limit."""

from typing import Any

from dpdpca_protocol.wire.http import CHUNK_MEDIA_TYPE, JSON_MEDIA_TYPE


def statement_body(description: str) -> dict[str, Any]:
    """A canonical JSON body."""
    return _body(JSON_MEDIA_TYPE, {"type": "object"}, description)


def chunk_body(description: str) -> dict[str, Any]:
    """A body of bytes."""
    return _body(CHUNK_MEDIA_TYPE, {"type": "string", "format": "binary"}, description)


def _body(media_type: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {
        "requestBody": {
            "description": description,
            "required": True,
            "content": {media_type: {"schema": schema}},
        }
    }
