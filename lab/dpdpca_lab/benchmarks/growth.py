"""Makes the tables of docs/performance.md: runs `dpdpca bench` once for each row, and prints Markdown.

python -m dpdpca_lab.benchmarks.growth > growth.md                 all groups; takes hours on two cores
python -m dpdpca_lab.benchmarks.growth aims encrypt                only these groups
python -m dpdpca_lab.benchmarks.growth release --having 617        only rows that contain these words
"""

import argparse
import json
import subprocess
import sys
from typing import Any

PHE = "--against phe"
PAILLIER = "--suite paillier"
ONE = "--workers 1 --rounds 1"
GROUPS: dict[str, list[str]] = {
    "short": [
        f"encrypt --features 200 --workers 1 {PHE}",
        f"encrypt --features 64 --release masked --workers 1 {PHE}",
        f"aggregate --features 200 --owners 10 --workers 1 {PAILLIER}",
        f"release --features 30 --workers 1 --rounds 1 {PHE}",
        f"decrypt --features 64 --workers 1 {PHE}",
    ],
    "aims": [
        f"encrypt --features 617 --workers 1 {PHE}",
        "encrypt --features 617 --workers 1 --against pypaillier",
        f"encrypt --features 617 --release masked {ONE} {PHE}",
        f"encrypt --features 617 --workers 2 {PAILLIER}",
        f"aggregate --features 617 --owners 10 --workers 1 {PAILLIER}",
        f"aggregate --features 64 --owners 1000 --workers 1 {PAILLIER}",
        f"aggregate --features 617 --owners 10 --workers 2 {PAILLIER}",
        f"decrypt --features 200 --workers 1 {PHE}",
        f"decrypt --features 200 --workers 2 {PAILLIER}",
        f"release --features 617 {ONE} {PHE}",
    ],
    "encrypt": [
        *(f"encrypt --features {d} --rounds 1 {PHE}" for d in (30, 64, 200, 617, 1000, 2000, 5000)),
        *(f"encrypt --release masked --features {d} --rounds 1 {PHE}" for d in (30, 64, 200, 617, 1000)),
    ],
    "aggregate": [
        *(f"aggregate --features 64 --owners {owners} {PHE}" for owners in (3, 10, 100, 1000)),
        *(f"aggregate --features {d} --owners 10 --rounds 1 {PAILLIER}" for d in (30, 200, 617, 1000, 2000)),
        f"aggregate --features 5000 --owners 3 --rounds 1 {PAILLIER}",
    ],
    "release": [
        *(f"release --features {d} --rounds 1 {PHE}" for d in (30, 64, 200, 617, 1000)),
        *(f"release --release joint --features {d} --rounds 1 {PAILLIER}" for d in (64, 617, 5000)),
    ],
    "decrypt": [
        *(f"decrypt --features {d} --rounds 1 {PHE}" for d in (30, 64, 200, 617, 1000)),
        *(f"decrypt --release masked --features {d} --rounds 1 {PHE}" for d in (64, 200)),
    ],
    "study": [
        *(
            f"study --release {kind} --features {d} {PAILLIER}"
            for kind in ("joint", "masked")
            for d in (30, 64, 200)
        ),
        *(f"study --features 64 --owners {owners} {PAILLIER}" for owners in (10, 30)),
    ],
    "pads": [
        *(f"encrypt --features {d} --workers 1" for d in (64, 617, 1000, 5000)),
        *(f"encrypt --features {d} --owners 10 --blinded --workers 1" for d in (617, 5000)),
        *(f"aggregate --features {d} --owners 10 --workers 1" for d in (64, 617, 5000)),
        *(f"release --release joint --features {d} --workers 1 --suite pads" for d in (64, 617, 5000)),
        *(f"decrypt --features {d} --owners 10" for d in (64, 617, 5000)),
        *(f"study --features {d}" for d in (30, 64, 200)),
        *(f"study --features 64 --owners {owners}" for owners in (10, 30)),
        "study --features 64 --chain",
        "study --features 64 --chain --blinded",
    ],
}
HEAD = "| command | seconds | values/s | MB | peak MiB | over floor | the same, CPU | against peer | notes |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--having", nargs="+", default=[], help="words that a row must contain")
    options = parser.parse_args()
    if unknown := set(options.groups) - GROUPS.keys():
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    print(HEAD)
    print("|" + "---|" * 9)
    for group in options.groups or [name for name in GROUPS if name != "short"]:
        for row in GROUPS[group]:
            if set(options.having) <= set(row.split()):
                print(run(row), flush=True)


def run(row: str) -> str:
    """One row of the table. If the command fails, the row shows the last line of its error output."""
    done = subprocess.run(
        [sys.executable, "-m", "dpdpca_cli.main", "bench", *row.split(), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return f"| `{row}` | failed: {done.stderr.strip().splitlines()[-1:]} |"
    return line(row, json.loads(done.stdout))


def line(command: str, facts: dict[str, Any]) -> str:
    def number(name: str, scale: float = 1) -> str:
        value = facts.get(name)
        return "–" if value is None else f"{value / scale:.3g}"

    cells = [
        f"`{command}`",
        number("seconds"),
        number("values_per_second"),
        number("bytes", 1e6),
        number("peak_memory_bytes", 2**20),
        number("ratio_to_floor"),
        number("cpu_ratio_to_floor"),
        number("ratio_to_peer"),
        "; ".join(facts["notes"]),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
