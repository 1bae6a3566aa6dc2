"""PLINK files: which allele is counted, how sites are matched, and what a damaged or unfit file says."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from genotype_files import (
    BED_MAGIC,
    SITES,
    Genotypes,
    bed_bytes,
    parts_of,
    write_bed,
    write_bed_by_library,
    write_bim,
    write_fam,
    write_pgen,
)
from numpy.typing import NDArray
from study_parties import MakeManifest

from dpdpca_owner.records import plink
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.open import open_source, read_batches
from dpdpca_owner.records.source import DataLocation, Reading
from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.terms.features import Feature

NAN = np.nan
GENOTYPES: Genotypes = np.array(
    [
        [0.0, 1.0, 2.0, NAN, 0.0, 1.0],
        [1.0, 2.0, 0.0, 0.0, NAN, 2.0],
        [2.0, 0.0, NAN, 1.0, 2.0, 0.0],
        [0.0, 0.0, 1.0, 2.0, 1.0, 1.0],
        [NAN, 1.0, 0.0, 2.0, 0.0, 2.0],
    ]
)
WRITERS = [write_bed, write_bed_by_library, write_pgen]


def read(location: DataLocation, *names: str, flip: bool | None = None) -> NDArray[np.float64]:
    features = [Feature(name, "numeric") for name in names]
    source = open_source(DataLocation(location.data, reading=Reading(flip=flip)), features)
    (columns,) = read_batches(source, features)
    return np.stack([np.asarray(columns[name], float) for name in names], axis=1)


def refused(location: DataLocation, *names: str, flip: bool | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        read(location, *(names or SITES), flip=flip)
    return caught.value


def same(found: NDArray[np.float64], expected: NDArray[np.float64]) -> bool:
    return np.array_equal(found, expected, equal_nan=True)


def other_way(site: str) -> str:
    chromosome, position, ref, alt = site.split(":")
    return f"{chromosome}:{position}:{alt}:{ref}"


def test_the_bits_of_a_bed_file_count_the_first_allele_of_the_bim_file(tmp_path: Path) -> None:
    """From PLINK's description: 00 is homozygous for the allele in column 5, 01 missing, 10 heterozygous, and
    11 homozygous for the allele in column 6. PLINK 2 calls these alleles ALT and REF."""
    (tmp_path / "c.bed").write_bytes(BED_MAGIC + bytes([0b11_10_01_00, 0b00_00_00_11]))
    (tmp_path / "c.bim").write_text("1 rs1 0 100 G A\n")
    (tmp_path / "c.fam").write_text("".join(f"f i{i} 0 0 0 -9\n" for i in range(5)))
    found = read(DataLocation(str(tmp_path / "c.bed")), "1:100:A:G")
    assert same(found, np.array([[2.0], [NAN], [1.0], [0.0], [0.0]]))


def test_bed_reader_writes_the_bytes_that_we_write_by_hand(tmp_path: Path) -> None:
    location = write_bed_by_library(tmp_path / "library", GENOTYPES, SITES)
    assert Path(location.data).read_bytes() == bed_bytes(GENOTYPES)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("people", [1, 3, 4, 5])
def test_every_number_of_people(tmp_path: Path, write: Callable[..., DataLocation], people: int) -> None:
    """Also those that do not fill the last byte of a site."""
    assert same(read(write(tmp_path / "c", GENOTYPES[:people], SITES), *SITES), GENOTYPES[:people])


@pytest.mark.parametrize("write", WRITERS)
def test_sites_are_matched_by_name_and_never_by_position(
    tmp_path: Path, write: Callable[..., DataLocation]
) -> None:
    location = write(tmp_path / "c", GENOTYPES, SITES)
    assert same(read(location, SITES[4], SITES[1]), GENOTYPES[:, [4, 1]])
    for other in ("1:100:A:T", "1:101:A:G", "2:100:A:G", "chr1:100:A:G"):
        error = refused(location, SITES[1], other)
        assert error.slug == "missing-column"
        assert other in str(error)
        assert "rename" not in str(error), "a similar name is another site"
    assert "--output-chr chrM" in str(refused(location, "chr1:100:A:G"))
    assert "--output-chr MT" in str(refused(location, SITES[5].removeprefix("chr")))


def test_dosages_of_pgen_files(tmp_path: Path) -> None:
    dosages = np.where(np.isnan(GENOTYPES), NAN, np.minimum(GENOTYPES + 0.25, 2))
    dosages[0, 0] = 1 / 16384  # the smallest that the format has
    assert same(read(write_pgen(tmp_path / "c", dosages, SITES, dosages=True), *SITES), dosages)


@pytest.mark.parametrize("write", WRITERS)
def test_swapped_alleles_are_refused_until_the_owner_says_flip(
    tmp_path: Path, write: Callable[..., DataLocation]
) -> None:
    location = write(tmp_path / "c", GENOTYPES, SITES)
    swapped = other_way(SITES[0])
    error = refused(location, swapped, SITES[1])
    assert error.slug == "alleles-swapped"
    assert swapped in str(error)
    assert "--flip" in str(error)
    found = read(location, swapped, SITES[1], flip=True)
    assert same(found, np.column_stack([2 - GENOTYPES[:, 0], GENOTYPES[:, 1]]))
    assert refused(location, swapped, flip=False).slug == "alleles-swapped"


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("alleles", ["A:T", "C:G", "g:c", "AC:GT"])
def test_a_swap_that_may_be_one_of_strands_is_refused_in_any_case(
    tmp_path: Path, alleles: str, flip: bool
) -> None:
    location = write_bed(tmp_path / "c", GENOTYPES[:, :2], [f"7:5:{alleles}", SITES[1]])
    assert refused(location, other_way(f"7:5:{alleles}"), flip=flip).slug == "strand-ambiguous"
    assert same(read(location, f"7:5:{alleles}", flip=flip), GENOTYPES[:, :1])


def test_a_site_of_its_own_name_is_not_flipped(tmp_path: Path) -> None:
    """A file may have a site in both orders, and a study may ask for both."""
    both = [SITES[0], other_way(SITES[0])]
    location = write_bed(tmp_path / "c", GENOTYPES[:, :2], both)
    assert same(read(location, *both, flip=True), GENOTYPES[:, :2])
    one = write_bed(tmp_path / "one", GENOTYPES[:, :1], both[:1])
    assert refused(one, *both, flip=True).slug == "missing-column"


def test_a_site_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    location = write_bed(tmp_path / "c", GENOTYPES[:, :2], [SITES[0], SITES[0]])
    assert refused(location, SITES[0]).slug == "duplicated-column"
    assert refused(location, other_way(SITES[0]), flip=True).slug == "duplicated-column"


@pytest.mark.parametrize(
    ("write", "more"), [(write_bed, 0), (partial(write_pgen, dosages=True), 0.25)], ids=["calls", "dosages"]
)
def test_the_ledger_knows_flipped_records_again(
    tmp_path: Path, make_manifest: MakeManifest, write: Callable[..., DataLocation], more: float
) -> None:
    """Calls and dosages. And the owner is told what is flipped."""

    def share(*sites: str) -> Any:
        features = [{"name": site, "lower": 0, "upper": 2} for site in sites]
        manifest = make_manifest(features=features, clip_norm=1, missing="midpoint", max_records=100)
        return read_contribution(DataLocation(location.data, reading=Reading(flip=True)), manifest, bytes(32))

    location = write(tmp_path / "c", GENOTYPES + more * (GENOTYPES < 2), SITES)
    plain, flipped = share(SITES[0], SITES[1]), share(other_way(SITES[0]), SITES[1])
    assert flipped.content == plain.content
    assert flipped.sums.to_bytes() != plain.sums.to_bytes()
    assert any("--flip" in note for note in flipped.notes)
    assert not any("--flip" in note for note in plain.notes)


def test_a_packed_pvar_file(tmp_path: Path) -> None:
    location = write_pgen(tmp_path / "c", GENOTYPES, SITES)
    plain = tmp_path / "c.pvar"
    with pa.output_stream(str(tmp_path / "c.pvar.zst"), compression="zstd") as file:
        file.write(plain.read_bytes())
    plain.unlink()
    assert same(read(location, *SITES), GENOTYPES)
    (tmp_path / "c.pvar.zst").write_bytes((tmp_path / "c.pvar.zst").read_bytes()[:30])
    assert refused(location).slug == "damaged-file"


Damage = Callable[[Path], None]


def cut(name: str, by: int) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-by])

    return damage


def add(name: str, more: bytes) -> Damage:
    def damage(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(more)

    return damage


def replace(name: str, old: bytes, new: bytes) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        assert old in content
        (folder / name).write_bytes(content.replace(old, new, 1))

    return damage


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def fam_of(people: int, name: str = "c.fam") -> Damage:
    return lambda folder: write_fam(folder / name, people)


BED_DAMAGES: list[tuple[Damage, str, str]] = [
    (cut("c.bed", 1), "damaged-file", "14 bytes"),
    (cut("c.bed", 12), "damaged-file", "5 people"),
    (add("c.bed", b"\0"), "damaged-file", "16 bytes"),
    (replace("c.bed", BED_MAGIC, b"\x6c\x1b\x00"), "unknown-format", "--make-bed"),
    (replace("c.bed", BED_MAGIC, b"\x6c\x1c\x01"), "unknown-format", "neither"),
    (fam_of(9), "damaged-file", "9 people"),
    (fam_of(0), "damaged-file", "0 people"),
    (add("c.bim", b"1 rs 0 5 A C\n"), "damaged-file", "7 sites"),
    (add("c.bim", b"1 rs 0 5 A\n"), "damaged-file", "line 7"),
    (add("c.bim", b"1 rs 0 5 A C extra\n"), "damaged-file", "7 fields instead of 6"),
    (replace("c.bim", b"\t100\t", b"\t1e2\t"), "damaged-file", "line 1"),
    (replace("c.bim", b"\t100\t", b"\t" + b"1" * 5000 + b"\t"), "damaged-file", "line 1"),
    (replace("c.bim", b"s0", "sé".encode()), "damaged-file", "not ASCII"),
    (replace("c.bim", b"s0", b"s\0"), "damaged-file", "not text"),
    (replace("c.bim", b"s0", b"s" * (1 << 20)), "damaged-file", "too long"),
    (remove("c.bim"), "no-such-file", "c.bim"),
    (remove("c.fam"), "no-such-file", "c.fam"),
]


@pytest.mark.parametrize(("damage", "slug", "words"), BED_DAMAGES)
def test_a_damaged_bed_file_is_refused(tmp_path: Path, damage: Damage, slug: str, words: str) -> None:
    location = write_bed(tmp_path / "c", GENOTYPES, SITES)
    damage(tmp_path)
    error = refused(location)
    assert (error.slug, words in str(error)) == (slug, True), str(error)


PGEN_DAMAGES: list[tuple[Damage, str, str]] = [
    (cut("c.pgen", 1), "damaged-file", "ends early"),
    (cut("c.pgen", 15), "damaged-file", "ends early"),
    (fam_of(9, "c.psam"), "damaged-file", "9 people"),
    (fam_of(0, "c.psam"), "damaged-file", "0 people"),
    (add("c.pvar", b"1\t5\t.\tA\tC\n"), "damaged-file", "7 sites"),
    (add("c.pvar", b"1\t5\t.\tA\n"), "damaged-file", "line 9"),
    (replace("c.pvar", b"A\tG", b"A\tG,T"), "several-alleles", "--max-alleles 2"),
    (replace("c.pvar", b"REF", b"RED"), "damaged-file", "lacks REF"),
    (replace("c.pgen", b"\x6c\x1b\x10", b"\x6c\x1b\x7f"), "damaged-file", "ends early"),
    (remove("c.pvar"), "no-such-file", "c.pvar"),
    (remove("c.psam"), "no-such-file", "c.psam"),
]


@pytest.mark.parametrize(("damage", "slug", "words"), PGEN_DAMAGES)
def test_a_damaged_pgen_file_is_refused(tmp_path: Path, damage: Damage, slug: str, words: str) -> None:
    location = write_pgen(tmp_path / "c", GENOTYPES, SITES)
    damage(tmp_path)
    error = refused(location)
    assert (error.slug, words in str(error)) == (slug, True), str(error)


def test_a_pgen_file_whose_header_promises_billions_takes_no_memory_for_them(tmp_path: Path) -> None:
    location = write_pgen(tmp_path / "c", GENOTYPES, SITES)
    path = tmp_path / "c.pgen"
    content = path.read_bytes()
    path.write_bytes(content[:3] + b"\xff\xff\xff\x7e" * 2 + content[11:])
    assert refused(location).slug == "damaged-file"


def test_a_pgen_file_that_ends_anywhere_is_refused(tmp_path: Path) -> None:
    location = write_pgen(tmp_path / "c", GENOTYPES, SITES)
    path = tmp_path / "c.pgen"
    content = path.read_bytes()
    for length in range(3, len(content)):
        path.write_bytes(content[:length])
        assert refused(location).slug == "damaged-file", length


def test_too_many_sites_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = write_bed(tmp_path / "c", GENOTYPES, SITES)
    monkeypatch.setattr(plink, "_MOST_SITES", 5)
    assert refused(location).slug == "too-large"


@pytest.mark.parametrize(("write", "module"), [(write_bed, "bed_reader"), (write_pgen, "pgenlib")])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., DataLocation], module: str
) -> None:
    location = write(tmp_path / "c", GENOTYPES, SITES)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match="dpdpca\\[genotypes\\]") as caught:
        read(location, *SITES)
    assert caught.value.slug == "missing-package"


def test_several_bed_files_of_people_are_one_table(tmp_path: Path) -> None:
    write_bed(tmp_path / "a", GENOTYPES[:2], SITES)
    write_bed(tmp_path / "b", GENOTYPES[2:, ::-1], SITES[::-1])
    features = [Feature(site, "numeric") for site in SITES]
    batches = read_batches(open_source(DataLocation(str(tmp_path / "*.bed")), features), features)
    found = [np.stack(list(columns.values()), axis=1) for columns in batches]
    assert same(np.concatenate(found), GENOTYPES)


def test_a_bim_file_in_any_spacing(tmp_path: Path) -> None:
    location = write_bed(tmp_path / "c", GENOTYPES, SITES)
    write_bim(tmp_path / "c.bim", SITES)
    lines = [f"  {c}   s 0.5  0{pos} {alt}\t{ref}  \r\n\n" for c, pos, ref, alt in parts_of(SITES)]
    (tmp_path / "c.bim").write_bytes("".join(lines).encode())
    assert same(read(location, *SITES), GENOTYPES)
