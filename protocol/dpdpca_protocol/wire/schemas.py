"""Parts of the JSON Schemas that describe messages."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

HEX_PATTERN = "^[0-9a-f]+$"
TIME_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"
TIME_SCHEMA: Schema = {"type": "string", "pattern": TIME_PATTERN}


def hex_schema(length: int) -> dict[str, Any]:
    """JSON Schema of exactly `length` bytes in lower-case hex."""
    return {"type": "string", "pattern": HEX_PATTERN, "minLength": 2 * length, "maxLength": 2 * length}


def object_schema(properties: Schema, optional: Schema | None = None) -> dict[str, Any]:
    """JSON Schema of an object with exactly these members."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {**properties, **(optional or {})},
        "required": sorted(properties),
    }
