"""The folder that carries requests from a machine without a network to a proxy, and the answers back.

The machine with the data signs every request (`carrying`). Another machine, which needs no keys and no data,
sends them and stores the answers (`sending`). Nothing in the folder is secret, except an invitation before an
enrolment. Whoever has the folder can send what the owner has signed, and nothing else. Files of the folder
are written without private modes, because file systems of memory sticks have none. A file with an invitation
is written with one.

| file | content |
|---|---|
| `package.json` | the list of all requests, signed by the owner |
| `to-proxy/NAME.bin` | the body of a request |
| `from-proxy/NAME.bin` | the answer: one line with the proxy's signed `answer` or `null`, then the body |
| `README.txt` | what the folder is, for people |
"""

import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    DpdpcaError,
    IntegrityError,
    MessageError,
    NotFoundError,
)
from dpdpca_protocol.messages.carried import CarriedAnswer
from dpdpca_protocol.messages.software import MOST_SOFTWARE, read_software_digest
from dpdpca_protocol.wire.address import parse_address
from dpdpca_protocol.wire.canonical import parse_canonical
from dpdpca_protocol.wire.fields import malformed, read_list
from dpdpca_protocol.wire.http import (
    CHUNK_MEDIA_TYPE,
    COMPONENTS_LIMIT_BYTES,
    JSON_MEDIA_TYPE,
    NONCE_BYTES,
    STATEMENT_LIMIT_BYTES,
)
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.signing import (
    FORMAT,
    IdentityKey,
    check_members,
    hex_bytes,
    sign_statement,
    verify_statement,
)
from dpdpca_runtime.files import replacing, write_shared

PACKAGE_FORMAT: Final = 1
"""The number of the folder's format. A change raises it."""

_INDEX, _README, _TO_PROXY, _FROM_PROXY = "package.json", "README.txt", "to-proxy", "from-proxy"
_INDEX_LIMIT_BYTES = 16 * 1024 * 1024
_ANSWER_LIMIT_BYTES = COMPONENTS_LIMIT_BYTES + STATEMENT_LIMIT_BYTES
_FILE = re.compile(r"([0-9a-f]{32})\.bin")
_TARGET = re.compile(r"/v1/[0-9a-z/-]+(\?[a-z]+=[0-9a-z]+)?")
_METHODS = frozenset({"DELETE", "GET", "POST", "PUT"})
_MEDIA_TYPES = frozenset({JSON_MEDIA_TYPE, CHUNK_MEDIA_TYPE})
_MEMBERS = frozenset({"body", "bytes", "headers", "keyid", "media_type", "method", "name", "target"})
SIGNED_HEADERS: Final = frozenset({"content-digest", "signature", "signature-input"})
_ABOUT = """\
This folder carries messages between a machine without a network and {url}.

To send it, run on a machine with a network:

    dpdpca owner send FOLDER

Then carry the folder back, and repeat the command that made it.

The folder contains no records and no keys. Shares in it are sealed, so nobody can
read them. Requests in it are signed, so nobody can change them. For an enrolment,
the folder also contains the invitation, which works once: show it to nobody.
Do not change, add or remove files.
"""


