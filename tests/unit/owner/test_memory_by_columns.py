"""Files that are stored column by column are read in bounded memory, whatever their size."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from genotype_files import BED_MAGIC, write_bim, write_fam
from numpy.typing import NDArray
from pgenlib import PgenWriter
from study_parties import MakeManifest

from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.records.summed import sum_part

PEOPLE, SITES = 20_000, 5_000
MOST_MB = 512
MEASURED = """
import pickle, sys
from pathlib import Path
summed = pickle.loads(Path(sys.argv[1]).read_bytes())()
status = Path("/proc/self/status").read_text()
print(summed.report.records, sum(summed.report.missing))
print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""


def names(count: int) -> list[str]:
    return [f"1:{position}:A:G" for position in range(1, count + 1)]


def write_bed(folder: Path, people: int, sites: int, calls: NDArray[np.uint8]) -> Path:
    with (folder / "c.bed").open("wb") as file:
        file.write(BED_MAGIC)
        for site in range(sites):
            file.write(np.roll(calls, site)[: -(-people // 4)].tobytes())
    write_bim(folder / "c.bim", names(sites))
    write_fam(folder / "c.fam", people)
    return folder / "c.bed"


def write_pgen(folder: Path, people: int, sites: int, calls: NDArray[np.uint8]) -> Path:
    with PgenWriter(bytes(folder / "c.pgen"), people, variant_ct=sites, dosage_present=True) as writer:
        for site in range(sites):
            writer.append_dosages(np.roll(calls, site)[:people] / np.float32(128))
    lines = [f"1\t{position}\t.\tA\tG\n" for position in range(1, sites + 1)]
    (folder / "c.pvar").write_text("#CHROM\tPOS\tID\tREF\tALT\n" + "".join(lines))
    write_fam(folder / "c.psam", people)
    return folder / "c.pgen"


def write_fortran(folder: Path, people: int, sites: int, calls: NDArray[np.uint8]) -> Path:
    matrix = np.empty((people, sites), np.float32, order="F")
    for site in range(sites):
        matrix[:, site] = np.roll(calls, site)[:people] % 3
    np.savez_compressed(folder / "c.npz", X=matrix, features=np.array(names(sites)))
    return folder / "c.npz"


def write_csc(folder: Path, people: int, sites: int, calls: NDArray[np.uint8]) -> Path:
    each = people // 20
    indices = np.concatenate([np.arange(each) * 19 + site % 19 for site in range(sites)])
    entries = (
        np.resize(calls % 2 + 1.0, each * sites),
        indices,
        each * np.arange(sites + 1),
    )
    scipy.sparse.save_npz(folder / "c.npz", scipy.sparse.csc_matrix(entries, (people, sites)))
    (folder / "c.features.txt").write_text("\n".join(names(sites)))
    return folder / "c.npz"


@pytest.mark.nightly
@pytest.mark.parametrize("write", [write_bed, write_pgen, write_fortran, write_csc])
def test_a_wide_file_takes_half_a_gigabyte_at_most(
    tmp_path: Path, make_manifest: MakeManifest, write: Callable[..., Path]
) -> None:
    """The table has 800 MB as doubles. In a process of its own, from opening to the sums of a pre-study."""
    calls = np.random.default_rng(3).integers(0, 256, PEOPLE, dtype=np.uint8)  # noqa: TID251 - made up
    path = write(tmp_path, PEOPLE, SITES, calls)
    features = [{"name": name, "lower": 0, "upper": 2} for name in names(SITES)]
    blocks = {"octaves": "0.5", "norms": "0.5"}
    manifest = make_manifest(
        features=features,
        release="pre-study",
        blocks=blocks,
        missing="midpoint",
        clip_norm=30,
        max_records=50_000,
    )
    call = tmp_path / "call"
    call.write_bytes(pickle.dumps(partial(sum_part, DataLocation(str(path)), manifest, bytes(32))))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(call)], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    records, missing, peak = map(int, done.stdout.split())
    assert records == PEOPLE
    assert (missing > 0) == (write is write_bed)
    assert peak < MOST_MB, f"{peak} MB"
