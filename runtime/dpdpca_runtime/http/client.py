"""`ProxyClient`: one method for each route of a proxy, for owners and for the data user."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from dpdpca_protocol.errors import AuthenticationError, DpdpcaError, MessageError, UsageError
from dpdpca_protocol.messages.study_messages import Enrolment, ProxyCard
from dpdpca_protocol.terms.feature_list import FeatureListRef, check_content
from dpdpca_protocol.wire.address import parse_address
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.http import (
    CHUNK_MEDIA_TYPE,
    COMPONENTS_LIMIT_BYTES,
    MANIFEST_LIMIT_BYTES,
    RELEASE_LIMIT_BYTES,
)
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement, this_program, verify_statement
from dpdpca_runtime.bodies import OpenedStudy, Published, Rotations, Successor
from dpdpca_runtime.http.answers import (
    History,
    PartyFacts,
    ReleaseBundle,
    ShareFacts,
    StudyFacts,
    StudyUpdate,
    read_body,
    statement_bytes,
)
from dpdpca_runtime.http.connection import Peer, ca_file_of_environment
from dpdpca_runtime.http.events import parse_events
from dpdpca_runtime.http.exchange import Call, Exchange, utc_now
from dpdpca_runtime.http.marks import SeenMarks
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.http.signature import RequestSigner

LIST_LIMIT_BYTES = 16 * 1024 * 1024
"""The limit for answers that grow with the number of parties, studies or events."""
_GROWTH_OF_A_RELEASE = 6
"""How many bytes of memory one byte of such an answer takes as Python objects; most of it is digests."""


class ProxyClient:
    """A client for one proxy. The client signs requests and retries them. It is thread-safe.

    Args:
        url: https://HOST:PORT; plain http for this machine only.
        key: the caller's identity key, which signs every request.
        proxy: the proxy's raw Ed25519 key as pinned at enrolment. Without this key, only `card` and requests
            that need no proof are possible.
        transport: for tests and in-process use.
        patience: how long temporary failures are retried.
        marks: stores the proxy's generations; answers about studies are compared with them.
        ca_file: a PEM file with the authority that issued the proxy's certificate, instead of the system's
            authorities; default: the environment's DPDPCA_CA_FILE.
        signs: False if `transport` signs the requests itself.

    Every method raises the DpdpcaError that the proxy's problem document names, UnavailableError if nobody
    answers, and MessageError if the answer does not have the form of the route.
    """

    def __init__(
        self,
        url: str,
        key: IdentityKey,
        proxy: bytes | None = None,
        transport: httpx.BaseTransport | None = None,
        *,
        patience: Patience | None = None,
        marks: SeenMarks | None = None,
        ca_file: Path | None = None,
        now: Callable[[], datetime] = utc_now,
        signs: bool = True,
    ) -> None:
        self._exchange = Exchange(
            Peer("proxy", parse_address(url), "--ca-file or DPDPCA_CA_FILE"),
            RequestSigner(key).sign if signs else None,
            patience or Patience(),
            ca_file or ca_file_of_environment(),
            transport,
            now,
            self._explain_version,
        )
        self._key = key
        self._proxy = proxy
        self._marks = marks

    @property
    def url(self) -> str:
        return self._exchange.url

    def close(self) -> None:
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _explain_version(self) -> DpdpcaError | None:
        """Up to message format 2, proxies call the signatures of other formats bad, and name no version."""
        try:
            check_speaks_our_format(self.card(of_any_key=True)[0], self.url)
        except DpdpcaError as error:
            return error if error.slug == "unsupported-version" else None
        return None

    # Parties

    def card(self, *, of_any_key: bool = False) -> tuple[ProxyCard, Statement]:
        """The proxy's card, and the statement that proves it.

        Raises:
            AuthenticationError: the proxy signs with another key than the pinned one, unless `of_any_key`.
        """
        encoded = self._exchange.send(Call("GET", "/v1/proxy", is_open=True))
        statement = verify_statement("proxy", encoded)
        card = ProxyCard.parse(statement)
        if not of_any_key and self._proxy is not None and statement.signer != self._proxy:
            raise AuthenticationError(
                "proxy-key-changed",
                f"the proxy at {self.url} now signs with another key than the pinned one",
                "do not continue; ask the proxy's operator, and enrol again only after confirming the words"
                " of "
                "the new key",
            )
        return card, statement

    def enrol(self, role: str, name: str, invitation: str) -> PartyId:
        """Enrols the caller in `role` ("owner" or "user") with a single-use invitation.

        A repeated request with the same invitation gets the same answer.
        """
        enrolment = Enrolment(role, name, self._key.public, self._pinned()).sign(self._key)
        body = canonical_json({"enrolment": json.loads(enrolment.encoded), "invitation": invitation})
        answer = self._exchange.ask(Call("POST", "/v1/parties", body, is_open=True))
        return PartyId.parse(read_body(Successor, answer).party)

    def parties(self, *, with_statements: bool = False) -> tuple[PartyFacts, ...]:
        """The enrolled parties, with the statements of their keys if asked for."""
        query = "statements=true" if with_statements else ""
        answer = self._exchange.ask(Call("GET", "/v1/parties", query=query, limit_bytes=LIST_LIMIT_BYTES))
        return PartyFacts.parse_list(answer)

    def rotate(self, statement: Statement) -> PartyId:
        """Replaces the caller's own key. The same statement may be sent again."""
        path = f"/v1/parties/{self._key.public.party_id.hex()}/rotations"
        answer = self._exchange.ask(Call("POST", path, statement.encoded))
        return PartyId.parse(read_body(Successor, answer).party)

    def rotations(self) -> tuple[bytes, ...]:
        """The rotation statements of all parties. The signatures are not verified here."""
        return self._rotations(Call("GET", "/v1/parties/rotations", limit_bytes=LIST_LIMIT_BYTES))

    def proxy_rotations(self) -> tuple[bytes, ...]:
        """The proxy's own rotation statements. The signatures are not verified here."""
        path = "/v1/proxy/rotations"
        return self._rotations(Call("GET", path, limit_bytes=LIST_LIMIT_BYTES, is_open=True))

    def _rotations(self, call: Call) -> tuple[bytes, ...]:
        answer = self._exchange.ask(call)
        return tuple(statement_bytes(each) for each in read_body(Rotations, answer).rotations)

    # Studies

    def put_feature_list(self, content: bytes) -> Digest:
        """Stores a list of features. The same list may be sent again. Returns the digest that names it."""
        digest = Digest.of(content)
        self._exchange.send(Call("PUT", _list_path(digest), content))
        return digest

    def feature_list(self, reference: FeatureListRef) -> bytes:
        """The list that a manifest names.

        Raises:
            NotFoundError, MessageError: `feature-list-missing`, `feature-list-differs`.
        """
        call = Call("GET", _list_path(reference.sha256), limit_bytes=reference.bytes)
        content = self._exchange.send(call)
        check_content(reference, content)
        return content

    def create_study(self, manifest: bytes) -> StudyId:
        """Opens a study with a signed manifest. The same bytes give the same id again."""
        answer = self._exchange.ask(Call("POST", "/v1/studies", manifest))
        return StudyId.parse(read_body(OpenedStudy, answer).study)

    def studies(self) -> tuple[StudyFacts, ...]:
        answer = self._exchange.ask(Call("GET", "/v1/studies", limit_bytes=LIST_LIMIT_BYTES))
        return StudyFacts.parse_list(answer)

    def inbox(self) -> tuple[StudyFacts, ...]:
        """The open studies that name the caller, an owner, or that anybody may join."""
        answer = self._exchange.ask(Call("GET", "/v1/inbox", limit_bytes=LIST_LIMIT_BYTES))
        return StudyFacts.parse_list(answer)

    def study(self, study: StudyId) -> StudyFacts:
        """The present state of a study.

        Raises:
            AuthenticationError: `generation-fell` or `history-differs`, the proxy contradicts its earlier
                statements.
        """
        known = self._marks.known(self._pinned()) if self._marks else None
        answer = self._exchange.ask(Call("GET", _path(study), limit_bytes=LIST_LIMIT_BYTES))
        facts = StudyFacts.parse(answer)
        if self._marks is not None:
            self._marks.check(self._pinned(), study, facts.state, facts.mark, known)
        return facts

    def manifest(self, study: StudyId) -> bytes:
        """The manifest statement, signed by the data user. The signature is not verified here."""
        return self._exchange.send(Call("GET", _path(study, "manifest"), limit_bytes=MANIFEST_LIMIT_BYTES))

    def history(self, study: StudyId) -> History:
        """The signed events of a study, and what the data user signed about its end. The signatures are not
        verified here."""
        answer = self._exchange.ask(Call("GET", _path(study, "transcript"), limit_bytes=LIST_LIMIT_BYTES))
        return History.parse(answer)

    def transcript(self, study: StudyId) -> tuple[bytes, ...]:
        """The signed events of a study. The signatures are not verified here."""
        return self.history(study).events

    def events(self, study: StudyId) -> Iterator[StudyUpdate]:
        """Live updates of a study, until the proxy or the caller ends them.

        Call again after UnavailableError.
        """
        with self._exchange.stream(Call("GET", _path(study, "events"))) as lines:
            yield from parse_events(lines)

    def close_study(self, study: StudyId, statement: Statement) -> None:
        """`statement` is the user's signed StudyAct of kind "close"."""
        self._exchange.send(Call("POST", _path(study, "close"), statement.encoded))

    def cancel_study(self, study: StudyId, statement: Statement) -> None:
        """`statement` is the user's signed StudyAct of kind "cancel"."""
        self._exchange.send(Call("DELETE", _path(study), statement.encoded))

    # An owner's share

    def put_chunk(self, study: StudyId, version: int, index: int, sealed: bytes) -> None:
        """Sends one sealed chunk. The same bytes may be sent again."""
        path = _path(study, f"share/chunks/{index}")
        self._exchange.send(Call("PUT", path, sealed, CHUNK_MEDIA_TYPE, f"version={version}"))

    def share(self, study: StudyId) -> ShareFacts:
        answer = self._exchange.ask(Call("GET", _path(study, "share"), limit_bytes=LIST_LIMIT_BYTES))
        return ShareFacts.parse(answer)

    def complete_share(self, study: StudyId, statement: Statement) -> Statement:
        """Completes the share. Returns the proxy's receipt, with verified signature."""
        return self._receipt(Call("POST", _path(study, "share/complete"), statement.encoded))

    def withdraw_share(self, study: StudyId, statement: Statement) -> Statement:
        """Withdraws the share. Returns the proxy's receipt, with verified signature."""
        return self._receipt(Call("DELETE", _path(study, "share"), statement.encoded))

    def decline(self, study: StudyId, statement: Statement) -> None:
        """`statement` is the owner's signed Decline. The same statement may be sent again."""
        self._exchange.send(Call("POST", _path(study, "decline"), statement.encoded))

    # Release and components

    def count_challenge(self, study: StudyId) -> Statement:
        """The challenge E[N]. Raises ConflictError or NotFoundError `not-ready` if it does not exist yet."""
        return self._signed("count-challenge", Call("GET", _path(study, "count")))

    def answer_count(self, study: StudyId, statement: Statement) -> None:
        self._exchange.send(Call("POST", _path(study, "count"), statement.encoded))

    def release(self, study: StudyId, limit_bytes: int = RELEASE_LIMIT_BYTES) -> ReleaseBundle:
        """The release without its chunks.

        Args:
            limit_bytes: the most bytes to read. A study that allows very many owners needs a higher limit.
        """
        answer = self._exchange.ask(
            Call("GET", _path(study, "release"), limit_bytes=limit_bytes), _GROWTH_OF_A_RELEASE * limit_bytes
        )
        return ReleaseBundle.parse(answer)

    def release_chunk(self, study: StudyId, index: int, length_bytes: int) -> bytes:
        """Chunk `index` of the release, at most `length_bytes` long. The caller must check its digest."""
        return self._exchange.send(
            Call("GET", _path(study, f"release/chunks/{index}"), limit_bytes=length_bytes)
        )

    def send_opened(self, study: StudyId, statement: Statement) -> None:
        """`statement` says which release the data user opens. The same statement may be sent again."""
        self._exchange.send(Call("PUT", _path(study, "opened"), statement.encoded))

    def publish_components(self, study: StudyId, statement: Statement) -> None:
        self._exchange.send(Call("PUT", _path(study, "components"), statement.encoded))

    def components(self, study: StudyId) -> bytes:
        """The components statement, signed by the data user. The signature is not verified here."""
        answer = self._exchange.ask(
            Call("GET", _path(study, "components"), limit_bytes=COMPONENTS_LIMIT_BYTES)
        )
        return statement_bytes(read_body(Published, answer).components)

    def _receipt(self, call: Call) -> Statement:
        return self._signed("receipt", call)

    def _signed(self, kind: str, call: Call) -> Statement:
        proxy = self._pinned()
        return verify_statement(kind, self._exchange.send(call), proxy)

    def _pinned(self) -> bytes:
        if self._proxy is None:
            raise UsageError("not-enrolled", "the proxy's key is not known yet", "enrol at this proxy first")
        return self._proxy


def check_speaks_our_format(card: ProxyCard, url: str) -> None:
    """Raises MessageError `unsupported-version` if the proxy's program is one with message format 2."""
    if card.software is None or card.software.version.startswith("0."):
        theirs = card.software.version if card.software else "0.2 or older"
        raise MessageError(
            "unsupported-version",
            f"the proxy at {url} takes messages of format 2 or older (dpdpca {theirs}){this_program()}",
            "use a version with the same message format as the proxy; docs/compatibility.md lists them",
        )


def _list_path(digest: Digest) -> str:
    return f"/v1/feature-lists/{digest.hex()}"


def _path(study: StudyId, rest: str = "") -> str:
    return f"/v1/studies/{study.hex()}" + (f"/{rest}" if rest else "")
