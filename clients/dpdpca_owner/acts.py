"""What each command of an owner does, without its command line: values in, values out.

`commands.py` parses and prints; it imports this file only when a command runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dpdpca_http.address import StudyAddress, parse_proxy_url, parse_study_address
from dpdpca_http.answers import StudyFacts
from dpdpca_http.client import ProxyClient
from dpdpca_http.retry import Patience
from dpdpca_owner.consent import ConsentSheet, DryRun
from dpdpca_owner.contribution import Contribution, read_contribution
from dpdpca_owner.home import Owner, OwnerHome
from dpdpca_owner.opening import OpenedStudy, check_names, check_participant, open_study, pin_names
from dpdpca_owner.projection import open_components, project, save_model
from dpdpca_owner.sources import DataLocation
from dpdpca_owner.standing import Standing, judge_standing
from dpdpca_owner.upload import Settled, ShareSender, Watcher
from dpdpca_protocol.components import Components
from dpdpca_protocol.errors import ConflictError, PolicyError
from dpdpca_protocol.fields import time_text
from dpdpca_protocol.manifest import LEAST_MODULUS_BITS, Manifest
from dpdpca_protocol.messages import ProxyCard
from dpdpca_protocol.study import StudyState

_ASKING_SECONDS = 20.0
_SENDING_SECONDS = 600.0
"""A share outlives a restart of the proxy; a question is answered soon or not at all."""


@dataclass(frozen=True)
class Desk:
    """This owner at work: its home, its identity, and how it reaches proxies.

    Attributes:
        connect: makes a client; tests put another transport in here.
        now: the clock.
        least_modulus_bits: lower only in tests.
    """

    home: OwnerHome
    owner: Owner
    connect: Callable[[str, bytes | None, float], ProxyClient]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    least_modulus_bits: int = LEAST_MODULUS_BITS

    @contextmanager
    def client(self, url: str, patience_seconds: float = _ASKING_SECONDS) -> Iterator[ProxyClient]:
        """A client of a proxy that this owner is enrolled at. Raises NotFoundError before that."""
        pinned = self.home.pins.proxy(url)
        with self.connect(url, pinned.identity.ed25519, patience_seconds) as client:
            yield client

    @contextmanager
    def study(
        self, address: StudyAddress, patience_seconds: float = _ASKING_SECONDS
    ) -> Iterator[tuple[ProxyClient, OpenedStudy]]:
        """A study that was opened, with the client that fetched it."""
        with self.client(address.proxy, patience_seconds) as client:
            opened = open_study(address, self.home, client, least_modulus_bits=self.least_modulus_bits)
            yield client, opened


def make_desk(
    home: OwnerHome, owner: Owner, ca_file: Path | None, on_wait: Callable[[str, float], None] | None = None
) -> Desk:
    def connect(url: str, pinned: bytes | None, seconds: float) -> ProxyClient:
        return ProxyClient(
            url, owner.key, pinned, patience=Patience(seconds, on_wait=on_wait), ca_file=ca_file
        )

    return Desk(home, owner, connect)


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
    """Meet a proxy, pin its key, and enrol there as an owner.

    Args:
        desk: this owner.
        url: https://HOST:PORT.
        read_invitation: called only once the proxy's key is accepted.
        accept: shown the proxy's card and whether it is pinned already; False stops.

    Raises:
        AuthenticationError: another key is pinned for this address, or the invitation does not hold.
        PolicyError: the key was not accepted; nothing was sent.
    """
    url = parse_proxy_url(url)
    with desk.connect(url, None, _ASKING_SECONDS) as stranger:
        card, statement = stranger.card()
    known = desk.home.pins.check_proxy(url, card)
    if not accept(card, known):
        raise PolicyError("not-accepted", "the proxy's key was not accepted, and nothing was sent")
    party, was_enrolled = desk.owner.key.public.party_id, False
    with desk.connect(url, card.identity.ed25519, _ASKING_SECONDS) as client:
        try:
            party = client.enrol("owner", desk.owner.name, read_invitation())
        except ConflictError as error:
            if error.slug != "already-enrolled":
                raise
            was_enrolled = True
    desk.home.pins.pin_proxy(url, statement)
    return Enrolled(card, party.hex(), was_enrolled)


def review(desk: Desk, address: StudyAddress, location: DataLocation | None) -> ConsentSheet:
    """The consent sheet of a study, with a dry run where there is data. Sends nothing of it."""
    with desk.study(address) as (client, opened):
        opened = check_names(opened, desk.home, desk.owner, client.parties())
    dry_run = None
    if location is not None:
        contribution = read_contribution(location, opened.manifest)
        dry_run = DryRun(contribution.columns, contribution.report, contribution.notes)
    return ConsentSheet(opened, desk.owner, str(address), dry_run)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A join that waits for consent."""

    sheet: ConsentSheet
    contribution: Contribution

    @property
    def manifest(self) -> Manifest:
        return self.sheet.manifest


