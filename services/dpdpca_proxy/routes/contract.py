"""Which problems the proxy's routes give: groups that a route names in `operation`."""

from typing import Any, Final

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
"""What the edge and the store say before or below any route."""

WRITES: Final = (*EVERYWHERE, "generation-mismatch")
"""Where the state moves, as it does with the nonce of every signed request."""

SIGNED: Final = (
    *WRITES,
    "bad-signature",
    "clock-behind",
    "replayed-request",
    "stale-request",
    "unknown-key",
)
"""A signed request of any role."""

BODY: Final = ("too-large", "unsupported-media-type")
STATEMENT: Final = (*BODY, "not-canonical", "bad-signature")

STUDY: Final = (*SIGNED, "not-found")
"""A study is named by anybody who is enrolled."""
OF_ONE_ROLE: Final = (*STUDY, "wrong-role")
OF_ITS_USER: Final = (*OF_ONE_ROLE, "not-the-study-owner")

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

SECURITY: Final[dict[str, Any]] = {
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "Signature",
        "description": "An HTTP message signature (RFC 9421) by the caller's enrolled Ed25519 key, labelled"
        " sig1, over @method, @authority, @path and @query, with a body over content-digest and content-type"
        " too.",
    },
    "signature-input": {
        "type": "apiKey",
        "in": "header",
        "name": "Signature-Input",
        "description": "What is signed, with created, keyid, nonce and the tag dpdpca.",
    },
}
