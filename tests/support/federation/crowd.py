"""Many owners at once, and many idlers: clients in one loop, as light as can be.

What these owners send are no encryptions but random residues, which the proxy cannot tell apart: making real
ones would take this machine an hour, and nothing here opens them.
"""

import asyncio
import http.client
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx

from dpdpca_protocol.messages.share import Receipt, ShareStatement
from dpdpca_protocol.messages.study_messages import Enrolment
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.salts import salted_chunk
from dpdpca_protocol.wire.sealing import chunk_info, seal
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement
from dpdpca_proxy.proxy import open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.log import append_entry
from dpdpca_proxy.store.parties import PartyRow, insert_party
from dpdpca_runtime.http.signature import RequestSigner
from federation.bare_user import BareStudy
from federation.world import Federation

_PATIENCE_SECONDS = 300.0


def enrol_many(federation: Federation, count: int) -> list[IdentityKey]:
    """Owners that stand in the proxy's database, without as many invitations and enrolments."""
    proxy = open_proxy(load_settings(federation.proxy_home))
    keys = [IdentityKey.generate() for _ in range(count)]
    try:
        with proxy.database.transaction("enrol a crowd") as connection:
            for number, key in enumerate(keys):
                public, name = key.public, f"Owner {number} of {secrets.token_hex(4)}"
                statement = Enrolment("owner", name, public, federation.proxy_key).sign(key)
                row = PartyRow(
                    public.party_id, "owner", name, public.ed25519, public.sealing_key, datetime.now(UTC)
                )
                insert_party(connection, row, statement.encoded)
                append_entry(connection, "enrolment", statement.digest, row.enrolled_at)
    finally:
        proxy.database.close()
    return keys


def residues(study: BareStudy) -> bytes:
    """The one chunk of a share: random numbers below n², units that differ but with odds of 2⁻⁵⁰⁰."""
    public, count = study.signed.public_key, study.manifest.figures.ciphertext_count
    width = public.ciphertext_bytes
    square = int(public.modulus) ** 2
    numbers = b"".join(secrets.randbelow(square).to_bytes(width, "big") for _ in range(count))
    return salted_chunk(numbers, OS_RANDOMNESS)


@dataclass
class Delivery:
    """What one owner of the crowd met with."""

    receipt: Receipt
    seconds: float
    refusals: int


@dataclass
class Crowd:
    """Owners who all send a share to one study, as often as it takes.

    Attributes:
        unexpected: answers that are neither a success nor a refusal with Retry-After.
        broken: connections that ended without an answer; the request was made again.
    """

    study: BareStudy
    owners: Sequence[IdentityKey]
    unexpected: list[str] = field(default_factory=list)
    broken: int = 0

    def deliver_all(self) -> list[Delivery]:
        """All at the same time."""
        seen = self.study.seen_head()
        bodies = [self._body(owner, seen) for owner in self.owners]
        return asyncio.run(self._deliver_all(bodies))

    def _body(self, owner: IdentityKey, seen: Digest) -> tuple[bytes, bytes]:
        study, public = self.study, owner.public
        chunk = residues(study)
        sealed = seal(chunk, study.manifest.proxy.kem, chunk_info(study.id, public.party_id, 1, 0))
        digests = (Digest.of(chunk),)
        claim = ShareStatement(study.id, public.ed25519, 1, digests, public.sealing_key, seen).sign(owner)
        return sealed, claim.encoded

    async def _deliver_all(self, bodies: Sequence[tuple[bytes, bytes]]) -> list[Delivery]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(trust_env=False, timeout=_PATIENCE_SECONDS, limits=limits) as client:
            tasks = (
                self._deliver(client, owner, *body) for owner, body in zip(self.owners, bodies, strict=True)
            )
            return await asyncio.gather(*tasks)

    async def _deliver(
        self, client: httpx.AsyncClient, owner: IdentityKey, sealed: bytes, claim: bytes
    ) -> Delivery:
        begin, refusals = time.monotonic(), 0
        url = f"{self.study.user.federation.url}{self.study.path}/share"
        signer = RequestSigner(owner)
        steps = [
            ("PUT", f"{url}/chunks/0?version=1", sealed, "application/octet-stream"),
            ("POST", f"{url}/complete", claim, "application/json"),
        ]
        for method, address, body, media_type in steps:
            tries = 0
            while True:
                request = client.build_request(
                    method, address, content=body, headers={"content-type": media_type}
                )
                signer.sign(request, body, datetime.now(UTC))
                wait = 0.0
                try:
                    response = await client.send(request)
                except httpx.TransportError:
                    # A connection that the proxy closes as quiet while the next request is on its way.
                    self.broken += 1
                else:
                    if response.is_success:
                        break
                    if response.status_code not in (429, 503) or "retry-after" not in response.headers:
                        self.unexpected.append(f"{response.status_code} {response.text[:200]}")
                    wait = float(response.headers.get("retry-after", 1))
                assert time.monotonic() - begin < _PATIENCE_SECONDS, self.unexpected
                refusals, tries = refusals + 1, tries + 1
                # As the product's clients do: full jitter on top of what was asked for.
                await asyncio.sleep(wait + secrets.SystemRandom().uniform(0, min(15.0, 0.5 * 2**tries)))
        receipt = Receipt.parse(
            verify_statement("receipt", response.content, self.study.manifest.proxy.ed25519)
        )
        assert receipt.statement == verify_statement("share", claim).digest
        return Delivery(receipt, time.monotonic() - begin, refusals)


