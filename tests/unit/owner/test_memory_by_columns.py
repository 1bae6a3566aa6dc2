"""Files with many columns are read in bounded memory, whatever their size and the order of their values."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse
from genotype_files import BED_MAGIC, write_bim, write_fam
from numpy.typing import NDArray
from pgenlib import PgenWriter
from study_parties import MakeManifest

from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.records.summed import sum_part
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.terms.manifest import Manifest

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
    entries = sparse_entries(sites, people, calls)
    return write_sparse(folder, scipy.sparse.csc_matrix(entries, (people, sites)))


def write_csr(folder: Path, people: int, sites: int, calls: NDArray[np.uint8]) -> Path:
    entries = sparse_entries(people, sites, calls)
    return write_sparse(folder, scipy.sparse.csr_matrix(entries, (people, sites)))


def sparse_entries(lines: int, length: int, calls: NDArray[np.uint8]) -> tuple[NDArray[Any], ...]:
    """Values, their places in each line, and where each line begins; a twentieth of the places are filled."""
    each = length // 20
    places = np.concatenate([np.arange(each) * 19 + line % 19 for line in range(lines)])
    return np.resize(calls % 2 + 1.0, each * lines), places, each * np.arange(lines + 1)


def write_sparse(folder: Path, matrix: Any) -> Path:
    scipy.sparse.save_npz(folder / "c.npz", matrix)
    (folder / "c.features.txt").write_text("\n".join(names(matrix.shape[1])))
    return folder / "c.npz"


def write_csv(folder: Path, people: int, sites: int, calls: NDArray[np.uint8]) -> Path:
    line = np.full((sites, 2), ord(","), np.uint8)
    line[-1, 1] = ord("\n")
    with (folder / "c.csv").open("wb") as file:
        file.write(",".join(names(sites)).encode() + b"\n")
        for person in range(people):
            line[:, 0] = ord("0") + np.roll(calls, person)[:sites] % 3
            file.write(line.tobytes())
    return folder / "c.csv"


def write_parquet(folder: Path, people: int, sites: int, calls: NDArray[np.uint8]) -> Path:
    """One row group, as most programs write it, of dosages that differ from person to person."""
    columns = {
        name: np.roll(calls, site)[:people] / np.float32(128) + np.arange(people, dtype=np.float32) / 2**20
        for site, name in enumerate(names(sites))
    }
    pa.parquet.write_table(pa.table(columns), folder / "c.parquet")
    return folder / "c.parquet"


def pre_study(make_manifest: MakeManifest, **terms: Any) -> Manifest:
    return make_manifest(release="pre-study", blocks={"octaves": "0.5", "norms": "0.5"}, **terms)


def lift(make_manifest: MakeManifest, **terms: Any) -> Manifest:
    rows, columns = 656, 10
    return make_manifest(
        release="lift",
        of="records",
        rho_share="0.7",
        pre_studies=["ab" * 32],
        sketch={"rows": rows, "seed": "5a" * 32},
        lift={"columns": columns, "matrix": [[2**10] * rows] * columns, "offset": [0] * columns},
        **terms,
    )


WRITERS = (write_bed, write_pgen, write_fortran, write_csc, write_csr, write_csv, write_parquet)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("write", "make"), [*((write, pre_study) for write in WRITERS), (write_bed, lift), (write_parquet, lift)]
)
def test_a_wide_file_takes_half_a_gigabyte_at_most(
    tmp_path: Path, make_manifest: MakeManifest, write: Callable[..., Path], make: Callable[..., Manifest]
) -> None:
    """The table has 800 MB as doubles. In a process of its own, from opening to the sums of a study.

    Text is read so slowly that it gets a fifth of the people. Its batches do not depend on their number.
    """
    people = PEOPLE // 5 if write is write_csv else PEOPLE
    calls = np.random.default_rng(3).integers(0, 256, PEOPLE, dtype=np.uint8)  # noqa: TID251 - made up
    path = write(tmp_path, people, SITES, calls)
    features = [{"name": name, "lower": 0, "upper": 2} for name in names(SITES)]
    manifest = make(make_manifest, features=features, missing="midpoint", clip_norm=30, max_records=50_000)
    call = tmp_path / "call"
    projection = projection_of(manifest)
    call.write_bytes(
        pickle.dumps(partial(sum_part, DataLocation(str(path)), manifest, bytes(32), projection=projection))
    )
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(call)], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    records, missing, peak = map(int, done.stdout.split())
    print(f"{write.__name__}, {manifest.release}: {peak} MB")
    assert records == people
    assert (missing > 0) == (write is write_bed)
    assert peak < MOST_MB, f"{peak} MB"
