"""An owner on a machine without a network: its requests go into a folder, and the answers come from there.

Everything else is as with a connection: the same checks, the same ledger, the same order. Where an answer is
missing, `NotCarriedError` says that the folder must be sent.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx

from dpdpca_owner.actions import Desk, book_receipt
from dpdpca_owner.home import Owner, OwnerHome
from dpdpca_owner.package import SIGNED_HEADERS, CarriedRequest, Package
from dpdpca_owner.study_checks import follow_proxy
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_owner.upload import ShareSender
from dpdpca_protocol.errors import AuthenticationError, ConflictError, UnavailableError
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules
from dpdpca_protocol.wire.address import normal_address
from dpdpca_protocol.wire.canonical import read_object
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.http import JSON_MEDIA_TYPE, NONCE_BYTES
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.marks import SeenMarks
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.http.signature import RequestSigner
from dpdpca_runtime.own_files import load, own_file, save

_OF_ANYBODY: Final = ("/v1/proxy", "/v1/proxy/rotations")
_ENROLMENT: Final = ("POST", "/v1/parties")
"""Requests that need no signature."""

_READING_TIME = timedelta(days=366)
"""How long the proxy accepts a request that only reads. The study's end is not known before its terms are."""


class NotCarriedError(UnavailableError):
    """The folder does not contain the proxy's answer yet.

    Attributes:
        folder: the folder to be sent.
        has_request: whether the folder now contains a share, a withdrawal or an enrolment.
    """

    def __init__(self, folder: Path, has_request: bool) -> None:
        super().__init__(
            "not-carried",
            f"{folder} does not contain the proxy's answer yet",
            f"carry it to a machine with a network, run there: dpdpca owner send {folder.name}; then carry it"
            " back and repeat this command",
        )
        self.folder = folder
        self.has_request = has_request


