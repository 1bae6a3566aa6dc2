"""A data user without a service: the test holds its keys, so it can see and do what no command would."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import httpx
from gmpy2 import mpz
from study_parties import under_paillier

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.layout.blocks import BlockName, Values
from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.messages.study_messages import CountAnswer, CountChallenge, StudyAct, StudyMark
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.paillier.keys import SecretKey, generate_secret_key
from dpdpca_protocol.paillier.proof import prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.release import (
    NoisyScatter,
    answer_count,
    checked_blocks,
    flat_scatter,
    open_flat_release,
    open_masked_release,
)
from dpdpca_protocol.release.suite import CohortShare
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import KeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest, sign_manifest, suite_of
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement, verify_statement
from dpdpca_runtime.http.signature import RequestSigner
from dpdpca_user.planning.draft import complete_draft
from dpdpca_user_service.keyring import Keyring
from federation.processes import wait_for
from federation.records import draft
from federation.world import KEY_BITS, Federation, User


class Named(Protocol):
    """Who can be named in a manifest."""

    @property
    def name(self) -> str: ...

    def key(self) -> IdentityKey: ...


class BareUser:
    """An enrolled data user whose keys are at hand."""

    def __init__(self, federation: Federation, name: str, key: IdentityKey | None = None) -> None:
        self.federation = federation
        self.name = name
        self.key = key or IdentityKey.generate()
        self.client = federation.client(self.key)
        if key is None:
            self.client.enrol("user", name, federation.invitation("user", name))

    def manifest(
        self,
        secret: SecretKey,
        participants: Sequence[Named] = (),
        closes_in: float = 3600.0,
        **changes: Any,
    ) -> Manifest:
        """Terms of the study in `records`, changed; named owners only where some are given."""
        card, _ = self.client.card()
        public = self.key.public
        return complete_draft(
            under_paillier({"participants": [owner.name for owner in participants]} | draft(**changes)),
            Party(self.name, public.ed25519),
            ProxyParty(card.name, card.url, card.identity.ed25519, card.identity.sealing_key),
            [Participant(owner.name, owner.key().public.ed25519) for owner in participants],
            KeyTerms.of(secret.public, prove_key(secret, public.ed25519)),
            closes_at=datetime.now(UTC) + timedelta(seconds=closes_in),
        )

    def open_study(
        self, participants: Sequence[Named] = (), closes_in: float = 3600.0, **changes: Any
    ) -> "BareStudy":
        secret = make_key()
        manifest = self.manifest(secret, participants, closes_in, **changes)
        statement = sign_manifest(manifest, self.key)
        self.client.create_study(statement.encoded)
        return BareStudy(self, secret, open_manifest(statement.encoded))


def make_key() -> SecretKey:
    """A fresh study key, about a second of work: a modulus serves one study."""
    return generate_secret_key(KEY_BITS, OS_RANDOMNESS)


@dataclass
class BareStudy:
    """A study on the proxy with its secret key."""

    user: BareUser
    secret: SecretKey
    signed: SignedManifest

    @property
    def id(self) -> StudyId:
        return self.signed.study_id

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest

    @property
    def path(self) -> str:
        return f"/v1/studies/{self.id.hex()}"

    @property
    def address(self) -> str:
        return f"{self.user.federation.url}/{self.id.hex()}"

    @property
    def state(self) -> str:
        return self.user.client.study(self.id).state

    def seen_head(self) -> Digest:
        """The newest head of the proxy's log, as everybody sees it."""
        mark = self.user.client.study(self.id).mark
        assert mark is not None
        return StudyMark.verify(mark, self.id, self.manifest.proxy.ed25519).head

    def wait_state(self, *states: str, seconds: float = 60.0) -> str:
        return str(wait_for(lambda: (state := self.state) in states and state, f"{states}", seconds))

    def close(self) -> None:
        self.user.client.close_study(self.id, StudyAct("close", self.id).sign(self.user.key))

    def cancel(self) -> None:
        self.user.client.cancel_study(self.id, StudyAct("cancel", self.id).sign(self.user.key))

    def challenge(self) -> Statement:
        """E[N], as soon as it is aggregated."""

        def ask() -> Statement | None:
            try:
                return self.user.client.count_challenge(self.id)
            except DpdpcaError as error:
                if error.slug != "not-ready":
                    raise
                return None

        found = wait_for(ask, "the count challenge")
        assert isinstance(found, Statement)
        return found

    def answer(self) -> int:
        """Prove N to the proxy; N."""
        public = self.secret.public
        challenge = self.challenge()
        asked = CountChallenge.parse(challenge, public.ciphertext_bytes)
        count, root = answer_count(self.secret, mpz(int.from_bytes(asked.ciphertext, "big")))
        randomizer = int(root).to_bytes(public.modulus_bytes, "big")
        statement = CountAnswer(self.id, challenge.digest, count, randomizer).sign(self.user.key)
        self.user.client.answer_count(self.id, statement)
        return count

    def released_ciphertexts(self, most_chunks: int | None = None) -> list[mpz]:
        """The release as it is on the wire, the count proved first where the release asks for it."""
        if self.manifest.release == "masked" and self.state == "closed":
            self.answer()
        self.wait_state("released", "published")
        figures, public = self.manifest.figures, self.secret.public
        count = figures.chunk_count if most_chunks is None else most_chunks
        return [
            ciphertext
            for index in range(count)
            for ciphertext in decode_chunk(
                self.user.client.release_chunk(self.id, index, figures.share_bytes), public
            )
        ]

    def open_release(self) -> NoisyScatter:
        """The decrypted release."""
        ciphertexts, figures = self.released_ciphertexts(), self.manifest.figures
        if self.manifest.release != "masked":
            vectors = PaillierVectors(self.secret.public, figures.slot_bits)
            released = open_flat_release(vectors, self.secret, ciphertexts, figures.blocks)
            return flat_scatter(released, figures.encoded_features)
        layout = BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)
        said = json.loads(self.user.client.release(self.id).release)["body"]
        return open_masked_release(self.secret, layout, ciphertexts, said["records"])

    def events(self) -> list[dict[str, Any]]:
        """Bodies of the transcript."""
        return [json.loads(event)["body"] for event in self.user.client.transcript(self.id)]


