"""JSON Schemas (2020-12) of signed statements: the envelope, and the body of every kind except the manifest.

The manifest's schema comes from its table of members, `terms.members`. A schema describes only the shape of a
statement. The parsers check the signature and the meaning.
"""

from collections.abc import Mapping
from typing import Any, Final

from dpdpca_protocol.messages.share import MAX_VERSION, MAX_WHY
from dpdpca_protocol.messages.software import SOFTWARE_SCHEMA
from dpdpca_protocol.messages.transcript import KINDS
from dpdpca_protocol.pads.keys import SEALED_KEY_BYTES
from dpdpca_protocol.paillier.keys import MOST_BITS
from dpdpca_protocol.study import ReleaseKind, StudyState
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES, NONCE_BYTES
from dpdpca_protocol.wire.kem import KEM_KEY_BYTES
from dpdpca_protocol.wire.schemas import HEX_PATTERN, TIME_SCHEMA, Schema, hex_schema, object_schema
from dpdpca_protocol.wire.signing import FORMAT, LASTING_FORMAT

_ID = _DIGEST = _KEY = hex_schema(32)
_SIGNATURE = hex_schema(64)
_KEM = hex_schema(KEM_KEY_BYTES)
_COUNT = {"type": "integer", "minimum": 0}
_VERSION = {"type": "integer", "minimum": 1, "maximum": MAX_VERSION}
_NAME = {"type": "string", "minLength": 1, "maxLength": 200}
_LOG = {"log": _DIGEST | {"description": "head of the signer's log"}}
_PAD = {"pad": hex_schema(SEALED_KEY_BYTES) | {"description": "sealed key of the pads"}}
_SOFTWARE = {"software": SOFTWARE_SCHEMA | {"description": "what the proxy says that it runs"}}
_MODULUS_WIDE = {"type": "string", "pattern": HEX_PATTERN, "maxLength": MOST_BITS // 4}
_CIPHERTEXT = {"type": "string", "pattern": HEX_PATTERN, "maxLength": MOST_BITS // 2}

COHORT_MEMBER: Final[Schema] = object_schema({"owner": _ID, "statement": _DIGEST, "version": _VERSION})


def _body(properties: Schema, optional: Schema | None = None) -> dict[str, Any]:
    return object_schema({"format": {"const": FORMAT}, **properties}, optional)


def _lasting_body(properties: Schema, optional: Schema | None = None) -> dict[str, Any]:
    return object_schema({"format": {"const": LASTING_FORMAT}, **properties}, optional)


_COMPONENTS = {
    "type": "string",
    "pattern": "^[A-Za-z0-9+/]*={0,2}$",
    "minLength": 4,
    "maxLength": COMPONENTS_LIMIT_BYTES,
}


def _list(items: Schema) -> dict[str, Any]:
    return {"type": "array", "items": items}


_ENROLMENT = {"ed25519": _KEY, "name": _NAME, "proxy": _KEY}
_ROTATION = {
    "acceptance": _SIGNATURE,
    "ed25519": _KEY,
    "previous": _KEY,
    "time": TIME_SCHEMA,
    "version": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
}
_RELEASE = {
    "chunk_digests": _list(_DIGEST),
    "cohort": _DIGEST,
    "owners": _list(COHORT_MEMBER),
    "study": _ID,
}
_COUNTED = [str(kind) for kind in ReleaseKind if kind.needs_count]
_UNCOUNTED = [str(kind) for kind in ReleaseKind if not kind.needs_count]

BODIES: Final[Mapping[str, Schema]] = {
    "answer": _body({"content": _DIGEST, "nonce": hex_schema(NONCE_BYTES), "time": TIME_SCHEMA}),
    "cancel": _body({"study": _ID}),
    "close": _body({"study": _ID}),
    "components": _body(
        {
            "sealed": {
                "type": "object",
                "propertyNames": _ID,
                "additionalProperties": {"type": "string", "pattern": "^([0-9a-f]{2})*$"},
            },
            "study": _ID,
        },
        _LOG | {"body": _COMPONENTS},
    ),
    "count-answer": _body(
        {"challenge": _DIGEST, "randomizer": _MODULUS_WIDE, "records": _COUNT, "study": _ID}, _LOG
    ),
    "count-challenge": _body({"ciphertext": _CIPHERTEXT, "cohort": _DIGEST, "study": _ID}),
    "decline": _body(
        {"owner": _KEY, "study": _ID, "time": TIME_SCHEMA},
        {"why": {"type": "string", "minLength": 1, "maxLength": MAX_WHY}},
    ),
    "enrolment": {
        "oneOf": [
            _lasting_body(_ENROLMENT | {"kem": _KEM, "role": {"enum": ["owner"]}, "x25519": _KEY}),
            _lasting_body(_ENROLMENT | {"role": {"enum": ["user"]}}),
        ]
    },
    "event": _body(
        {
            "detail": {"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
            "index": _COUNT,
            "kind": {"enum": sorted(KINDS)},
            "previous": _DIGEST,
            "study": _ID,
            "time": TIME_SCHEMA,
        }
    ),
    "mark": _body(
        {
            "generation": _COUNT,
            "head": _DIGEST,
            "state": {"enum": [str(state) for state in StudyState]},
            "study": _ID,
            "time": TIME_SCHEMA,
        }
    ),
    "opened": _body({"cohort": _DIGEST, "release": _DIGEST, "study": _ID}),
    "proxy": _lasting_body(
        {"ed25519": _KEY, "kem": _KEM, "name": _NAME, "url": _NAME | {"maxLength": 2000}}, _SOFTWARE
    ),
    "receipt": _body(
        {
            "owner": _ID,
            "statement": _DIGEST,
            "study": _ID,
            "subject": {"enum": ["share", "withdrawal"]},
            "time": TIME_SCHEMA,
            "version": _VERSION,
        }
    ),
    "release": {
        "oneOf": [
            _body(_RELEASE | {"release": {"enum": _UNCOUNTED}}, _SOFTWARE),
            _body(_RELEASE | {"records": _COUNT, "release": {"enum": _COUNTED}}, _SOFTWARE),
        ]
    },
    "rotation": {
        "oneOf": [
            _lasting_body(_ROTATION | {"kem": _KEM, "role": {"enum": ["owner"]}, "x25519": _KEY}),
            _lasting_body(_ROTATION | {"kem": _KEM, "role": {"enum": ["proxy"]}}),
            _lasting_body(_ROTATION | {"role": {"enum": ["user"]}}),
        ]
    },
    "share": _body(
        {
            "chunk_count": _COUNT,
            "chunk_digests": _list(_DIGEST),
            "kem": _KEM,
            "owner": _KEY,
            "proxy_log": _DIGEST,
            "study": _ID,
            "version": _VERSION,
        },
        _LOG | _PAD,
    ),
    "withdrawal": _body({"owner": _KEY, "study": _ID, "version": _VERSION}, _LOG),
}
"""Kind of a statement → JSON Schema of its body."""


def statement_schema(kind: str, body: Schema) -> dict[str, Any]:
    """JSON Schema of a signed statement of `kind` whose body has the schema `body`."""
    return {
        "title": f"A signed statement: {kind}",
        **object_schema({"body": body, "kind": {"const": kind}, "signature": _SIGNATURE, "signer": _KEY}),
    }
