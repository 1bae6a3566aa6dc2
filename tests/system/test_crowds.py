"""A thousand owners at once, idlers beside honest owners, and more than the proxy takes: P28, P29, P30."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from federation.bare_user import BareStudy, BareUser
from federation.crowd import (
    Crowd,
    Idlers,
    enrol_many,
    log_of,
    memory_bytes,
    percentile,
    probing,
    quantiles,
    residues,
)
from federation.world import Federation, federation_in
from promises import Promise

from dpdpca_protocol.errors import LimitError
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.sealing import chunk_info, seal
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience

GIGABYTE = 10**9
D = 215
"""Features of a study whose share is 200 KB and some, in one chunk."""


_OF_QUIET_PROBES = 200
"""P28 says a second, which are so many median probes of two quiet cores; slower machines have longer ones."""
_OUTLIER_UPLOADS = 8
"""Half a second on two quiet cores, in median uploads."""


def open_study(federation: Federation, max_owners: int = 1000) -> BareStudy:
    features = [{"name": f"f{i}", "lower": -1, "upper": 1} for i in range(D)]
    user = BareUser(federation, "Institute of Crowds")
    return user.open_study(features=features, clip_norm=1, min_owners=2, max_owners=max_owners)


def problems(federation: Federation) -> dict[str, int]:
    """Refusals by type, as the proxy counts them."""
    text = httpx.get(f"http://127.0.0.1:{federation.operator_port}/metrics", trust_env=False).text
    lines = (line for line in text.splitlines() if line.startswith("dpdpca_problems_total{"))
    return {line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in lines}


def pid_of(federation: Federation) -> int:
    assert federation.proxy.process is not None
    return federation.proxy.process.pid


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.nightly)])
def test_all_owners_at_once(tmp_path: Path, count: int, promise: Promise) -> None:
    with federation_in(tmp_path) as federation:
        study = open_study(federation)
        crowd = Crowd(study, enrol_many(federation, count))
        size = study.manifest.figures.share_bytes
        assert size > 190_000
        with probing(federation.port) as quiet:
            time.sleep(2.0)
        with probing(federation.port) as times:
            begin = time.monotonic()
            deliveries = crowd.deliver_all()
            seconds = time.monotonic() - begin
        assert crowd.unexpected == []
        assert crowd.broken <= max(1, count // 100)
        assert len({delivery.receipt.owner for delivery in deliveries}) == count
        assert study.user.client.study(study.id).owners_complete == count
        assert "busy" not in problems(federation), "the database was locked for too long"
        log = log_of(federation.logs / "proxy-serve.log")
        assert '"level": "error"' not in log
        assert "Traceback" not in log
        memory = memory_bytes(pid_of(federation))
        assert memory <= GIGABYTE
        assert percentile(times) < max(1.0, _OF_QUIET_PROBES * percentile(quiet, 0.5))
        refused = sum(delivery.refusals for delivery in deliveries)
    promise(
        "P28",
        counted=f"{count} owners at once, {size:,} bytes each, in {seconds:.0f} s; {refused} tries refused",
        result=f"{len(deliveries)} receipts, 0 lock errors, {memory // 10**6} MB at the most,"
        f" /healthz p99 {percentile(times) * 1000:.0f} ms of {len(times)}",
    )


def upload_each(study: BareStudy, owners: list[IdentityKey]) -> list[float]:
    """One after the other; the seconds that each took from the first byte to the receipt."""
    times, seen = [], study.seen_head()
    for owner in owners:
        chunk, public = residues(study), owner.public
        with study.user.federation.client(owner) as client:
            begin = time.monotonic()
            info = chunk_info(study.id, public.party_id, 1, 0)
            client.put_chunk(study.id, 1, 0, seal(chunk, study.manifest.proxy.kem, info))
            digests = (Digest.of(chunk),)
            claim = ShareStatement(study.id, public.ed25519, 1, digests, public.sealing_key, seen)
            client.complete_share(study.id, claim.sign(owner))
            times.append(time.monotonic() - begin)
    return times


@pytest.mark.parametrize(("count", "uploads"), [(40, 25), pytest.param(500, 50, marks=pytest.mark.nightly)])
def test_idlers_are_cut_off_and_take_nothing_from_others(
    tmp_path: Path, count: int, uploads: int, promise: Promise
) -> None:
    with federation_in(tmp_path) as federation:
        study = open_study(federation)
        owners = enrol_many(federation, 2 + 2 * uploads)
        upload_each(study, owners[:2])
        quiet = upload_each(study, owners[2 : 2 + uploads])
        idlers = Idlers(federation.port, count)
        idlers.start()
        time.sleep(1.0)  # until what they asked for is answered
        beside = upload_each(study, owners[2 + uploads :])
        idlers.join()
        lives = [seconds for kind in idlers.seconds.values() for seconds in kind]
        assert len(lives) == count
        # 10 s for a head; a body and an answer that is not read have their length's time besides.
        assert max(lives) < idlers.most_seconds - 15
        assert all(min(kind) > 5 for kind in idlers.seconds.values())
        # A machine that is busy with other tests has outliers of its own, by its own measure.
        assert percentile(beside) <= 2 * percentile(quiet) + _OUTLIER_UPLOADS * percentile(quiet, 0.5)
        assert "Traceback" not in log_of(federation.logs / "proxy-serve.log")
    promise(
        "P29",
        counted=f"{count} connections that idle in head, body, answer or from the start,"
        f" {uploads} honest uploads",
        result=f"the last cut off after {max(lives):.0f} s; uploads beside them {quantiles(beside)},"
        f" in quiet {quantiles(quiet)}",
    )


@pytest.mark.parametrize("capacity", [4, pytest.param(8, marks=pytest.mark.nightly)])
def test_ten_times_as_many_as_it_takes(tmp_path: Path, capacity: int, promise: Promise) -> None:
    """The product's own client backs off with jitter, and all are in at the end."""
    federation = Federation(tmp_path)
    federation.proxy.environment = {
        **federation.proxy.environment,
        "DPDPCA_PROXY_MAX_REQUESTS": str(capacity),
    }
    try:
        federation.serve(federation.proxy)
        study = open_study(federation)
        owners = enrol_many(federation, 10 * capacity)
        before = memory_bytes(pid_of(federation), "VmRSS")
        waits: list[float] = []
        seen = study.seen_head()
        together = threading.Barrier(len(owners))

        def deliver(owner: IdentityKey) -> None:
            chunk, public = residues(study), owner.public
            patience = Patience(120, on_wait=lambda reason, seconds: waits.append(seconds))
            with ProxyClient(federation.url, owner, federation.proxy_key, patience=patience) as client:
                info = chunk_info(study.id, public.party_id, 1, 0)
                sealed = seal(chunk, study.manifest.proxy.kem, info)
                together.wait(60)
                client.put_chunk(study.id, 1, 0, sealed)
                digests = (Digest.of(chunk),)
                claim = ShareStatement(study.id, public.ed25519, 1, digests, public.sealing_key, seen)
                client.complete_share(study.id, claim.sign(owner))

        with ThreadPoolExecutor(len(owners)) as threads:
            list(threads.map(deliver, owners))
        complete = study.user.client.study(study.id).owners_complete
        assert complete == len(owners)
        assert waits, "nobody was refused: this was no overload"
        assert all(seconds >= 1.0 for seconds in waits), "Retry-After was not heeded"
        assert len(set(waits)) == len(waits), "there is no jitter"
        grown = memory_bytes(pid_of(federation), "VmRSS") - before
        assert grown < 200 * 10**6
        assert httpx.get(f"{federation.url}/readyz", trust_env=False).status_code == 200
    finally:
        federation.end()
    promise(
        "P30",
        counted=f"{len(owners)} uploads at once at a proxy that takes {capacity}",
        result=f"{len(waits)} refused with Retry-After, all {complete} in at the end,"
        f" memory {grown / 10**6:+.0f} MB",
    )


def test_one_party_cannot_ask_without_end(tmp_path: Path, promise: Promise) -> None:
    federation = Federation(tmp_path)
    federation.proxy.environment = {**federation.proxy.environment, "DPDPCA_PROXY_PARTY_REQUESTS": "1"}
    try:
        federation.serve(federation.proxy)
        greedy, modest = (BareUser(federation, name) for name in ("Greedy", "Modest"))
        answers = [_answer(greedy) for _ in range(60)]
        refused = answers.count("too-many")
        assert refused >= 20
        assert answers[:20] == ["ok"] * 20
        assert _answer(modest) == "ok"
        assert problems(federation)["too-many"] == refused
    finally:
        federation.end()
    promise("P30", counted="60 requests of one party at a rate of 1/s", result=f"{refused} refused with 429")


def _answer(user: BareUser) -> str:
    try:
        user.client.studies()
    except LimitError as refusal:
        return refusal.slug if refusal.retry_after_seconds == 1 else "no time"
    return "ok"
