"""What each command of an owner does, apart from its command line. These functions parse no arguments and
print nothing.

The modules in `commands/` parse and print. These modules import this one only when a command runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dpdpca_owner.accounts.approvals import later_rounds
from dpdpca_owner.accounts.bookkeeping import begin_sending, reserve
from dpdpca_owner.accounts.charge import Charge
from dpdpca_owner.accounts.spending import check_data_set, check_own, foresee
from dpdpca_owner.blinding import check_not_recovered
from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.dry_run import DryRun
from dpdpca_owner.extensions import check_new_records
from dpdpca_owner.home import Owner, OwnerHome
from dpdpca_owner.policy import Policy
from dpdpca_owner.projection import (
    SCORES_ONLY,
    Projected,
    Wanted,
    open_components,
    project,
    record_count,
    save_model,
)
from dpdpca_owner.records.contribution import Contribution, read_contribution
from dpdpca_owner.records.source import DataLocation, Reading
from dpdpca_owner.records.summed import SumParts
from dpdpca_owner.rounds import check_earlier_rounds, components_of_lift, lift_before, misfit
from dpdpca_owner.sample_share import check_sample_folder, write_sample
from dpdpca_owner.share_chunks import prepare_randomizers
from dpdpca_owner.study_checks import (
    OpenedStudy,
    ask_software,
    check_names,
    check_participant,
    follow_proxy,
    open_study,
    pin_names,
)
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_owner.upload import Sending, Settled, ShareSender, Watcher, check_open, worker_count
from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    NotFoundError,
    PolicyError,
    UsageError,
)
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.projection import Projection, projection_of
from dpdpca_protocol.result.components import Components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.address import normal_address, parse_address
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.address import StudyAddress, address_note, parse_study_address
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.words import fingerprint_words
from dpdpca_runtime.workers import WorkerProcesses

_ASKING_SECONDS = 20.0
_SENDING_SECONDS = 600.0
"""Sending a share waits long enough for the proxy to restart; a query waits only a short time."""


@dataclass(frozen=True)
class Desk:
    """What the actions of an owner need: its home, its identity, and how it reaches proxies.

    Attributes:
        home: the owner's folder.
        owner: the owner with the key in use; after `for_study`, with the key that it has in the study.
        connect: makes a client for an address. The client signs with the given key and expects the given key
            of the proxy. Tests use another transport here.
        now: the clock.
        key_rules: which moduli are accepted.
        say: receives notes for a person that need no answer.
        sum_parts: sums the parts of large tables, for example on the owner's cluster; None if it has none.
    """

    home: OwnerHome
    owner: Owner
    connect: Callable[[str, IdentityKey, bytes | None, float], ProxyClient]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    key_rules: KeyRules = PRODUCT_KEYS
    say: Callable[[str], None] = lambda text: None
    sum_parts: SumParts | None = None

    def for_study(self, manifest: Manifest) -> "Desk":
        """This desk, with the key that this owner uses in a study."""
        return replace(self, owner=self.home.owner_in(self.owner, manifest))

    @contextmanager
    def client(self, url: str, patience_seconds: float = _ASKING_SECONDS) -> Iterator[ProxyClient]:
        """A client for a proxy. Raises NotFoundError if this owner is not enrolled there."""
        pinned = self.home.pins.proxy(url)
        with self.connect(url, self.owner.key, pinned.identity.ed25519, patience_seconds) as client:
            yield client

    @contextmanager
    def study(
        self, address: StudyAddress, patience_seconds: float = _ASKING_SECONDS
    ) -> Iterator[tuple["Desk", ProxyClient, OpenedStudy]]:
        """Open a study. Yields a desk and a client for the owner's keys in this study, and the study."""
        with self.client(address.proxy, patience_seconds) as client:
            opened = open_study(address, self.home, client, key_rules=self.key_rules, say=self.say)
            desk, proxy = self.for_study(opened.manifest), opened.manifest.proxy.ed25519
            with desk.connect(address.proxy, desk.owner.key, proxy, patience_seconds) as its_client:
                yield desk, its_client, opened