@dataclass(frozen=True, slots=True)
class CarriedRequest:
    """A request that is signed and ready to be sent.

    Attributes:
        name: 32 hex digits that name its files; the nonce of a signed request.
        method, target: as in the request line; the target is path and query.
        keyid: the id of the key that has signed it, or None for a request of anybody.
        media_type: of the body, or None without a body.
        headers: the headers with signature and digest.
        body: the digest of the body, or None.
        body_bytes: the length of the body.
    """

    name: str
    method: str
    target: str
    keyid: PartyId | None
    media_type: str | None
    headers: Mapping[str, str]
    body: Digest | None
    body_bytes: int

    @property
    def reads(self) -> bool:
        """Whether the request only reads, so that a newer answer replaces an older one."""
        return self.method == "GET"

    @property
    def is_of_share(self) -> bool:
        """Whether the request sends a chunk of a share, or completes the share."""
        path, _, _ = self.target.partition("?")
        return self.method == "PUT" or path.endswith("/share/complete")

    @property
    def proves_itself(self) -> bool:
        """Whether the answer is signed by another party or compared by people, so that the proxy does not
        sign it once more."""
        return self.keyid is None or self.target.endswith("/components")

    def to_body(self) -> dict[str, Any]:
        return {
            "body": None if self.body is None else self.body.hex(),
            "bytes": self.body_bytes,
            "headers": dict(self.headers),
            "keyid": None if self.keyid is None else self.keyid.hex(),
            "media_type": self.media_type,
            "method": self.method,
            "name": self.name,
            "target": self.target,
        }

    @classmethod
    def parse(cls, untrusted: Any) -> "CarriedRequest":
        """A request in a list that anybody may have made: it must lead nowhere but to the proxy's own routes.

        Raises MessageError.
        """
        if not isinstance(untrusted, dict) or set(untrusted) != _MEMBERS:
            malformed("requests", "a list of requests")
        headers, size = untrusted["headers"], untrusted["bytes"]
        if not isinstance(headers, dict) or not set(headers) <= SIGNED_HEADERS:
            malformed("headers", "an object with the headers of a signature")
        method, target, media_type = untrusted["method"], untrusted["target"], untrusted["media_type"]
        if not all(isinstance(text, str) for text in (method, target, media_type or "", *headers.values())):
            malformed("requests", "a list of requests")
        if method not in _METHODS or not _TARGET.fullmatch(target):
            malformed("target", "a request to a proxy")
        if media_type not in (None, *_MEDIA_TYPES):
            malformed("media_type", "the type of a body for a proxy")
        if not all(text.isascii() and text.isprintable() for text in headers.values()):
            malformed("headers", "printable ASCII")
        if type(size) is not int or not 0 <= size <= COMPONENTS_LIMIT_BYTES:
            malformed("bytes", "the length of a body")
        body, keyid = untrusted["body"], untrusted["keyid"]
        return cls(
            hex_bytes(untrusted["name"], NONCE_BYTES, "name").hex(),
            method,
            target,
            None if keyid is None else PartyId.parse(keyid),
            media_type,
            headers,
            None if body is None else Digest.parse(body),
            size,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The proxy's answer to a carried request.

    Attributes:
        content: the body.
        time: when the proxy signed it; None for an answer that proves itself.
    """

    content: bytes
    time: str | None


class Package:
    """A folder with requests for one proxy.

    Attributes:
        path: the folder.
        url: the address of the proxy.
        proxy: the raw Ed25519 key of the proxy that the owner has pinned, or None before an enrolment.
        requests: in the order in which they are sent.
        software: the digests of the proxy's software that the owner accepts for a share in the folder; if
            empty, any software is accepted.
    """

    def __init__(
        self,
        path: Path,
        url: str,
        proxy: bytes | None,
        requests: Iterable[CarriedRequest],
        software: Iterable[str] = (),
    ) -> None:
        self.path = path
        self.url = url
        self.proxy = proxy
        self.requests = tuple(requests)
        self.software = tuple(software)

    @classmethod
    def exists(cls, path: Path) -> bool:
        return (path / _INDEX).exists()

    @classmethod
    def load(cls, path: Path, signers: Iterable[bytes] | None = None) -> "Package":
        """The package in a folder. Its bodies are not read yet (`check`).

        Args:
            path: the folder.
            signers: the raw Ed25519 keys one of which must have signed the list of requests; None for any.

        Raises:
            NotFoundError: `not-a-package`.
            ConflictError: `package-of-another-version`, `package-of-another-owner`.
            IntegrityError: `package-altered`.
        """
        _check_plain(path)
        try:
            encoded = _read(path / _INDEX, _INDEX_LIMIT_BYTES)
        except FileNotFoundError as error:
            raise NotFoundError(
                "not-a-package",
                f"{path} is not a folder of carried requests",
                "make one with: dpdpca owner join URL/STUDY --data FILE --to FOLDER",
            ) from error
        try:
            _check_version(parse_canonical(encoded))
            statement = verify_statement("package", encoded)
            body = statement.body
            check_members(body, "package", "proxy", "requests", "url", "version", optional=("software",))
            proxy = None if body["proxy"] is None else hex_bytes(body["proxy"], 32, "proxy")
            if not isinstance(body["requests"], list):
                malformed("requests", "a list of requests")
            requests = [CarriedRequest.parse(each) for each in body["requests"]]
            url = str(parse_address(body["url"]))
            software = [
                read_software_digest(each)
                for each in read_list(body.get("software", []), "software", MOST_SOFTWARE)
            ]
        except ConflictError:
            raise
        except DpdpcaError as error:
            raise _altered(path, f"{_INDEX} was altered or is damaged") from error
        if signers is not None and statement.signer not in set(signers):
            raise ConflictError(
                "package-of-another-owner",
                f"another owner has made the folder {path}",
                "name a new folder",
            )
        return cls(path, url, proxy, requests, software)

    def save(self, key: IdentityKey) -> None:
        """Write the list of requests. Their bodies must be in the folder already."""
        self._make_folders()
        body: dict[str, Any] = {
            "format": FORMAT,
            "package": PACKAGE_FORMAT,
            "proxy": None if self.proxy is None else self.proxy.hex(),
            "requests": [request.to_body() for request in self.requests],
            "url": self.url,
            "version": version("dpdpca"),
        }
        if self.software:
            body["software"] = list(self.software)
        write_shared(self.path / _README, _ABOUT.format(url=self.url).encode())
        write_shared(self.path / _INDEX, sign_statement("package", body, key).encoded)

    def _make_folders(self) -> None:
        for name in (_TO_PROXY, _FROM_PROXY):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    # Bodies

    def body(self, request: CarriedRequest) -> bytes | None:
        """The body of a request. Raises IntegrityError `package-altered` if it is missing or was altered."""
        if request.body is None:
            return None
        name = f"{_TO_PROXY}/{request.name}.bin"
        try:
            content = _read(self.path / name, request.body_bytes)
        except FileNotFoundError as error:
            raise _altered(self.path, f"{name} is missing") from error
        if Digest.of(content) != request.body:
            raise _altered(self.path, f"{name} was altered or is damaged")
        return content

    def has_body(self, request: CarriedRequest) -> bool:
        try:
            self.body(request)
        except IntegrityError:
            return False
        return True

    def save_body(self, request: CarriedRequest, content: bytes) -> None:
        self._make_folders()
        path = self.path / _TO_PROXY / f"{request.name}.bin"
        if request.keyid is not None:
            write_shared(path, content)
            return
        with replacing(path) as file:  # an enrolment contains the invitation
            file.write(content)

    def check(self) -> None:
        """Check that the folder has all files of its requests, unaltered, and no others.

        Files whose name begins with a dot are ignored: systems and interrupted copies leave them, and nothing
        of them is ever read.

        Raises:
            IntegrityError: `package-altered`, with the file.
        """
        for found in self._unlisted():
            raise _altered(self.path, f"{found.relative_to(self.path)} does not belong to the folder")
        for request in self.requests:
            self.body(request)

    def clear(self) -> None:
        """Remove the files of requests that are no longer listed, as an interrupted command leaves them.

        Raises:
            IntegrityError: `package-altered`, there is a file that no version of this program has written.
        """
        for found in self._unlisted():
            if found.parent == self.path or not _FILE.fullmatch(found.name):
                raise _altered(self.path, f"{found.relative_to(self.path)} does not belong to the folder")
            found.unlink()

    def _unlisted(self) -> list[Path]:
        _check_plain(self.path)
        listed = {self.path / _INDEX, self.path / _README}
        listed |= {
            self.path / _TO_PROXY / f"{each.name}.bin" for each in self.requests if each.body is not None
        }
        listed |= {self.path / _FROM_PROXY / f"{each.name}.bin" for each in self.requests}
        found = [
            path
            for folder in (self.path, self.path / _TO_PROXY, self.path / _FROM_PROXY)
            if folder.is_dir()
            for path in sorted(folder.iterdir())
            if not path.name.startswith(".") and path.name not in (_TO_PROXY, _FROM_PROXY)
        ]
        return [path for path in found if path not in listed]

    # Answers

    def save_answer(self, request: CarriedRequest, statement: bytes | None, content: bytes) -> None:
        self._make_folders()
        head = b"null" if statement is None else statement
        write_shared(self.path / _FROM_PROXY / f"{request.name}.bin", head + b"\n" + content)

    def answer(self, request: CarriedRequest, proxy: bytes | None) -> Answer | None:
        """The proxy's answer to a request, or None if there is none.

        Args:
            request: of this package.
            proxy: the raw Ed25519 key with which the proxy must have signed the answer. None if its key is
                not known yet; only answers that prove themselves are then taken.

        Raises:
            AuthenticationError, MessageError: the proxy has not signed this answer to this request.
            IntegrityError: `package-altered`, the file of the answer is too long.
        """
        try:
            stored = _read(self.path / _FROM_PROXY / f"{request.name}.bin", _ANSWER_LIMIT_BYTES)
        except FileNotFoundError:
            return None
        head, _, content = stored.partition(b"\n")
        if request.proves_itself:
            return Answer(content, None)
        if proxy is None:
            return None
        if head == b"null":
            raise MessageError("malformed", "an answer in the folder is not signed", "send the folder again")
        return Answer(content, CarriedAnswer.verify(head, request.name, content, proxy).time)

    def has_answer(self, request: CarriedRequest, proxy: bytes | None) -> bool:
        """Whether there is an answer that `answer` accepts."""
        try:
            return self.answer(request, proxy) is not None
        except (AuthenticationError, MessageError, IntegrityError):
            return False


def _check_version(envelope: Mapping[str, Any]) -> None:
    """Refuse a folder in another format before anything else of it is read."""
    body = envelope.get("body")
    if not isinstance(body, dict):
        return
    made, maker = body.get("package"), body.get("version")
    if type(made) is int and made != PACKAGE_FORMAT:
        known = maker if isinstance(maker, str) and re.fullmatch(r"[0-9A-Za-z.+-]{1,40}", maker) else "?"
        raise ConflictError(
            "package-of-another-version",
            f"the folder was made by dpdpca {known} (format {made} of folders), and this is dpdpca"
            f" {version('dpdpca')} (format {PACKAGE_FORMAT})",
            "use the same version on both machines",
        )


def _check_plain(path: Path) -> None:
    """Refuse links, which could lead out of the folder."""
    for each in (path / _INDEX, path / _README, path / _TO_PROXY, path / _FROM_PROXY):
        if each.is_symlink():
            raise _altered(path, f"{each.name} is a link")


def _read(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file. A link could lead out of the folder, and a pipe or a device might never end."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise _altered(path.parent, f"{path.name} is no ordinary file")
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _altered(path.parent, f"{path.name} is longer than it should be")
    return content


def _altered(path: Path, what: str) -> IntegrityError:
    return IntegrityError(
        "package-altered",
        what,
        "carry the folder again; if that does not help, name a new folder on the machine with the data",
        place=str(path),
    )
