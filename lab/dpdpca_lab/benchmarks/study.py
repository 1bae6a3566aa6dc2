"""`dpdpca bench study`: measures a whole study between real processes, with random records."""

import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import typer

from dpdpca_cli.demo.command import owner_policy, terms_of
from dpdpca_cli.demo.drafts import drafts_of
from dpdpca_cli.demo.records import split, write_parts
from dpdpca_cli.federation.processes import ChildProcesses
from dpdpca_cli.federation.studies import Federation, StudyRun
from dpdpca_lab.benchmarks.commands import (
    Against,
    Blinded,
    Features,
    KeyBits,
    Owners,
    Release,
    Suite,
    check_blinded,
    chosen_suite,
    show,
)
from dpdpca_lab.benchmarks.measure import Measured, Peak, multiplication_seconds, seconds_of
from dpdpca_lab.benchmarks.peers import PEERS, Peer, load_peer
from dpdpca_lab.benchmarks.phases import Size
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.release.masked import multiplications
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.terms import SuiteName
from dpdpca_runtime.command_options import AsJson
from dpdpca_runtime.files import private_dir
from dpdpca_runtime.workers import core_count

app = typer.Typer()

_PEER_SAMPLE = 5
_STALL = re.compile(r"^dpdpca_loop_stall_seconds (\S+)$", re.MULTILINE)


@app.command(epilog="Example: dpdpca bench study --features 64 --owners 3 --release joint --json")
def study(
    features: Features = 64,
    owners: Owners = 3,
    key_bits: KeyBits = 3072,
    release: Release = "joint",
    suite: Suite = None,
    blinded: Blinded = False,
    against: Against = "none",
    records: int = typer.Option(1000, min=1, help="Number of records of each owner."),
    chain: bool = typer.Option(False, "--chain", help="Measure a chain of studies instead, under pads."),
    as_json: AsJson = False,
) -> None:
    """Measure a whole study, or all rounds of a chain.

    The proxy, the data user's service and every owner run in their own processes.
    """
    suite = chosen_suite(suite, release, against)
    if against not in PEERS or release not in ("joint", "masked") or not 2 <= owners <= 50:
        raise UsageError(
            "bad-option",
            f"--against {against}, --release {release} or --owners {owners} is not possible",
            f"use --against {'|'.join(PEERS)}, --release joint|masked, and --owners from 2 to 50",
        )
    check_blinded(blinded, suite, owners)
    if chain and suite != "pads":
        raise UsageError(
            "bad-option", "a chain has studies under pads only", "leave out --suite and --against"
        )
    kind, named = ReleaseKind(release), SuiteName(suite)
    size = Size(features, owners, key_bits, kind, core_count(), suite=named, blinded=blinded)
    folder = Path(tempfile.mkdtemp(prefix="dpdpca-bench-"))
    peak = Peak()
    try:
        with peak.watching():
            run, seconds, stall = _run(folder, size, records, chain)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    measured = _measured(size, run, seconds, peak.bytes, load_peer(against, key_bits, size.workers))
    measured.details["loop_stall_seconds"] = stall
    facts = {
        **measured.facts(),
        "features": features,
        "owners": owners,
        "key_bits": None if size.suite is SuiteName.PADS else key_bits,
        "release": run.release,
        "suite": suite,
        "blinded": blinded,
        "records": records * owners,
        "rounds": len(run.rounds) or 1,
    }
    show(facts, as_json)


