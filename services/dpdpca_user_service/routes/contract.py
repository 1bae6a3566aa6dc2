"""The common parts of operations: groups of problems, and the description of drafts."""

from typing import Any, Final

from dpdpca_protocol.terms.members import draft_schema
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_runtime.asgi.contract import Content, component
from dpdpca_user.planning.lint import TOML_MEDIA_TYPE

EVERYWHERE: Final = (
    "bad-token",
    "busy",
    "internal",
    "malformed",
    "state-corrupt",
    "storage-failing",
    "storage-full",
)
"""Problems from the HTTP edge and the store that any route can give."""

STUDY: Final = (*EVERYWHERE, "not-found")
MODEL: Final = (*STUDY, "no-components", "not-ready")
DRAFT: Final = (*EVERYWHERE, "manifest-refused", "too-large", "unsupported-media-type")
FOR_A_PROXY: Final = (*DRAFT, "not-enrolled", "proxy-pinned-twice", "several-proxies")
"""Problems of a draft that is sent to a proxy."""

SECURITY: Final[dict[str, Any]] = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "The bearer token in the data user's home.",
    }
}

_EXAMPLE_TOML: Final = """\
title = "Blood pressure and age"
purpose = "To see what varies together."
release = "joint"
epsilon = 1.0
clip_norm = 1.0
max_records = 20000

[[features]]
name = "age"
lower = 18
upper = 100

[[features]]
name = "systolic"
unit = "mmHg"
lower = 80
upper = 200
"""
_EXAMPLE: Final[dict[str, Any]] = {
    "title": "Blood pressure and age",
    "purpose": "To see what varies together.",
    "release": "joint",
    "epsilon": 1.0,
    "clip_norm": 1.0,
    "max_records": 20000,
    "features": [
        {"name": "age", "lower": 18, "upper": 100},
        {"name": "systolic", "unit": "mmHg", "lower": 80, "upper": 200},
    ],
}

SCHEMAS: Final[dict[str, Any]] = {"Draft": component(draft_schema())}

SCHEMA_MEDIA_TYPE: Final = "application/schema+json"
SCHEMA_CONTENT: Final[Content] = {
    SCHEMA_MEDIA_TYPE: {
        "schema": {
            "type": "object",
            "properties": {
                "$schema": {"const": "https://json-schema.org/draft/2020-12/schema"},
                "title": {"type": "string"},
                "type": {"const": "object"},
                "properties": {"type": "object", "additionalProperties": {"type": "object"}},
                "required": {"type": "array", "items": {"type": "string"}},
                "additionalProperties": {"const": False},
            },
            "required": ["$schema", "properties", "required", "type"],
        }
    }
}

DRAFT_BODY: Final[Content] = {
    TOML_MEDIA_TYPE: {"schema": {"type": "string"}, "example": _EXAMPLE_TOML},
    JSON_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Draft"}, "example": _EXAMPLE},
}
BASE_BODY: Final[Content] = {
    TOML_MEDIA_TYPE: {"schema": {"type": "string"}, "example": _EXAMPLE_TOML},
    JSON_MEDIA_TYPE: {
        "schema": {
            "type": "object",
            "description": "A base draft. It may omit release and clip_norm, which the chain then chooses.",
            "properties": SCHEMAS["Draft"]["properties"],
            "additionalProperties": False,
        },
        "example": _EXAMPLE,
    },
}
DRAFT_DESCRIBED: Final = "A draft in TOML or JSON. In TOML it has the same members as in its JSON Schema."
