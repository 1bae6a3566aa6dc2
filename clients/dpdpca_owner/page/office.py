"""What all views of the page use: this owner's desk, its agent, and the requests that were read last."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from starlette.requests import Request

from dpdpca_owner.actions import Desk, review
from dpdpca_owner.agent import Place
from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.home import Owner
from dpdpca_owner.inbox import Inbox, read_inbox
from dpdpca_owner.page.activity import Activity
from dpdpca_owner.page.dry_runs import DryRuns
from dpdpca_owner.sources import RegisteredSource
from dpdpca_protocol.errors import MessageError, NotFoundError
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient

_PATIENCE_SECONDS = 4.0
_FRESH_SECONDS = 10.0


@dataclass
class Office:
    """Everything that a view may read or do.

    Attributes:
        own_desk: this owner. It shares nothing but files with the agent's desk.
        environment: may hold a database URL.
        activity: of the agent.
        owner: this owner with its present keys, which `dpdpca owner rotate` may replace.
        problems: why the agent cannot go on with a study now.
        wake: makes the agent look at once.
    """

    own_desk: Desk
    environment: Mapping[str, str]
    activity: Activity
    owner: Callable[[], Owner]
    problems: Mapping[Place, str] = field(default_factory=dict)
    wake: Callable[[], None] = lambda: None
    dry_runs: DryRuns = field(default_factory=DryRuns)
    _inbox: tuple[datetime, Inbox] | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    @property
    def desk(self) -> Desk:
        """This owner's desk, for somebody who waits before a browser."""
        return replace(_impatient(self.own_desk), owner=self.owner())

    def inbox(self) -> tuple[datetime, Inbox]:
        """What asks for this owner, and when it was read: a few seconds ago at most."""
        with self._reading:
            now = self.desk.now()
            if self._inbox is None or abs((now - self._inbox[0]).total_seconds()) > _FRESH_SECONDS:
                self._inbox = now, read_inbox(self.desk)
            return self._inbox

    def forget_inbox(self) -> None:
        """Read the requests again next time, because something has changed here."""
        self._inbox = None

    def address(self, proxy: str, study: str) -> StudyAddress:
        """The address of a study in our paths. Raises NotFoundError `not-found`."""
        for url in self.desk.home.pins.proxy_urls():
            if proxy_name(url) == proxy:
                try:
                    return StudyAddress(url, StudyId.parse(study))
                except MessageError:
                    break
        raise NotFoundError("not-found", "there is no study of this name here", "go back to the requests")

    def sources(self) -> list[RegisteredSource]:
        return self.desk.home.sources.all()

    def data_set_of(self, source: RegisteredSource) -> str:
        return source.counts_in(self.desk.home.policy())

    def sheet(self, address: StudyAddress, source: RegisteredSource | None) -> ConsentSheet:
        """The consent sheet for the data set of `source`, without a dry run. Reads no records."""
        return review(self.desk, address, None, None if source is None else self.data_set_of(source))

    def read_records(self, address: StudyAddress, source: RegisteredSource) -> ConsentSheet:
        """The consent sheet with a dry run on the records of `source`. Sends nothing."""
        location = source.location(self.environment)
        return review(self.desk, address, location, self.data_set_of(source))


def asked_for(office: Office, request: Request) -> StudyAddress:
    """The study in the path of a request. Raises NotFoundError `not-found`."""
    return office.address(request.path_params["proxy"], request.path_params["study"])


def proxy_name(url: str) -> str:
    """A proxy in our paths: it must not hold the address, which has slashes."""
    return Digest.of(url.encode()).hex()[:16]


def path_of(address: StudyAddress) -> str:
    """A study in our paths."""
    return f"{proxy_name(address.proxy)}/{address.study.hex()}"


def _impatient(desk: Desk) -> Desk:
    connect = desk.connect

    def connect_soon(url: str, key: IdentityKey, pinned: bytes | None, seconds: float) -> ProxyClient:
        return connect(url, key, pinned, min(seconds, _PATIENCE_SECONDS))

    return replace(desk, connect=connect_soon)
