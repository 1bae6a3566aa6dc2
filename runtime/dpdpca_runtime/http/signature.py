"""HTTP Message Signatures (RFC 9421) on requests, as the proxy requires them.

By default, the library signs fewer parts of a request than dpdpca requires. Components, tag and nonce are
those of dpdpca_protocol.wire.http.
"""

import secrets
from datetime import datetime
from functools import cached_property

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from http_message_signatures import HTTPMessageSigner, HTTPSignatureKeyResolver
from http_message_signatures.algorithms import ED25519

from dpdpca_protocol.wire.http import (
    CARRIED_TAG,
    NONCE_BYTES,
    SIGNATURE_LABEL,
    SIGNATURE_TAG,
    SIGNED_BODY_COMPONENTS,
    SIGNED_COMPONENTS,
)
from dpdpca_protocol.wire.signing import IdentityKey


class _OneKey(HTTPSignatureKeyResolver):
    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    def resolve_private_key(self, key_id: str) -> Ed25519PrivateKey:
        return self._key


class RequestSigner:
    """Signs requests with one identity key."""

    def __init__(self, key: IdentityKey) -> None:
        self._key = key
        self._signer = HTTPMessageSigner(signature_algorithm=ED25519, key_resolver=_OneKey(key.ed25519))

    @cached_property
    def key_id(self) -> str:
        return self._key.public.party_id.hex()

    def sign(
        self,
        request: httpx.Request,
        body: bytes | None,
        created: datetime,
        *,
        carried_until: datetime | None = None,
    ) -> str:
        """Adds Content-Digest (if there is a body), Signature-Input and Signature to `request`.

        Args:
            request: complete except for these headers. A request with a body has a Content-Type.
            body: its exact content, or None without one.
            created: now, with a time zone.
            carried_until: for a request that is carried by hand: until when the proxy may accept it.

        Returns:
            The nonce of the request.
        """
        nonce = secrets.token_hex(NONCE_BYTES)
        components = SIGNED_COMPONENTS + (SIGNED_BODY_COMPONENTS if body is not None else ())
        self._signer.sign(
            request,
            key_id=self.key_id,
            created=created,
            expires=carried_until,
            nonce=nonce,
            label=SIGNATURE_LABEL,
            tag=SIGNATURE_TAG if carried_until is None else CARRIED_TAG,
            include_alg=True,
            covered_component_ids=components,
            body=body,
        )
        return nonce
