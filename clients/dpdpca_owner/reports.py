"""Where this owner's studies stand, asked of the proxy or judged again from what was kept."""

from contextlib import suppress
from dataclasses import dataclass

from dpdpca_owner.accounts.bookkeeping import charge_again
from dpdpca_owner.accounts.charge import Spend
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.actions import Desk, book_receipt
from dpdpca_owner.inclusion import CohortHoldsTooMuchError, Inclusion, check_extends, check_inclusion
from dpdpca_owner.study_checks import read_terms
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.errors import IntegrityError, NotFoundError
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import named_head
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.answers import StudyFacts


@dataclass(frozen=True, slots=True)
class Report:
    """One study and where this owner's share stands in it.

    Attributes:
        spend: what the ledger has of it, or None.
        is_ledger_whole: whether the ledger still holds the head that the last receipted statement names;
            None where it names none or cannot be read.
    """

    address: StudyAddress
    facts: StudyFacts
    inclusion: Inclusion
    spend: Spend | None
    is_ledger_whole: bool | None


def status(desk: Desk, address: StudyAddress) -> Report:
    """Where a study stands; what the proxy has signed of it is booked, as far as it is news to the ledger.

    Raises:
        AuthenticationError: the proxy contradicts what it signed for this owner.
    """
    folder, ledger = desk.home.study(address.study), desk.home.ledger
    with desk.client(address.proxy) as client:
        manifest = read_terms(folder.manifest() or client.manifest(address.study), address, desk.home)
    desk, pinned = desk.for_study(manifest), manifest.proxy.ed25519
    receipt = folder.last_receipt(pinned)
    with desk.client(address.proxy) as client:
        # In this order: of an open study the facts are the newer, of any other the transcript is.
        transcript = client.transcript(address.study)
        facts = client.study(address.study)
        if facts.state != StudyState.OPEN:
            transcript = client.transcript(address.study)
    owner = desk.owner.key.public.party_id
    try:
        inclusion = check_inclusion(address.study, owner, pinned, facts, transcript, receipt)
    except CohortHoldsTooMuchError:
        # It goes into the release all the same.
        with ledger.writing(desk.now()) as book:
            book.record(charge_again(book.ledger, address.study, book.time))
        raise
    if receipt is not None:
        before = folder.seen()
        check_extends(before[1] if before else (), transcript)
        folder.save_seen(facts.to_body(), transcript)
    book_receipt(desk, folder)
    booked = ledger.refund_cancelled(address.study, transcript, desk.now())
    return _report(address, facts, inclusion, booked, folder)


def status_offline(desk: Desk, address: StudyAddress) -> Report:
    """The same from what this machine holds: the last answer and transcript that `status` has kept.

    Raises:
        NotFoundError: nothing was kept of this study.
        AuthenticationError: what the proxy has signed contradicts itself.
    """
    folder = desk.home.study(address.study)
    manifest, seen = folder.manifest(), folder.seen()
    if manifest is None or seen is None:
        raise NotFoundError(
            "not-found",
            "nothing that the proxy has signed of this study is kept here",
            f"run: dpdpca owner status {address}",
        )
    terms = read_terms(manifest, address, desk.home)
    desk, pinned = desk.for_study(terms), terms.proxy.ed25519
    facts, owner = StudyFacts.parse(seen[0]), desk.owner.key.public.party_id
    receipt = folder.last_receipt(pinned)
    inclusion = check_inclusion(address.study, owner, pinned, facts, seen[1], receipt)
    return _report(address, facts, inclusion, desk.home.ledger.read(), folder)


def _report(
    address: StudyAddress, facts: StudyFacts, inclusion: Inclusion, ledger: Ledger, folder: StudyFolder
) -> Report:
    head = _head_in(folder, inclusion.receipt)
    whole = None if head is None else any(entry.digest == head for entry in ledger.entries)
    return Report(address, facts, inclusion, ledger.spend(address.study), whole)


def _head_in(folder: StudyFolder, receipt: Receipt | None) -> Digest | None:
    """The head of the ledger that the receipted statement names, if there is one that can be read."""
    with suppress(IntegrityError):
        signed = folder.statement(receipt.subject, receipt.version) if receipt else None
        if receipt and signed and signed.digest == receipt.statement:
            return named_head(signed.body)
    return None
