"""Writes the growth table of docs/performance.md: runs `dpdpca bench` once a row and prints Markdown.

python benchmarks/growth.py > growth.md            every row, hours on two cores
python benchmarks/growth.py --rows 6               the first rows only
"""

import argparse
import json
import subprocess
import sys

PEER = "--against phe"
ROWS = [
    *(f"encrypt --release joint --features {d} {PEER}" for d in (30, 64, 200, 617, 1000)),
    *(f"encrypt --release masked --features {d} {PEER}" for d in (30, 64, 200, 617)),
    *(f"decrypt --release joint --features {d} {PEER}" for d in (30, 64, 200, 617)),
    *(f"aggregate --release joint --features 64 --owners {owners} {PEER}" for owners in (3, 10, 100, 1000)),
    *(f"aggregate --release joint --features 617 --owners {owners}" for owners in (3, 10, 100)),
    *(f"release --release masked --features {d} {PEER}" for d in (30, 64, 200, 617, 1000)),
    *(f"study --release {kind} --features {d} --owners 3" for kind in ("joint", "masked") for d in (30, 200)),
    "encrypt --release joint --features 2000 --rounds 1",
    "encrypt --release joint --features 5000 --rounds 1",
    "aggregate --release joint --features 5000 --owners 3 --rounds 1",
]
HEAD = "| command | seconds | values/s | MB | peak MiB | over floor | the same, CPU | against peer | notes |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=len(ROWS))
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    print(HEAD)
    print("|" + "---|" * 9)
    for row in ROWS[: options.rows]:
        words = row.split()
        if options.rounds and "--rounds" not in words and words[0] != "study":
            words += ["--rounds", str(options.rounds)]
        run = subprocess.run(
            [sys.executable, "-m", "dpdpca_cli.main", "bench", *words, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            print(f"| `{' '.join(words)}` | failed: {run.stderr.strip().splitlines()[-1:]} |", flush=True)
            continue
        print(line(" ".join(words), json.loads(run.stdout)), flush=True)


def line(command: str, facts: dict) -> str:
    """One row of the table."""

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
