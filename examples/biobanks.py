"""Three biobanks with PLINK files, and a public panel, made of the people of the 1000 Genomes Project.

The table is an .npz file with `G` (people, sites), how often each person has ALT (0, 1 or 2); `sites`, their
names CHROM:POS:REF:ALT; `superpop` and `superpop_names`, from where each person's ancestors came. A fifth of
the people become the panel, whose frequencies are public: centre a feature at twice its frequency. The others
are dealt to the biobanks. With `--times N`, each person of a biobank stands there N times. That shows what a
study of more people is like, but repeated people are no new people. With `--every N`, only each N-th site is
kept: neighbouring sites vary together. It needs the extra `genotypes`.

Run: python examples/biobanks.py thousand_genomes_2504x23770.npz FOLDER [--times N] [--every N]
"""

import argparse
from pathlib import Path

import numpy as np
from bed_reader import to_bed
from pgenlib import PgenWriter

BIOBANKS = {"north": ".bed", "middle": ".pgen", "south": ".bed"}


def main(table: str, folder: str, times: int = 1, every: int = 1) -> None:
    with np.load(table, allow_pickle=False) as data:
        genotypes, population = data["G"][:, ::every], data["superpop_names"][data["superpop"]]
        sites = data["sites"][::every].astype(str)
    order = np.random.default_rng(20261130).permutation(len(genotypes))
    panel, *biobanks = np.split(order, (np.array([2, 5, 8]) * len(order)) // 10)
    frequency = genotypes[panel].mean(axis=0) / 2
    varies = (frequency > 0) & (
        frequency < 1
    )  # other sites tell nothing, and the panel knows no centre for them
    sites, frequency = sites[varies], frequency[varies]
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    lines = [f"{site},{p:.4f}\n" for site, p in zip(sites, frequency, strict=True)]
    (out / "panel.csv").write_text("site,frequency\n" + "".join(lines))
    for (name, ending), members in zip(BIOBANKS.items(), biobanks, strict=True):
        people = np.tile(members, times)
        write = write_bed if ending == ".bed" else write_pgen
        write(out / f"{name}{ending}", genotypes[np.ix_(people, varies)].astype(np.int8), sites)
        (out / f"{name}-populations.csv").write_text("population\n" + "\n".join(population[people]) + "\n")
        print(f"{name}: {len(people)} people, {len(sites)} sites in {name}{ending}")


def write_bed(path: Path, genotypes: np.ndarray, sites: np.ndarray) -> None:
    """PLINK 1. The first allele of the .bim file is the one that is counted: ALT."""
    chromosomes, positions, refs, alts = zip(*(site.split(":") for site in sites), strict=True)
    properties = {
        "sid": sites,
        "chromosome": chromosomes,
        "bp_position": [int(position) for position in positions],
        "allele_1": alts,
        "allele_2": refs,
    }
    to_bed(path, genotypes, properties=properties)


def write_pgen(path: Path, genotypes: np.ndarray, sites: np.ndarray) -> None:
    """PLINK 2."""
    with PgenWriter(bytes(path), len(genotypes), variant_ct=len(sites), nonref_flags=False) as writer:
        for column in genotypes.T:
            writer.append_biallelic(np.ascontiguousarray(column))
    lines = ["#CHROM\tPOS\tID\tREF\tALT\n"]
    for site in sites:
        chromosome, position, ref, alt = site.split(":")
        lines.append(f"{chromosome}\t{position}\t{site}\t{ref}\t{alt}\n")
    path.with_suffix(".pvar").write_text("".join(lines))
    path.with_suffix(".psam").write_text("#IID\n" + "".join(f"p{i}\n" for i in range(len(genotypes))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("table")
    parser.add_argument("folder")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    main(options.table, options.folder, options.times, options.every)
