"""PLINK files for benchmarks: of a table of genotypes whose people are repeated, or of made-up people.

Made-up people descend from five populations, so that a few components stand out. Nothing in these files is
secret: the bytes come from a stream with a public seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.records.pairing import KeyStream

Calls = NDArray[np.uint8]
"""(people,) how often each person has ALT at a site: 0, 1 or 2."""

_MAGIC: Final = b"\x6c\x1b\x01"
_BITS: Final = np.array([0b11, 0b10, 0b00], dtype=np.uint8)
"""Two bits for each number of ALT, which is the first allele of the .bim file."""
_POPULATIONS = 5
_SPREAD = 0.12
"""How far the frequencies of a population usually are from those of all."""
_STEPS = 256
_SITES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Genotypes:
    """People at sites, who can be written to files without being in memory all at once.

    Attributes:
        sites: CHROM:POS:REF:ALT of each.
        frequencies: (sites,) of ALT among all people, to four digits: what a public panel would say.
        people: how many records an owner has.
        files: the .bed file of each owner.
    """

    sites: tuple[str, ...]
    frequencies: NDArray[np.float64]
    people: int
    files: tuple[Path, ...]


def of_table(table: Path, folder: Path, repeats: int, owners: int) -> Genotypes:
    """What the first of some owners has of the people of a table, each of whom is there `repeats` times.

    People are dealt to the owners in turn. Sites that do not vary are left out.

    Args:
        table: an .npz file with `G`, (people, sites) numbers of ALT, and `sites`, as in examples/biobanks.py.
    """
    with np.load(table, allow_pickle=False) as data:
        calls, names = data["G"], data["sites"].astype(str)
    frequencies = calls.mean(axis=0) / 2
    varies = (frequencies > 0) & (frequencies < 1)
    calls, sites = np.ascontiguousarray(calls[:, varies].T), tuple(names[varies].tolist())
    people = -(-len(calls[0]) * repeats // owners)
    chosen = owners * np.arange(people) % len(calls[0])
    path = _write(folder / "owner-0.bed", sites, people, (site[chosen] for site in calls))
    return Genotypes(sites, np.round(frequencies[varies], 4), people, (path,))


def made_up(folder: Path, owners: int, people: int, count: int) -> Genotypes:
    """So many people of each owner at `count` made-up sites."""
    stream = KeyStream(bytes(32))
    uniform = stream.take(2 * count * (_POPULATIONS + 1)).view("<u2").reshape(-1, count) / 65536
    common = 0.05 + 0.9 * uniform[0]
    of_population = np.clip(common + _SPREAD * (2 * uniform[1:] - 1), 0.01, 0.99)
    sites = tuple(f"{1 + i % 22}:{1000 + 100 * i}:A:G" for i in range(count))
    files = tuple(
        _write(folder / f"owner-{owner}.bed", sites, people, _drawn(of_population, people, stream))
        for owner in range(owners)
    )
    return Genotypes(sites, np.round(of_population.mean(axis=0), 4), people, files)


def features_of(genotypes: Genotypes) -> list[dict[str, object]]:
    """The features of a draft: dosages around twice the frequencies."""
    return [
        {"name": site, "lower": 0, "upper": 2, "centre": f"{2 * round(1e4 * p) / 1e4:.4f}"}
        for site, p in zip(genotypes.sites, genotypes.frequencies.tolist(), strict=True)
    ]


def _drawn(frequencies: NDArray[np.float64], people: int, stream: KeyStream) -> Iterator[Calls]:
    """The calls of people of all populations in equal parts, site by site: both alleles are drawn."""
    parts = np.array_split(np.arange(people), len(frequencies))
    for start in range(0, frequencies.shape[1], _SITES_AT_ONCE):
        some = frequencies[:, start : start + _SITES_AT_ONCE]
        drawn = stream.take(some.shape[1] * people).reshape(-1, people)
        for place, bytes_ in enumerate(drawn):
            calls = np.empty(people, dtype=np.uint8)
            for part, p in zip(parts, some[:, place], strict=True):
                calls[part[0] : part[-1] + 1] = _numbers(p)[bytes_[part[0] : part[-1] + 1]]
            yield calls


def _numbers(frequency: float) -> NDArray[np.uint8]:
    """(256,) the number of ALT for each byte, in Hardy–Weinberg proportions."""
    both = _STEPS * frequency**2
    one = both + _STEPS * 2 * frequency * (1 - frequency)
    places = np.arange(_STEPS)
    return np.where(places < both, 2, np.where(places < one, 1, 0)).astype(np.uint8)


def _write(path: Path, sites: Sequence[str], people: int, columns: Iterator[Calls]) -> Path:
    with path.open("wb") as file:
        file.write(_MAGIC)
        padded = np.zeros(4 * -(-people // 4), dtype=np.uint8)
        for calls in columns:
            padded[:people] = _BITS[calls]
            first, second, third, fourth = (padded[place::4] << (2 * place) for place in range(4))
            file.write((first | second | third | fourth).tobytes())
    parts = (site.split(":") for site in sites)
    path.with_suffix(".bim").write_text(
        "".join(f"{c}\t.\t0\t{pos}\t{alt}\t{ref}\n" for c, pos, ref, alt in parts)
    )
    path.with_suffix(".fam").write_text("".join(f"f{i} i{i} 0 0 0 -9\n" for i in range(people)))
    return path
