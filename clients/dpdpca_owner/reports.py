"""The status of this owner's studies, from the proxy or from what was kept on this machine."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dpdpca_owner.accounts.bookkeeping import Ending, charge_again
from dpdpca_owner.accounts.charge import Spend
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.actions import Desk, book_receipt, joined_at
from dpdpca_owner.inclusion import (
    CohortHoldsTooMuchError,
    Inclusion,
    check_ending,
    check_extends,
    check_inclusion,
)
from dpdpca_owner.policy import PolicyLine
from dpdpca_owner.study_checks import RefusedTermsError, read_terms, with_list
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.errors import (
    DpdpcaError,
    IntegrityError,
    NotFoundError,
    PolicyError,
    UnavailableError,
    UsageError,
)
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.messages.software import told_software
from dpdpca_protocol.messages.study_messages import StudyMark
from dpdpca_protocol.messages.transcript import FIRST, Event
from dpdpca_protocol.study import RELEASED_STATES, TERMINAL_STATES, StudyState
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import named_head, verify_statement
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.answers import StudyFacts

_SILENT = frozenset({"unreachable", "no-answer"})


@dataclass(frozen=True, slots=True)
class Report:
    """The status of one study and of this owner's share in it.

    Attributes:
        spend: the ledger's record of the study, or None.
        is_ledger_whole: whether the ledger still contains the entry that the last acknowledged statement
            names as its newest; None if the statement names none or cannot be read.
        log: the newest head of the proxy's log, as the proxy signed it; None offline.
        transcript: the digest of the newest event of the study.
        software: whether the policy accepts the software that made the release; None without a release.
    """

    address: StudyAddress
    facts: StudyFacts
    inclusion: Inclusion
    spend: Spend | None
    is_ledger_whole: bool | None
    log: StudyMark | None
    transcript: Digest
    software: PolicyLine | None


@dataclass(frozen=True, slots=True)
class Unread:
    """A joined study whose status could not be read.

    Attributes:
        error: why, and what to do.
        spend: the ledger's record of the study, or None.
    """

    study: StudyId
    error: DpdpcaError
    spend: Spend | None

    @property
    def is_of_another_version(self) -> bool:
        """Whether this version refuses the study's terms. If so, no other fault of the study is known."""
        return isinstance(self.error, RefusedTermsError)


def all_statuses(desk: Desk, ask: Callable[[Desk, StudyAddress], Report]) -> list[Report | Unread]:
    """The statuses of all joined studies. A study that cannot be read does not prevent reports on the others.

    A proxy that cannot be reached is asked only once, because each attempt takes a while.

    Args:
        desk: this owner.
        ask: `status` or `status_offline`.

    Raises:
        IntegrityError: the ledger is refused.
    """
    told: list[Report | Unread] = []
    silent: dict[str, UnavailableError] = {}
    for folder in desk.home.joined():
        ledger = desk.home.ledger.read()
        try:
            told.append(_ask_unless_silent(desk, joined_at(folder), ask, silent))
        except DpdpcaError as error:
            told.append(Unread(folder.study, error, ledger.spend(folder.study)))
    return told


def _ask_unless_silent(
    desk: Desk,
    address: StudyAddress,
    ask: Callable[[Desk, StudyAddress], Report],
    silent: dict[str, UnavailableError],
) -> Report:
    if address.proxy in silent:
        raise silent[address.proxy]
    try:
        return ask(desk, address)
    except UnavailableError as error:
        if error.slug in _SILENT:
            silent[address.proxy] = error
        raise