def _run(folder: Path, size: Size, records: int, chain: bool) -> tuple[StudyRun, float, float]:
    """Run one study or chain.

    Returns the run, its duration in seconds without making the key, and the longest stall of the proxy's
    event loop.
    """
    d, owners = size.features, tuple(f"Owner {number + 1}" for number in range(size.owners))
    names = [f"f{index}" for index in range(d)]
    drawn = np.frombuffer(secrets.token_bytes(2 * d * records * size.owners), dtype="<u2").reshape(d, -1)
    table = pa.table({name: column / 65536 for name, column in zip(names, drawn, strict=True)})
    draft = {
        "title": "Benchmark",
        "purpose": "To measure.",
        "features": [{"name": name, "lower": 0, "upper": 1} for name in names],
        "clip_norm": 1,
        "release": str(size.release),
        "suite": str(size.suite),
        "epsilon": 1,
        "min_records": 1,
        "max_records": max(1000, 2 * table.num_rows),
        "participants": list(owners),
        "min_owners": len(owners),
        "max_owners": len(owners),
        "closing": "when-complete",
    }
    if size.blinded:
        draft["blinding"] = "pairwise"
    policy, chained = owner_policy([terms_of(draft)]), drafts_of(draft, size.owners).chain
    parts = write_parts(split(table, len(owners)), private_dir(folder / "records"))
    settings = {"DPDPCA_USER_KEY_BITS": str(size.key_bits)}
    with ChildProcesses(folder, settings) as processes:
        federation = Federation(processes, folder, owners, parts, policy, lambda what, done: None)
        try:
            federation.found()
            begin = time.perf_counter()
            with _stalls(federation.operator_url) as stalls:
                run = federation.run_chain(chained) if chain else federation.run_study(draft)
            seconds = time.perf_counter() - begin - run.key_seconds
        finally:
            federation.close()
    return run, seconds, max(stalls)


@contextmanager
def _stalls(operator_url: str) -> Iterator[list[float]]:
    """The stalls of its event loop that the proxy reports while the block runs.

    Each figure is the longest stall in about half a minute.
    """
    found, done = [0.0], threading.Event()

    def look() -> None:
        with suppress(httpx.HTTPError):
            told = _STALL.search(httpx.get(f"{operator_url}/metrics", trust_env=False).text)
            found.append(float(told[1]) if told else 0.0)

    def watch() -> None:
        while not done.wait(5.0):
            look()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield found
    finally:
        done.set()
        watching.join()
        look()


def _measured(size: Size, run: StudyRun, seconds: float, peak: int, peer: Peer | None) -> Measured:
    figures, values = size.figures, size.figures.value_count * size.owners
    count = figures.ciphertext_count
    floor = size.owners * count * (-(-size.key_bits // 2 // 12) + 4)  # 0 under pads
    if size.release is ReleaseKind.MASKED:
        floor += multiplications(size.secret.public, size.layout, figures.mask_bits, 1000)
    peer_seconds = None
    if peer is not None:
        per_owner = count if peer.packs else figures.value_count
        plain = 12345
        number = peer.encrypt(plain << 40)

        def each(act: object) -> float:
            assert callable(act)
            return seconds_of(lambda: [act() for _ in range(_PEER_SAMPLE)]) / _PEER_SAMPLE

        steps = each(lambda: peer.encrypt(plain << 40)) + each(lambda: peer.add(number, number))
        peer_seconds = steps * size.owners + each(lambda: peer.decrypt(number))
        if size.release is ReleaseKind.MASKED and peer.release is not None:
            release = peer.release
            peer_seconds += each(lambda: release(1000, 1 << 90, -1 << 90, 999))
        peer_seconds = peer_seconds * per_owner / size.workers
    sent = sum(owner.sent_bytes for owner in run.owners)
    measured = Measured(
        "study",
        seconds,
        values,
        sent + run.release_bytes,
        peak,
        floor,
        multiplication_seconds(size.secret.public.ciphertext_modulus) if count else 0.0,
        size.workers,
        peer.name if peer else None,
        peer_seconds,
        _PEER_SAMPLE if peer else 0,
        notes=(
            "from the first owner's command to the model; the time for making the key is given separately",
        )
        + (
            (f"{peer.name}: only its arithmetic, extrapolated from {_PEER_SAMPLE} operations",)
            if peer
            else ()
        ),
    )
    measured.details.update(
        key_seconds=run.key_seconds,
        slowest_owner_seconds=max(owner.seconds for owner in run.owners),
        proxy_seconds=run.proxy_seconds,
        **{f"user_{name}_seconds": taken for name, taken in run.user_seconds.items()},
        wire_bytes_over_ciphertext_bytes=sent / (size.owners * figures.share_bytes),
    )
    return measured
