"""Request signatures: what is demanded, and every way to fall short of it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

import httpx
import pytest
from http_message_signatures import HTTPMessageSigner, HTTPSignatureKeyResolver, algorithms

from dpdpca_protocol.errors import AuthenticationError, MessageError, UnavailableError
from dpdpca_protocol.wire.address import parse_address
from dpdpca_protocol.wire.http import SIGNED_BODY_COMPONENTS, SIGNED_COMPONENTS
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.signing import FORMAT, IdentityKey
from dpdpca_runtime.asgi.addressed import KnownAddresses
from dpdpca_runtime.asgi.identity import ReceivedHead, SignatureVerifier
from dpdpca_runtime.http.signature import RequestSigner

NOW = datetime(2026, 11, 27, 22, 0, 0, tzinfo=UTC)
KEY = IdentityKey.generate()
BODY = b'{"a":1}'


def find_key(party: PartyId) -> bytes | None:
    return KEY.public.ed25519 if party == KEY.public.party_id else None


ADDRESSES = KnownAddresses(parse_address("https://proxy.example:8440"), ["other.example:8440"])
VERIFIER = SignatureVerifier(ADDRESSES, find_key)


def head_of(request: httpx.Request) -> ReceivedHead:
    path, _, query = request.url.raw_path.partition(b"?")
    lines = tuple((name.decode(), value.decode()) for name, value in request.headers.raw)
    return ReceivedHead(request.method, path, query, lines)


def signed(
    key: IdentityKey = KEY, body: bytes | None = BODY, url: str = "https://proxy.example:8440/v1/x?version=1"
) -> httpx.Request:
    headers = {"content-type": "application/json"} if body is not None else {}
    request = httpx.Request("PUT", url, content=body, headers=headers)
    RequestSigner(key).sign(request, body, NOW)
    return request


def refusal(head: ReceivedHead, now: datetime = NOW) -> AuthenticationError:
    with pytest.raises(AuthenticationError) as refused:
        VERIFIER.verify_head(head, now)
    return refused.value


@pytest.mark.parametrize("body", [BODY, None])
def test_a_signed_request_names_its_sender(body: bytes | None) -> None:
    head = VERIFIER.verify_head(head_of(signed(body=body)), NOW)
    assert head.party == KEY.public.party_id
    assert head.created == NOW
    if body is not None:
        VERIFIER.check_body(head, body)


def test_another_body_than_the_signed_one_is_refused() -> None:
    head = VERIFIER.verify_head(head_of(signed()), NOW)
    for other in (b"", BODY + b" ", b"{}"):
        with pytest.raises(AuthenticationError, match="body"):
            VERIFIER.check_body(head, other)


CHANGES: dict[str, Callable[[ReceivedHead], ReceivedHead]] = {
    "method": lambda head: _with(head, method="POST"),
    "path": lambda head: _with(head, raw_path=b"/v1/y"),
    "encoded path": lambda head: _with(head, raw_path=b"/v1/%78"),
    "query": lambda head: _with(head, raw_query=b"version=2"),
    "no query": lambda head: _with(head, raw_query=b""),
    "type": lambda head: _line(head, "content-type", "text/plain"),
    "digest": lambda head: _line(
        head, "content-digest", "sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:"
    ),
    "no signature": lambda head: _line(head, "signature", None),
    "no input": lambda head: _line(head, "signature-input", None),
    "no digest": lambda head: _line(head, "content-digest", None),
    "garbage signature": lambda head: _line(head, "signature", "sig1=:AAAA:"),
    "garbage input": lambda head: _line(head, "signature-input", "sig1=((((("),
    "not ASCII": lambda head: _line(head, "signature-input", "sig1=(\xff)"),
    "twice": lambda head: _with(head, header_lines=(*head.header_lines, ("content-type", "text/plain"))),
}


def _with(head: ReceivedHead, **changes: object) -> ReceivedHead:
    fields = {name: getattr(head, name) for name in ReceivedHead.__slots__}
    return ReceivedHead(**{**fields, **changes})


def _line(head: ReceivedHead, name: str, value: str | None) -> ReceivedHead:
    kept = tuple((given, old) for given, old in head.header_lines if given.lower() != name)
    return _with(head, header_lines=kept if value is None else (*kept, (name, value)))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_head_is_refused(change: Callable[[ReceivedHead], ReceivedHead]) -> None:
    assert refusal(change(head_of(signed()))).slug == "bad-signature"


def test_every_bit_of_the_signature_matters() -> None:
    head = head_of(signed())
    value = head.lines("signature")[0]
    for at in range(len("sig1=:"), len(value) - 3, 7):
        flipped = value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]
        assert refusal(_line(head, "signature", flipped)).slug == "bad-signature"


def test_an_unknown_key_is_told_apart() -> None:
    assert refusal(head_of(signed(IdentityKey.generate()))).slug == "unknown-key"


def test_a_database_that_does_not_answer_makes_no_signature_wrong() -> None:
    def fail(_party: PartyId) -> bytes | None:
        raise UnavailableError("busy", "the database is busy", retry_after_seconds=2)

    with pytest.raises(UnavailableError, match="the database is busy"):
        SignatureVerifier(ADDRESSES, fail).verify_head(head_of(signed()), NOW)


@pytest.mark.parametrize("seconds", [301, -301, 600, -600, 10**9])
def test_a_stale_request_names_both_times(seconds: int) -> None:
    now = NOW + timedelta(seconds=seconds)
    error = refusal(head_of(signed()), now)
    assert error.slug == "stale-request"
    assert "2026-11-27T22:00:00Z" in error.problem
    assert f"{now:%Y-%m-%dT%H:%M:%SZ}" in error.problem
    assert str(abs(seconds)) in error.problem


@pytest.mark.parametrize("seconds", [0, 299, -299])
def test_five_minutes_either_way_are_fine(seconds: int) -> None:
    VERIFIER.verify_head(head_of(signed()), NOW + timedelta(seconds=seconds))


def test_a_request_to_another_proxy_is_refused_though_its_signature_holds() -> None:
    error = refusal(head_of(signed(url="https://elsewhere.example/v1/x?version=1")))
    assert error.slug == "wrong-address"
    assert "addressed to elsewhere.example, but this service is known as proxy.example:8440" in error.problem


@pytest.mark.parametrize("hosts", [[], ["a", "b"], ["proxy.example:8440@evil"], ["exa mple"], ["é"]])
def test_a_request_needs_one_plain_host(hosts: list[str]) -> None:
    head = _line(head_of(signed()), "host", None)
    head = _with(head, header_lines=(*head.header_lines, *(("host", host) for host in hosts)))
    with pytest.raises(MessageError):
        VERIFIER.verify_head(head, NOW)


def test_a_host_header_that_was_changed_to_another_of_our_names_is_explained() -> None:
    """As behind a reverse proxy that loses the port, where the operator has added the host without it."""
    head = _line(head_of(signed()), "host", "other.example:8440")
    error = refusal(head)
    assert error.slug == "wrong-address"
    assert "was signed for proxy.example:8440 but arrived for other.example:8440" in error.problem
    assert "proxy_set_header Host $http_host" in error.next_step
    for change in (CHANGES["path"], CHANGES["garbage signature"]):
        assert refusal(change(head)).slug == "bad-signature"


@pytest.mark.parametrize("host", ["proxy.example", "PROXY.example", "proxy.example:443", "proxy.example."])
def test_authorities_are_compared_in_their_canonical_form(host: str) -> None:
    """The scheme is that of the public address, wherever TLS ends and whatever a reverse proxy writes out."""
    verifier = SignatureVerifier(KnownAddresses(parse_address("https://proxy.example")), find_key)
    verifier.verify_head(_line(head_of(signed(url="https://proxy.example/v1/x")), "host", host), NOW)


class _OneKey(HTTPSignatureKeyResolver):
    def resolve_private_key(self, key_id: str) -> object:
        return KEY.ed25519


def lax(**changes: Any) -> ReceivedHead:
    """A request whose signature is genuine, but which leaves out or alters something that we demand."""
    request = httpx.Request("PUT", "https://proxy.example:8440/v1/x", content=BODY)
    request.headers["content-type"] = "application/json"
    options: dict[str, Any] = {
        "key_id": KEY.public.party_id.hex(),
        "created": NOW,
        "nonce": "0" * 32,
        "label": "sig1",
        "tag": "dpdpca/v3",
        "include_alg": True,
        "covered_component_ids": SIGNED_COMPONENTS + SIGNED_BODY_COMPONENTS[1:],
        "body": BODY,
    }
    signer = HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=_OneKey())
    signer.sign(request, **{**options, **changes})
    return head_of(request)


LAX: dict[str, dict[str, object]] = {
    "label": {"label": "other"},
    "tag": {"tag": "other"},
    "no tag": {"tag": None},
    "no alg": {"include_alg": False},
    "no nonce": {"nonce": None},
    "short nonce": {"nonce": "0" * 31},
    "long nonce": {"nonce": "0" * 64},
    "upper-case nonce": {"nonce": "A" * 32},
    "expired": {"expires": NOW - timedelta(seconds=1)},
    **{
        f"{missing} not covered": {
            "covered_component_ids": tuple(
                name for name in SIGNED_COMPONENTS + SIGNED_BODY_COMPONENTS[1:] if name != missing
            )
        }
        for missing in SIGNED_COMPONENTS + SIGNED_BODY_COMPONENTS[1:]
    },
    "digest not covered": {"body": None},
    "key id of another form": {"key_id": "alice"},
}


@pytest.mark.parametrize("changes", LAX.values(), ids=LAX.keys())
def test_a_genuine_but_lax_signature_is_refused(changes: dict[str, object]) -> None:
    VERIFIER.verify_head(lax(), NOW)
    assert refusal(lax(**changes)).slug == "bad-signature"


def test_a_nonce_is_good_for_one_request() -> None:
    head = VERIFIER.verify_head(head_of(signed()), NOW)
    seen: set[tuple[PartyId, str]] = set()

    def remember(party: PartyId, nonce: str, now: datetime) -> bool:
        is_new = (party, nonce) not in seen
        seen.add((party, nonce))
        return is_new

    VERIFIER.check_unseen(head, remember, NOW)
    with pytest.raises(AuthenticationError) as refused:
        VERIFIER.check_unseen(head, remember, NOW)
    assert refused.value.slug == "replayed-request"


@pytest.mark.parametrize(
    ("tag", "named"),
    [
        ("dpdpca", "format 2 (dpdpca 0.2)"),
        ("dpdpca-carried", "format 2 (dpdpca 0.2)"),
        (f"dpdpca/v{FORMAT + 1}", f"format {FORMAT + 1} (another version)"),
        (f"dpdpca-carried/v{FORMAT + 1}", f"format {FORMAT + 1} (another version)"),
    ],
)
def test_a_program_with_another_format_is_told_both_versions(tag: str, named: str) -> None:
    """Before its signature is looked at: it may be wrong for the same reason."""
    for key_id in (KEY.public.party_id.hex(), "alice"):
        with pytest.raises(MessageError) as refused:
            VERIFIER.verify_head(lax(tag=tag, key_id=key_id), NOW, may_be_carried=True)
        assert refused.value.slug == "unsupported-version"
        assert named in refused.value.problem
        assert f"this is dpdpca {version('dpdpca')}, which takes messages of format {FORMAT}" in str(
            refused.value.problem
        )
