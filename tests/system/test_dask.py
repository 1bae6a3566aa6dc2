"""A proxy whose long work runs on a real Dask cluster over TLS.

Results are exact, whoever dies, and the scheduler reads no secret.
"""

import os
import re
import secrets
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dask_cluster import DaskCluster, dask_cluster
from exact_studies import VALUES, answer, check_exact, deliver_all
from object_server import lead_to, object_server
from obstore.store import S3Store
from proxy_world import OpenStudy, ProxyWorld, wait_for
from starlette.testclient import TestClient
from study_parties import MakeManifest

from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.on_cluster import sum_on
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_proxy import app, jobs
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.store.files import FolderStore, sealed_folder
from dpdpca_proxy.study_files import CallFiles
from dpdpca_runtime.cluster.executor import ClusterExecutor

TOY_BYTES = 32
"""Of a prime of the data user's key."""
ORDERS: tuple[Literal["big", "little"], ...] = ("big", "little")
PIECE = 24
MANY_BYTES = 1_000_000
VARYING_BYTES = 16
"""Of Dask's own numbers, in messages of one kind."""
LARGEST_FRAME = 8192
"""Of what the scheduler receives: an envelope has some hundred bytes."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


@pytest.fixture
def world(stopped_world: ProxyWorld, cluster: DaskCluster, monkeypatch: pytest.MonkeyPatch) -> ProxyWorld:
    """Its jobs wait for a moment where they would wait for a minute."""
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.5)
    monkeypatch.setattr(app, "PROBE_SECONDS", 0.05)
    stopped_world.settings.update(cluster.settings)
    stopped_world.start()
    stopped_world.enrol_all()
    return stopped_world


def check_end(study: OpenStudy) -> None:
    """Released exactly; nothing but the release is left; the audit holds."""
    study.wait_state("released")
    check_exact(study)
    wait_for(study.is_swept)
    assert {check.outcome for check in audit_study(study.world.proxy, study.study)} == {HOLDS}


def is_reachable(world: ProxyWorld) -> bool:
    """What the metrics say of the scheduler."""
    with TestClient(world.operator(), base_url="http://127.0.0.1") as operator:
        (line,) = re.findall(r"^dpdpca_cluster_reachable (\S+)$", operator.get("/metrics").text, re.MULTILINE)
    return float(line) == 1


def calls_under_way(study: OpenStudy) -> list[str]:
    """The files of calls that are kept for workers."""
    store, folder = study.world.proxy.files, f"{sealed_folder(study.study)}/calls"
    return [name for session in store.entries(folder) for name in store.entries(f"{folder}/{session}")]


def send(signal_number: signal.Signals, *processes: Popen[bytes]) -> None:
    for process in processes:
        os.kill(process.pid, signal_number)


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_a_study_is_exact_and_the_scheduler_reads_no_secret(
    world: ProxyWorld, cluster: DaskCluster, noiseless: None, release: str
) -> None:
    before = len(cluster.received())
    study = world.open_study(3, release=release)
    key = world.proxy.data_key(study.study)
    chunks = []
    for owner, values in zip(world.owners, VALUES, strict=True):
        made = study.plain_chunks(values)
        chunks += made
        study.upload(owner, made)
        study.complete(owner, made)
    study.close()
    answer(study)
    check_end(study)
    frames = cluster.received()[before:]
    sizes = {len(frame) for frame in frames if b"run_call" in frame}
    assert sizes, "nothing ran on the cluster"
    assert max(sizes) - min(sizes) < VARYING_BYTES, "calls pass the scheduler themselves"
    assert max(map(len, frames)) < LARGEST_FRAME
    seal_key = cluster.seal_key.read_text()
    primes = [
        int(prime).to_bytes(TOY_BYTES, order)
        for prime in (world.secret.p, world.secret.q)
        for order in ORDERS
    ]
    pieces = [chunk[at : at + PIECE] for chunk in chunks for at in range(0, len(chunk) - PIECE, PIECE)]
    names = [study.study, study.study.hex().encode(), str(world.home).encode()]
    names += [b"dpdpca_proxy", b"dpdpca_protocol"]
    for hidden in (key, bytes.fromhex(seal_key), seal_key.encode(), *primes, *pieces, *names):
        assert not any(hidden in frame for frame in frames)


def test_a_study_under_pads_is_exact(world: ProxyWorld, noiseless: None) -> None:
    study = world.open_study(3, suite="pads", release="joint")
    deliver_all(study)
    study.close()
    study.wait_state("released")
    assert study.open_values() == [sum(column) for column in zip(*(v.flat for v in VALUES), strict=True)]
    wait_for(study.is_swept)


def test_arguments_and_results_go_through_the_store(cluster: DaskCluster, tmp_path: Path) -> None:
    carrier = CallFiles(FolderStore(tmp_path), bytes(32), "calls")
    before = sum(map(len, cluster.received()))
    with ClusterExecutor(cluster.cluster, carrier) as executor:
        assert executor.submit(bytes.upper, b"m" * MANY_BYTES).result() == b"M" * MANY_BYTES
        assert carrier.store.entries("calls")
    assert sum(map(len, cluster.received())) - before < MANY_BYTES / 10
    assert not carrier.store.entries("calls"), "calls are kept after their work"


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_the_calls_of_a_killed_worker_are_made_by_another(
    world: ProxyWorld, cluster: DaskCluster, noiseless: None, release: str
) -> None:
    """The workers are frozen first, so that both surely have calls."""
    study = world.open_study(3, release=release)
    deliver_all(study)
    if release == "masked":
        study.close()
        study.challenge()
    send(signal.SIGSTOP, *cluster.workers)
    if release == "masked":
        answer(study)
    else:
        study.close()
    wait_for(lambda: len(calls_under_way(study)) > 1)
    cluster.kill(cluster.workers.pop())
    send(signal.SIGCONT, *cluster.workers)
    cluster.start_worker()
    check_end(study)


def test_a_study_waits_for_a_scheduler_that_is_away_and_loses_nothing(
    world: ProxyWorld, cluster: DaskCluster, noiseless: None
) -> None:
    wait_for(lambda: is_reachable(world))
    study = world.open_study(3, release="masked")
    deliver_all(study)
    send(signal.SIGSTOP, *cluster.workers)  # what is begun cannot end
    study.close()
    wait_for(lambda: bool(calls_under_way(study)))
    assert cluster.scheduler is not None
    cluster.kill(cluster.scheduler)
    for worker in cluster.workers:
        cluster.kill(worker)
    wait_for(lambda: not is_reachable(world))
    assert world.request(None, "GET", "/readyz").status_code == 200
    assert study.state() == "closed"
    cluster.workers.clear()
    cluster.start()
    answer(study)
    check_end(study)
    wait_for(lambda: is_reachable(world))


# Owners


def test_an_owner_with_parquet_on_object_storage_sums_it_on_its_cluster(
    cluster: DaskCluster, make_manifest: MakeManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contribution is that of one process with the same files in a folder. The workers of an owner have
    the credentials of its bucket."""
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(3):
        ages = [(7 * i + part) % 100 for i in range(50)]
        columns = {"age": ages, "weight": [age * 2.5 for age in ages], "systolic": [60 + age for age in ages]}
        pq.write_table(pa.table(columns), folder / f"{part}.parquet")
    with object_server() as server:
        server.make_bucket("records")
        lead_to(monkeypatch, server.url)
        store = S3Store("records", client_options={"allow_http": True})
        for file in folder.iterdir():
            store.put(f"patients/{file.name}", file.read_bytes())
        for worker in cluster.workers:
            cluster.kill(worker)
        cluster.workers.clear()
        cluster.start_workers(1)
        before = len(cluster.received())
        manifest, key = make_manifest(), secrets.token_bytes(32)
        here, there, apart = (
            read_contribution(DataLocation(where), manifest, key, sum_parts=given)
            for where, given in (
                (str(folder), None),
                ("s3://records/patients", None),
                ("s3://records/patients/", partial(sum_on, cluster.cluster)),
            )
        )
    frames = cluster.received()[before:]
    assert any(b"run_call" in frame for frame in frames)
    assert isinstance(here.sums, SecondMoments)
    for hidden in (key, b"s3://records", here.sums.sum.tobytes(), b"dpdpca_owner"):
        assert not any(hidden in frame for frame in frames)
    for other in (there, apart):
        assert other.sums.to_bytes() == here.sums.to_bytes()
        assert replace(other, sums=here.sums) == here
