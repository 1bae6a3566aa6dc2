"""The common parts of operations: groups of problems, and the description of drafts."""

from typing import Any, Final

from dpdpca_protocol.terms.features import FEATURE_SCHEMA, MAX_LISTED_FEATURES
from dpdpca_protocol.terms.members import draft_schema
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_runtime.asgi.contract import Content, component
from dpdpca_user.planning.lint import TOML_MEDIA_TYPE

EVERYWHERE: Final = (
    "bad-token",
    "busy",
    "file-not-private",
    "internal",
    "malformed",
    "state-corrupt",
    "storage-failing",
    "storage-full",
)
"""Problems from the HTTP edge and the store that any route can give."""

STUDY: Final = (*EVERYWHERE, "not-found")
MODEL: Final = (*STUDY, "no-components", "not-ready")
DRAFT: Final = (
    *EVERYWHERE,
    "feature-list-differs",
    "feature-list-missing",
    "manifest-refused",
    "too-large",
    "unsupported-media-type",
)
ON_THE_WAY: Final = (
    "cut-off",
    "gateway",
    "malformed",
    "no-answer",
    "no-tls",
    "not-a-proxy",
    "not-http",
    "tls-expected",
    "too-large",
    "too-large-on-the-way",
    "unreachable",
    "untrusted-certificate",
)
"""Problems of a request to a proxy that got no answer."""

ASKS: Final = (
    *ON_THE_WAY,
    "bad-signature",
    "clock-behind",
    "generation-mismatch",
    "replayed-request",
    "stale-request",
    "too-many",
    "unknown-key",
    "unsupported-version",
    "wrong-address",
)
"""Problems of a signed request to a proxy. The service passes on the proxy's problems."""

FOR_A_PROXY: Final = (*DRAFT, *ASKS, "not-enrolled", "proxy-pinned-twice", "several-proxies")
"""Problems of a draft that is for a proxy. If it names owners, the service asks the proxy for their keys."""

CLOSES: Final = (
    *STUDY,
    *ASKS,
    "cohort-too-small",
    "not-canonical",
    "not-the-study-owner",
    "study-closed",
    "unsupported-media-type",
    "wrong-role",
    "wrong-state",
)
"""To close a study, the service sends a request to the proxy. It passes on the proxy's problems."""

CANCELS: Final = (*(slug for slug in CLOSES if slug != "cohort-too-small"), "noise-already-drawn")
"""To cancel a study, the service also sends a request to the proxy."""

FEATURE_LIST: Final[Content] = {
    JSON_MEDIA_TYPE: {
        "schema": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_LISTED_FEATURES,
            "items": dict(FEATURE_SCHEMA),
        }
    }
}
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
participants = "enrolled"
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
    "participants": "enrolled",
    "epsilon": 1.0,
    "clip_norm": 1.0,
    "max_records": 20000,
    "features": [
        {"name": "age", "lower": 18, "upper": 100},
        {"name": "systolic", "unit": "mmHg", "lower": 80, "upper": 200},
    ],
}

_DRAFT: Final = component(draft_schema())
SCHEMAS: Final[dict[str, Any]] = {
    "BaseDraft": {
        "description": "The base draft of a chain. It may omit release and clip_norm; the chain then"
        " chooses them.",
        "type": "object",
        "properties": _DRAFT["properties"],
        "additionalProperties": False,
    },
    # Generators of clients make a union of a oneOf, and then no class with the name of the schema.
    "Draft": {name: value for name, value in _DRAFT.items() if name != "oneOf"}
    | {"description": f"{_DRAFT['description']}. It has features or feature_list, not both."},
}

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
                "oneOf": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"required": {"type": "array", "items": {"type": "string"}}},
                        "required": ["required"],
                    },
                },
                "additionalProperties": {"type": "boolean", "enum": [False]},
            },
            "required": ["$schema", "oneOf", "properties", "required", "type"],
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
        "schema": {"$ref": "#/components/schemas/BaseDraft"},
        "example": _EXAMPLE,
    },
}
DRAFT_DESCRIBED: Final = "A draft in TOML or JSON. In TOML it has the same members as in its JSON Schema."
