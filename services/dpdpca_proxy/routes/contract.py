"""Groups of problems that the proxy's routes can answer with. Each route passes its groups to `operation`."""

from typing import Any, Final

from dpdpca_protocol.terms.features import FEATURE_SCHEMA, MAX_LISTED_FEATURES
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE
from dpdpca_runtime.asgi.contract import Content

EVERYWHERE: Final = (
    "busy",
    "internal",
    "malformed",
    "state-corrupt",
    "storage-failing",
    "storage-full",
    "too-many",
    "wrong-address",
)
"""Problems from the HTTP edge and the store that any route can give."""

WRITES: Final = (*EVERYWHERE, "generation-mismatch")
"""Problems of routes that change state. Every signed request changes state, because its nonce is stored."""

SIGNED: Final = (
    *WRITES,
    "bad-signature",
    "clock-behind",
    "replayed-request",
    "stale-request",
    "unknown-key",
    "unsupported-version",
)
"""Problems of a signed request of any role."""

BODY: Final = ("too-large", "unsupported-media-type")
STATEMENT: Final = (*BODY, "not-canonical", "bad-signature")

STUDY: Final = (*SIGNED, "not-found")
"""Problems of a route for a study that any enrolled party may use."""
OF_ONE_ROLE: Final = (*STUDY, "wrong-role")
OF_ITS_USER: Final = (*OF_ONE_ROLE, "not-the-study-owner")

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

SHARE: Final = (
    *OF_ONE_ROLE,
    "cohort-full",
    "key-given-up",
    "not-a-participant",
    "share-under-another-key",
    "share-version-not-newer",
    "study-closed",
    "too-many-versions",
    "wrong-state",
)

DECLINES: Final = (
    *OF_ONE_ROLE,
    *STATEMENT,
    "key-given-up",
    "not-a-participant",
    "share-complete",
    "share-under-another-key",
    "study-closed",
)

SECURITY: Final[dict[str, Any]] = {
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "Signature",
        "description": "An HTTP message signature (RFC 9421) with the caller's enrolled Ed25519 key and the"
        " label sig1. The signature covers @method, @authority, @path and @query. If there is a body, it also"
        " covers content-digest and content-type.",
    },
    "signature-input": {
        "type": "apiKey",
        "in": "header",
        "name": "Signature-Input",
        "description": "The signed components, with created, keyid, nonce and the tag dpdpca.",
    },
}