def make_desk(
    home: OwnerHome,
    owner: Owner,
    ca_file: Path | None,
    on_wait: Callable[[str, float], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Desk:
    def connect(url: str, key: IdentityKey, pinned: bytes | None, seconds: float) -> ProxyClient:
        patience = Patience(seconds, on_wait=on_wait)
        return ProxyClient(url, key, pinned, patience=patience, marks=home.marks, ca_file=ca_file)

    return Desk(home, owner, connect, say=say)


@dataclass(frozen=True, slots=True)
class Enrolled:
    """How an enrolment ended."""

    proxy: ProxyCard
    party: str
    was_enrolled: bool


def enrol(
    desk: Desk,
    url: str,
    read_invitation: Callable[[], str],
    accept: Callable[[ProxyCard, bool], bool],
) -> Enrolled:
    """Enrol this owner at a proxy and pin the proxy's key.

    Args:
        desk: this owner.
        url: https://HOST:PORT.
        read_invitation: called only after the proxy's key is accepted.
        accept: receives the proxy's card and whether it is pinned already; returning False stops.

    Raises:
        AuthenticationError: another key is pinned for this address, or the invitation is not valid.
        PolicyError: the key was not accepted; nothing was sent.
    """
    url = str(parse_address(url))
    with desk.connect(url, desk.owner.key, None, _ASKING_SECONDS) as stranger:
        card, statement = stranger.card()
        if (note := address_note(card.url, url)) is not None:
            desk.say(note)
        if url in desk.home.pins.proxy_urls():
            follow_proxy(url, desk.home, stranger, desk.say)
    known = desk.home.pins.check_proxy(url, card)
    if not accept(card, known):
        raise PolicyError("not-accepted", "the proxy's key was not accepted, and nothing was sent")
    party, was_enrolled = desk.owner.key.public.party_id, False
    with desk.connect(url, desk.owner.key, card.identity.ed25519, _ASKING_SECONDS) as client:
        try:
            party = client.enrol("owner", desk.owner.name, read_invitation())
        except ConflictError as error:
            if error.slug != "already-enrolled":
                raise
            was_enrolled = True
    desk.home.pins.pin_proxy(url, statement)
    return Enrolled(card, party.hex(), was_enrolled)


def review(
    desk: Desk,
    address: StudyAddress,
    location: DataLocation | None,
    data_set: str | None = None,
    *,
    strict: bool = False,
    save: Path | None = None,
) -> ConsentSheet:
    """The consent sheet of a study, with a dry run if data is given. None of the data is sent.

    Args:
        desk: this owner.
        address: of the study.
        location: the owner's data, or None.
        data_set: the name that the owner gives to its records, or None.
        strict: stop at a value that its feature does not take.
        save: a new folder for a sample of what would leave, made with throw-away keys; needs data.

    Raises:
        UsageError: `no-data`, `folder-in-use`.
    """
    if save is not None:
        if location is None:
            raise UsageError("no-data", "a sample needs data", "give --data FILE as well")
        check_sample_folder(save)
    with desk.study(address) as (desk, client, opened):
        opened = check_names(opened, desk.home, desk.owner, client)
        opened = ask_software(opened, address.proxy, desk.home, client, desk.say)
    contribution = None
    if location is not None:
        contribution, _ = _read(desk, address, opened.manifest, location, strict)
        if save is not None:
            write_sample(save, opened.signed, contribution, OS_RANDOMNESS, desk.key_rules)
    return _sheet(desk, address, opened, desk.home.policy(), contribution, data_set)


def under_policy(desk: Desk, sheet: ConsentSheet, policy: Policy, data_set: str | None) -> ConsentSheet:
    """The same study under another policy, without a dry run. Nothing is asked and nothing is changed."""
    address = parse_study_address(sheet.address)
    return _sheet(desk.for_study(sheet.manifest), address, sheet.study, policy, None, data_set)


def _read(
    desk: Desk, address: StudyAddress, manifest: Manifest, location: DataLocation, strict: bool
) -> tuple[Contribution, Reading]:
    """The contribution, and how the data was read."""
    key, spool = desk.home.ledger.key(), desk.home.path
    projection = _projection(desk, address, manifest)
    location = _as_joined(desk, manifest.study_id, location)
    contribution = read_contribution(
        location,
        manifest,
        key,
        spool=spool,
        strict=strict,
        sum_parts=desk.sum_parts,
        projection=projection,
    )
    return contribution, location.reading


def _projection(desk: Desk, address: StudyAddress, manifest: Manifest) -> Projection | None:
    """The public rule of a round for many features. For scores, the components of the lift are asked for."""
    if manifest.scores is None:
        return projection_of(manifest)
    lift = lift_before(manifest, desk.home)
    desk, proxy = desk.for_study(lift.manifest), lift.manifest.proxy.ed25519
    with desk.connect(address.proxy, desk.owner.key, proxy, _ASKING_SECONDS) as client:
        found = components_of_lift(manifest, lift, client, desk.owner)
    return projection_of(manifest, found.vectors)


def _as_joined(desk: Desk, study: StudyId, location: DataLocation) -> DataLocation:
    """`location`, read as when this owner joined the study, where the owner says nothing else.

    So a join that is repeated without its options makes the same share again.
    """
    joined = desk.home.study(study).reading()
    reading = location.reading.or_else(joined)
    if reading != location.reading:
        desk.say(f"the data is read as when you joined this study: {reading}")
    return replace(location, reading=reading)


def _sheet(
    desk: Desk,
    address: StudyAddress,
    opened: OpenedStudy,
    policy: Policy,
    contribution: Contribution | None,
    data_set: str | None,
) -> ConsentSheet:
    named = data_set or policy.dataset
    fingerprint = contribution.content.fingerprint if contribution else None
    charge = _charge(desk, opened)
    ledger = desk.home.ledger.read()
    check_own(ledger, desk.owner.parties)
    chain = desk.home.approvals.chain(opened.manifest, ledger)
    spending = foresee(ledger, charge, policy.budget, fingerprint, named)
    if chain is not None:
        spending = replace(spending, later=later_rounds(opened.manifest, chain))
        chain = chain if spending.placed is None else chain.on(spending.placed)
    judged = policy.judge(opened.manifest, desk.owner.key.public.ed25519, opened.compared, opened.software)
    dry_run = None
    if contribution is not None:
        dry_run = DryRun(
            contribution.columns, contribution.report, contribution.notes, contribution.suspected_units
        )
    unfit = misfit(opened.manifest, desk.home)
    return ConsentSheet(opened, desk.owner, str(address), judged, spending, dry_run, chain, unfit)


def _charge(desk: Desk, opened: OpenedStudy) -> Charge:
    return Charge.of(opened.manifest, desk.owner.key.public.party_id)


@dataclass(frozen=True, slots=True)
class Ahead:
    """How many encryptions of 0 `work_ahead` has made, out of the `total` that a share needs."""

    made: int
    total: int


def work_ahead(desk: Desk, address: StudyAddress, on_made: Callable[[int], None]) -> Ahead:
    """Do the slow part of encrypting a share, which needs no data. Nothing is sent and nothing is spent.

    Raises:
        NotAllowedError: the study names its owners, and this owner is not among them.
        ConflictError: the study accepts no shares.
    """
    with desk.study(address) as (desk, client, opened):
        check_participant(opened.manifest, desk.owner)
        check_open(client.study(address.study).state)
    folder, workers = desk.home.study(address.study), worker_count(opened.manifest)
    with folder.locked(), WorkerProcesses(workers) if workers > 1 else nullcontext() as executor:
        made = prepare_randomizers(opened.signed, folder, OS_RANDOMNESS, executor, workers, on_made)
    return Ahead(made, opened.manifest.figures.ciphertext_count)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A join that still needs consent.

    Attributes:
        sheet: what the owner is asked to consent to.
        contribution: the encoded data.
        data_set: the name that the owner gives to its records, or None.
        reading: how the data was read.
    """

    sheet: ConsentSheet
    contribution: Contribution
    data_set: str | None
    reading: Reading

    @property
    def manifest(self) -> Manifest:
        return self.sheet.manifest

    @property
    def is_approved(self) -> bool:
        """Whether consent was already given, with an earlier round of the study's chain."""
        return self.sheet.chain is not None and self.sheet.chain.is_covered


def prepare_join(
    desk: Desk,
    address: StudyAddress,
    location: DataLocation,
    data_set: str | None = None,
    *,
    strict: bool = False,
) -> Prepared:
    """Do everything that a join needs except consent: verify the study, read the data and encode it.

    Nothing is changed and nothing is sent.

    Raises:
        PolicyError: the study violates this owner's policy, exceeds its budget, or exceeds what it approved
            for the rounds of a chain; `wrong-round`, `recovered-ledger`, `participant-key-given-up`.
        ConflictError: `no-components-yet`, the study asks for scores on components that are not here yet.
        NotAllowedError: the study names its owners, and this owner is not among them; or it asks for scores,
            and this owner was not in the lift.
        AuthenticationError: a key in the manifest is enrolled under another name, or was not signed.
        CryptographicError: `unfit-sealing-key`, this owner's keys come from an earlier version.
        InputError: the columns of the data do not fit the study; if `strict`, also a value that does not fit.
            If not `strict`, no value of a record prevents the share.
    """
    with desk.study(address) as (desk, client, opened):
        _ = desk.owner.key.opening_key  # raises if there is no key to which the components could be sealed
        check_participant(opened.manifest, desk.owner)
        opened = check_names(opened, desk.home, desk.owner, client)
        opened = ask_software(opened, address.proxy, desk.home, client, desk.say)
    policy = desk.home.policy()
    policy.check(opened.manifest, desk.owner.key.public.ed25519, opened.compared, opened.software)
    check_earlier_rounds(opened.manifest, desk.home)
    if opened.manifest.is_blinded:
        check_not_recovered(desk.home.ledger.read(), desk.owner)
    named = data_set or policy.dataset
    if named is not None:
        check_data_set(named)
    contribution, reading = _read(desk, address, opened.manifest, location, strict)
    sheet = _sheet(desk, address, opened, policy, contribution, named)
    if sheet.chain is not None:
        sheet.chain.check()
    sheet.spending.check()
    placed = sheet.spending.placed
    check_new_records(
        opened.manifest, desk.home, desk.home.ledger.read(), None if placed is None else placed.data_set
    )
    return Prepared(sheet, contribution, named, reading)


def join(desk: Desk, address: StudyAddress, prepared: Prepared, watcher: Watcher) -> Settled:
    """Send the share that the owner consented to. An interrupted run is resumed where it stopped.

    The cost is written to the ledger on disk before any part of the share is made. At the end, the proxy's
    receipt is written to the ledger.

    Raises:
        PolicyError: another join has meanwhile spent the budget that this one needs; `policy-software`, the
            proxy now runs other software than the policy accepts; or `study-declined`.
        UnavailableError: the ledger cannot be written; nothing was sent.
    """
    opened, ledger = prepared.sheet.study, desk.home.ledger
    desk, folder = desk.for_study(opened.manifest), desk.home.study(address.study)
    key, proxy = desk.owner.key, opened.manifest.proxy.ed25519

    def pay() -> None:
        policy = desk.home.policy()  # read again: it may have changed since the owner consented
        # The proxy may have been updated too.
        software = ask_software(opened, address.proxy, desk.home, client, desk.say).software
        policy.check(opened.manifest, desk.owner.key.public.ed25519, opened.compared, software)
        with ledger.writing(desk.now()) as book:
            check_own(book.ledger, desk.owner.parties)
            if blinded:
                check_not_recovered(book.ledger, desk.owner)
            charge, content = _charge(desk, opened), prepared.contribution.content
            rounds = opened.manifest.pre_studies if prepared.is_approved else ()
            paid = reserve(book.ledger, charge, content, prepared.data_set, policy.budget, book.time, rounds)
            desk.home.approvals.approve(opened.manifest, book.ledger)
            book.record(paid)
        folder.save_reading(prepared.reading)

    def book_sending(values: Digest) -> None:
        with ledger.writing(desk.now()) as book:
            book.record(begin_sending(book.ledger, address.study, values, book.time))

    blinded = opened.manifest.is_blinded
    with folder.locked(), desk.connect(address.proxy, key, proxy, _SENDING_SECONDS) as client:
        folder.check_not_declined()
        pin_names(opened, desk.home, desk.owner, time_text(desk.now()))
        folder.save_manifest(opened.signed.statement)
        folder.save_owner_key(key.public.ed25519)
        sender = ShareSender(desk.owner, client, opened.signed, folder, lambda: ledger.read().last)
        sending = Sending(ledger.read().sent.get(address.study), book_sending) if blinded else None
        settled = sender.send(prepared.contribution, pay, watcher, sending)
        book_receipt(desk, folder)
        return settled


def withdraw(desk: Desk, address: StudyAddress) -> Settled:
    """Withdraw the share. Its cost stays booked until the data user has signed that it does without the share
    (`reports.status`)."""
    folder = desk.home.study(address.study)
    with desk.study(address) as (desk, client, opened):
        check_participant(opened.manifest, desk.owner)
        head = desk.home.ledger.read().last  # a damaged ledger must stop this before anything is withdrawn
        with folder.locked():
            settled = ShareSender(desk.owner, client, opened.signed, folder, lambda: head).withdraw()
            book_receipt(desk, folder)
            return settled


def book_receipt(desk: Desk, folder: StudyFolder) -> None:
    """Book the newest receipt of a study in the ledger."""
    desk.home.ledger.settle(folder.last_receipt_statement(), desk.now())


def joined_at(folder: StudyFolder) -> StudyAddress:
    """The address of a joined study. Raises IntegrityError if the file with the plan is damaged."""
    plan = folder.need_plan()
    return StudyAddress(normal_address(plan.proxy), folder.study)


def trust(desk: Desk, address: StudyAddress, name: str, words: str) -> str:
    """Note that this owner has compared the words of another owner, which a study names.

    Args:
        desk: this owner.
        address: of the study.
        name: of the other owner, as the study names it.
        words: the words of its key, as the other owner told them.

    Returns:
        The words.

    Raises:
        NotFoundError: `not-a-participant`, the study names no such owner.
        AuthenticationError: `words-differ`.
    """
    with desk.study(address) as (desk, client, opened):
        opened = check_names(opened, desk.home, desk.owner, client)
    others = [each for each in opened.manifest.participants if each.name == name]
    if not others:
        raise NotFoundError(
            "not-a-participant", f"the study names no owner '{name}'", "see: dpdpca owner review"
        )
    shown = fingerprint_words(others[0].ed25519)
    if " ".join(words.split()) != shown:
        raise AuthenticationError(
            "words-differ",
            f"the key that the study names for '{name}' has other words: {shown}",
            "do not join; tell the data user and this owner",
        )
    now = time_text(desk.now())
    desk.home.pins.trust_participant(opened.proxy.identity.ed25519, others[0], now)
    return shown


def components(desk: Desk, address: StudyAddress, out: Path | None = None) -> tuple[Components, Manifest]:
    """The published components of a study, and its manifest.

    The components are opened with this owner's key, and saved to `out` if it is given.
    """
    found, manifest = _published(desk, address)
    if out is not None:
        save_model(found, record_count(found, manifest), out)
    return found, manifest


def transform(
    desk: Desk, address: StudyAddress, location: DataLocation, out: Path, wanted: Wanted = SCORES_ONLY
) -> Projected:
    """Write the scores of this owner's records; only the request for components leaves the machine."""
    found, manifest = _published(desk, address)
    return project(_as_joined(desk, manifest.study_id, location), manifest, found, out, wanted)


def _published(desk: Desk, address: StudyAddress) -> tuple[Components, Manifest]:
    with desk.study(address) as (desk, client, opened):
        return open_components(client.components(address.study), opened.signed, desk.owner), opened.manifest
