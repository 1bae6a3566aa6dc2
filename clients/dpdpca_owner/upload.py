"""Sends a share: plans it, encrypts, seals and sends its chunks, signs it, and verifies the receipt.

This module also withdraws a share. If something interrupts a join, running it again continues where it
stopped. Every statement and every chunk is on this machine's disk before it is sent. One share version never
stands for two different shares.
"""

import hashlib
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from dpdpca_owner.blinding import plan_is_lost, share_is_final, shared_keys
from dpdpca_owner.home import Owner
from dpdpca_owner.records.contribution import Contribution
from dpdpca_owner.share_chunks import repeatable_chunks, share_chunks, share_values
from dpdpca_owner.study_folder import KeptSecrets, Plan, StudyFolder
from dpdpca_protocol.errors import AuthenticationError, ConflictError, IntegrityError
from dpdpca_protocol.messages.log import EMPTY
from dpdpca_protocol.messages.share import Receipt, ShareStatement, Withdrawal
from dpdpca_protocol.messages.study_messages import StudyMark
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.release.suite import BegunShare
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import SignedManifest
from dpdpca_protocol.wire.identifiers import Content, Digest
from dpdpca_protocol.wire.sealing import chunk_info, seal
from dpdpca_protocol.wire.signing import Statement, verify_statement
from dpdpca_runtime.http.answers import ShareFacts
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.workers import WorkerProcesses, WorkerThreads, core_count

Values = NDArray[np.int64]

_CHUNKS_ON_THEIR_WAY = 4
"""Chunks that are sent at the same time while later ones are encrypted; more would only fill memory."""
WORTH_A_WORKER = 256
"""With this many ciphertexts for each worker, encrypting takes longer than starting the worker."""


_HEADS = {"log": None, "proxy_log": None}


class Outcome(Enum):
    """How a join or a withdrawal ended."""

    DONE = auto()
    ALREADY = auto()


@dataclass(frozen=True, slots=True)
class Settled:
    """The receipt of a join or a withdrawal, and how much was sent for it."""

    outcome: Outcome
    receipt: Receipt
    sent_chunks: int = 0
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Watcher:
    """Callbacks for progress: with the number of new ciphertexts, and with the number of bytes just sent."""

    on_encrypted: Callable[[int], None] = field(default=lambda count: None)
    on_sent: Callable[[int], None] = field(default=lambda sent_bytes: None)


@dataclass(frozen=True, slots=True)
class Sending:
    """What the ledger says of a blinded share, whose sending is booked before the first byte leaves.

    Attributes:
        begun: the digest of the values of which something may have been sent, or None.
        book: writes to the ledger that values with this digest are going to be sent.
    """

    begun: Digest | None
    book: Callable[[Digest], None]


