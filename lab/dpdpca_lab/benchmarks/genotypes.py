"""What private components of genotypes capture at equal ε: sketch and lift, power iterations, a full matrix.

python -m dpdpca_lab.benchmarks.genotypes TABLE                          all sites, each person forty times
python -m dpdpca_lab.benchmarks.genotypes TABLE --every 4 --times 20     as in docs/tutorial-genotypes.md

TABLE is the .npz file of `examples/biobanks.py`. Repeated people are no new people, so the figures show what
noise does, and not how well some people stand for others. Sketch and lift pay for all their rounds. Rivals
get favours: they pay nothing for their clip norm, and the best of several numbers of steps and columns is
taken, which a real study could not choose.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.benchmarks.played_chains import PROXY, USER
from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.central.power import noisy_iterations
from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.release.ciphers import Unencrypted
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, fit_components
from dpdpca_protocol.terms.feature_list import FeatureLists
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.planning.lint import lint
from dpdpca_user.planning.listed import with_list_if_needed
from dpdpca_user.planning.rehearsal import Rehearsal, play_chain, play_round
from dpdpca_user.results.wide.choice import Budget, full_share

EPSILONS = ("0.3", "1", "3")
_OWNERS = 3
_STEPS, _COLUMNS = (1, 2, 4, 8), (2, 4, 10)
_MATRIX_SITES = 1_000
_OF_ALL_SITES: dict[str, Any] = {
    "release": "sketch",
    "of": "records",
    "rho_share": "0.2",
    "sketch": {"rows": 16, "seed": "00" * 32},
}
"""A release that may have any number of sites. Rivals take the whole ρ of its chain, and its cut records."""
_SHARE = "share of the best ten components' variance"


class Repeated(Unencrypted):
    """Carries the sums of tables in which each record stands several times, without reading it so often."""

    __slots__ = ("times",)

    def __init__(self, times: int) -> None:
        self.times = times

    def encrypt(self, plain: int) -> int:
        return self.times * plain


@dataclass(frozen=True)
class People:
    """Genotypes of people, each of whom counts several times.

    Attributes:
        dosages: (n, d) from 0 to 2; every site varies.
        times: how often each person counts.
    """

    dosages: NDArray[np.uint8]
    times: int

    @classmethod
    def of_file(cls, table: Path, every: int, times: int) -> "People":
        with np.load(table, allow_pickle=False) as data:
            dosages = data["G"][:, ::every]
        varies = (dosages != dosages[0]).any(axis=0)
        return cls(np.ascontiguousarray(dosages[:, varies]), times)

    @property
    def records(self) -> int:
        return len(self.dosages) * self.times

    @cached_property
    def centres(self) -> Floats:
        """2p, in four digits, which stand for public frequencies."""
        return np.asarray(self.dosages.mean(axis=0).round(4))

    @cached_property
    def centred(self) -> NDArray[np.float32]:
        return np.asarray(self.dosages - self.dosages.mean(axis=0), dtype=np.float32)

    @cached_property
    def eigenvalues(self) -> Floats:
        """All variances that are not 0, from the largest on, as sums over people."""
        rows = self.centred
        small = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
        return np.asarray(np.linalg.eigvalsh(small.astype(np.float64))[::-1])

    def share(self, vectors: Floats, k: int = 10) -> float:
        """What these directions hold of the variance of the best k, both about the mean."""
        held = (self.centred @ vectors[:k].T.astype(np.float32)).astype(np.float64)
        return float((held**2).sum() / self.eigenvalues[:k].sum())

    @cached_property
    def usual_norm(self) -> float:
        """The median norm of records about 2p, as a rival would choose it who knows it."""
        squares = ((self.dosages - self.centres) ** 2).sum(axis=1)
        return float(np.sqrt(np.median(squares)).round(3))

    def owners(self) -> list[dict[str, Column]]:
        parts = np.array_split(self.dosages.astype(np.float64), _OWNERS)
        return [{name: part[:, i] for i, name in enumerate(self.names)} for part in parts]

    @cached_property
    def names(self) -> list[str]:
        return [f"site {i}" for i in range(self.dosages.shape[1])]

    def draft(self, epsilon: str, **terms: Any) -> dict[str, Any]:
        """The base of a chain: named owners, and noise by the proxy."""
        features = [
            {"name": name, "lower": 0, "upper": 2, "centre": float(centre)}
            for name, centre in zip(self.names, self.centres, strict=True)
        ]
        return {
            "title": "Genotypes",
            "purpose": "To measure.",
            "participants": "enrolled",
            "noise_by": "proxy",
            "features": features,
            "epsilon": float(epsilon),
            "max_records": self.records,
            "missing": "midpoint",
        } | terms


def complete(draft: Mapping[str, Any]) -> Manifest:
    def listed(each: Mapping[str, Any], lists: FeatureLists) -> Manifest:
        return lint(each, USER, PROXY, datetime(2030, 1, 1, tzinfo=UTC), 3072, feature_lists=lists)

    return with_list_if_needed(draft, listed)


def chain(
    people: People,
    epsilon: str,
    randomness: Randomness = OS_RANDOMNESS,
    noise: Samplers = EXACT,
    **terms: Any,
) -> Rehearsal:
    """A whole chain through the integers and the noise of the product.

    Args:
        people: whose genotypes are the records.
        epsilon: of all rounds together.
        randomness: as for `play_chain`.
        noise: likewise.
        terms: of the draft.

    Raises:
        ConflictError: `nothing-in-the-sketch`.
    """
    base, carried = people.draft(epsilon, **terms), Repeated(people.times)
    return play_chain(base, complete, people.owners(), randomness, noise=noise, cipher=carried)


def by_power(people: People, manifest: Manifest) -> float:
    """The best share of several noisy power iterations, of the same clipped records, with the whole ρ."""
    encoder = RecordEncoder(manifest)
    z = np.concatenate([encoder.encode(part).z for part in people.owners()]).astype(np.float32)
    figures = manifest.figures

    def moved(frame: Floats) -> Floats:
        narrow = frame.astype(np.float32)
        return people.times * (z.T @ (z @ narrow)).astype(np.float64)

    return max(
        people.share(
            noisy_iterations(moved, z.shape[1], figures.record_bound, float(figures.rho_total), k, steps)
        )
        for steps, k in product(_STEPS, _COLUMNS)
    )


def by_matrix(people: People, manifest: Manifest) -> float:
    """The share of a joint study of these sites that spends the whole budget."""
    noisy = play_round(manifest, people.owners(), OS_RANDOMNESS, cipher=Repeated(people.times))
    assert isinstance(noisy, NoisyScatter)
    return people.share(fit_components(noisy, manifest.figures, EncodedSpace.of(manifest)).vectors)


def matrix_by_formula(people: People, manifest: Manifest) -> float:
    """What a full matrix of all sites would capture with the whole ρ, if somebody could send it."""
    shares = people.eigenvalues[:10] / people.eigenvalues.sum()
    rho = float(manifest.figures.rho_total)
    d = people.dosages.shape[1]
    return full_share(shares, Budget(d, people.records, False, rho, rho)) / float(shares.sum())


def chain_lines(people: People, epsilons: Sequence[str], seeds: int) -> Iterator[str]:
    """The rows of a table about all sites."""
    yield f"{people.records:,} records, {people.dosages.shape[1]:,} sites: {_SHARE}"
    yield "| ε | sketch and lift | noisy power iterations | a full matrix, by formula |"
    yield "|---|---|---|---|"
    for epsilon in epsilons:
        found = [_captured(people, epsilon) for _ in range(seeds)]
        manifest = complete(people.draft(epsilon, clip_norm=people.usual_norm, **_OF_ALL_SITES))
        power, formula = by_power(people, manifest), matrix_by_formula(people, manifest)
        yield f"| {epsilon} | {', '.join(found)} | {power:.2f} | {formula:.2f} |"


def matrix_lines(people: People, epsilons: Sequence[str]) -> Iterator[str]:
    """The rows of a table about so few of the sites that a full matrix fits."""
    every = -(-people.dosages.shape[1] // _MATRIX_SITES)
    fewer = People(np.ascontiguousarray(people.dosages[:, ::every]), people.times)
    yield f"{fewer.records:,} records, {fewer.dosages.shape[1]:,} of these sites: {_SHARE}"
    yield "| ε | a full matrix | noisy power iterations |"
    yield "|---|---|---|"
    for epsilon in epsilons:
        manifest = complete(fewer.draft(epsilon, release="joint", clip_norm=fewer.usual_norm))
        matrix, power = by_matrix(fewer, manifest), by_power(fewer, manifest)
        yield f"| {epsilon} | {matrix:.2f} | {power:.2f} |"


def _captured(people: People, epsilon: str) -> str:
    try:
        return f"{people.share(chain(people, epsilon).components.vectors):.2f}"
    except ConflictError as error:
        return error.slug


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("--every", type=int, default=1, help="keep each N-th site")
    parser.add_argument("--times", type=int, default=40, help="how often each person counts")
    parser.add_argument("--epsilon", action="append", help="may be repeated; default: 0.3, 1 and 3")
    parser.add_argument("--seeds", type=int, default=1, help="how many chains for each ε")
    options = parser.parse_args()
    people = People.of_file(options.table, options.every, options.times)
    epsilons = options.epsilon or EPSILONS
    for line in (*matrix_lines(people, epsilons), *chain_lines(people, epsilons, options.seeds)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
