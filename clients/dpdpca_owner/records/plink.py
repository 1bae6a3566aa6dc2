"""Genotypes in PLINK files: PLINK 1 (.bed with .bim and .fam) and PLINK 2 (.pgen with .pvar and .psam).

A record is a person, and a column a site. A column is called CHROM:POS:REF:ALT, and its values are dosages of
ALT, from 0 to 2; a missing call is NaN. PLINK 1 does not know which allele is the reference. Here, as in
PLINK 2, the first allele of a .bim file (its fifth column) is ALT, and the second is REF.

Nothing but bed-reader and pgenlib reads genotypes. What they allocate follows from the numbers of people and
sites, so these are compared with the size or the header of the file before.
"""

import io
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpdpca_owner.records.source import ColumnSource, check_record_count
from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.terms.features import Feature, column_key

BED_BY_SITES: Final = b"\x6c\x1b\x01"
BED_BY_PEOPLE: Final = b"\x6c\x1b\x00"
PGEN: Final = b"\x6c\x1b"
_MOST_SITES = 1 << 22
_MOST_LINE_BYTES = 1 << 20
_MOST_DIGITS = 18
_MISSING_CALL = np.int8(-1)
"""Stands for a missing call; bed-reader has a lower number for it."""
_MISSING_DOSAGE = -9
"""What pgenlib puts in place of a missing dosage."""
_COMPLEMENTS = str.maketrans("ACGT", "TGCA")
_BIM = ("CHROM", "ID", "CM", "POS", "ALT", "REF")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Beside:
    """The text files beside a file of genotypes.

    Attributes:
        sites: CHROM:POS:REF:ALT of each site, in order.
        people: how many there are.
    """

    sites: tuple[str, ...]
    people: int


class GenotypeSource(ColumnSource):
    """Genotypes of people at sites.

    Args:
        path: of the file with the genotypes.
        beside: what stands in the files beside it.
        features: of the study.
        flip: count the other allele at sites whose alleles have the other order.
        folder: for the spool.

    Raises:
        InputError: `alleles-swapped`, `strand-ambiguous`; or a file is damaged.
    """

    def __init__(
        self, path: Path, beside: _Beside, features: Sequence[Feature], folder: Path | None, *, flip: bool
    ) -> None:
        super().__init__(folder)
        self.path, self.records = path, beside.people
        check_record_count(self.records, path)
        swapped = _swapped(beside.sites, features)
        _check_swapped(path, list(swapped.values()), flip=flip)
        names = list(beside.sites)
        for position, name in swapped.items():
            names[position] = name
        self.names = tuple(names)
        _check_present(path, self.names, features)
        self._flipped = np.zeros(len(names), dtype=bool)
        self._flipped[list(swapped)] = True
        if swapped:
            self.remarks = (
                f"at {len(swapped)} of the study's sites your file has the alleles in the other order: the"
                " other allele is counted, as --flip says",
            )

    def counted(self, values: NDArray[Any], positions: Sequence[int]) -> NDArray[Any]:
        if not self._flipped.any():
            return values
        flipped = self._flipped[list(positions)]
        return np.where(flipped, 2 - values, values)

    @abstractmethod
    def _dosages(self, positions: NDArray[np.uint32]) -> NDArray[np.float32]:
        """(records, sites) dosages of ALT at these sites; NaN for a missing one."""

    def stored_columns(self, positions: Sequence[int], width: int) -> Iterator[NDArray[Any]]:
        places = np.asarray(positions, dtype=np.uint32)
        for start in range(0, len(places), width):
            yield self._dosages(places[start : start + width])

    def _damaged(self, problem: str) -> InputError:
        return InputError(
            "damaged-file", f"{self.path} cannot be read as a PLINK file: {problem}", "export it again"
        )


