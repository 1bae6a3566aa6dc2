"""Authenticates requests: HTTP Message Signatures (RFC 9421) with our requirements.

The library's defaults are weaker (five seconds of skew, a day of age, no required digest, any authority). So
this module requires label `sig1`, tag `dpdpca`, alg `ed25519`, keyid = the party id, a 128-bit nonce, the
components of `dpdpca_protocol.wire.http` and, with a body, its digest and type. The request must be created
within ±5 minutes of our clock, addressed to us, and never seen before. A carried request (tag
`dpdpca-carried`) is accepted where the caller allows it: it must not have expired, and it may arrive again.
This module reads no clock: its callers pass the time.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import (
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    InvalidSignature,
    VerifyResult,
    algorithms,
)
from http_message_signatures.exceptions import HTTPMessageSignaturesException
from starlette.requests import Request

from dpdpca_protocol.errors import AuthenticationError, DpdpcaError, MessageError
from dpdpca_protocol.wire.address import Address
from dpdpca_protocol.wire.http import (
    CARRIED_TAG,
    NONCE_BYTES,
    SIGNATURE_ALGORITHM,
    SIGNATURE_LABEL,
    SIGNATURE_TAG,
    SIGNED_BODY_COMPONENTS,
    SIGNED_COMPONENTS,
    WINDOW_SECONDS,
)
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.signing import FORMAT, both_programs
from dpdpca_runtime.asgi.addressed import KnownAddresses, host_header_changed

FindKey = Callable[[PartyId], bytes | None]
"""The raw Ed25519 key of an enrolled party, or None."""

RememberNonce = Callable[[PartyId, str, datetime], bool]
"""Stores (party, nonce) durably. Returns False if this pair was already stored."""

_TAG = re.compile(r';tag="dpdpca(?:-carried)?(?:/v([0-9]{1,4}))?"')
_UNTAGGED_FORMAT = 2
"""Up to format 2, tags did not name the format."""
_NONCE = re.compile(rf"[0-9a-f]{{{2 * NONCE_BYTES}}}")


@dataclass(frozen=True, slots=True)
class ReceivedHead:
    """The head of a request as it was received. Everything in the head is untrusted."""

    method: str
    raw_path: bytes
    raw_query: bytes
    header_lines: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, request: Request) -> "ReceivedHead":
        scope = request.scope
        return cls(
            scope["method"],
            scope["raw_path"],
            scope["query_string"],
            tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]),
        )

    def lines(self, name: str) -> list[str]:
        return [value for given, value in self.header_lines if given.lower() == name]

    @property
    def has_body(self) -> bool:
        return bool(self.lines("transfer-encoding")) or any(
            value.strip() != "0" for value in self.lines("content-length")
        )


@dataclass(frozen=True, slots=True)
class SignedHead:
    """The head of a request, with a verified signature. The body, if any, must still pass `check_body`.

    `is_carried` says that the request was carried to us by hand. It may arrive any number of times.
    """

    party: PartyId
    nonce: str
    created: datetime
    result: VerifyResult
    message: "_Message"
    is_carried: bool


class SignatureVerifier:
    """Verifies heads that are addressed to us.

    Args:
        addresses: the addresses under which clients know this service.
        find_key: finds a key by the keyid in the request.
    """

    def __init__(self, addresses: KnownAddresses, find_key: FindKey) -> None:
        self._addresses = addresses
        self._find_key = find_key

    def verify_head(self, head: ReceivedHead, now: datetime, *, may_be_carried: bool = False) -> SignedHead:
        """The sender of the request that begins with `head`.

        Args:
            head: untrusted.
            now: the time.
            may_be_carried: whether the route accepts carried requests. If the same request arrives again at
                any later time, the route must change nothing more.

        Raises:
            MessageError: `malformed`, there is no usable host; `unsupported-version`, the request is of
                another message format.
            AuthenticationError: `wrong-address`, `bad-signature`, `stale-request`, `unknown-key`.
            DpdpcaError: the key could not be looked up.
        """
        _check_format(head)
        arrived = self._addresses.arrived_at(head.lines("host"))
        message, keys = _Message(head, arrived), _KeyResolver(self._find_key)
        is_carried = may_be_carried and _says_carried(head)
        verifier = (_CarriedVerifier if is_carried else _WindowedVerifier)(keys, now)
        try:
            result = _verify(head, message, verifier)
        except (HTTPMessageSignaturesException, ValueError) as error:
            if keys.failure is not None:
                raise keys.failure from error
            if keys.unknown:
                raise AuthenticationError(
                    "unknown-key", "no party is enrolled with this key", "enrol first"
                ) from error
            for other in self._addresses.others_than(arrived):
                with suppress(HTTPMessageSignaturesException, ValueError):
                    _verify(head, _Message(head, other), verifier)
                    raise host_header_changed(other, arrived) from error
            raise _bad_signature() from error
        if result.parameters.get("alg") != SIGNATURE_ALGORITHM:
            raise _bad_signature("the parameter alg must be ed25519")
        if result.nonce is None or not _NONCE.fullmatch(result.nonce):
            raise _bad_signature("the nonce must have 128 bits, written as 32 lower-case hex digits")
        assert keys.party is not None
        created = datetime.fromtimestamp(int(result.parameters["created"]), UTC)
        return SignedHead(keys.party, result.nonce, created, result, message, is_carried)

    def check_body(self, head: SignedHead, body: bytes) -> None:
        """Raises AuthenticationError `bad-signature` unless the signed digest is that of `body`."""
        try:
            _WindowedVerifier(None, head.created).verify_body(head.message, [head.result], body)
        except HTTPMessageSignaturesException as error:
            raise _bad_signature("the body differs from the signed one") from error

    def check_unseen(self, head: SignedHead, remember: RememberNonce, now: datetime) -> None:
        """Raises AuthenticationError `replayed-request` if the nonce was seen before."""
        if not remember(head.party, head.nonce, now):
            raise AuthenticationError(
                "replayed-request",
                "this request was already received",
                "sign the request again and resend it",
            )


def _check_format(head: ReceivedHead) -> None:
    """Names both versions to a program with another message format, which could read no answer."""
    for tag in filter(None, map(_TAG.search, head.lines("signature-input"))):
        stated = int(tag[1] or _UNTAGGED_FORMAT)
        if stated != FORMAT:
            raise MessageError(
                "unsupported-version",
                f"the request is signed for message format {stated}{both_programs(stated)}",
                "use a version with the same message format as the proxy; docs/compatibility.md lists them",
            )


def _says_carried(head: ReceivedHead) -> bool:
    return any(f'tag="{CARRIED_TAG}"' in line for line in head.lines("signature-input"))


def _verify(head: ReceivedHead, message: "_Message", verifier: "_WindowedVerifier") -> VerifyResult:
    required = SIGNED_COMPONENTS + (SIGNED_BODY_COMPONENTS if head.has_body else ())
    (result,) = verifier.verify(
        message,
        expect_tag=verifier.tag,
        expect_label=SIGNATURE_LABEL,
        require_components=required,
    )
    return result


class _Message:
    """The interface that the library needs: method, absolute URL, header lines."""

    def __init__(self, head: ReceivedHead, address: Address) -> None:
        self.method = head.method
        query = b"?" + head.raw_query if head.raw_query else b""
        self.url = f"{address}{(head.raw_path + query).decode('latin-1')}"
        self.headers = _HeaderLines(head.header_lines)


class _HeaderLines:
    def __init__(self, lines: tuple[tuple[str, str], ...]) -> None:
        self._lines = lines

    def items(self) -> tuple[tuple[str, str], ...]:
        return self._lines


class _KeyResolver(HTTPSignatureKeyResolver):
    def __init__(self, find_key: FindKey) -> None:
        self._find_key = find_key
        self.party: PartyId | None = None
        self.unknown = False
        self.failure: DpdpcaError | None = None
        """Of the last search. The library would call the signature wrong."""

    def resolve_public_key(self, key_id: str) -> Ed25519PublicKey | None:
        try:
            self.party = PartyId.parse(key_id)
        except MessageError:
            return None
        try:
            raw = self._find_key(self.party)
        except DpdpcaError as error:
            self.failure = error
            raise
        self.unknown = raw is None
        return None if raw is None else Ed25519PublicKey.from_public_bytes(raw)


class _WindowedVerifier(HTTPMessageVerifier):
    """The library's verifier with our time window and our clock."""

    tag = SIGNATURE_TAG

    def __init__(self, keys: HTTPSignatureKeyResolver | None, now: datetime) -> None:
        super().__init__(signature_algorithm=algorithms.ED25519, key_resolver=keys)
        self._now = now

    def validate_created_and_expires(self, sig_input: Any, max_age: Any = None) -> None:
        created = sig_input.params.get("created")
        if type(created) is not int or not 0 <= created < 2**34:
            raise InvalidSignature("created is missing or is not a time")
        difference = created - int(self._now.timestamp())
        if abs(difference) > WINDOW_SECONDS:
            then = datetime.fromtimestamp(created, UTC)
            raise AuthenticationError(
                "stale-request",
                f"the request was signed at {_text(then)}, but the time here is {_text(self._now)}: "
                f"{abs(difference)} seconds {'ahead' if difference > 0 else 'ago'}, more than the allowed "
                f"{WINDOW_SECONDS}",
                "correct the clock of the signing machine, then sign and send the request again",
            )
        expires = sig_input.params.get("expires")
        if expires is not None and (type(expires) is not int or expires < int(self._now.timestamp())):
            raise InvalidSignature("expired")


class _CarriedVerifier(_WindowedVerifier):
    """Like its base, but for requests that are valid until they expire."""

    tag = CARRIED_TAG

    def validate_created_and_expires(self, sig_input: Any, max_age: Any = None) -> None:
        created, expires = (sig_input.params.get(name) for name in ("created", "expires"))
        if any(type(time) is not int or not 0 <= time < 2**34 for time in (created, expires)):
            raise InvalidSignature("created or expires is missing or is not a time")
        if expires < int(self._now.timestamp()):
            raise AuthenticationError(
                "stale-request",
                f"the request could be carried here until {_text(datetime.fromtimestamp(expires, UTC))}, but"
                f" the time here is {_text(self._now)}",
                "carry the folder back and make the request again; first set the clock of that machine if it"
                " is wrong",
            )


def _bad_signature(reason: str = "the signature of the request is invalid") -> AuthenticationError:
    return AuthenticationError(
        "bad-signature", reason, "see the section on signed requests in the documentation"
    )


def _text(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
