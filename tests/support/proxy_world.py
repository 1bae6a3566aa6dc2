"""A proxy on a real socket of this machine, with toy keys, and parties who speak to it.

What the product cannot be told by any setting (a small modulus, a clock that stands where a test wants it,
long work in this very process) is an argument here.
"""

import contextlib
import itertools
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from flat_releases import open_joint_release
from gmpy2 import mpz
from streamed import encrypted
from study_parties import key_for, under_paillier

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.layout.blocks import whole_numbers
from dpdpca_protocol.layout.packing import BlockLayout, symmetric_rows
from dpdpca_protocol.messages.share import ShareStatement, Withdrawal, cohort_digest
from dpdpca_protocol.messages.study_messages import (
    CountAnswer,
    CountChallenge,
    Opened,
    ReleaseStatement,
    StudyAct,
    StudyMark,
)
from dpdpca_protocol.messages.transcript import verify_transcript
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.pads.masks import pair_keys
from dpdpca_protocol.pads.streams import PadKey
from dpdpca_protocol.paillier.chunks import decode_chunk, encode_chunks
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import KeyRules, SecretKey, generate_secret_key
from dpdpca_protocol.paillier.proof import KeyProof, prove_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.release import NoisyScatter, answer_count, open_masked_release
from dpdpca_protocol.release.suite import CohortShare
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.terms.feature_list import FeatureLists, no_lists
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import Participant, Party, ProxyParty, StudyKey
from dpdpca_protocol.terms.signed_manifest import sign_manifest, suite_of
from dpdpca_protocol.terms.terms import SuiteName
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.salts import salted_chunk
from dpdpca_protocol.wire.sealing import chunk_info, seal
from dpdpca_protocol.wire.signing import IdentityKey, Statement, verify_statement
from dpdpca_proxy.app import create_app, create_operator_app
from dpdpca_proxy.enrolment import invite
from dpdpca_proxy.proxy import Proxy, make_home, open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.files import sealed_folder
from dpdpca_runtime.asgi.limits import DeadlineProtocol
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.http.signature import RequestSigner
from dpdpca_runtime.workers import Background
from dpdpca_user.planning.draft import complete_draft

TOY_BITS = 512
START = datetime(2026, 11, 27, 22, 0, 0, tzinfo=UTC)


class HandClock:
    """A clock that a test sets. It must not stray far from the machine's where clients sign by the latter."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


class InlineWorker:
    """Long work in the calling thread, with whatever a test has put in place of its functions."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda name: None

    def call(
        self, function: Callable[..., Any], /, *args: Any, progress: Callable[..., None] | None = None
    ) -> Any:
        self.calls.append(function.__name__)
        self.before(function.__name__)
        return function(*args, **({"progress": progress} if progress else {}))

    def close(self) -> None:
        pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class Values:
    """What one owner brings: N, v and the upper triangle of R by rows."""

    count: int
    sums: list[int]
    upper: list[int]

    @property
    def flat(self) -> list[int]:
        return [self.count, *self.sums, *self.upper]


