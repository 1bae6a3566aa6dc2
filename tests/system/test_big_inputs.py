"""Inputs that are larger than memory should be, or that pretend to be small: bounded or refused (P31)."""

import gzip
import secrets
import subprocess
import sys
import zlib
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from federation.bare_user import BareStudy, BareUser
from federation.crowd import enrol_many, memory_bytes
from federation.world import Federation, Owner
from promises import Promise

from dpdpca_cli.federation.processes import COMMAND
from dpdpca_protocol.messages.share import Receipt, ShareStatement
from dpdpca_protocol.paillier.chunks import CHUNK_CIPHERTEXTS
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.salts import salted_chunk
from dpdpca_protocol.wire.sealing import chunk_info, seal

MB = 10**6
COLUMNS = 8
FEATURES = [{"name": f"f{i}", "lower": 0, "upper": 1000} for i in range(COLUMNS)]


def write_table(path: Path, rows: int, rows_in_group: int) -> int:
    """Numbers of few values, so that the file is small and what is in it is not; the bytes in memory."""
    block = pa.table({f"f{i}": np.arange(100_000, dtype=np.float64) % (991 + i) for i in range(COLUMNS)})
    table = pa.concat_tables([block] * (rows // len(block)))
    pyarrow.parquet.write_table(table, path, row_group_size=rows_in_group)
    return int(table.num_rows) * COLUMNS * 8


MEASURED = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
sys.exit(status)
"""
"""A parent of little memory: Linux counts what the parent had as the child's own, from before its exec."""


def peak_of(owner: Owner, *arguments: str) -> int:
    """The most memory that `dpdpca ARGUMENTS` had, in bytes; it must end well."""
    command = [sys.executable, "-c", MEASURED, *COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(owner.environment))
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


@pytest.mark.parametrize(
    ("rows", "groups"), [(2_000_000, [1]), pytest.param(10_000_000, [100, 1], marks=pytest.mark.nightly)]
)
def test_a_table_larger_than_memory_is_read_in_batches(
    federation: Federation, tmp_path: Path, rows: int, groups: list[int], promise: Promise
) -> None:
    user, (owner, *_) = BareUser(federation, f"Institute of {rows}"), federation.owners(1)
    study = user.open_study(features=FEATURES, clip_norm=2, min_owners=1, max_records=20_000_000, epsilon=10)
    small, peaks = tmp_path / "small.parquet", []
    write_table(small, 100_000, 100_000)
    base = peak_of(owner, "owner", "review", study.address, "--data", str(small), "--json")
    for count in groups:
        big = tmp_path / "big.parquet"
        size = write_table(big, rows, rows // count)
        assert big.stat().st_size < size / 4
        peaks.append(peak_of(owner, "owner", "review", study.address, "--data", str(big), "--json"))
        big.unlink()
    assert max(peaks) - base < 120 * MB, (base, peaks)
    assert max(peaks) < 512 * MB
    promise(
        "P31",
        counted=f"a table of {size // MB} MB at an owner, in {' and '.join(map(str, groups))} groups of rows",
        result=f"{max(peaks) // MB} MB at the most, {base // MB} MB with a small one",
    )


def upload(study: BareStudy, federation: Federation, size: int) -> int:
    """A share of random residues, chunk by chunk; the bytes that were sent."""
    (owner,) = enrol_many(federation, 1)
    public, public_key = owner.public, study.signed.public_key
    left, sent = study.manifest.figures.ciphertext_count, 0
    digests: list[Digest] = []
    width, square = public_key.ciphertext_bytes, int(public_key.modulus) ** 2
    with federation.client(owner) as client:
        while left:
            count = min(left, CHUNK_CIPHERTEXTS)
            numbers = (secrets.randbelow(square).to_bytes(width, "big") for _ in range(count))
            chunk = salted_chunk(b"".join(numbers), OS_RANDOMNESS)
            info = chunk_info(study.id, public.party_id, 1, len(digests))
            client.put_chunk(study.id, 1, len(digests), seal(chunk, study.manifest.proxy.kem, info))
            digests.append(Digest.of(chunk))
            sent, left = sent + len(chunk), left - count
        claim = ShareStatement(
            study.id, public.ed25519, 1, tuple(digests), public.sealing_key, study.seen_head()
        ).sign(owner)
        assert Receipt.parse(client.complete_share(study.id, claim)).statement == claim.digest
    assert sent > size
    return sent


@pytest.mark.parametrize(
    ("size", "d"), [(8 * MB, 1450), pytest.param(100 * MB, 5100, marks=pytest.mark.nightly)]
)
def test_a_large_share_is_taken_chunk_by_chunk(
    federation: Federation, size: int, d: int, promise: Promise
) -> None:
    user = BareUser(federation, f"Institute of {d}")
    features = [{"name": f"f{i}", "lower": -1, "upper": 1} for i in range(d)]
    study = user.open_study(features=features, clip_norm=1, min_owners=1, fraction_bits=16)
    assert federation.proxy.process is not None
    pid = federation.proxy.process.pid
    before = memory_bytes(pid, "VmRSS")
    sent = upload(study, federation, size)
    peak = memory_bytes(pid)
    assert peak - before < 250 * MB, (before, peak)
    study.cancel()
    promise(
        "P31", counted=f"a share of {sent // MB} MB", result=f"the proxy grew by {(peak - before) // MB} MB"
    )


def test_bodies_that_unpack_into_more_are_not_unpacked(federation: Federation, promise: Promise) -> None:
    bombs = {
        "gzip": gzip.compress(bytes(50 * MB)),
        "deflate": zlib.compress(bytes(50 * MB)),
        "identity, br": b"\x00" * 60_000,
    }
    assert federation.proxy.process is not None
    before = memory_bytes(federation.proxy.process.pid, "VmRSS")
    service = federation.user
    token = (service.home / "token").read_text().strip()
    refused = 0
    for encoding, bomb in bombs.items():
        headers = {"content-type": "application/json", "content-encoding": encoding}
        body = bomb[:60_000]
        answer = httpx.post(f"{federation.url}/v1/parties", content=body, headers=headers, trust_env=False)
        assert 400 <= answer.status_code < 500
        headers["authorization"] = f"Bearer {token}"
        answer = httpx.post(
            f"{service.service_url}/v1/studies", content=bomb, headers=headers, trust_env=False
        )
        assert 400 <= answer.status_code < 500, answer.text
        refused += 2
    assert memory_bytes(federation.proxy.process.pid, "VmRSS") - before < 20 * MB
    promise("P31", counted=f"{refused} bodies that would unpack into 50 MB", result="refused, not unpacked")


DEPTHS = {
    "lists": b"[" * 60_000,
    "closed lists": b"[" * 30_000 + b"]" * 30_000,
    "objects": b'{"a":' * 12_000 + b"1" + b"}" * 12_000,
    "TOML": b"a = " + b"[" * 30_000 + b"]" * 30_000,
    "dotted": b".".join([b"a"] * 30_000) + b" = 1",
    "tables": b"a = " + b"{b = " * 10_000 + b"1" + b"}" * 10_000,
}


@pytest.mark.parametrize("depth", DEPTHS)
def test_deep_nesting_is_refused(federation: Federation, depth: str, promise: Promise) -> None:
    user = federation.user
    token, body = (user.home / "token").read_text().strip(), DEPTHS[depth]
    tried = 0
    for media_type in ("application/json", "application/toml"):
        headers = {"content-type": media_type, "authorization": f"Bearer {token}"}
        asked = [
            (federation.url, "/v1/parties"),
            (user.service_url, "/v1/studies"),
            (user.service_url, f"/v1/models/{'0' * 64}/transform"),
        ]
        for url, path in asked:
            answer = httpx.post(url + path, content=body, headers=headers, trust_env=False, timeout=60)
            assert 400 <= answer.status_code < 500, (url, path, answer.text)
            tried += 1
    draft = user.home.parent / "deep.toml"
    draft.write_bytes(body)
    outcome = user.run("user", "study", "lint", draft)
    assert outcome.status == 1
    assert outcome.err.count("\n") == 1
    assert "unexpected" not in outcome.err, outcome.err
    promise(
        "P31", counted=f"{tried + 1} deeply nested bodies and drafts ({depth})", result="refused with 4xx"
    )
