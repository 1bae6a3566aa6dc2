"""Constants on which both ends of a request must agree."""

from dpdpca_protocol.wire.signing import FORMAT

SIGNATURE_LABEL = "sig1"
SIGNATURE_TAG = f"dpdpca/v{FORMAT}"
"""The tag names the message format, so that a proxy can tell other versions what it speaks."""
CARRIED_TAG = f"dpdpca-carried/v{FORMAT}"
"""The tag of a request that is carried to the proxy by hand, and may arrive days after it was signed."""
ANSWER_HEADER = "dpdpca-answer"
"""The header of the proxy's signed answer to a carried request."""
SIGNATURE_ALGORITHM = "ed25519"
SIGNED_COMPONENTS = ("@method", "@authority", "@path", "@query")
SIGNED_BODY_COMPONENTS = ("content-digest", "content-type")
NONCE_BYTES = 16
WINDOW_SECONDS = 300
"""How far a request's `created` may be from the verifier's clock, before or after."""

HEARTBEAT_SECONDS = 10.0
"""A stream of events sends something at least this often, if only a comment."""

JSON_MEDIA_TYPE = "application/json"
CHUNK_MEDIA_TYPE = "application/octet-stream"
EVENTS_MEDIA_TYPE = "text/event-stream"
PROBLEM_MEDIA_TYPE = "application/problem+json"
PROBLEM_TYPE_PREFIX = "urn:dpdpca:problem:"

STATEMENT_LIMIT_BYTES = 64 * 1024
"""The largest signed statement or JSON body, except for the three below."""
MANIFEST_LIMIT_BYTES = 4 * 1024 * 1024
"""A manifest names up to thousands of features."""
RELEASE_LIMIT_BYTES = 48 * 1024 * 1024
"""A release without its chunks and share statements: its events, and the proxy's log while the study ran."""
COMPONENTS_LIMIT_BYTES = 128 * 1024 * 1024
"""Published components with one sealed copy for each owner: as many of the leading ones as fit. Those of many
features are there once, up to 2·10⁷ numbers of 4 bytes in base64, with a sealed key for each owner."""