class BedSource(GenotypeSource):
    """PLINK 1."""

    def __init__(self, path: Path, features: Sequence[Feature], folder: Path | None, *, flip: bool) -> None:
        beside = _Beside(_sites(path.with_suffix(".bim"), _BIM), _people(path.with_suffix(".fam")))
        expected = len(BED_BY_SITES) + len(beside.sites) * -(-beside.people // 4)
        if (size := path.stat().st_size) != expected:
            raise InputError(
                "damaged-file",
                f"{path} has {size} bytes, but {beside.people} people in the .fam file and"
                f" {len(beside.sites)} sites in the .bim file make {expected}",
                "put the .bim and .fam files beside it that were written with it, or export all three again",
            )
        super().__init__(path, beside, features, folder, flip=flip)
        self._bed = _bed_reader()(
            path, iid_count=beside.people, sid_count=len(beside.sites), count_A1=True, num_threads=1
        )

    def stored_calls(self, positions: Sequence[int], width: int) -> Iterator[NDArray[np.int8]]:
        places = np.asarray(positions, dtype=np.uint32)
        for start in range(0, len(places), width):
            calls = self._read(places[start : start + width], "int8")
            yield np.maximum(calls, _MISSING_CALL, out=calls)

    def _dosages(self, positions: NDArray[np.uint32]) -> NDArray[np.float32]:
        return self._read(positions, "float32")

    def _read(self, positions: NDArray[np.uint32], dtype: str) -> NDArray[Any]:
        try:
            index = (np.s_[:], positions.astype(np.intp))
            return self._bed.read(index, dtype=dtype)  # type: ignore[no-any-return]  # untyped
        except (OSError, ValueError, IndexError) as error:
            raise self._damaged("its genotypes end early") from error


class PgenSource(GenotypeSource):
    """PLINK 2: dosages where the file has them, else hard calls."""

    def __init__(self, path: Path, features: Sequence[Feature], folder: Path | None, *, flip: bool) -> None:
        sites = _beside(path, ".pvar", ".pvar.zst")
        beside = _Beside(_sites_of_pvar(sites), _people(path.with_suffix(".psam")))
        super().__init__(path, beside, features, folder, flip=flip)
        with self._reading():
            # It refuses a file with other numbers in its header, before it takes memory for them.
            self._pgen = _pgen_reader()(
                os.fsencode(path), raw_sample_ct=beside.people, variant_ct=len(beside.sites)
            )

    def _dosages(self, positions: NDArray[np.uint32]) -> NDArray[np.float32]:
        dosages = np.empty((len(positions), self.records), np.float32)
        with self._reading():
            self._pgen.read_dosages_list(positions, dosages)
        dosages[dosages == _MISSING_DOSAGE] = np.nan
        return dosages.T

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._damaged(
                f"it does not have the {self.records} people and {len(self.names)} sites of the files beside"
                " it, or it ends early"
            ) from error


def open_genotypes(
    path: Path, beginning: bytes, features: Sequence[Feature], folder: Path | None, *, flip: bool
) -> GenotypeSource:
    """The genotypes in a .bed or .pgen file.

    Args:
        path: of the file; the files beside it have the same name with other endings.
        beginning: its first bytes.
        features: of the study.
        folder: for the spool.
        flip: count the other allele at sites whose alleles have the other order.

    Raises:
        InputError: a file beside it is missing, or a file is damaged; `alleles-swapped`, `strand-ambiguous`.
        UsageError: `missing-package`.
    """
    if beginning.startswith(BED_BY_PEOPLE):
        raise InputError(
            "unknown-format",
            f"{path} is a PLINK file that is stored person by person",
            "store it site by site: plink2 --bfile NAME --make-bed",
        )
    if beginning.startswith(BED_BY_SITES):
        return BedSource(path, features, folder, flip=flip)
    return PgenSource(path, features, folder, flip=flip)


def _swapped(sites: Sequence[str], features: Sequence[Feature]) -> dict[int, str]:
    """The position of each site that has the alleles of a feature in the other order, and the feature's name.

    A site that has a column of its own name is not among them.
    """
    known = {column_key(feature.name) for feature in features} - set(sites)
    if not known:
        return {}
    wanted = {other: name for name in known if (other := _other_way(name)) is not None and other not in known}
    asked = {feature.name for feature in features}
    return {
        position: wanted[site] for position, site in enumerate(sites) if site in wanted and site not in asked
    }


def _other_way(name: str) -> str | None:
    """The name of a site with its alleles in the other order; None for the name of something else."""
    parts = name.rsplit(":", 3)
    return f"{parts[0]}:{parts[1]}:{parts[3]}:{parts[2]}" if len(parts) == 4 else None


def _is_ambiguous(name: str) -> bool:
    """Whether the alleles of a site are each other's complement on the other strand (A/T, C/G)."""
    *_, ref, alt = name.upper().rsplit(":", 2)
    return ref.translate(_COMPLEMENTS)[::-1] == alt


def _check_swapped(path: Path, names: Sequence[str], *, flip: bool) -> None:
    if ambiguous := [name for name in names if _is_ambiguous(name)]:
        raise InputError(
            "strand-ambiguous",
            f"{path} has the alleles of {_listed(ambiguous)} in the other order, and they are each other's"
            " complement, so it cannot be told whether the alleles or the strands are swapped",
            "ask the data user for a study without such sites, or set the reference alleles of your file:"
            " plink2 --ref-from-fa",
        )
    if names and not flip:
        raise InputError(
            "alleles-swapped",
            f"{path} has the alleles of {_listed(names)} in the other order, so it counts the other allele"
            " there",
            "add --flip to count the study's allele at these sites",
        )


def _check_present(path: Path, names: Sequence[str], features: Sequence[Feature]) -> None:
    """Raises InputError if a site is missing. A similar name, as for other tables, would be another site."""
    present = set(names)
    missing = [name for feature in features if (name := column_key(feature.name)) not in present]
    if not missing:
        return
    other = missing[0].removeprefix("chr") if missing[0].startswith("chr") else f"chr{missing[0]}"
    advice = (
        "use the sites of the manifest: a site is found by its whole name CHROM:POS:REF:ALT, and one that the"
        " file lacks does not count as 0"
    )
    if other in present:
        advice = (
            f"the file calls the first of them '{other}'; name the chromosomes as the study does:"
            f" plink2 --output-chr {'chrM' if missing[0].startswith('chr') else 'MT'}"
        )
    raise InputError(
        "missing-column", f"{path} lacks the site{'s' * (len(missing) > 1)} {_listed(missing)}", advice
    )


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + rest


def _sites_of_pvar(path: Path) -> tuple[str, ...]:
    columns: tuple[str, ...] | None = None
    for _, line in _lines(path):
        if line.startswith("##"):
            continue
        if line.startswith("#CHROM"):
            columns = tuple(line.removeprefix("#").split())
        else:  # without a header, the columns are those of a .bim file, perhaps without the third
            columns = _BIM if len(line.split()) != len(_BIM) - 1 else ("CHROM", "ID", "POS", "ALT", "REF")
        break
    if columns is None:
        return ()
    if missing := {"CHROM", "POS", "REF", "ALT"} - set(columns):
        raise _bad_line(path, 1, f"its header lacks {', '.join(sorted(missing))}")
    return _sites(path, columns)


def _sites(path: Path, columns: Sequence[str]) -> tuple[str, ...]:
    places = [columns.index(column) for column in ("CHROM", "POS", "REF", "ALT")]
    names: list[str] = []
    for number, line in _lines(path):
        if line.startswith("#"):
            continue
        fields = line.split()
        if len(fields) != len(columns):
            raise _bad_line(path, number, f"it has {len(fields)} fields instead of {len(columns)}")
        chrom, pos, ref, alt = (fields[place] for place in places)
        if not pos.isdecimal() or len(pos) > _MOST_DIGITS:
            raise _bad_line(path, number, "the position is not a whole number")
        if "," in alt:
            raise InputError(
                "several-alleles",
                f"line {number} of {path} has a site with several alternative alleles",
                "make a site of each, or leave such sites out: plink2 --max-alleles 2",
            )
        if len(names) == _MOST_SITES:
            raise InputError(
                "too-large",
                f"{path} has more than {_MOST_SITES} sites",
                "leave out sites that the study does not ask for: plink2 --extract",
            )
        names.append(f"{chrom}:{int(pos)}:{ref}:{alt}")
    return tuple(names)


def _people(path: Path) -> int:
    return sum(1 for _, line in _lines(path) if not line.startswith("#"))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers."""
    if not path.is_file():
        raise InputError(
            "no-such-file",
            f"there is no file {path}",
            "put all three files of the data into one folder, with the same name and their usual endings",
        )
    with _text(path) as file:
        number = 0
        while line := file.readline(_MOST_LINE_BYTES):
            number += 1
            if len(line) == _MOST_LINE_BYTES:
                raise _bad_line(path, number, "it is too long")
            if not line.isascii():
                raise _bad_line(path, number, "it has characters that are not ASCII")
            if b"\0" in line:
                raise _bad_line(path, number, "it is not text")
            if text := line.decode("ascii").strip():
                yield number, text


@contextmanager
def _text(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != ".zst":
        with path.open("rb") as file:
            yield file
        return
    try:
        with pa.input_stream(str(path), compression="zstd") as unpacked:
            yield io.BufferedReader(unpacked)
    except (pa.ArrowException, OSError) as error:
        raise InputError("damaged-file", f"{path} cannot be unpacked", "export it again") from error


def _bad_line(path: Path, number: int, problem: str) -> InputError:
    return InputError("damaged-file", f"line {number} of {path} cannot be read: {problem}", "export it again")


def _beside(path: Path, *endings: str) -> Path:
    """The file beside `path` with the first of these endings that there is."""
    found = (path.with_suffix(ending) for ending in endings)
    return next((each for each in found if each.is_file()), path.with_suffix(endings[0]))


def _bed_reader() -> Any:
    try:
        from bed_reader import open_bed
    except ImportError as error:
        raise _missing("bed-reader", ".bed", "install it with: pip install 'dpdpca[genotypes]'") from error
    return open_bed


def _pgen_reader() -> Any:
    try:
        from pgenlib import PgenReader
    except ImportError as error:
        next_step = "install it with: pip install 'dpdpca[genotypes]'"
        if os.name == "nt":
            next_step = "there is none for Windows: make a .bed file with plink2 --make-bed"
        raise _missing("pgenlib", ".pgen", next_step) from error
    return PgenReader


def _missing(package: str, ending: str, next_step: str) -> UsageError:
    return UsageError(
        "missing-package",
        f"a {ending} file needs the Python package {package}, which is not installed",
        next_step,
    )