def stored_secret(user: User, study: StudyId) -> bytes:
    """The secret of an open study; the service forgets it once there is a model."""
    with closing(sqlite3.connect(f"file:{user.home / 'user.sqlite3'}?mode=ro", uri=True)) as database:
        (stored,) = database.execute("SELECT secret FROM studies WHERE study = ?", (study.hex(),)).fetchone()
    return Keyring(None).open(stored, study)


def opened_release(user: BareUser, signed: SignedManifest, secret: bytes) -> NoisyScatter:
    """The release of any study with components, by the secret that the data user's service stores for it."""
    manifest = signed.manifest
    if not manifest.figures.blocks:
        return BareStudy(user, SecretKey.from_bytes(secret), signed).open_release()
    return flat_scatter(opened_blocks(user, signed, secret), manifest.figures.encoded_features)


def opened_blocks(user: BareUser, signed: SignedManifest, secret: bytes) -> dict[BlockName, Values]:
    """The blocks of a flat release under pads, with the noise of the proxy or the owners and no other."""
    suite, study = suite_of(signed.manifest), signed.study_id
    bundle = user.client.release(study)
    shares = [ShareStatement.parse(verify_statement("share", share)) for share in bundle.shares]
    cohort = [CohortShare(PartyId.of(share.owner), share.version, share.pad) for share in shares]
    chunks = [
        user.client.release_chunk(study, index, suite.chunk_bytes(index))
        for index in range(suite.chunk_count)
    ]
    return checked_blocks(signed.manifest.figures.blocks, suite.open_sum(secret, chunks, cohort))


def send(
    federation: Federation,
    key: IdentityKey | None,
    method: str,
    path: str,
    body: bytes | None = None,
    media_type: str = "application/json",
    change: Callable[[httpx.Request], None] = lambda request: None,
) -> httpx.Response:
    """One request, signed by `key` if there is one, then changed, and sent as it is."""
    request = make_request(federation, key, method, path, body, media_type)
    change(request)
    return deliver_request(request)


def make_request(
    federation: Federation,
    key: IdentityKey | None,
    method: str,
    path: str,
    body: bytes | None = None,
    media_type: str = "application/json",
) -> httpx.Request:
    headers = {"content-type": media_type} if body is not None else {}
    request = httpx.Request(method, federation.url + path, content=body, headers=headers)
    if key is not None:
        RequestSigner(key).sign(request, body, datetime.now(UTC))
    return request


def deliver_request(request: httpx.Request) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=30) as client:
        return client.send(request)