@contextmanager
def carrying(
    home: OwnerHome,
    owner: Owner,
    path: Path,
    url: str,
    study: StudyId | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    key_rules: KeyRules = PRODUCT_KEYS,
) -> Iterator[Desk]:
    """A desk whose requests go into the folder at `path`. For a study, the folder first asks for all that is
    needed to join it.

    At the end, the machine remembers how new the answers were that it has read. Older ones are from then on
    taken as none, so nobody can put an older folder in the place of a newer one.

    Args:
        home, owner: of the machine with the data.
        path: the folder that is carried; made if it is missing.
        url: https://HOST:PORT of the proxy.
        study: the study that the folder is opened for, or None for an enrolment.
        say, now, key_rules: see `Desk`.

    Raises:
        NotCarriedError: the folder must be sent.
        ConflictError: `folder-in-use`, `package-of-another-owner`, `package-of-another-version`.
        IntegrityError: `package-altered`.
        AuthenticationError: the proxy has another key than the pinned one, or has not signed an answer.
    """
    url = normal_address(url)
    folder = _open_folder(path, url, owner, home)
    heard = _Heard(home.path / "carried" / f"{Digest.of(url.encode()).hex()[:32]}.json")
    marks, receipt = None, ""
    if study is not None:
        marks = SeenMarks(home.path / "carried" / f"{study.hex()}.json", home.pins.first_key)
        if (encoded := home.study(study).last_receipt_statement()) is not None:
            receipt = str(read_object(encoded)["body"]["time"])
    oldest = max(heard.read(), receipt)

    def connect(_url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
        transport = FolderTransport(folder, key, oldest, now)
        return ProxyClient(url, key, pinned, transport, patience=Patience(0), marks=marks, signs=False)

    desk = Desk(home, owner, connect, now, key_rules, say)
    try:
        if study is not None:
            FolderTransport(folder, owner.key, oldest, now).want(study)
            with connect(url, owner.key, None, 0) as stranger:
                follow_proxy(url, home, stranger, say)
            folder.proxy = home.pins.proxy(url).identity.ed25519
        yield desk
    finally:
        heard.save(folder.heard)


def take_receipt(desk: Desk, address: StudyAddress) -> Receipt | None:
    """Book the receipt of a share that was carried, if the folder contains one that is not booked yet.

    Args:
        desk: made by `carrying`.
        address: of the study.
    """
    folder = desk.home.study(address.study)
    if not folder.is_joined:
        return None
    with desk.study(address) as (desk, client, opened), folder.locked():
        before = folder.last_receipt(opened.manifest.proxy.ed25519)
        ledger = desk.home.ledger
        sender = ShareSender(desk.owner, client, opened.signed, folder, lambda: ledger.read().last)
        receipt = sender.fetch_receipt()
        book_receipt(desk, folder)
    return None if receipt == before else receipt


def check_delivered(folder: StudyFolder) -> None:
    """Check that there is a share to withdraw. Without a network, only a receipt tells.

    Raises:
        ConflictError: `not-delivered`.
    """
    if folder.last_receipt_statement() is None:
        raise ConflictError(
            "not-delivered",
            "this machine has no receipt for a share, so there is nothing to withdraw yet",
            "if a share is on its way, send its folder and repeat this command. Or destroy all copies of the"
            " folder, so that nobody can send it",
        )


class CarriedFolder:
    """The requests and answers in a folder, on the machine with the data. It is thread-safe.

    Attributes:
        package: what is in the folder and listed.
        proxy: the raw Ed25519 key that the proxy signs with; None before it is known.
        heard: the time of the oldest answer that was read; empty if none was.

    `accepted` gives the digests of software that the owner's policy accepts. Only a folder with a share asks.
    """

    def __init__(
        self,
        package: Package,
        signing: IdentityKey,
        proxy: bytes | None,
        former: frozenset[bytes],
        accepted: Callable[[], tuple[str, ...]],
    ) -> None:
        self.package = package
        self.proxy = proxy
        self.heard = ""
        self._signing = signing
        self._former = former
        self._accepted = accepted
        self._lock = threading.Lock()
        self._staged: list[CarriedRequest] = []

    def find(
        self, method: str, target: str, keyid: PartyId | None, body: bytes | None
    ) -> CarriedRequest | None:
        """The request of this folder, or None.

        The body of a chunk is not compared. One version of a share has the same chunk whenever it is made.
        Only its seal differs (`ShareSender`).
        """
        digest = None if body is None or method == "PUT" else Digest.of(body)
        with self._lock:
            for each in (*self.package.requests, *self._staged):
                is_same = (each.method, each.target, each.keyid) == (method, target, keyid)
                if is_same and digest in (None, each.body) and self.package.has_body(each):
                    return each
        return None

    def closes_at(self, target: str) -> datetime:
        """The end of the study of a request that writes. The terms of the study were verified before."""
        path = f"{target.partition('/share')[0]}/manifest"
        answers = (self.answer(each, "") for each in self.package.requests if each.target == path)
        manifest = next(answer for answer in answers if answer is not None)
        return read_time(str(read_object(manifest)["body"]["closes_at"]), "closes_at")

    def answer(self, request: CarriedRequest, oldest: str) -> bytes | None:
        """The proxy's answer, or None if there is none, or an older one than `oldest`.

        Raises:
            AuthenticationError, MessageError, IntegrityError: like `Package.answer`.
        """
        try:
            answer = self.package.answer(request, self.proxy)
        except AuthenticationError:
            if any(self.package.has_answer(request, key) for key in self._former):
                return None  # the proxy has replaced its key since, and answers anew
            raise
        if answer is None:
            return None
        if answer.time is None or not request.reads:
            return answer.content
        if answer.time < oldest:
            return None
        with self._lock:
            self.heard = min(self.heard or answer.time, answer.time)
        return answer.content

    def stage(self, request: CarriedRequest, body: bytes | None) -> None:
        """Put a request into the folder. It is listed, and so sent, from the next `publish` on."""
        if body is not None:
            self.package.save_body(request, body)
        with self._lock:
            self._staged.append(request)

    def publish(self, instead_of: str | None = None, keep: tuple[CarriedRequest, ...] = ()) -> None:
        """List all staged requests: questions, then chunks, then what completes or withdraws a share.

        Args:
            instead_of: the path of a study whose earlier requests that write are no longer sent.
            keep: which of these stay.
        """
        with self._lock:
            package = self.package
            listed = [
                each
                for each in package.requests
                if each.reads or instead_of is None or not each.target.startswith(instead_of) or each in keep
            ]
            listed = sorted([*listed, *self._staged], key=_place)
            software = self._accepted() if any(each.is_of_share for each in listed) else ()
            self.package = Package(package.path, package.url, self.proxy, listed, software)
            self.package.save(self._signing)
            self._staged.clear()
            self.package.clear()


class FolderTransport(httpx.BaseTransport):
    """Answers requests from a folder, and puts those that have no answer into it.

    Chunks are accepted without an answer, because a share is complete only with the request that completes
    it. That request lists all of them at once, so a folder contains a whole share or nothing of it.

    Args:
        folder: the folder.
        key: signs the requests.
        oldest: answers to questions from before this time are taken as none.
        now: the clock.
    """

    def __init__(
        self, folder: CarriedFolder, key: IdentityKey, oldest: str, now: Callable[[], datetime]
    ) -> None:
        self._folder = folder
        self._key = key
        self._signer = RequestSigner(key)
        self._oldest = oldest
        self._now = now
        self._chunks: list[CarriedRequest] = []

    def want(self, study: StudyId) -> None:
        """Ask for all that is needed to join a study and to follow it, unless the folder asks already."""
        path = f"/v1/studies/{study.hex()}"
        named = (*_OF_ANYBODY, "/v1/parties", "/v1/parties?statements=true", "/v1/parties/rotations")
        rest = (f"{path}/manifest", path, f"{path}/transcript", f"{path}/share", f"{path}/components")
        new = [target for target in (*named, *rest) if self._find("GET", target, None) is None]
        for target in new:
            self._sign(httpx.Request("GET", f"{self._folder.package.url}{target}"), None)
        if new:
            self._folder.publish()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = request.read() or None
        target = request.url.raw_path.decode("ascii")
        found = self._find(request.method, target, body) or self._sign(request, body)
        if (answer := self._folder.answer(found, self._oldest)) is not None:
            return httpx.Response(200, content=answer, headers={"content-type": JSON_MEDIA_TYPE})
        if request.method == "PUT":
            self._chunks.append(found)
            return httpx.Response(204)
        if found.reads:
            self._folder.publish()
        else:
            self._folder.publish(target.partition("/share")[0], (*self._chunks, found))
        raise NotCarriedError(self._folder.package.path, not found.reads)

    def _find(self, method: str, target: str, body: bytes | None) -> CarriedRequest | None:
        return self._folder.find(method, target, self._keyid(method, target), body)

    def _keyid(self, method: str, target: str) -> PartyId | None:
        is_open = target in _OF_ANYBODY or (method, target) == _ENROLMENT
        return None if is_open else self._key.public.party_id

    def _sign(self, request: httpx.Request, body: bytes | None) -> CarriedRequest:
        target = request.url.raw_path.decode("ascii")
        keyid, name = self._keyid(request.method, target), secrets.token_hex(NONCE_BYTES)
        if keyid is not None:
            now, reads = self._now(), request.method == "GET"
            until = now + _READING_TIME if reads else self._folder.closes_at(target)
            name = self._signer.sign(request, body, now, carried_until=until)
        carried = CarriedRequest(
            name,
            request.method,
            target,
            keyid,
            request.headers.get("content-type") if body is not None else None,
            {header: request.headers[header] for header in SIGNED_HEADERS & set(request.headers)},
            None if body is None else Digest.of(body),
            len(body or b""),
        )
        self._folder.stage(carried, body)
        return carried


class _Heard:
    """The time of the oldest answer that was read last, on the disk of the machine with the data.

    So whoever carries the folder cannot put back older answers.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str:
        if not self._path.exists():
            return ""
        heard = load(self._path, "heard")["heard"]
        with own_file(self._path):
            read_time(heard, "heard")
        return str(heard)

    def save(self, heard: str) -> None:
        if heard > self.read():
            save(self._path, {"heard": heard})


def _open_folder(path: Path, url: str, owner: Owner, home: OwnerHome) -> CarriedFolder:
    """The folder at `path`, or a new one for the proxy at `url`."""
    is_known = url in home.pins.proxy_urls()
    proxy, *former = [key.ed25519 for key in home.pins.proxy_identities(url)] if is_known else [None]
    if Package.exists(path):
        keys = (owner.key, *owner.former)
        package = Package.load(path, [key.public.ed25519 for key in keys])
        if normal_address(package.url) != url:
            raise ConflictError(
                "folder-in-use", f"{path} carries requests for {package.url}", "name another folder"
            )
        package.clear()
    elif path.exists() and not (path.is_dir() and _is_fresh(path)):
        raise ConflictError("folder-in-use", f"{path} exists and is not empty", "name a new folder")
    else:
        package = Package(path, url, proxy, ())
    earlier = frozenset(each for each in former if each is not None)
    return CarriedFolder(package, owner.key, proxy, earlier, lambda: home.policy().software)


def _place(request: CarriedRequest) -> int:
    return 0 if request.reads else 1 if request.method == "PUT" else 2


def _is_fresh(path: Path) -> bool:
    """Whether a folder is empty but for what an interrupted first command left there."""
    return {each.name for each in path.iterdir() if not each.name.startswith(".")} <= {
        "README.txt",
        "from-proxy",
        "to-proxy",
    }
