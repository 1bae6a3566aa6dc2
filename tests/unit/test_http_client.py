"""The signed client against a proxy in memory: signatures, retries, bounds, errors with their class."""

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import HTTPMessageVerifier, HTTPSignatureKeyResolver
from http_message_signatures.algorithms import ED25519

from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    DpdpcaError,
    LimitError,
    MessageError,
    PolicyError,
    UnavailableError,
    UsageError,
)
from dpdpca_protocol.messages.share import Receipt, ShareStatement
from dpdpca_protocol.messages.software import Software, SoftwareKind
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.answers import StudyUpdate
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.workers import WorkerThreads

STUDY = StudyId.of(b"a study")
OWNER = IdentityKey.generate()
PROXY = IdentityKey.generate()
Answer = Callable[[httpx.Request], httpx.Response]


class Waits:
    """Patience whose time passes only by sleeping."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.slept: list[float] = []
        self.patience = Patience(
            seconds, sleep=self.slept.append, clock=lambda: sum(self.slept), jitter=lambda limit: limit
        )


def client(
    answer: Answer, waits: Waits | None = None, url: str = "https://proxy.example:8443"
) -> ProxyClient:
    patience = (waits or Waits()).patience
    return ProxyClient(url, OWNER, PROXY.public.ed25519, httpx.MockTransport(answer), patience=patience)


def problem(status: int, slug: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {"type": f"urn:dpdpca:problem:{slug}", "title": "t", "status": status, "detail": "d", **more}
    return httpx.Response(status, json=body, headers=headers)


def replies(*answers: httpx.Response | Exception) -> tuple[Answer, list[httpx.Request]]:
    """A server that gives these answers in turn, and the requests that it saw."""
    left, seen = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        following = left.pop(0)
        if isinstance(following, Exception):
            raise following
        return following

    return answer, seen


class OwnerKey(HTTPSignatureKeyResolver):
    def resolve_public_key(self, key_id: str) -> Ed25519PublicKey | None:
        return OWNER.ed25519.public_key() if key_id == OWNER.public.party_id.hex() else None


def test_every_request_is_signed_over_all_that_the_proxy_demands() -> None:
    answer, seen = replies(
        httpx.Response(204),
        httpx.Response(200, json={"chunks": [], "receipt": None, "state": "absent", "version": None}),
    )
    with client(answer) as proxy:
        proxy.put_chunk(STUDY, 2, 7, b"sealed")
        proxy.share(STUDY)
    upload, question = seen
    assert upload.url.raw_path.decode() == f"/v1/studies/{STUDY.hex()}/share/chunks/7?version=2"
    verifier = HTTPMessageVerifier(signature_algorithm=ED25519, key_resolver=OwnerKey())
    nonces = set()
    for request, body in ((upload, b"sealed"), (question, None)):
        (verified,) = verifier.verify(
            request, max_age=timedelta(minutes=5), expect_tag="dpdpca/v3", body=body
        )
        assert verified.label == "sig1"
        covered = {name.strip('"') for name in verified.covered_components if name != '"@signature-params"'}
        assert covered == {"@method", "@authority", "@path", "@query"} | (
            {"content-digest", "content-type"} if body else set()
        )
        assert verified.parameters["alg"] == "ed25519"
        nonce = str(verified.parameters["nonce"])
        assert len(bytes.fromhex(nonce)) == 16
        nonces.add(nonce)
    assert len(nonces) == 2
    assert upload.headers["content-type"] == "application/octet-stream"


OLD_SOFTWARE = Software("0.2.0", SoftwareKind.WHEEL, f"sha256:{'1a' * 32}")


def card(software: Software | None, key: IdentityKey = PROXY) -> httpx.Response:
    said = ProxyCard("Relay", "https://proxy.example:8443", key.public, software).sign(key)
    return httpx.Response(200, content=said.encoded)


@pytest.mark.parametrize(("software", "named"), [(OLD_SOFTWARE, "dpdpca 0.2.0"), (None, "0.2 or older")])
def test_a_proxy_that_knows_no_other_format_is_named_with_its_version(
    software: Software | None, named: str
) -> None:
    """It calls the signature of each request bad, so its card is looked at."""
    answer, seen = replies(problem(401, "bad-signature"), card(software))
    with client(answer) as proxy, pytest.raises(MessageError) as caught:
        proxy.share(STUDY)
    assert caught.value.slug == "unsupported-version"
    assert named in caught.value.problem
    assert f"this is dpdpca {version('dpdpca')}" in caught.value.problem
    assert [request.url.path for request in seen][1] == "/v1/proxy"


@pytest.mark.parametrize(
    "told", [card(replace(OLD_SOFTWARE, version="1.0.0")), httpx.Response(404), problem(401, "bad-signature")]
)
def test_a_signature_that_is_bad_for_another_reason_stays_so(told: httpx.Response) -> None:
    answer, _ = replies(problem(401, "bad-signature"), told)
    with client(answer) as proxy, pytest.raises(AuthenticationError) as caught:
        proxy.share(STUDY)
    assert caught.value.slug == "bad-signature"


@pytest.mark.parametrize(
    ("response", "kind", "slug"),
    [
        (problem(409, "chunk-differs"), ConflictError, "chunk-differs"),
        (problem(403, "manifest-refused"), PolicyError, "manifest-refused"),
        (problem(413, "too-large"), LimitError, "too-large"),
        (problem(418, "a-new-one"), MessageError, "a-new-one"),
        (httpx.Response(404, html="<h1>nginx</h1>"), MessageError, "not-a-proxy"),
        (httpx.Response(200, html="<h1>Log in</h1>"), MessageError, "not-a-proxy"),
        (httpx.Response(301, headers={"location": "https://evil.example/"}), MessageError, "not-a-proxy"),
    ],
)
def test_a_problem_document_becomes_the_class_that_was_raised(
    response: httpx.Response, kind: type[DpdpcaError], slug: str
) -> None:
    answer, seen = replies(response)
    with client(answer) as proxy, pytest.raises(kind) as caught:
        proxy.share(STUDY)
    assert caught.value.slug == slug
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("status", "kind", "cause"),
    [
        (200, MessageError, "a network that asks for a login"),
        (301, MessageError, "points elsewhere"),
        (302, MessageError, "in a browser"),
        (400, MessageError, "https"),
        (403, MessageError, "the web filter of a company"),
        (404, MessageError, "under a path"),
        (407, MessageError, "ask your IT"),
        (408, UnavailableError, "client_body_timeout"),
        (413, LimitError, f"must allow {COMPONENTS_LIMIT_BYTES >> 20} MiB (nginx: client_max_body_size)"),
        (429, UnavailableError, "limit_req"),
        (500, MessageError, "is not a proxy"),
        (502, UnavailableError, "proxy_pass"),
        (503, UnavailableError, "accepts no more requests"),
        (504, UnavailableError, "proxy_read_timeout"),
        (511, MessageError, "a network that asks for a login"),
    ],
)
def test_what_something_before_the_proxy_answers_is_named(
    status: int, kind: type[DpdpcaError], cause: str
) -> None:
    page = httpx.Response(status, html=f"<h1>{status}</h1><hr>nginx/1.22.1")
    with client(lambda _: page, Waits(seconds=1)) as proxy, pytest.raises(kind) as caught:
        proxy.put_chunk(STUDY, 1, 0, bytes(2345))
    assert cause in str(caught.value)
    assert f"answer {status}, text/html" in caught.value.problem
    assert ("2,345 bytes" in caught.value.problem) == (status == 413)


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (httpx.ReadTimeout("silent"), "proxy_buffering"),
        (httpx.RemoteProtocolError("cut"), "proxy_read_timeout"),
        (httpx.ConnectError("refused"), "cannot be reached"),
    ],
)
def test_a_stream_of_events_that_fails_says_why(failure: Exception, cause: str) -> None:
    answer, seen = replies(failure)
    with client(answer) as proxy, pytest.raises(UnavailableError, match=cause):
        list(proxy.events(STUDY))
    assert seen[0].extensions["timeout"]["read"] == 30


def test_what_a_problem_says_cannot_act_on_a_terminal() -> None:
    answer, _ = replies(problem(409, "x", detail="\x1b[2Jgone\n" + "a" * 9999, next_step="call\u202eme"))
    with client(answer) as proxy, pytest.raises(ConflictError) as caught:
        proxy.share(STUDY)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1100


def test_passing_failures_are_tried_again_with_growing_pauses_and_fresh_nonces() -> None:
    answer, seen = replies(
        httpx.ConnectError("refused"),
        httpx.ReadError("cut"),
        problem(503, "busy"),
        problem(507, "storage-full"),
        httpx.Response(204),
    )
    waits = Waits()
    with client(answer, waits) as proxy:
        proxy.put_chunk(STUDY, 1, 0, b"sealed")
    assert waits.slept == [0.5, 1.0, 2.0, 4.0]
    assert len({request.headers["signature-input"] for request in seen}) == 5


def test_retry_after_is_honoured_in_the_header_and_in_the_document() -> None:
    answer, _ = replies(
        problem(503, "busy", {"retry-after": "7"}),
        problem(429, "too-many", retry_after_seconds=9),
        httpx.Response(204),
    )
    waits = Waits()
    with client(answer, waits) as proxy:
        proxy.put_chunk(STUDY, 1, 0, b"sealed")
    assert waits.slept == [7.5, 10.0]


def test_patience_ends_with_the_reason() -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    waits = Waits(seconds=5)
    with client(answer, waits) as proxy, pytest.raises(UnavailableError, match="cannot be reached"):
        proxy.share(STUDY)
    assert sum(waits.slept) <= 5


def test_an_enrolment_whose_answer_is_lost_is_sent_again() -> None:
    answer, seen = replies(httpx.ReadError("cut"), httpx.Response(201, json={"party": "ab" * 32}))
    with client(answer) as proxy:
        assert proxy.enrol("owner", "Hospital A", "token").hex() == "ab" * 32
    assert seen[0].content == seen[1].content
    assert json.loads(seen[1].content)["enrolment"]["body"]["proxy"] == PROXY.public.ed25519.hex()


def test_an_answer_beyond_its_limit_is_cut_off() -> None:
    answer, _ = replies(httpx.Response(200, content=bytes(1_000_001)))
    with client(answer) as proxy, pytest.raises(LimitError):
        proxy.release_chunk(STUDY, 0, 1_000_000)


def test_an_answer_that_was_compressed_unasked_is_refused() -> None:
    answer, seen = replies(httpx.Response(200, content=b"x", headers={"content-encoding": "gzip"}))
    with client(answer) as proxy, pytest.raises(MessageError):
        proxy.share(STUDY)
    assert seen[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"chunks":[true],"state":"x"}', b"\xff", b"[" * 9999]
)
def test_an_answer_of_another_shape_is_a_message_error(content: bytes) -> None:
    answer, _ = replies(httpx.Response(200, content=content))
    with client(answer) as proxy, pytest.raises(MessageError):
        proxy.share(STUDY)


def test_a_wrong_clock_is_explained_with_both_times() -> None:
    theirs = format_datetime(datetime.now(UTC) + timedelta(minutes=11), usegmt=True)
    answer, _ = replies(problem(401, "stale-request", {"date": theirs}))
    with client(answer) as proxy, pytest.raises(AuthenticationError, match=r"clock is 6[56]\d s behind"):
        proxy.share(STUDY)


def test_the_proxy_s_card_is_verified_and_a_changed_key_refused() -> None:
    def card(key: IdentityKey) -> httpx.Response:
        statement = ProxyCard("Proxy", "https://proxy.example", key.public).sign(key)
        return httpx.Response(200, content=statement.encoded)

    answer, seen = replies(card(PROXY), card(IdentityKey.generate()))
    with client(answer) as proxy:
        assert proxy.card()[0].name == "Proxy"
        assert "signature" not in seen[0].headers
        with pytest.raises(AuthenticationError, match="another key"):
            proxy.card()


def test_a_receipt_by_another_key_is_refused() -> None:
    digest, keys = Digest.of(b"c"), OWNER.public
    share = ShareStatement(STUDY, keys.ed25519, 1, (digest,), keys.sealing_key, digest).sign(OWNER)
    receipt = Receipt(STUDY, OWNER.public.party_id, 1, "share", share.digest, "2026-01-01T00:00:00Z")
    answer, _ = replies(
        httpx.Response(200, content=receipt.sign(PROXY).encoded),
        httpx.Response(200, content=receipt.sign(IdentityKey.generate()).encoded),
    )
    with client(answer) as proxy:
        assert Receipt.parse(proxy.complete_share(STUDY, share)) == receipt
        with pytest.raises(AuthenticationError):
            proxy.complete_share(STUDY, share)


def test_without_a_pinned_key_nothing_signed_is_believed() -> None:
    transport = httpx.MockTransport(replies()[0])
    with (
        ProxyClient("https://p.example", OWNER, None, transport) as proxy,
        pytest.raises(UsageError, match="enrol"),
    ):
        proxy.enrol("owner", "A", "token")


def test_events_are_read_as_they_come() -> None:
    stream = b': beat\n\nevent: state\ndata: {"state":"closed"}\r\n\n'
    stream += b'event: progress\ndata: {"done":1}\n\nevent: cut'
    answer, _ = replies(httpx.Response(200, content=stream))
    with client(answer) as proxy:
        assert list(proxy.events(STUDY)) == [
            StudyUpdate("state", {"state": "closed"}),
            StudyUpdate("progress", {"done": 1}),
        ]


def test_an_endless_event_is_cut_off() -> None:
    answer, _ = replies(httpx.Response(200, content=b"data: " + bytes(70_000)))
    with client(answer) as proxy, pytest.raises(LimitError):
        list(proxy.events(STUDY))


def test_study_facts_are_typed() -> None:
    owner = hashlib.sha256(b"o").hexdigest()
    facts = {
        "study": STUDY.hex(), "title": "T", "state": "open", "release": "joint", "owners_complete": 1,
        "min_owners": 3, "max_owners": 5, "closes_at": "2026-01-01T00:00:00Z", "created_at": "…",
        "owners": [{"owner": owner, "name": "A", "version": 1, "state": "complete"}],
        "progress": {"phase": "aggregate", "done": 2, "total": 9}, "something_newer": 1,
    }  # fmt: skip
    answer, _ = replies(httpx.Response(200, json=facts), httpx.Response(200, json={"studies": [facts]}))
    with client(answer) as proxy:
        study = proxy.study(STUDY)
        assert proxy.studies() == (study,)
    assert study.owners[0].owner.hex() == owner
    assert study.progress is not None
    assert study.progress.total == 9
    assert study.cohort is None


def test_chunks_sent_at_once_keep_to_their_connections() -> None:
    connections: set[tuple[str, int]] = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            connections.add(self.client_address)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        with ProxyClient(url, OWNER, PROXY.public.ed25519) as proxy, WorkerThreads(4) as sending:
            for index in range(40):
                sending.submit(proxy.put_chunk, STUDY, 1, index, b"chunk" * 1000)
    finally:
        server.shutdown()
        server.server_close()
    assert 1 <= len(connections) <= 4