def values_of(d: int, seed: int, count: int = 5) -> Values:
    """Small integers that differ from owner to owner; positive definite is not the point here."""
    return Values(
        count,
        [(seed * 7 + i * 3) % 11 - 5 for i in range(d)],
        [(seed * 13 + i * 5) % 17 - 8 for i in range(d * (d + 1) // 2)],
    )


PATIENCE_SECONDS = 90.0
"""For what must come true: work in the background is niced, and a busy machine lets it wait."""
HEAD = Digest.of(b"a party's log")
"""That parties here name in what they sign."""
_KEEP_ALIVE_SECONDS = 15
"""Longer than clients keep an idle connection (5 s), as in the service. A client without patience would fail
on a connection that the server closes while the client sends."""


def _raw_client() -> httpx.Client:
    # Loading the authorities of the machine takes longer than a request, and there is no TLS here.
    return httpx.Client(trust_env=False, timeout=120, verify=False)


@dataclass
class ProxyWorld:
    """A running proxy and its neighbours."""

    home: Path
    user: IdentityKey
    owners: list[IdentityKey]
    secret: SecretKey
    proof: KeyProof
    pads: PadsSecret = field(init=False)
    """The data user's secret of the last study under pads."""
    clock: HandClock = field(default_factory=HandClock)
    worker: Background = field(default_factory=InlineWorker)
    settings: dict[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    via: str | None = None
    """Another address under which clients reach the proxy: that of a relay."""
    patience: Patience = field(default_factory=lambda: Patience(seconds=0.0))
    serve: Callable[[FastAPI], Any] = lambda app: app
    """What is served: the application, or something around it."""

    _raw: httpx.Client = field(default_factory=_raw_client)
    proxy: Proxy = field(init=False)
    app: FastAPI = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the proxy on what its home holds."""
        settings = load_settings(self.home, port=self.port, log_level="ERROR", **self.settings)
        make_home(settings)
        self.app = create_app(
            open_proxy(settings, now=self.clock, key_rules=KeyRules(TOY_BITS)), worker=self.worker
        )
        self.proxy = self.app.state.proxy
        self._server = _Server(
            uvicorn.Config(
                self.serve(self.app),
                host="127.0.0.1",
                port=self.port,
                http=DeadlineProtocol,
                lifespan="on",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=2,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            )
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_for(lambda: self._server.started or not self._thread.is_alive())
        assert self._server.started, "the proxy did not start"

    def stop(self) -> None:
        self._raw.close()
        self._raw = _raw_client()
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the proxy did not stop"

    @property
    def is_running(self) -> bool:
        return hasattr(self, "_thread") and self._thread.is_alive()

    def on_copy(self, home: Path) -> "ProxyWorld":
        """The same parties with a copy of this stopped proxy, and a clock that stands where this one does."""
        copied = replace(self, home=copy_with_generation(self.home, home), clock=HandClock())
        copied.clock.ahead = self.clock.ahead
        return copied

    def keep_idle(self, seconds: int) -> None:
        """From now on, connections may be idle for this long, and no longer."""
        self._server.config.timeout_keep_alive = seconds

    def restart(self) -> None:
        self.stop()
        self.start()

    def operator(self) -> FastAPI:
        return create_operator_app(self.app)

    # parties

    @property
    def proxy_key(self) -> bytes:
        return self.proxy.key.public.ed25519

    def client(self, key: IdentityKey) -> ProxyClient:
        return ProxyClient(self.via or self.url, key, self.proxy_key, patience=self.patience)

    def enrol(self, key: IdentityKey, role: str, name: str) -> ProxyClient:
        client = self.client(key)
        client.enrol(role, name, invite(self.proxy, role, name).token)
        return client

    def enrol_all(self) -> None:
        self.enrol(self.user, "user", "Institute")
        for letter, owner in zip(ascii_uppercase, self.owners, strict=False):
            self.enrol(owner, "owner", f"Hospital {letter}")

    # raw requests

    def request(
        self,
        key: IdentityKey | None,
        method: str,
        path: str,
        body: bytes | None = None,
        media_type: str = "application/json",
        change: Callable[[httpx.Request], None] = lambda request: None,
        created: datetime | None = None,
    ) -> httpx.Response:
        """One request, signed by `key` if given, then changed by `change`, and sent as it is."""
        headers = {"content-type": media_type} if body is not None else {}
        request = httpx.Request(method, self.url + path, content=body, headers=headers)
        if key is not None:
            RequestSigner(key).sign(request, body, created or datetime.now(UTC))
        change(request)
        return self._raw.send(request)

    # studies

    def manifest(
        self, d: int = 3, *, named: bool = True, feature_lists: FeatureLists = no_lists, **changes: Any
    ) -> Manifest:
        identity = self.proxy.key.public
        draft: dict[str, Any] = {
            "title": "Blood pressure and age",
            "purpose": "To see what varies together.",
            "features": [{"name": f"f{i}", "lower": 0, "upper": 1} for i in range(d)],
            "clip_norm": 1,
            "release": "joint",
            "epsilon": 1.0,
            "max_records": 5000,
            "min_records": 1,
            "min_owners": 2,
            "closes_at": self.clock() + timedelta(hours=1),
            "participants": "enrolled" if named and self.owners else [],
        }
        draft = under_paillier(
            {name: value for name, value in {**draft, **changes}.items() if value is not None}
        )
        participants = (
            tuple(
                Participant(f"Hospital {letter}", owner.public.ed25519, owner.public.x25519)
                for letter, owner in zip(ascii_uppercase, self.owners, strict=False)
            )
            if named
            else ()
        )
        return complete_draft(
            draft,
            Party("Institute", self.user.public.ed25519),
            ProxyParty(self.proxy.settings.name, self.url, identity.ed25519, identity.sealing_key),
            participants,
            self._study_key(draft),
            feature_lists=feature_lists,
        )

    def _study_key(self, draft: dict[str, Any]) -> StudyKey:
        self.pads = PadsSecret.generate(OS_RANDOMNESS)  # no two studies may share one
        return key_for(draft, self.secret, self.proof, self.pads)

    def with_new_key(self) -> None:
        """The next study of this world has a modulus of its own."""
        self.secret = generate_secret_key(TOY_BITS, OS_RANDOMNESS, rules=KeyRules(TOY_BITS))
        self.proof = prove_key(self.secret, self.user.public.ed25519)

    def open_study(self, d: int = 3, **changes: Any) -> "OpenStudy":
        manifest = self.manifest(d, **changes)
        statement = sign_manifest(manifest, self.user)
        study = self.client(self.user).create_study(statement.encoded)
        return OpenStudy(self, study, manifest, statement)


@dataclass
class OpenStudy:
    """A study on the proxy of `world`, and what its parties do in it."""

    world: ProxyWorld
    study: StudyId
    manifest: Manifest
    statement: Statement

    @property
    def d(self) -> int:
        return self.manifest.figures.encoded_features

    @property
    def path(self) -> str:
        return f"/v1/studies/{self.study.hex()}"

    def plain_chunks(self, values: Values) -> list[bytes]:
        """The chunks of a share, unsealed, freshly encrypted; with the owner's noise where owners draw it."""
        public, figures = self.world.secret.public, self.manifest.figures
        encryptor = Encryptor(public, figures.ciphertext_count)
        ciphertexts: list[mpz]
        if self.manifest.release == "joint":
            noisy = [x + g for x, g in zip(values.flat, figures.own_noise(), strict=True)]
            ciphertexts = encrypted(PaillierVectors(public, figures.slot_bits), noisy, encryptor)
        else:
            layout = BlockLayout(self.d, figures.slot_bits, figures.slots)
            rows = symmetric_rows(self.d, values.upper)
            ciphertexts = encryptor.encrypt_many(list(layout.pack_share(values.count, values.sums, rows)))
        return [salted_chunk(chunk, OS_RANDOMNESS) for chunk in encode_chunks(ciphertexts, public)]

    def padded_chunks(
        self, owner: IdentityKey, values: Sequence[int], version: int = 1
    ) -> tuple[list[bytes], bytes | None]:
        """The chunks of a share under pads, and its pad; with the owner's noise where owners draw it."""
        suite, figures = suite_of(self.manifest), self.manifest.figures
        noisy = [x + g for x, g in zip(values, figures.own_noise(), strict=False)]
        begun = suite.begin(owner.public.party_id, version, OS_RANDOMNESS)
        make = suite.chunk_maker(begun.secrets, OS_RANDOMNESS, pairs=self.pairs(owner))
        parts = (noisy[at.start : at.stop] for at in map(suite.chunk_values, range(suite.chunk_count)))
        return [bytes(make(index, part)(lambda count: None)) for index, part in enumerate(parts)], begun.pad

    def pairs(self, owner: IdentityKey) -> tuple[PadKey, ...]:
        """The keys that an owner shares with the others in a blinded study."""
        if not self.manifest.is_blinded:
            return ()
        named = {PartyId.of(each.ed25519): each.x25519 or b"" for each in self.manifest.participants}
        mine = owner.public.party_id
        del named[mine]
        return pair_keys(owner.blinding_key, mine, named, self.study)

    def seal(self, owner: IdentityKey, chunk: bytes, version: int, position: int) -> bytes:
        info = chunk_info(self.study, owner.public.party_id, version, position)
        return seal(chunk, self.manifest.proxy.kem, info)

    def upload(self, owner: IdentityKey, chunks: list[bytes], version: int = 1) -> None:
        client = self.world.client(owner)
        for position, chunk in enumerate(chunks):
            client.put_chunk(self.study, version, position, self.seal(owner, chunk, version, position))

    def claim(
        self, owner: IdentityKey, chunks: list[bytes], version: int = 1, pad: bytes | None = None
    ) -> Statement:
        public, digests = owner.public, tuple(Digest.of(chunk) for chunk in chunks)
        said = ShareStatement(
            self.study, public.ed25519, version, digests, public.sealing_key, self.seen_head(), HEAD, pad
        )
        return said.sign(owner)

    def seen_head(self) -> Digest:
        """The newest head of the proxy's log, as everybody sees it."""
        mark = self.world.client(self.world.user).study(self.study).mark
        assert mark is not None
        return StudyMark.verify(mark, self.study, self.manifest.proxy.ed25519).head

    def deliver(self, owner: IdentityKey, values: Values, version: int = 1) -> Statement:
        """Uploads and completes a share; the receipt."""
        if self.manifest.suite is SuiteName.PADS:
            chunks, pad = self.padded_chunks(owner, values.flat, version)
        else:
            chunks, pad = self.plain_chunks(values), None
        self.upload(owner, chunks, version)
        return self.complete(owner, chunks, version, pad)

    def complete(
        self, owner: IdentityKey, chunks: list[bytes], version: int = 1, pad: bytes | None = None
    ) -> Statement:
        """Claims chunks that were uploaded; the receipt, by the key that the manifest names."""
        proxy = self.manifest.proxy.ed25519
        with ProxyClient(self.world.url, owner, proxy, patience=self.world.patience) as client:
            return client.complete_share(self.study, self.claim(owner, chunks, version, pad))

    def withdraw(self, owner: IdentityKey, version: int) -> Statement:
        wish = Withdrawal(self.study, owner.public.ed25519, version, HEAD).sign(owner)
        return self.world.client(owner).withdraw_share(self.study, wish)

    def close(self) -> None:
        act = StudyAct("close", self.study).sign(self.world.user)
        self.world.client(self.world.user).close_study(self.study, act)

    def cancel(self) -> None:
        act = StudyAct("cancel", self.study).sign(self.world.user)
        self.world.client(self.world.user).cancel_study(self.study, act)

    def opened(self) -> Statement:
        """The data user's statement about the release."""
        release = verify_statement("release", self.world.client(self.world.user).release(self.study).release)
        said = ReleaseStatement.parse(release)
        return Opened(self.study, said.cohort_digest, release.digest).sign(self.world.user)

    def state_opened(self) -> None:
        self.world.client(self.world.user).send_opened(self.study, self.opened())

    def state(self) -> str:
        return self.world.client(self.world.user).study(self.study).state

    def is_swept(self) -> bool:
        """The sealed files go just after the study has its last state, so one may have to wait for it."""
        return sealed_folder(self.study) not in self.world.proxy.files.folders(self.study)

    def wait_state(self, *states: str, seconds: float = PATIENCE_SECONDS) -> str:
        wait_for(lambda: self.state() in states, seconds)
        return self.state()

    def challenge(self) -> Statement:
        client = self.world.client(self.world.user)
        challenge: list[Statement] = []

        def asked() -> bool:
            with contextlib.suppress(Exception):
                challenge.append(client.count_challenge(self.study))
            return bool(challenge)

        wait_for(asked)
        return challenge[0]

    def open_release(self) -> tuple[NoisyScatter, ReleaseStatement]:
        """The release as the data user opens it, every signature checked."""
        world = self.world
        client = world.client(world.user)
        bundle = client.release(self.study)
        said = ReleaseStatement.parse(verify_statement("release", bundle.release, world.proxy_key))
        verify_transcript(bundle.transcript, self.study, world.proxy_key)
        assert cohort_digest(said.cohort) == said.cohort_digest
        ciphertexts = []
        for position, digest in enumerate(said.chunk_digests):
            chunk = client.release_chunk(self.study, position, 2_000_000)
            assert digest.of(chunk) == digest
            ciphertexts += decode_chunk(chunk, world.secret.public)
        figures = self.manifest.figures
        if self.manifest.release == "joint":
            vectors = PaillierVectors(world.secret.public, figures.slot_bits)
            most = self.manifest.max_records
            return open_joint_release(vectors, world.secret, ciphertexts, self.d, most), said
        assert said.records is not None
        layout = BlockLayout(self.d, figures.slot_bits, figures.slots)
        return open_masked_release(world.secret, layout, ciphertexts, said.records), said

    def open_values(self) -> list[int]:
        """All values of a flat release under pads."""
        client = self.world.client(self.world.user)
        bundle = client.release(self.study)
        said = ReleaseStatement.parse(verify_statement("release", bundle.release, self.world.proxy_key))
        shares = (ShareStatement.parse(verify_statement("share", each)) for each in bundle.shares)
        cohort = [CohortShare(PartyId.of(share.owner), share.version, share.pad) for share in shares]
        suite = suite_of(self.manifest)
        count = len(said.chunk_digests)
        chunks = [client.release_chunk(self.study, index, suite.chunk_bytes(index)) for index in range(count)]
        return whole_numbers(suite.open_sum(self.world.pads.to_bytes(), chunks, cohort))

    def count_answer(self, challenge: Statement, add: int = 0) -> Statement:
        """The user's answer to the count; `add` makes it a lie."""
        public = self.world.secret.public
        asked = CountChallenge.parse(challenge, public.ciphertext_bytes)
        count, root = answer_count(self.world.secret, mpz(int.from_bytes(asked.ciphertext, "big")))
        randomizer = int(root).to_bytes(public.modulus_bytes, "big")
        return CountAnswer(self.study, challenge.digest, count + add, randomizer, HEAD).sign(self.world.user)


_unlike = itertools.count()


def unlike_before(d: int) -> list[dict[str, Any]]:
    """Features of no other study, so that the proxy compares its cohort with none."""
    number = next(_unlike)
    return [{"name": f"f{i} of {number}", "lower": 0, "upper": 1} for i in range(d)]


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Returns once `condition` is true, which is asked less often the longer it takes."""
    deadline = time.monotonic() + seconds
    pause = 0.02
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(pause)
        pause = min(1.4 * pause, 0.2)


def copy_home(home: Path, to: Path) -> Path:
    """A backup of a stopped proxy."""
    shutil.copytree(home, to)
    return to


def generation_of(home: Path) -> Path:
    return home.with_name(f"{home.name}-generation")


def copy_with_generation(home: Path, to: Path) -> Path:
    """A stopped proxy on a home of its own, with its generation beside it; replaces what stands there."""
    for source, target in ((home, to), (generation_of(home), generation_of(to))):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    return to


PASSING = ("nonces", "leases", "forgotten")
"""Tables that change with every request or by themselves, and decide nothing."""
EVIDENCE = ("log", "contradictions")
"""Where a statement that contradicts an earlier one is kept, although it is refused."""


def dump(proxy: Proxy, without: tuple[str, ...] = PASSING) -> Mapping[str, list[tuple[Any, ...]]]:
    """Every row of every table, to see that nothing changed."""
    from sqlalchemy import select

    from dpdpca_proxy.store.tables import metadata

    with proxy.database.reading("dump") as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for table in metadata.sorted_tables
            if table.name not in without
        }


def slug(response: httpx.Response) -> str:
    """The type of the problem document that a response must be."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    return str(response.json()["type"]).removeprefix("urn:dpdpca:problem:")


def refused(act: Callable[[], object]) -> DpdpcaError:
    """The error that `act` must end with."""
    try:
        act()
    except DpdpcaError as error:
        return error
    raise AssertionError("it was not refused")
