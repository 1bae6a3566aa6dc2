"""Requests that Schemathesis makes up from an OpenAPI document, sent as parties of a test would send them."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, cast

import httpx
from requests import PreparedRequest
from requests.auth import AuthBase
from schemathesis import HookContext
from schemathesis.schemas import BaseSchema

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.signing import IdentityKey, sign_statement
from dpdpca_runtime.http.signature import RequestSigner

_SIGNATURE_HEADERS = ("Signature", "Signature-Input")
_ID = "[0-9a-f]{64}"
_FORMS = {"signer": _ID, "signature": "[0-9a-f]{128}"}


class SignedBy(AuthBase):
    """Signs each request that carries a made-up signature, by one of several parties.

    Three of four statements are signed too, after they were put in order: about the study in the path, by the
    party that sends them. A statement of which these parts were made up to be malformed stays so. Whose
    turn it is, and whether a body stays as it was made up, follows from the signature that was made up.
    """

    def __init__(self, keys: Sequence[IdentityKey]) -> None:
        self._keys = tuple(keys)

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        made_up = [request.headers.pop(header, None) for header in _SIGNATURE_HEADERS]
        body = _body_of(request)
        chance = sha256(repr(made_up).encode() + body).digest()
        key = self._keys[chance[0] % len(self._keys)]
        if chance[1] % 4:
            body = _put_in_order(body, request.url or "", key)
            request.prepare_body(body, None)
        if None not in made_up:
            RequestSigner(key).sign(cast(httpx.Request, request), body or None, datetime.now(UTC))
        return request


def about_known(schema: BaseSchema, **known: Sequence[str]) -> None:
    """Puts known ids in the place of most ids in paths that Schemathesis made up.

    Args:
        schema: whose requests are made up.
        known: parameter of a path → ids, for example `study=["9f…"]`.
    """

    @schema.hook
    def map_path_parameters(context: HookContext, path_parameters: dict[str, Any]) -> dict[str, Any]:
        for name, ids in known.items():
            made_up = str((path_parameters or {}).get(name))
            if re.fullmatch("[4-9a-f][0-9a-f]+", made_up):
                path_parameters[name] = ids[int(made_up[1], 16) % len(ids)]
        return path_parameters


def _body_of(request: PreparedRequest) -> bytes:
    body = request.body or b""
    assert isinstance(body, str | bytes)
    return body.encode() if isinstance(body, str) else body


def _put_in_order(body: bytes, url: str, key: IdentityKey) -> bytes:
    """`body` in canonical form, the statement in it signed by `key`; as it is where it holds none."""
    named = re.search("/v1/studies/([0-9a-f]{64})", url)
    about = {"owner": key.public.ed25519.hex()} | ({"study": named[1]} if named else {})
    try:
        made_up = json.loads(body)
        if "enrolment" in made_up:
            return canonical_json(made_up | {"enrolment": _signed(made_up["enrolment"], about, key)})
        return canonical_json(_signed(made_up, about, key))
    except (ValueError, TypeError, KeyError, DpdpcaError):
        return body


def _signed(statement: dict[str, Any], about: dict[str, str], key: IdentityKey) -> dict[str, Any]:
    """Raises ValueError or TypeError for a statement that is malformed where this would mend it."""
    body = statement["body"]
    said = {name: value for name, value in about.items() if name in body}
    made_up = [(form, statement[member]) for member, form in _FORMS.items()]
    if not all(re.fullmatch(form, text) for form, text in [*made_up, *((_ID, body[name]) for name in said)]):
        raise ValueError
    signed: dict[str, Any] = json.loads(sign_statement(str(statement["kind"]), body | said, key).encoded)
    return signed
