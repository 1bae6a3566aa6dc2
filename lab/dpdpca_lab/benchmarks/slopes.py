"""Measures how the cost grows with the number of owners at the proxy and of records at an owner.

python -m dpdpca_lab.benchmarks.slopes [owners] [records] [--quick]

Each figure is the median of three runs. A slope is that of a line through the logarithms; it is 1 for linear
cost. Peak memory is that of this process.
"""

import argparse
import secrets
import statistics
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpdpca_lab.benchmarks.measure import Peak, seconds_of
from dpdpca_lab.benchmarks.phases import Size, bench_aggregate
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import PadsKeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_user.planning.draft import complete_draft

FEATURES_OF_RECORDS = 30
FEATURES_OF_OWNERS = 200
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", metavar="owners|records")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    what = set(options.what) or {"owners", "records"}
    if unknown := what - {"owners", "records"}:
        parser.error(f"there is no {', '.join(sorted(unknown))} here")
    largest = 2 if options.quick else 5
    if "owners" in what:
        report("aggregation, owners L", [10, 32, 100, 320, 1000][:largest], aggregate)
    if "records" in what:
        with tempfile.TemporaryDirectory() as folder:
            read = reader(Path(folder))
            report("owner, records N", [32_000, 100_000, 320_000, 1_000_000, 3_200_000][:largest], read)


def report(what: str, sizes: Sequence[int], measure: Callable[[int], tuple[float, int]]) -> None:
    """Print a row for each size, and the slope."""
    print(f"| {what} | seconds | peak MiB |\n|---|---|---|")
    seconds = []
    for size in sizes:
        taken, peak = measure(size)
        seconds.append(taken)
        print(f"| {size:,} | {taken:.3g} | {peak / 2**20:.0f} |", flush=True)
    print(f"| slope | {np.polyfit(np.log(sizes), np.log(seconds), 1)[0]:.3f} | |\n", flush=True)


def aggregate(owners: int) -> tuple[float, int]:
    """Aggregate all shares, from sealed files to products, on one core.

    If there are more than eight owners, several owners have the same file.
    """
    size = Size(FEATURES_OF_OWNERS, owners, 3072, ReleaseKind.JOINT, 1, ROUNDS)
    measured = bench_aggregate(size, None)
    return measured.seconds, measured.peak_memory_bytes


def reader(folder: Path) -> Callable[[int], tuple[float, int]]:
    """Read, encode and add up the records of a Parquet file."""
    manifest = some_manifest()
    key = OS_RANDOMNESS.bytes(32)

    def read(records: int) -> tuple[float, int]:
        path = folder / f"{records}.parquet"
        with pq.ParquetWriter(path, pa.schema([(name, pa.float64()) for name in names()])) as writer:
            for start in range(0, records, 100_000):
                count = min(100_000, records - start)
                drawn = np.frombuffer(secrets.token_bytes(2 * count * FEATURES_OF_RECORDS), dtype="<u2")
                columns = drawn.reshape(FEATURES_OF_RECORDS, count) / 65536
                writer.write_table(pa.table(dict(zip(names(), columns, strict=True))))
        peak = Peak()
        with peak.watching():
            taken = statistics.median(
                seconds_of(lambda: read_contribution(DataLocation(str(path)), manifest, key))
                for _ in range(ROUNDS)
            )
        path.unlink()
        return taken, peak.bytes

    return read


def names() -> list[str]:
    return [f"f{index}" for index in range(FEATURES_OF_RECORDS)]


def some_manifest() -> Manifest:
    """A manifest whose key nobody has, because reading records does not depend on the key."""
    user, proxy, *owners = (IdentityKey.generate().public for _ in range(5))
    participants = [Participant(f"Owner {number}", owner.ed25519) for number, owner in enumerate(owners)]
    draft = {
        "title": "Benchmark",
        "purpose": "To measure.",
        "features": [{"name": name, "lower": 0, "upper": 1} for name in names()],
        "clip_norm": 1,
        "release": "joint",
        "epsilon": Fraction(1),
        "min_records": 1,
        "max_records": 10_000_000,
        "participants": [participant.name for participant in participants],
        "min_owners": 3,
        "max_owners": 3,
    }
    return complete_draft(
        draft,
        Party("User", user.ed25519),
        ProxyParty("Proxy", "http://127.0.0.1:1", proxy.ed25519, proxy.sealing_key),
        participants,
        PadsKeyTerms(PREVIEW_KEM),
        closes_at=datetime(2030, 1, 1, tzinfo=UTC),
    )


if __name__ == "__main__":
    main()
