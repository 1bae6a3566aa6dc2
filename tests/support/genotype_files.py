"""One table of genotypes, written in every format that owners have.

PLINK 1 is written twice: by bed-reader, and byte by byte from the format's description.
"""

import csv
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import scipy.sparse
from bed_reader import to_bed
from numpy.typing import NDArray
from pgenlib import PgenWriter

from dpdpca_owner.records.source import DataLocation

Genotypes = NDArray[np.float64]
"""(people, sites) dosages of ALT, from 0 to 2; NaN for a missing one."""

SITES: Final = ("1:100:A:G", "1:200:C:T", "2:100:G:GA", "X:5:T:C", "22:7:A:T", "chrM:9:G:C")
MORE_SITES: Final = (*SITES, *(f"3:{position}:A:G" for position in range(100, 114)))
"""As many as the small studies of many features have."""
BED_MAGIC: Final = b"\x6c\x1b\x01"
_BITS: Final = {2.0: 0b00, 1.0: 0b10, 0.0: 0b11}
"""Two bits for each number of the first allele of the .bim file; 0b01 is a missing call."""


def parts_of(sites: Sequence[str]) -> list[list[str]]:
    return [site.split(":") for site in sites]


def write_csv(path: Path, genotypes: Genotypes, sites: Sequence[str]) -> DataLocation:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = [["" if np.isnan(x) else repr(float(x)) for x in row] for row in genotypes]
        csv.writer(file).writerows([sites, *rows])
    return DataLocation(str(path))


def write_parquet(path: Path, genotypes: Genotypes, sites: Sequence[str]) -> DataLocation:
    table = {
        site: pa.array(column, from_pandas=True) for site, column in zip(sites, genotypes.T, strict=True)
    }
    pa.parquet.write_table(pa.table(table), path)
    return DataLocation(str(path))


def write_sql(path: Path, genotypes: Genotypes, sites: Sequence[str]) -> DataLocation:
    with closing(sqlite3.connect(path)) as database, database:
        columns = ", ".join(f'"{site}" REAL' for site in sites)
        database.execute(f"CREATE TABLE t ({columns})")
        rows = [[None if np.isnan(x) else x for x in row] for row in genotypes.tolist()]
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(sites))})", rows)
    return DataLocation(f"sqlite:///{path}", "SELECT * FROM t")


def write_npy(path: Path, genotypes: Genotypes, sites: Sequence[str], order: Any = "C") -> DataLocation:
    with path.open("wb") as file:
        np.save(file, np.asarray(genotypes, order=order))
    path.with_suffix(".features.txt").write_text("".join(f"{site}\n" for site in sites))
    return DataLocation(str(path))


def write_npz(path: Path, genotypes: Genotypes, sites: Sequence[str], order: Any = "C") -> DataLocation:
    with path.open("wb") as file:
        np.savez_compressed(file, X=np.asarray(genotypes, order=order), features=np.array(sites))
    return DataLocation(str(path))


def write_sparse(path: Path, genotypes: Genotypes, sites: Sequence[str], format: str = "csr") -> DataLocation:
    matrix = scipy.sparse.csr_matrix(genotypes).asformat(format)
    with path.open("wb") as file:
        scipy.sparse.save_npz(file, matrix)
    path.with_suffix(".features.txt").write_text("".join(f"{site}\n" for site in sites))
    return DataLocation(str(path))


def bed_bytes(genotypes: Genotypes) -> bytes:
    """A .bed file from the description of the format: four calls a byte, the first in the lowest bits."""
    content = bytearray(BED_MAGIC)
    for column in genotypes.T.tolist():
        for start in range(0, len(column), 4):
            calls = column[start : start + 4]
            content.append(sum(_BITS.get(call, 0b01) << (2 * place) for place, call in enumerate(calls)))
    return bytes(content)


def write_bim(path: Path, sites: Sequence[str]) -> None:
    """Column 5 is the allele that is counted, which is ALT, and column 6 is REF."""
    lines = [f"{c}\ts{i}\t0\t{pos}\t{alt}\t{ref}\n" for i, (c, pos, ref, alt) in enumerate(parts_of(sites))]
    path.write_text("".join(lines))


def write_fam(path: Path, people: int) -> None:
    path.write_text("".join(f"f{i} i{i} 0 0 0 -9\n" for i in range(people)))


def write_bed(path: Path, genotypes: Genotypes, sites: Sequence[str]) -> DataLocation:
    """By hand."""
    path = path.with_suffix(".bed")
    path.write_bytes(bed_bytes(genotypes))
    write_bim(path.with_suffix(".bim"), sites)
    write_fam(path.with_suffix(".fam"), len(genotypes))
    return DataLocation(str(path))


def write_bed_by_library(path: Path, genotypes: Genotypes, sites: Sequence[str]) -> DataLocation:
    path = path.with_suffix(".bed")
    chromosomes, positions, refs, alts = zip(*parts_of(sites), strict=True)
    properties = {
        "chromosome": chromosomes,
        "bp_position": [int(position) for position in positions],
        "allele_1": alts,
        "allele_2": refs,
    }
    to_bed(path, genotypes, properties=properties, count_A1=True, num_threads=1)
    return DataLocation(str(path))


def write_pgen(
    path: Path, genotypes: Genotypes, sites: Sequence[str], *, dosages: bool = False, header: bool = True
) -> DataLocation:
    """With hard calls or, for values between whole numbers, with dosages."""
    path = path.with_suffix(".pgen")
    people, count = genotypes.shape
    called = np.where(np.isnan(genotypes), -9, genotypes)
    with PgenWriter(
        bytes(path), people, variant_ct=count, nonref_flags=False, dosage_present=dosages
    ) as writer:
        for column in called.T:
            if dosages:
                writer.append_dosages(np.ascontiguousarray(column))
            else:
                writer.append_biallelic(column.astype(np.int8))
    parts = parts_of(sites)
    if header:
        lines = ["##fileformat=PVARv1.0\n", "#CHROM\tPOS\tID\tREF\tALT\n"]
        lines += [f"{c}\t{pos}\t.\t{ref}\t{alt}\n" for c, pos, ref, alt in parts]
    else:
        lines = [f"{c}\t.\t{pos}\t{alt}\t{ref}\n" for c, pos, ref, alt in parts]
    path.with_suffix(".pvar").write_text("".join(lines))
    names = "".join(f"i{i}\tNA\n" for i in range(people))
    path.with_suffix(".psam").write_text(f"#IID\tSEX\n{names}")
    return DataLocation(str(path))


Write = Callable[[Path, Genotypes, Sequence[str]], DataLocation]

OF_ANY_NUMBERS: Final[dict[str, Write]] = {
    "csv": write_csv,
    "parquet": write_parquet,
    "sql": write_sql,
    "npy by rows": write_npy,
    "npy by columns": partial(write_npy, order="F"),
    "npz by rows": write_npz,
    "npz by columns": partial(write_npz, order="F"),
    "sparse by rows": write_sparse,
    "sparse by columns": partial(write_sparse, format="csc"),
}
OF_DOSAGES: Final[dict[str, Write]] = {**OF_ANY_NUMBERS, "dosages": partial(write_pgen, dosages=True)}
OF_CALLS: Final[dict[str, Write]] = {
    **OF_DOSAGES,
    "bed": write_bed,
    "bed by library": write_bed_by_library,
    "pgen": write_pgen,
    "pgen without header": partial(write_pgen, header=False),
}
