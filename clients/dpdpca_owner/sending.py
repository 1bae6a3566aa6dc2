"""Sends a folder of carried requests, and puts the answers into it. It needs no keys, no home and no data.

An interrupted run is continued by the next one. Every request may be sent any number of times.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from dpdpca_owner.accepted import is_accepted, software_text
from dpdpca_owner.package import CarriedRequest, Package
from dpdpca_protocol.errors import (
    AuthenticationError,
    DpdpcaError,
    MessageError,
    PolicyError,
    UnavailableError,
)
from dpdpca_protocol.messages.carried import CarriedAnswer
from dpdpca_protocol.messages.rotation import follow_rotations
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.wire.address import parse_address
from dpdpca_protocol.wire.http import ANSWER_HEADER, COMPONENTS_LIMIT_BYTES, JSON_MEDIA_TYPE
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.bodies import Rotations
from dpdpca_runtime.http.answers import read_body, statement_bytes
from dpdpca_runtime.http.client import check_speaks_our_format
from dpdpca_runtime.http.connection import Peer, ca_file_of_environment
from dpdpca_runtime.http.exchange import Call, Exchange
from dpdpca_runtime.http.retry import Patience

_NOT_YET = frozenset({"not-found", "not-ready", "not-in-the-cohort", "wrong-state"})
"""Refusals of components that are not published yet, or never will be."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a run has done.

    Attributes:
        proxy: the card of the proxy.
        sent, sent_bytes: the requests with a body that were sent now, and the bytes of their bodies.
        already: the requests with a body that had been answered before.
        answers: the questions that were answered now.
        unanswered: the targets of the questions that the proxy cannot answer yet.
        receipts: the receipts in the folder.
    """

    proxy: ProxyCard
    sent: int
    sent_bytes: int
    already: int
    answers: int
    unanswered: tuple[str, ...]
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class SendWatcher:
    """Callbacks for progress: with the bytes that are to be sent in all, and with those just sent."""

    on_begin: Callable[[int], None] = field(default=lambda total_bytes: None)
    on_sent: Callable[[int], None] = field(default=lambda sent_bytes: None)


def send(
    folder: Path,
    watcher: SendWatcher,
    *,
    ca_file: Path | None = None,
    patience: Patience | None = None,
    transport: httpx.BaseTransport | None = None,
) -> Sent:
    """Send the requests in a folder, those with a body first, and store the answers.

    Args:
        folder: made on the machine with the data.
        watcher: receives progress.
        ca_file: a PEM file with the authority of the proxy's certificate.
        patience: how long temporary failures are retried.
        transport: for tests.

    Raises:
        NotFoundError, ConflictError, IntegrityError: like `Package.load` and `Package.check`; nothing was
            sent.
        AuthenticationError: the proxy has another key than the owner has pinned; or it does not sign an
            answer.
        PolicyError: `policy-software`, the folder has a share, and the proxy runs other software than the
            owner accepts. Nothing was sent.
        DpdpcaError: the proxy refuses a request.
    """
    package = Package.load(folder)
    package.check()
    peer = Peer("proxy", parse_address(package.url), "--ca-file or DPDPCA_CA_FILE")
    authority = ca_file or ca_file_of_environment()
    exchange = Exchange(peer, None, patience or Patience(), authority, transport)
    try:
        return _Errand(package, exchange).run(watcher)
    finally:
        exchange.close()


class _Errand:
    def __init__(self, package: Package, exchange: Exchange) -> None:
        self._package = package
        self._exchange = exchange

    def run(self, watcher: SendWatcher) -> Sent:
        package, card = self._package, self._check_proxy()
        key = card.identity.ed25519
        writes = [each for each in package.requests if not each.reads]
        waiting = [each for each in writes if not package.has_answer(each, key)]
        if any(each.is_of_share for each in waiting) and not is_accepted(card.software, package.software):
            raise PolicyError(
                "policy-software",
                f"the owner's policy refuses the proxy, and nothing was sent:"
                f" {software_text(card.software, package.software)}",
                "tell the owner. It can review that software, list its digest in its policy, and repeat the"
                " command that made the folder. Or wait until the proxy runs software that is listed",
            )
        watcher.on_begin(sum(each.body_bytes for each in waiting))
        refusal = None
        try:
            for each in waiting:
                self._ask(each, key)
                watcher.on_sent(each.body_bytes)
        except UnavailableError:
            raise
        except DpdpcaError as error:
            refusal = error  # the answers to the questions tell the owner more
        questions = [each for each in package.requests if each.reads]
        unanswered = [each.target for each in questions if not self._asked(each, key)]
        if refusal is not None:
            raise refusal
        return Sent(
            card,
            len(waiting),
            sum(each.body_bytes for each in waiting),
            len(writes) - len(waiting),
            len(questions) - len(unanswered),
            tuple(unanswered),
            self._receipts(writes, key),
        )

    def _check_proxy(self) -> ProxyCard:
        """The card of the proxy, after a check that the owner knows this proxy."""
        statement = verify_statement("proxy", self._exchange.send(Call("GET", "/v1/proxy", is_open=True)))
        card, pinned = ProxyCard.parse(statement), self._package.proxy
        if card.software is not None:
            check_speaks_our_format(card, self._package.url)
        if pinned is None or pinned == statement.signer:
            return card
        answer = self._exchange.ask(
            Call("GET", "/v1/proxy/rotations", limit_bytes=COMPONENTS_LIMIT_BYTES, is_open=True)
        )
        rotations = [statement_bytes(each) for each in read_body(Rotations, answer).rotations]
        links = follow_rotations(rotations, "proxy", pinned)
        if not links or links[-1].identity.ed25519 != statement.signer:
            raise AuthenticationError(
                "proxy-key-changed",
                f"the proxy at {self._package.url} shows another key than the owner knows, and nothing was"
                " sent",
                "ask the proxy's operator and the owner",
            )
        return card

    def _asked(self, request: CarriedRequest, proxy: bytes) -> bool:
        """Ask a question. Returns False if it cannot be answered yet."""
        try:
            self._ask(request, proxy)
        except DpdpcaError as error:
            if error.slug in _NOT_YET and request.target.endswith("/components"):
                return False
            raise
        return True

    def _ask(self, request: CarriedRequest, proxy: bytes) -> None:
        path, _, query = request.target.partition("?")
        call = Call(
            request.method,
            path,
            self._package.body(request),
            request.media_type or JSON_MEDIA_TYPE,
            query,
            COMPONENTS_LIMIT_BYTES,
            headers=request.headers,
        )
        received = self._exchange.receive(call)
        statement = None
        if not request.proves_itself:
            text = received.headers.get(ANSWER_HEADER)
            if text is None:
                raise MessageError(
                    "answer-unsigned",
                    f"the proxy at {self._package.url} does not sign its answers to carried requests",
                    "ask the operator: either the proxy is older than this version, or a reverse proxy"
                    f" removes the header {ANSWER_HEADER}",
                )
            statement = text.encode()
            CarriedAnswer.verify(statement, request.name, received.content, proxy)
        self._package.save_answer(request, statement, received.content)

    def _receipts(self, writes: list[CarriedRequest], proxy: bytes) -> tuple[Receipt, ...]:
        found = []
        for each in writes:
            if each.method in ("DELETE", "POST") and not each.proves_itself:
                answer = self._package.answer(each, proxy)
                assert answer is not None
                found.append(Receipt.parse(verify_statement("receipt", answer.content)))
        return tuple(found)
