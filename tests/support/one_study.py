"""`python one_study.py`: one joint study between processes of the installed product, from draft to model."""

import csv
import sys
import tempfile
from pathlib import Path

from dpdpca_cli.federation.processes import ChildFailedError, ChildProcesses, inherited_environment
from dpdpca_cli.federation.studies import Federation

OWNERS = ("Hospital A", "Hospital B", "Hospital C")
RECORDS = 40
DRAFT = {
    "title": "Height and weight",
    "purpose": "To see that a study runs here.",
    "release": "joint",
    "epsilon": 8,
    "clip_norm": 1,
    "max_records": 1000,
    "min_records": 1,
    "participants": list(OWNERS),
    "min_owners": len(OWNERS),
    "closing": "when-complete",
    "features": [
        {"name": "height", "lower": 140, "upper": 220},
        {"name": "weight", "lower": 30, "upper": 200},
    ],
}
POLICY = "[study]\nmin_owners = 3\nmin_records = 1\n"


def run_study(folder: Path) -> int:
    """How many records its model was made of."""
    parts = []
    for number in range(len(OWNERS)):
        parts.append(folder / f"{number}.csv")
        with parts[-1].open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["height", "weight"])
            rows.writerows([150 + number + k, 60 + k % 7] for k in range(RECORDS))
    with ChildProcesses(folder, inherited_environment()) as processes:
        federation = Federation(processes, folder, OWNERS, parts, POLICY, lambda what, done: None)
        try:
            federation.found()
            return federation.run_study(DRAFT).model.components.count
        except ChildFailedError as failure:
            print(failure.tail, file=sys.stderr)
            raise
        finally:
            federation.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        records = run_study(Path(home))
    print(f"a study of {records} records")
    sys.exit(records != len(OWNERS) * RECORDS)
