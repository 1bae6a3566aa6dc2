"""A proxy in memory that does what its routes promise, and misbehaves only where a test asks it to."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from dpdpca_protocol.messages.carried import CarriedAnswer
from dpdpca_protocol.messages.share import (
    CohortMember,
    Decline,
    Receipt,
    ShareStatement,
    Withdrawal,
    cohort_digest,
)
from dpdpca_protocol.messages.software import Software, telling_software
from dpdpca_protocol.messages.study_messages import Opened, ProxyCard, StudyAct, StudyMark
from dpdpca_protocol.messages.transcript import FIRST, Event
from dpdpca_protocol.wire.http import ANSWER_HEADER
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.sealing import chunk_info, open_sealed
from dpdpca_protocol.wire.signing import Identity, IdentityKey, Statement, verify_statement

URL = "http://127.0.0.1:8080"
NOW = "2026-01-01T00:00:00Z"


@dataclass
class MemoryProxy:
    """One study, one owner. `interfere(request)` may answer or raise instead of the proxy."""

    key: IdentityKey
    manifest: Statement
    owner: PartyId
    interfere: Callable[[httpx.Request], httpx.Response | None] = lambda request: None
    state: str = "open"
    cohort: list[CohortMember] | None = None
    upload: tuple[int, dict[int, bytes]] | None = None
    signed_version: int = 0
    share_state: str = "absent"
    chunks: dict[int, bytes] = field(default_factory=dict)
    receipt: Statement | None = None
    receipts: dict[tuple[str, Digest], Statement] = field(default_factory=dict)
    events: list[Statement] = field(default_factory=list)
    cancelled: Statement | None = None
    opened: Statement | None = None
    components: Statement | None = None
    received: list[str] = field(default_factory=list)
    enrolled: list[tuple[str, str, Identity]] = field(default_factory=list)
    declined: Decline | None = None
    rotations: list[dict[str, Any]] = field(default_factory=list)
    statements: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    now: str = NOW
    software: Software | None = None

    def __post_init__(self) -> None:
        self.record("manifest", {"statement": self.manifest.digest.hex()})

    @property
    def study(self) -> StudyId:
        return StudyId(self.manifest.digest)

    def record(self, kind: str, detail: dict[str, Any]) -> None:
        previous = self.events[-1].digest if self.events else FIRST
        event = Event(self.study, len(self.events), previous, NOW, kind, detail)
        self.events.append(event.sign(self.key))

    def close(self, *others: CohortMember, without_owner: bool = False) -> None:
        members = list(others)
        for other in others:
            self.record("receipt", other.to_body())
        if self.share_state == "complete" and not without_owner:
            assert self.receipt is not None
            body = Receipt.parse(self.receipt)
            members.append(CohortMember(body.owner, body.version, body.statement))
        self.cohort, self.state = members, "closed"
        self.record("closed", {"cohort": cohort_digest(members).hex()})

    def cancel(self, user: IdentityKey) -> None:
        """The data user cancels the study."""
        self.cancelled = StudyAct("cancel", self.study).sign(user)
        self.record("cancelled", {"statement": self.cancelled.digest.hex()})
        self.state = "cancelled"

    def open(self, user: IdentityKey) -> None:
        """The closed study is released, and the data user opens the release."""
        release = Digest.of(b"release")
        self.record("release", telling_software({"statement": release.hex()}, self.software))
        self.opened = Opened(self.study, cohort_digest(self.cohort or []), release).sign(user)
        self.record("opened", {"statement": self.opened.digest.hex()})
        self.state = "released"

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Answers to carried requests are signed. Their signatures are not checked here."""
        response = self._answer(request)
        carried = re.search('nonce="([0-9a-f]{32})".*tag="dpdpca-carried/v3"', self._signed_as(request))
        if carried is not None and response.is_success and not request.url.path.endswith("/components"):
            signed = CarriedAnswer(carried[1], Digest.of(response.content), self.now).sign(self.key)
            response.headers[ANSWER_HEADER] = signed.encoded.decode()
        return response

    def _signed_as(self, request: httpx.Request) -> str:
        return str(request.headers.get("signature-input", ""))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        where = re.sub("[0-9a-f]{64}", "ID", request.url.path)
        self.received.append(f"{request.method} {where}")
        interfered = self.interfere(request)
        if interfered is not None:
            return interfered
        body = request.read()
        if where.endswith("/rotations") and request.method == "GET":
            return httpx.Response(200, json={"rotations": self.rotations})
        if where == "/v1/proxy":
            card = ProxyCard("Relay", URL, self.key.public, self.software).sign(self.key)
            return httpx.Response(200, content=card.encoded)
        if where == "/v1/parties" and request.method == "GET":
            parties = [
                {"role": role, "name": name, "ed25519": keys.ed25519.hex()}
                | self._statement_of(request, keys)
                for role, name, keys in self.enrolled
            ]
            return httpx.Response(200, json={"parties": parties})
        if where == "/v1/parties":
            enrolment = verify_statement("enrolment", _canonical(json.loads(body)["enrolment"]))
            return httpx.Response(201, json={"party": PartyId.of(enrolment.signer).hex()})
        if where == "/v1/inbox":
            study = self._get_study(b"").json()
            return httpx.Response(200, json={"studies": [study] if self.state == "open" else []})
        if request.url.path.split("/")[3] != self.study.hex():
            return problem(404, "not-found")
        rest = where.removeprefix("/v1/studies/ID").strip("/")
        if rest.startswith("share/chunks/"):
            return self._put(int(request.url.params["version"]), int(rest.split("/")[2]), body)
        act: Callable[[bytes], httpx.Response] = getattr(
            self, f"_{request.method.lower()}_{rest.replace('/', '_') or 'study'}"
        )
        return act(body)

    def _statement_of(self, request: httpx.Request, keys: Identity) -> dict[str, Any]:
        if request.url.params.get("statements") != "true":
            return {}
        return {"statement": self.statements.get(keys.ed25519)}

    def _put(self, version: int, index: int, sealed: bytes) -> httpx.Response:
        if self.state != "open":
            return problem(409, "study-closed")
        if version == self.signed_version and self.chunks.get(index) == self._opened(version, index, sealed):
            return httpx.Response(204)
        if version <= self.signed_version or (self.upload and version < self.upload[0]):
            return problem(409, "share-version-not-newer")
        chunk = self._opened(version, index, sealed)
        if self.upload is None or self.upload[0] != version:
            self.upload = version, {}
        if self.upload[1].setdefault(index, chunk) != chunk:
            return problem(409, "chunk-differs")
        return httpx.Response(204)

    def _opened(self, version: int, index: int, sealed: bytes) -> bytes:
        return open_sealed(sealed, self.key.opening_key, chunk_info(self.study, self.owner, version, index))

    def _get_manifest(self, _body: bytes) -> httpx.Response:
        return httpx.Response(200, content=self.manifest.encoded)

    def _get_share(self, _body: bytes) -> httpx.Response:
        version, chunks = self.upload or (self.signed_version or None, self.chunks)
        state = "partial" if self.upload and self.share_state == "absent" else self.share_state
        receipt = json.loads(self.receipt.encoded) if self.receipt else None
        facts = {"version": version, "chunks": sorted(chunks), "state": state, "receipt": receipt}
        return httpx.Response(200, json=facts)

    def _post_share_complete(self, body: bytes) -> httpx.Response:
        statement = verify_statement("share", body)
        claim = ShareStatement.parse(statement)
        known = self.receipts.get(("share", statement.digest))
        if known is not None:
            return httpx.Response(200, content=known.encoded)
        assert self.upload is not None
        assert self.upload[0] == claim.version
        arrived = tuple(Digest.of(chunk) for _, chunk in sorted(self.upload[1].items()))
        assert arrived == claim.chunk_digests
        self.chunks, self.upload, self.share_state = self.upload[1], None, "complete"
        return self._acknowledge("share", claim.version, statement)

    def _delete_share(self, body: bytes) -> httpx.Response:
        statement = verify_statement("withdrawal", body)
        wish = Withdrawal.parse(statement)
        if self.share_state != "complete" or self.state != "open":
            return problem(409, "wrong-state")
        self.chunks, self.share_state = {}, "withdrawn"
        return self._acknowledge("withdrawal", wish.version, statement)

    def _post_decline(self, body: bytes) -> httpx.Response:
        said = Decline.parse(verify_statement("decline", body))
        if self.share_state == "complete":
            return problem(409, "share-complete")
        if self.state != "open" and said != self.declined:
            return problem(409, "study-closed")
        self.declined = said
        return httpx.Response(204)

    def _acknowledge(self, subject: str, version: int, statement: Statement) -> httpx.Response:
        receipt = Receipt(self.study, self.owner, version, subject, statement.digest, NOW).sign(self.key)
        self.signed_version, self.receipt = version, receipt
        self.receipts[subject, statement.digest] = receipt
        kind = "receipt" if subject == "share" else "withdrawal"
        self.record(
            kind, {"owner": self.owner.hex(), "version": version, "statement": statement.digest.hex()}
        )
        return httpx.Response(200, content=receipt.encoded)

    def _get_transcript(self, _body: bytes) -> httpx.Response:
        told = {
            "cancel": None if self.cancelled is None else json.loads(self.cancelled.encoded),
            "events": [json.loads(event.encoded) for event in self.events],
            "opened": None if self.opened is None else json.loads(self.opened.encoded),
        }
        return httpx.Response(200, json=told)

    def _get_study(self, _body: bytes) -> httpx.Response:
        members = [member.to_body() for member in self.cohort or []]
        facts = {
            "study": self.study.hex(), "title": "Blood pressure", "state": self.state, "release": "joint",
            "owners_complete": int(self.share_state == "complete"), "min_owners": 3, "closes_at": NOW,
            "cohort": cohort_digest(self.cohort).hex() if self.cohort is not None else None,
            "cohort_members": members, "mark": self._mark(),
        }  # fmt: skip
        return httpx.Response(200, json=facts)

    def _mark(self) -> dict[str, Any]:
        """The log of this proxy grows with every request."""
        generation = len(self.received)
        head = Digest.of(f"entry {generation}".encode())
        signed = StudyMark(self.study, self.state, generation, head, NOW).sign(self.key)
        return dict(json.loads(signed.encoded))

    def _get_components(self, _body: bytes) -> httpx.Response:
        if self.components is None:
            return problem(404, "not-found")
        return httpx.Response(200, json={"components": json.loads(self.components.encoded)})


def problem(status: int, slug: str) -> httpx.Response:
    return httpx.Response(status, json={"type": f"urn:dpdpca:problem:{slug}", "detail": slug})


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
