"""Data for Fig. 3 and Fig. 4 of the DPDPCA paper from our own runs of PrivateLocalPCA and of our protocol,
as JSON.

    python -m dpdpca_lab.benchmarks.paper_figures > figures.json

Fig. 3: seconds for each number of owners. With PrivateLocalPCA the owners wait for each other, so their
seconds add up. In our protocol owners encrypt at the same time, so the seconds are those of one share, the
aggregation, the release and the decryption.
Fig. 4: share of the pooled variance that the leading components capture, by the number of records of each
owner.
"""

import argparse
import json
import statistics
from fractions import Fraction

import numpy as np
from sklearn.datasets import load_digits

from dpdpca_lab.benchmarks.local_pca import private_local_pca
from dpdpca_lab.benchmarks.phases import Size, bench_aggregate, bench_decrypt, bench_encrypt, bench_release
from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.central.result import captured_share
from dpdpca_lab.comparison import additive_directions
from dpdpca_lab.mechanisms import Calibration
from dpdpca_lab.tables import EncodedTable, encode_table
from dpdpca_protocol.privacy.mechanisms import Gaussian
from dpdpca_protocol.study import ReleaseKind

EPSILON, DELTA, RANK = Fraction(1), Fraction(1, 10**6), 5


def encoded(rows: Floats) -> EncodedTable:
    return encode_table(rows, np.array([[0.0, 16.0]] * rows.shape[1]), clip_norm=4.0)


def parts(rows: Floats, owners: int, records: int) -> list[Floats]:
    """`records` consecutive rows of the table for each owner. After the last row, the table starts again, so
    two owners may get the same record."""
    return [np.take(rows, range(k * records, (k + 1) * records), axis=0, mode="wrap") for k in range(owners)]


def running_time(rows: Floats, counts: list[int], key_bits: int) -> list[dict[str, float]]:
    d, found = rows.shape[1], []
    for owners in counts:
        chain = private_local_pca(list(map(encoded, parts(rows, owners, 200))), EPSILON, DELTA, RANK)
        point: dict[str, float] = {"owners": owners, "private_local_pca": sum(chain.seconds)}
        for kind in (ReleaseKind.MASKED, ReleaseKind.JOINT):
            size = Size(d, owners, key_bits, kind, 1, rounds=1)
            phases = (bench_encrypt, bench_aggregate, bench_release, bench_decrypt)
            point[str(kind)] = sum(phase(size, None).seconds for phase in phases)
        found.append(point)
    return found


def utility(rows: Floats, owners: int, records: list[int], repeats: int) -> list[dict[str, object]]:
    found = []
    ours = additive_directions(Gaussian)
    for count in records:
        tables = list(map(encoded, parts(rows, owners, count)))
        pooled = encoded(np.concatenate(parts(rows, owners, count)))
        chains = {
            calibration: [
                private_local_pca(tables, EPSILON, DELTA, RANK, calibration) for _ in range(repeats)
            ]
            for calibration in (Calibration.PROVED, Calibration.AS_PUBLISHED)
        }
        point: dict[str, object] = {"owners": owners, "records_of_each": count}
        shares = [
            captured_share(ours(pooled, EPSILON, DELTA, RANK), pooled.second_moment) for _ in range(repeats)
        ]
        point["one noise for all"] = statistics.mean(shares)
        for calibration, runs in chains.items():
            shares = [captured_share(run.directions, pooled.second_moment) for run in runs]
            point[f"private_local_pca, {calibration}"] = statistics.mean(shares)
            point[f"guarantee, {calibration}"] = str(runs[0].guarantee)
        found.append(point)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--owners", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--records", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--key-bits", type=int, default=2048)
    options = parser.parse_args()
    rows = load_digits().data[:, 18:46]  # the 28 pixels in the middle
    figures = {
        "figure 3": running_time(rows, options.owners, options.key_bits),
        "figure 4": utility(rows, 10, options.records, options.repeats),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
