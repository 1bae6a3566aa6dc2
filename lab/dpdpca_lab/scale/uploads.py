"""What a proxy process spends on the requests of owners, measured on a real one over loopback."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

from dpdpca_cli.federation.parties import LocalParty, is_ready
from dpdpca_cli.federation.processes import ChildProcesses, free_port
from dpdpca_lab.scale.sizes import sizes
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.messages.study_messages import ProxyCard, StudyMark
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.feature_list import FeatureListRef, encode_features
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.parties import PadsKeyTerms, Party, ProxyParty
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest, sign_manifest
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.sealing import chunk_info, seal
from dpdpca_protocol.wire.signing import IdentityKey, Statement
from dpdpca_proxy.store.database import DATABASE_FILE, ProxyDatabase
from dpdpca_proxy.store.parties import PartyRow, insert_party
from dpdpca_runtime.files import private_dir
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_user.planning.draft import complete_draft

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Uploads:
    """What a proxy took in.

    Attributes:
        shares: complete shares, each in `chunks` requests and one that completes it.
        bytes: of all sealed chunks.
        cpu_seconds: of the proxy's process.
        seconds: on the clock, with one client that waits for each answer.
    """

    shares: int
    chunks: int
    bytes: int
    cpu_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Answers:
    """What a proxy's process spends on what it is asked: CPU seconds.

    Attributes:
        short: for a short answer.
        list_byte: for each byte of a list that is made for the answer, such as that of the parties.
        file_byte: for each byte of what is kept as it is sent, such as a list of features.
    """

    short: float
    list_byte: float
    file_byte: float


@dataclass(frozen=True, slots=True)
class _Relay:
    """A running proxy, and who is enrolled there.

    Attributes:
        url: its address.
        process: its id.
        pinned: its key.
        user, owners: enrolled keys.
    """

    url: str
    process: int
    pinned: bytes
    user: IdentityKey
    owners: list[IdentityKey]


def upload(features: int, shares: int) -> Uploads:
    """Start a proxy, and send it `shares` shares of a joint study under pads."""
    with _running(shares) as relay:
        return _send(relay, features)


def ask(parties: int, features: int, times: int) -> Answers:
    """Start a proxy, and ask it for lists.

    Args:
        parties: how many parties are in its database.
        features: of a list of features.
        times: how often each thing is asked for.
    """
    zero, two = Fraction(0), Fraction(2)
    listed = encode_features([Feature(f"site {number}", "numeric", zero, two) for number in range(features)])
    with _running(0, parties) as relay, ProxyClient(relay.url, relay.user, relay.pinned) as client:
        client.put_feature_list(listed)
        reference = FeatureListRef(Digest.of(listed), len(listed), features)
        short, long, file = (
            _seconds_of(relay.process, question, times)
            for question in (client.studies, client.parties, lambda: client.feature_list(reference))
        )
    size = parties * sizes().party
    return Answers(short, max(0.0, long - short) / size, max(0.0, file - short) / len(listed))


@contextmanager
def _running(owners: int, parties: int = 0) -> Iterator[_Relay]:
    """A proxy with a data user, so many owners, and so many further parties that do nothing."""
    with tempfile.TemporaryDirectory(prefix="dpdpca-bench-") as folder:
        port, operator = free_port(), free_port()
        url = f"http://127.0.0.1:{port}"
        settings = {"DPDPCA_PROXY_PORT": str(port), "DPDPCA_PROXY_OPERATOR_PORT": str(operator)}
        party = LocalParty("proxy", "Relay", private_dir(Path(folder) / "proxy"), settings)
        with ChildProcesses(Path(folder), {}) as processes:
            processes.run("proxy init", party.init(), party.environment)
            _fill(party.home / DATABASE_FILE, parties)
            server = processes.start("proxy", party.serve(), party.environment, is_server=True)
            processes.wait_until(lambda: is_ready(url), START_SECONDS, server, "was not ready")
            pinned, keys = enrol_all(processes, party, url, owners)
            yield _Relay(url, server.process.pid, pinned, keys[0], keys[1:])


def _fill(database: Path, parties: int) -> None:
    """Writes parties into a proxy's database, since enrolling thousands takes minutes."""
    made = ProxyDatabase(database)
    with made.transaction("fill") as connection:
        for number in range(parties):
            key, now = Digest.of(b"party %d" % number), datetime.now(UTC)
            row = PartyRow(PartyId.of(key), "owner", f"Owner {number:,}", key, None, now)
            insert_party(connection, row, b"")
    made.close()