class ShareSender:
    """Sends and withdraws one owner's share in one study. The caller must hold the folder's lock."""

    def __init__(
        self,
        owner: Owner,
        client: ProxyClient,
        signed: SignedManifest,
        folder: StudyFolder,
        head: Callable[[], Digest],
        randomness: Randomness = OS_RANDOMNESS,
    ) -> None:
        """Args: head: returns the newest digest of the owner's ledger, to be put into statements."""
        self._owner = owner
        self._head = head
        self._client = client
        self._signed = signed
        self._folder = folder
        self._randomness = randomness
        self._proxy = signed.manifest.proxy
        self._suite = signed.suite
        self._seen = EMPTY
        self._is_blinded = signed.manifest.is_blinded
        self._pairs = shared_keys(signed.manifest, owner)

    def send(
        self,
        contribution: Contribution,
        reserve: Callable[[], None],
        watcher: Watcher | None = None,
        sending: Sending | None = None,
    ) -> Settled:
        """Send the owner's share, unless the proxy has it already.

        Args:
            contribution: what is sent.
            reserve: books the study in the ledger. `reserve` is called before any part of the share is made,
                kept or sent, and not at all if the proxy has the share already. If `reserve` raises an error,
                no share is made or sent.
            watcher: receives progress.
            sending: what the ledger says of this share; needed in a blinded study.

        Raises:
            ConflictError: the study accepts no more shares; `blinded-share-is-final`, `blinded-plan-lost`.
            AuthenticationError: the proxy holds or acknowledges something that this owner did not send.
        """
        watcher = watcher or Watcher()
        facts = self._client.share(self._signed.study_id)
        receipt = self._receipt_of(facts)
        plan = self._folder.plan()
        if (
            receipt is not None
            and receipt.subject == "share"
            and plan is not None
            and plan.version == receipt.version
            and plan.moments == contribution.digest
            and (self._is_blinded or self._folder.last_withdrawal() < plan.version)
        ):
            self._drop_if_arrived()  # an earlier run may have ended before it did so
            return Settled(Outcome.ALREADY, receipt)
        if self._is_blinded and receipt is not None:
            raise share_is_final()
        # Ask first, so that no share is encrypted and kept for a study that accepts none.
        self._seen = self._check_open()
        values = None
        if self._suite.is_repeatable:
            values = share_values(self._signed, contribution.sums, contribution.own_noise())
        if self._is_blinded:
            assert sending is not None
            assert values is not None
            self._check_first(plan, _digest_of(values), sending.begun, facts)
        reserve()
        plan = self._next_plan(plan, contribution.digest, values, facts, receipt)
        self._folder.save_plan(plan)
        try:
            return self._send_version(plan, contribution, values, facts, watcher, sending)
        except ConflictError as error:
            if error.slug != "chunk-differs":
                raise
            if self._is_blinded:
                raise plan_is_lost() from error
        # The proxy holds other bytes under this version, from an earlier run whose chunks or keys are lost.
        plan = replace(plan, version=self._version_above(plan.version))
        self._folder.save_plan(plan)
        return self._send_version(plan, contribution, values, facts, watcher)

    def _check_first(
        self, plan: Plan | None, values: Digest, begun: Digest | None, facts: ShareFacts
    ) -> None:
        """Checks that nothing was sent under the masks of this study, except the same values.

        Both the ledger and the plan say so: one of them may come from a backup.
        """
        if begun is None and facts.version is None:
            return
        kept = self._folder.secrets()
        if begun is None or plan is None or kept is None or kept.values != begun:
            raise plan_is_lost()
        if values != begun:
            raise share_is_final()

    def _check_open(self) -> Digest:
        """The newest head of the proxy's log, if the study accepts shares. Otherwise secrets are deleted: the
        share can no longer be sent."""
        study = self._client.study(self._signed.study_id)
        if study.state != StudyState.OPEN:
            self._folder.drop_share()
        check_open(study.state)
        return StudyMark.verify(study.mark or b"", study.study, self._proxy.ed25519).head

    def fetch_receipt(self) -> Receipt | None:
        """The newest receipt for this owner's statements. A new one is verified and kept.

        Raises:
            AuthenticationError: the proxy acknowledges something that this owner did not send.
        """
        return self._receipt_of(self._client.share(self._signed.study_id))

    def withdraw(self) -> Settled:
        """Withdraw the share.

        Raises:
            ConflictError: there is no complete share, or the study is closed.
        """
        facts = self._client.share(self._signed.study_id)
        receipt = self._receipt_of(facts)
        if receipt is not None and receipt.subject == "withdrawal":
            return Settled(Outcome.ALREADY, receipt)
        plan = self._folder.plan()
        version = max(facts.version or 0, receipt.version if receipt else 0, plan.version if plan else 0) + 1
        wish = Withdrawal(self._signed.study_id, self._owner.key.public.ed25519, version, self._head())
        statement = self._kept(version, wish.sign(self._owner.key))
        acknowledged = self._client.withdraw_share(self._signed.study_id, statement)
        receipt = self._check_receipt(acknowledged, version, "withdrawal", statement.digest)
        self._folder.save_receipt(receipt, acknowledged)
        self._folder.drop_share()
        return Settled(Outcome.DONE, receipt)

    def _receipt_of(self, facts: ShareFacts) -> Receipt | None:
        """The newest receipt that either side holds, if it is for our own statement. A newer receipt from the
        proxy is stored."""
        ours = self._folder.last_receipt(self._proxy.ed25519)
        if facts.receipt is None:
            if ours is not None and ours.subject == "share":
                raise _contradiction("the proxy no longer knows a share for which it signed a receipt")
            return ours
        encoded = verify_statement("receipt", facts.receipt, self._proxy.ed25519)
        theirs = Receipt.parse(encoded)
        if ours is not None and ours.version >= theirs.version:
            if ours.version > theirs.version:
                raise _contradiction(
                    "the proxy sent a receipt that is older than the last one that it signed"
                )
            return ours
        sent = self._folder.statement(theirs.subject, theirs.version)
        if sent is not None:
            self._check_receipt(encoded, theirs.version, theirs.subject, sent.digest)
        elif theirs.study != self._signed.study_id or theirs.owner != self._owner.key.public.party_id:
            raise _contradiction("the proxy sent the receipt of a different share")
        self._folder.save_receipt(theirs, encoded)
        if theirs.subject == "share":
            self._drop_if_arrived()
        return theirs

    def _next_plan(
        self,
        plan: Plan | None,
        moments: Digest,
        values: Values | None,
        facts: ShareFacts,
        receipt: Receipt | None,
    ) -> Plan:
        settled = receipt.version if receipt else 0
        if self._is_blinded:
            return Plan(self._client.url, 1, moments, self._signed.manifest.key.digest)
        modulus = self._signed.manifest.key.digest
        begun, withdrawn = plan.version if plan else 0, self._folder.last_withdrawal()
        if plan is not None and plan.moments == moments and begun > max(settled, withdrawn):
            lost = self._lost_chunks(plan, facts) if values is None else self._kept_for(plan, values) is None
            version = self._version_above(begun) if lost else begun
        else:
            version = self._version_above(settled, facts.version or 0, begun)
        return Plan(self._client.url, version, moments, modulus)

    def _version_above(self, *used: int) -> int:
        """A version for a share, above those that were used. A withdrawal that was signed may still arrive,
        because somebody carries it: it must neither have the same version nor take this share away."""
        return max(*used, self._folder.last_withdrawal()) + 1

    def _lost_chunks(self, plan: Plan, facts: ShareFacts) -> bool:
        """Whether chunks are not on this machine's disk any more that may have left it in this version: the
        proxy has them, or a statement names them."""
        if facts.version == plan.version and any(self._folder.chunk(index) is None for index in facts.chunks):
            return True
        signed = None
        with suppress(IntegrityError):  # a damaged statement is not sent again
            signed = self._folder.statement("share", plan.version)
        named = () if signed is None else ShareStatement.parse(signed).chunk_digests
        return any(
            chunk is None or Digest.of(chunk) != digest
            for chunk, digest in zip(map(self._folder.chunk, range(len(named))), named, strict=True)
        )

    def _kept_for(self, plan: Plan, values: Values) -> BegunShare | None:
        """The kept secrets of this version, if they were drawn for these values."""
        kept = self._folder.secrets()
        if kept is None or (kept.version, kept.values) != (plan.version, _digest_of(values)):
            return None
        return kept.begun

    def _begin(self, plan: Plan, values: Values) -> BegunShare:
        """The secrets of a version, on the disk with the digest of the only values that they may hide."""
        if (begun := self._kept_for(plan, values)) is None:
            owner = self._owner.key.public.party_id
            begun = self._suite.begin(owner, plan.version, self._randomness)
            self._folder.save_secrets(KeptSecrets(plan.version, _digest_of(values), begun))
        return begun

    def _send_version(
        self,
        plan: Plan,
        contribution: Contribution,
        values: Values | None,
        facts: ShareFacts,
        watcher: Watcher,
        sending: Sending | None = None,
    ) -> Settled:
        study, version = self._signed.study_id, plan.version
        owner = self._owner.key.public.party_id
        arrived = facts.chunks if facts.version == version else frozenset()
        digests: list[Digest] = []
        sent: list[int] = []
        under_way: set[Future[int]] = set()

        def deliver(index: int, chunk: Content) -> int:
            sealed = seal(chunk, self._proxy.kem, chunk_info(study, owner, version, index))
            self._client.put_chunk(study, version, index, sealed)
            return len(sealed)

        def collect(most: int) -> None:
            """Record the chunks that have arrived, and wait until at most `most` are still being sent."""
            nonlocal under_way
            while under_way:
                patience = 0 if len(under_way) <= most else None
                arrived_now, under_way = wait(under_way, patience, FIRST_COMPLETED)
                for future in arrived_now:
                    sent.append(future.result())
                    watcher.on_sent(sent[-1])
                if len(under_way) <= most:
                    return

        begun = None if values is None else self._begin(plan, values)
        if sending is not None and values is not None:
            sending.book(_digest_of(values))
        workers = worker_count(self._signed.manifest)
        with (
            WorkerProcesses(workers) if workers > 1 else nullcontext() as encrypting,
            WorkerThreads(_CHUNKS_ON_THEIR_WAY) as senders,
        ):
            chunks = (
                share_chunks(
                    self._signed,
                    contribution.sums,
                    contribution.own_noise(),
                    self._folder,
                    self._randomness,
                    encrypting,
                    workers,
                    watcher.on_encrypted,
                )
                if begun is None or values is None
                else repeatable_chunks(
                    self._suite, begun, values, self._randomness, watcher.on_encrypted, self._pairs
                )
            )
            for index, chunk in enumerate(chunks):
                digests.append(Digest.of(chunk))
                if index not in arrived:
                    collect(_CHUNKS_ON_THEIR_WAY - 1)
                    under_way.add(senders.submit(deliver, index, chunk))
            collect(0)
        receipt = self._claim(version, digests, None if begun is None else begun.pad)
        return Settled(Outcome.DONE, receipt, len(sent), sum(sent))

    def _claim(self, version: int, digests: list[Digest], pad: bytes | None) -> Receipt:
        public = self._owner.key.public
        claim = ShareStatement(
            self._signed.study_id,
            public.ed25519,
            version,
            tuple(digests),
            public.sealing_key,
            self._seen,
            self._head(),
            pad,
        )
        statement = self._kept(version, claim.sign(self._owner.key))
        acknowledged = self._client.complete_share(self._signed.study_id, statement)
        receipt = self._check_receipt(acknowledged, version, "share", statement.digest)
        self._folder.save_receipt(receipt, acknowledged)
        self._drop_if_arrived()
        return receipt

    def _drop_if_arrived(self) -> None:
        """In a blinded study the secrets stay until it ends, so that no others are ever made."""
        if not self._is_blinded:
            self._folder.drop_share()

    def _kept(self, version: int, made: Statement) -> Statement:
        """The statement to send for this version.

        If a statement for this version was kept, and it differs from `made` at most in the heads that it
        names, the kept statement is returned. Otherwise `made` is saved and returned.
        """
        before = None
        with suppress(IntegrityError):  # a damaged file must not prevent a withdrawal
            before = self._folder.statement(made.kind, version)
        if before is not None and dict(before.body) | _HEADS == dict(made.body) | _HEADS:
            return before
        self._folder.save_statement(version, made)
        return made

    def _check_receipt(self, acknowledged: Statement, version: int, subject: str, sent: Digest) -> Receipt:
        receipt = Receipt.parse(acknowledged)
        said = (receipt.study, receipt.owner, receipt.version, receipt.subject, receipt.statement)
        if said != (self._signed.study_id, self._owner.key.public.party_id, version, subject, sent):
            raise _contradiction("the proxy's receipt is not for the statement that was sent")
        return receipt


def check_open(state: str) -> None:
    """Raises ConflictError unless a study in this state accepts shares."""
    if state != StudyState.OPEN:
        raise ConflictError(
            "study-closed",
            f"the study is {state} and accepts no more shares",
            "ask the data user for a new study",
        )


def _digest_of(values: Values) -> Digest:
    """The digest of a share's values. It never leaves this machine, because it could confirm a guess."""
    content = hashlib.sha256(b"dpdpca/values\x00")
    content.update(values.astype("<i8", copy=False).data)
    return Digest(content.digest())


def worker_count(manifest: Manifest) -> int:
    """How many processes should encrypt; 1 means that this process encrypts alone, because starting others
    would take longer."""
    return max(1, min(core_count(), manifest.figures.ciphertext_count // WORTH_A_WORKER))


def _contradiction(what: str) -> AuthenticationError:
    return AuthenticationError(
        "receipt-contradicts",
        what,
        "keep the receipts on this machine, because they are the proof; ask the proxy's operator and tell"
        " the data user",
    )