def status(desk: Desk, address: StudyAddress) -> Report:
    """The status of a study, as the proxy reports it. What the proxy has signed is booked if the ledger lacks
    it.

    Raises:
        AuthenticationError: the proxy contradicts what it signed for this owner.
    """
    folder, ledger = desk.home.study(address.study), desk.home.ledger
    with desk.client(address.proxy) as client:
        encoded = folder.manifest() or client.manifest(address.study)
        manifest = read_terms(with_list(encoded, desk.home, client), address, desk.home)
    desk, pinned = desk.for_study(manifest), manifest.proxy.ed25519
    receipt = folder.last_receipt(pinned)
    with desk.client(address.proxy) as client:
        # The order matters: for an open study the facts are newer, otherwise the transcript is newer.
        history = client.history(address.study)
        facts = client.study(address.study)
        if facts.state != StudyState.OPEN:
            history = client.history(address.study)
    owner = desk.owner.key.public.party_id
    try:
        inclusion = check_inclusion(address.study, owner, pinned, facts, history.events, receipt)
    except CohortHoldsTooMuchError:
        # The share goes into the release nevertheless, so its cost is booked again.
        with ledger.writing(desk.now()) as book:
            book.record(charge_again(book.ledger, address.study, book.time))
        raise
    user = manifest.user.ed25519
    check_ending(history, inclusion.events, user)
    if receipt is not None:
        before = folder.seen()
        check_extends(before[1] if before else (), history.events)
        folder.save_seen(facts.to_body(), history.events)
    book_receipt(desk, folder)
    if facts.state in TERMINAL_STATES | RELEASED_STATES:
        folder.drop_share()
    told = Ending(
        address.study,
        user,
        history.events,
        history.cancel,
        history.opened,
        facts.cohort_members,
        folder.last_receipt_statement(),
    )
    booked = ledger.refund(told, desk.now())
    mark = None if facts.mark is None else StudyMark.verify(facts.mark, address.study, pinned)
    return _report(desk, address, facts, inclusion, booked, folder, mark, history.events)


def status_offline(desk: Desk, address: StudyAddress) -> Report:
    """Like `status`, but from the proxy's last answer and transcript, which `status` kept on this machine.

    Raises:
        NotFoundError: nothing was kept about this study.
        AuthenticationError: the proxy's signed statements contradict each other.
    """
    folder = desk.home.study(address.study)
    manifest = folder.manifest()
    terms = None if manifest is None else read_terms(manifest, address, desk.home)
    seen = folder.seen()
    if terms is None or seen is None:
        raise NotFoundError(
            "not-found",
            "this machine keeps nothing that the proxy has signed about this study",
            f"run: dpdpca owner status {address}",
        )
    desk, pinned = desk.for_study(terms), terms.proxy.ed25519
    facts, owner = StudyFacts.parse(seen[0]), desk.owner.key.public.party_id
    receipt = folder.last_receipt(pinned)
    inclusion = check_inclusion(address.study, owner, pinned, facts, seen[1], receipt)
    return _report(desk, address, facts, inclusion, desk.home.ledger.read(), folder, None, seen[1])


def _report(
    desk: Desk,
    address: StudyAddress,
    facts: StudyFacts,
    inclusion: Inclusion,
    ledger: Ledger,
    folder: StudyFolder,
    log: StudyMark | None,
    transcript: Sequence[bytes],
) -> Report:
    head = _head_in(folder, inclusion.receipt)
    whole = None if head is None else any(entry.digest == head for entry in ledger.entries)
    newest = verify_statement("event", transcript[-1]).digest if transcript else FIRST
    spend, software = ledger.spend(address.study), _software_of(desk, inclusion.events)
    return Report(address, facts, inclusion, spend, whole, log, newest, software)


def _software_of(desk: Desk, events: Sequence[Event]) -> PolicyLine | None:
    """What the policy says of the software that made the release, if there is a release that names one."""
    for event in events:
        if event.kind == "release" and (software := told_software(event.detail)) is not None:
            with suppress(UsageError, PolicyError):  # a broken policy stops joins, not reports
                return desk.home.policy().judge_software(software, "the release was made by")
    return None


def _head_in(folder: StudyFolder, receipt: Receipt | None) -> Digest | None:
    """The newest ledger entry that the acknowledged statement names, if the statement can be read."""
    with suppress(IntegrityError):
        signed = folder.statement(receipt.subject, receipt.version) if receipt else None
        if receipt and signed and signed.digest == receipt.statement:
            return named_head(signed.body)
    return None