def enrol_all(
    processes: ChildProcesses, party: LocalParty, url: str, owners: int
) -> tuple[bytes, list[IdentityKey]]:
    """Enrol a data user and so many owners. Returns the proxy's key and theirs, the data user's first."""
    parties = [("user", "Institute"), *(("owner", f"Owner {number}") for number in range(owners))]
    keys = [IdentityKey.generate() for _ in parties]
    with ProxyClient(url, keys[0]) as client:
        pinned = client.card()[0].identity.ed25519
    invited = [party.invite(LocalParty(role, name, party.home)) for role, name in parties]
    printed = [processes.start("invite", words, party.environment) for words in invited]
    processes.wait_for(printed, START_SECONDS * len(printed))
    for (role, name), key, child in zip(parties, keys, printed, strict=True):
        with ProxyClient(url, key, pinned) as client:
            client.enrol(role, name, json.loads(child.output.read_text(encoding="utf-8"))["token"])
    return pinned, keys


@dataclass(frozen=True, slots=True)
class OpenStudy:
    """A study that takes shares, as owners need to know it.

    Attributes:
        card: of the proxy.
        signed: the manifest.
        head: the end of the proxy's log that shares refer to.
    """

    card: ProxyCard
    signed: SignedManifest
    head: Digest


def open_study(url: str, pinned: bytes, user: IdentityKey, owners: int, features: int) -> OpenStudy:
    """Create a joint study under pads."""
    with ProxyClient(url, user, pinned) as client:
        card, _ = client.card()
        manifest = complete_draft(
            {
                "title": "Benchmark",
                "purpose": "To measure.",
                "features": [{"name": f"f{index}", "lower": 0, "upper": 1} for index in range(features)],
                "clip_norm": 1,
                "release": "joint",
                "epsilon": Fraction(1),
                "min_records": 1,
                "max_records": 100_000,
                "min_owners": 2,
                "max_owners": owners,
            },
            Party("Institute", user.public.ed25519),
            ProxyParty(card.name, card.url, card.identity.ed25519, card.identity.sealing_key),
            [],
            PadsKeyTerms(PadsSecret.generate(OS_RANDOMNESS).public),
            closes_at=datetime.now(UTC) + timedelta(hours=1),
        )
        statement = sign_manifest(manifest, user)
        client.create_study(statement.encoded)
        signed = open_manifest(statement.encoded)
        mark = client.study(signed.study_id).mark
        assert mark is not None  # the proxy gives one for each open study
        head = StudyMark.verify(mark, signed.study_id, pinned).head
    return OpenStudy(card, signed, head)


def sealed_share(study: OpenStudy, owner: IdentityKey) -> tuple[list[bytes], Statement]:
    """The sealed chunks of a share of zeros, and the owner's statement about it."""
    signed, public = study.signed, owner.public
    suite, values = signed.suite, [0] * signed.manifest.figures.value_count
    begun = suite.begin(public.party_id, 1, OS_RANDOMNESS)
    make = suite.chunk_maker(begun.secrets, OS_RANDOMNESS)
    chunks = [
        make(index, values[at.start : at.stop])(lambda count: None)
        for index, at in enumerate(map(suite.chunk_values, range(suite.chunk_count)))
    ]
    sealed = [
        seal(chunk, study.card.identity.sealing_key, chunk_info(signed.study_id, public.party_id, 1, index))
        for index, chunk in enumerate(chunks)
    ]
    claim = ShareStatement(
        signed.study_id,
        public.ed25519,
        1,
        tuple(map(Digest.of, chunks)),
        public.sealing_key,
        study.head,
        pad=begun.pad,
    )
    return sealed, claim.sign(owner)


def _send(relay: _Relay, features: int) -> Uploads:
    owners = relay.owners
    study = open_study(relay.url, relay.pinned, relay.user, len(owners), features)
    sent, cpu, clock = 0, 0.0, 0.0
    for owner in owners:
        sealed, claim = sealed_share(study, owner)
        with ProxyClient(relay.url, owner, relay.pinned) as client:
            begin, used = time.perf_counter(), _cpu_seconds(relay.process)
            for index, body in enumerate(sealed):
                client.put_chunk(study.signed.study_id, 1, index, body)
            client.complete_share(study.signed.study_id, claim)
            cpu, clock = cpu + _cpu_seconds(relay.process) - used, clock + time.perf_counter() - begin
        sent += sum(map(len, sealed))
    return Uploads(len(owners), study.signed.suite.chunk_count, sent, cpu, clock)


def _seconds_of(process: int, question: Callable[[], object], times: int) -> float:
    """CPU seconds of the proxy for one answer."""
    used = _cpu_seconds(process)
    for _ in range(times):
        question()
    return (_cpu_seconds(process) - used) / times


def _cpu_seconds(process: int) -> float:
    """CPU time of a process so far, in steps of a clock tick."""
    if sys.platform != "linux":
        raise UsageError("bad-argument", "the CPU time of the proxy can be read on Linux only", "use Linux")
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