def prepare_join(desk: Desk, address: StudyAddress, location: DataLocation) -> Prepared:
    """Everything that a join needs, short of consent: the study verified, the data read and encoded.

    Raises:
        NotAllowedError: the study names its owners, and this one is not among them.
        AuthenticationError: a name in the manifest is not the one of its key.
        InputError: the data does not fit. Nothing was changed and nothing sent.
    """
    with desk.study(address) as (client, opened):
        check_participant(opened.manifest, desk.owner)
        opened = check_names(opened, desk.home, desk.owner, client.parties())
    contribution = read_contribution(location, opened.manifest)
    dry_run = DryRun(contribution.columns, contribution.report, contribution.notes)
    return Prepared(ConsentSheet(opened, desk.owner, str(address), dry_run), contribution)


def join(desk: Desk, address: StudyAddress, prepared: Prepared, watcher: Watcher) -> Settled:
    """Send the share that was consented to; goes on where an earlier run stopped."""
    opened = prepared.sheet.study
    folder = desk.home.study(address.study)
    with folder.locked(), desk.client(address.proxy, _SENDING_SECONDS) as client:
        pin_names(opened, desk.home, desk.owner, time_text(desk.now()))
        folder.save_manifest(opened.signed.statement)
        return ShareSender(desk.owner, client, opened.signed, folder).send(prepared.contribution, watcher)


def withdraw(desk: Desk, address: StudyAddress) -> Settled:
    folder = desk.home.study(address.study)
    with desk.study(address) as (client, opened):
        check_participant(opened.manifest, desk.owner)
        with folder.locked():
            return ShareSender(desk.owner, client, opened.signed, folder).withdraw()


@dataclass(frozen=True, slots=True)
class Report:
    """One study and where this owner's share stands in it."""

    address: StudyAddress
    facts: StudyFacts
    standing: Standing


def status(desk: Desk, address: StudyAddress) -> Report:
    """Raises AuthenticationError where the proxy contradicts what it signed for this owner."""
    pinned = desk.home.pins.proxy(address.proxy).identity.ed25519
    receipt = desk.home.study(address.study).last_receipt(pinned)
    with desk.client(address.proxy) as client:
        # In this order: of an open study the facts are the newer, of any other the transcript is.
        transcript = client.transcript(address.study)
        facts = client.study(address.study)
        if facts.state != StudyState.OPEN:
            transcript = client.transcript(address.study)
    owner = desk.owner.key.public.party_id
    return Report(address, facts, judge_standing(address.study, owner, pinned, facts, transcript, receipt))


def joined(home: OwnerHome) -> list[StudyAddress]:
    """The studies that this owner has sent or tried to send a share to."""
    plans = ((folder, folder.plan()) for folder in home.studies())
    return [parse_study_address(f"{plan.proxy}/{folder.study.hex()}") for folder, plan in plans if plan]


def components(desk: Desk, address: StudyAddress, out: Path | None = None) -> Components:
    """The published components of a study, opened with this owner's key, and saved where `out` says."""
    found, _ = _published(desk, address)
    if out is not None:
        save_model(found, out)
    return found


def transform(desk: Desk, address: StudyAddress, location: DataLocation, out: Path) -> int:
    """Scores of this owner's own records; nothing but the request for the components leaves the machine."""
    found, manifest = _published(desk, address)
    return project(location, manifest, found, out)


def _published(desk: Desk, address: StudyAddress) -> tuple[Components, Manifest]:
    with desk.study(address) as (client, opened):
        return open_components(client.components(address.study), opened.signed, desk.owner), opened.manifest
