"""A proxy in memory that does what its routes promise, and misbehaves only where a test asks it to."""

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from given_keys import give_key

from dpdpca_cli import main as cli
from dpdpca_owner import actions
from dpdpca_owner.actions import Desk
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.messages.share import CohortMember, Receipt, ShareStatement, Withdrawal, cohort_digest
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.messages.transcript import FIRST, Event
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.sealing import chunk_info, open_sealed
from dpdpca_protocol.wire.signing import Identity, IdentityKey, Statement, verify_statement
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience

URL = "http://127.0.0.1:8080"
TOY_BITS = 512
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
    components: Statement | None = None
    received: list[str] = field(default_factory=list)
    enrolled: list[tuple[str, str, Identity]] = field(default_factory=list)
    rotations: list[dict[str, Any]] = field(default_factory=list)

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

    def answer(self, request: httpx.Request) -> httpx.Response:
        where = re.sub("[0-9a-f]{64}", "ID", request.url.path)
        self.received.append(f"{request.method} {where}")
        interfered = self.interfere(request)
        if interfered is not None:
            return interfered
        body = request.read()
        if where.endswith("/rotations") and request.method == "GET":
            return httpx.Response(200, json={"rotations": self.rotations})
        if where == "/v1/proxy":
            card = ProxyCard("Relay", URL, self.key.public).sign(self.key)
            return httpx.Response(200, content=card.encoded)
        if where == "/v1/parties" and request.method == "GET":
            parties = [
                {"role": role, "name": name, "ed25519": keys.ed25519.hex(), "x25519": keys.x25519.hex()}
                for role, name, keys in self.enrolled
            ]
            return httpx.Response(200, json={"parties": parties})
        if where == "/v1/parties":
            enrolment = verify_statement("enrolment", _canonical(json.loads(body)["enrolment"]))
            return httpx.Response(201, json={"party": PartyId.of(enrolment.signer).hex()})
        if request.url.path.split("/")[3] != self.study.hex():
            return problem(404, "not-found")
        rest = where.removeprefix("/v1/studies/ID").strip("/")
        if rest.startswith("share/chunks/"):
            return self._put(int(request.url.params["version"]), int(rest.split("/")[2]), body)
        act: Callable[[bytes], httpx.Response] = getattr(
            self, f"_{request.method.lower()}_{rest.replace('/', '_') or 'study'}"
        )
        return act(body)

    def _put(self, version: int, index: int, sealed: bytes) -> httpx.Response:
        if self.state != "open":
            return problem(409, "study-closed")
        if version <= self.signed_version or (self.upload and version < self.upload[0]):
            return problem(409, "share-version-not-newer")
        chunk = open_sealed(sealed, self.key.x25519, chunk_info(self.study, self.owner, version, index))
        if self.upload is None or self.upload[0] != version:
            self.upload = version, {}
        if self.upload[1].setdefault(index, chunk) != chunk:
            return problem(409, "chunk-differs")
        return httpx.Response(204)

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
        return httpx.Response(200, json={"events": [json.loads(event.encoded) for event in self.events]})

    def _get_study(self, _body: bytes) -> httpx.Response:
        members = [member.to_body() for member in self.cohort or []]
        facts = {
            "study": self.study.hex(), "title": "Blood pressure", "state": self.state, "release": "joint",
            "owners_complete": int(self.share_state == "complete"), "min_owners": 3, "closes_at": NOW,
            "cohort": cohort_digest(self.cohort).hex() if self.cohort is not None else None,
            "cohort_members": members,
        }  # fmt: skip
        return httpx.Response(200, json=facts)

    def _get_components(self, _body: bytes) -> httpx.Response:
        if self.components is None:
            return problem(404, "not-found")
        return httpx.Response(200, json={"components": json.loads(self.components.encoded)})


def problem(status: int, slug: str) -> httpx.Response:
    return httpx.Response(status, json={"type": f"urn:dpdpca:problem:{slug}", "detail": slug})


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


@dataclass
class Scene:
    """One owner with its home, an enrolment at the proxy in memory, and data for its study."""

    desk: Desk
    proxy: MemoryProxy
    address: StudyAddress
    location: DataLocation
    parties: Any


@pytest.fixture
def make_scene(tmp_path: Path, parties: Any, make_manifest: Callable[..., Manifest]) -> Callable[..., Scene]:
    """make_scene(**changes of the draft): the first owner of the small study, enrolled."""

    def make(**changes: Any) -> Scene:
        manifest = make_manifest(**changes)
        statement = sign_manifest(manifest, parties.user)
        home = OwnerHome(tmp_path / "home")
        owner = home.create("Hospital A", None)
        # The study names the session's first owner: this home gets that key.
        key = parties.owners[0]
        give_key(home.path, key)
        owner = home.load()
        proxy = MemoryProxy(parties.proxy, statement, key.public.party_id)
        proxy.enrolled = [("user", manifest.user.name, parties.user.public)]
        proxy.enrolled += [
            ("owner", participant.name, owner.public)
            for participant, owner in zip(parties.participants, parties.owners, strict=True)
        ]

        def connect(url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
            transport = httpx.MockTransport(proxy.answer)
            patience = Patience(0, sleep=lambda seconds: None)
            return ProxyClient(url, key, pinned, transport, patience=patience)

        desk = Desk(
            home, owner, connect, lambda: datetime(2026, 1, 1, tzinfo=UTC), key_rules=KeyRules(TOY_BITS)
        )
        home.pins.pin_proxy(URL, ProxyCard("Relay", URL, parties.proxy.public).sign(parties.proxy))
        data = tmp_path / "records.csv"
        lower = [float(feature.lower or 0) for feature in manifest.features]
        upper = [float(feature.upper or 0) for feature in manifest.features]
        rows = np.random.default_rng(7).uniform(lower, upper, (40, len(lower)))  # noqa: TID251  # data, not noise
        header = ",".join(feature.name for feature in manifest.features)
        np.savetxt(data, rows, delimiter=",", header=header, comments="", encoding="utf-8")
        return Scene(desk, proxy, StudyAddress(URL, proxy.study), DataLocation(str(data)), parties)

    return make


@pytest.fixture
def run(
    make_scene: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """run("join", …) → exit status, output, errors; of an owner whose proxy is the one in memory."""
    scene = make_scene()
    monkeypatch.setenv("DPDPCA_OWNER_HOME", str(scene.desk.home.path))

    def make_desk(home: OwnerHome, *_: Any) -> Any:
        return replace(scene.desk, home=home, owner=home.load())

    monkeypatch.setattr(actions, "make_desk", make_desk)

    def run_command(*words: str, given: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        with pytest.raises(SystemExit) as left:
            cli.main(["owner", *words])
        output = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, output.out, output.err

    run_command.scene = scene  # type: ignore[attr-defined]  # what a test changes
    return run_command