@contextmanager
def probing(port: int, path: str = "/healthz", pause: float = 0.05) -> Iterator[list[float]]:
    """The seconds that each of a row of questions over new connections takes, while the context lasts."""
    times: list[float] = []
    stopping = threading.Event()

    def run() -> None:
        while not stopping.is_set():
            begin = time.monotonic()
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            with suppress(OSError):
                link.request("GET", path)
                assert link.getresponse().status == 200
            link.close()
            times.append(time.monotonic() - begin)
            stopping.wait(pause)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield times
    finally:
        stopping.set()
        thread.join()


def percentile(times: Sequence[float], part: float = 0.99) -> float:
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]


def memory_bytes(pid: int, what: str = "VmHWM") -> int:
    """Of a process and its children: "VmHWM" is the most that each had, "VmRSS" what it has."""
    total = 0
    for process in (pid, *_children(pid)):
        with suppress(OSError):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))
    return total


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [child for each in found for child in (int(each), *_children(int(each)))]
    return []


Idler = Callable[[int], bytes]
"""What an idler on this port sends at once; then a byte a second, and it reads nothing."""

IDLERS: dict[str, Idler] = {
    "silent": lambda port: b"",
    "head": lambda port: b"GET /healthz HTTP/1.1\r\nx: ",
    "body": lambda port: (
        f"POST /v1/parties HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        "content-length: 4000\r\n\r\n"
    ).encode(),
    "unread": lambda port: f"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode() * 5,
}


@dataclass
class Idlers:
    """Connections that take their time. `seconds` has how long each was let live, by kind."""

    port: int
    count: int
    most_seconds: float = 60.0
    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in IDLERS})
    _thread: threading.Thread | None = None
    _connected: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Returns when all are connected."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._connected.wait(60)

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(self.most_seconds + 30)

    async def _run(self) -> None:
        kinds = list(IDLERS)
        links = [await asyncio.open_connection("127.0.0.1", self.port, limit=1) for _ in range(self.count)]
        begin = time.monotonic()
        self._connected.set()
        await asyncio.gather(
            *(self._idle(kinds[number % len(kinds)], *link, begin) for number, link in enumerate(links))
        )

    async def _idle(
        self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: float
    ) -> None:
        with suppress(ConnectionError):
            writer.write(IDLERS[kind](self.port))
            while time.monotonic() - begin < self.most_seconds and not writer.transport.is_closing():
                if kind == "unread":
                    await asyncio.sleep(1.0)
                else:
                    with suppress(TimeoutError):
                        if await asyncio.wait_for(reader.read(4096), 1.0) == b"":
                            break
                if kind != "silent":
                    writer.write(b"x")
        self.seconds[kind].append(time.monotonic() - begin)
        writer.transport.abort()


def quantiles(times: Sequence[float]) -> str:
    """For people."""
    middle, high = statistics.median(times), percentile(times)
    return f"median {middle * 1000:.0f} ms, p99 {high * 1000:.0f} ms"


def log_of(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
