"""Measures a whole chain for many features, round by round, with the code of every role.

python -m dpdpca_lab.benchmarks.wide owner              one owner: 22,684 sites of 33,387 made-up people
python -m dpdpca_lab.benchmarks.wide owner TABLE        a third of the people of a table, 40 times each
python -m dpdpca_lab.benchmarks.wide made-up            three owners: 100,000 sites of 99,999 made-up people
python -m dpdpca_lab.benchmarks.wide slope              one owner's cost from 5,000 to 100,000 sites

Each owner's round runs in a process of its own, from the .bed file to the sealed chunks. The proxy's and the
data user's steps run in this process. What is left out: HTTP, signatures, and what asks a person. `--quick`
measures almost nothing, and shows that all of it runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dpdpca_lab.benchmarks import genotype_files
from dpdpca_lab.benchmarks.genotype_files import Genotypes, features_of
from dpdpca_lab.benchmarks.measure import Peak
from dpdpca_lab.benchmarks.wide_owner import VERSION
from dpdpca_protocol.layout.blocks import cut_blocks
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.release import flat_scatter
from dpdpca_protocol.release.suite import Cohort, CohortShare
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.terms.feature_list import FeatureLists, encode_features
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import PadsKeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.terms.signed_manifest import SignedManifest, sign_manifest
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.sealing import chunk_info, open_sealed
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.store.files import FolderStore, chunk_name, product_name
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_proxy.worker import draw, make_release, multiply_chunks
from dpdpca_runtime.workers import WorkerThreads, core_count
from dpdpca_user.planning.draft import complete_draft
from dpdpca_user.planning.listed import with_list_if_needed
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.rounds import begin_chain, chosen_round, encoded_features, round_draft
from dpdpca_user.planning.wide_chain import PublishedLift, scores_round
from dpdpca_user.results.second_noise import own_samplers, with_second_draw
from dpdpca_user.results.wide.fitted import FittedLift, fit_lift, fit_scores

OWNERS = 3
REPEATS = 40
SITES = 100_000
PEOPLE = 33_333
OWNERS_SITES, OWNERS_PEOPLE, OWNERS_ROWS = 22_684, 33_387, 656
QUICK_SIZES, QUICK_PEOPLE = (5_100, 5_300), 2_000
"""Up to 5,000 sites, a chain may end with a full matrix instead of a lift."""
EPSILON, STRONG_EPSILON = 1, 30
DELTA = "0.000001"
SLOPE_SITES, SLOPE_PEOPLE = (5_000, 10_000, 20_000, 50_000, 100_000), 20_000
HEAD = (
    "| round | values | owner: seconds | CPU seconds | kernels a value | MB sent | peak MiB |"
    " proxy: sums | noise | release | data user: manifest | opening | reading |\n|" + "---|" * 13
)


@dataclass
class Seconds:
    """Wall time of named steps."""

    taken: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.taken[name] = time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Round:
    """What a round took.

    Attributes:
        name: the release.
        owners: what each owner's process said.
        seconds: of the steps of proxy and data user.
        values: in a share.
    """

    name: str
    owners: tuple[Mapping[str, float], ...]
    seconds: Mapping[str, float]
    values: int

    def line(self, features: int) -> str:
        """A row of the table: the slowest owner, and the steps of the others."""
        slowest = max(self.owners, key=lambda facts: facts["cpu_seconds"])
        a_value = 1e9 * slowest["cpu_seconds"] / (slowest["records"] * features)
        steps = ("sums", "noise", "release", "manifest", "opening", "reading")
        cells = [
            self.name,
            f"{self.values:,}",
            f"{slowest['seconds']:.1f}",
            f"{slowest['cpu_seconds']:.1f}",
            f"{a_value / slowest['kernel_nanoseconds']:.1f}",
            f"{slowest['bytes'] / 1e6:.2f}",
            f"{max(facts['peak_memory_bytes'] for facts in self.owners) / 2**20:.0f}",
            *(f"{self.seconds[step]:.2f}" for step in steps),
        ]
        return f"| {' | '.join(cells)} |"


class Chain:
    """A chain over genotypes, with new keys of all parties."""

    def __init__(self, genotypes: Genotypes, folder: Path, epsilon: int, rows: int | None = None) -> None:
        self._genotypes, self._folder = genotypes, folder
        self._user, self._proxy = IdentityKey.generate("user"), IdentityKey.generate("proxy")
        self._owners = [PartyId.of(str(path).encode()) for path in genotypes.files]
        self._participants = [
            Participant(f"Biobank {number}", IdentityKey.generate().public.ed25519)
            for number, _ in enumerate(genotypes.files)
        ]
        self._base: dict[str, Any] = {
            "title": "Benchmark",
            "purpose": "To measure.",
            "participants": "enrolled",
            "features": features_of(genotypes),
            "epsilon": epsilon,
            "delta": DELTA,
            "max_records": self.records,
            "min_owners": len(genotypes.files),
        }
        if rows is not None:
            self._base["sketch"] = {"rows": rows}
        self._results: list[PreStudyResult] = []
        self._lift: FittedLift | None = None

    @property
    def records(self) -> int:
        return self._genotypes.people * len(self._genotypes.files)

    def rounds(self) -> Iterator[Round]:
        """Runs the chain from its first round to its last, and says what each took."""
        seconds = Seconds()
        with seconds.of("manifest"):
            chosen = begin_chain(
                self._base,
                lambda draft: self._complete(draft, PadsSecret.generate(OS_RANDOMNESS))[0],
                self.records,
                False,
            )
        while True:
            before = seconds.taken.get("manifest", 0.0)
            secret = PadsSecret.generate(OS_RANDOMNESS)
            with seconds.of("manifest"):
                manifest, features = self._complete(round_draft(self._base, chosen), secret)
                statement = sign_manifest(manifest, self._user)
            seconds.taken["manifest"] += before
            signed = SignedManifest(manifest, statement, StudyId(statement.digest))
            place = self._folder / str(chosen.release)
            owners = tuple(
                self._contribute(signed, features, place / str(n), n) for n in range(len(self._owners))
            )
            released, cohort = self._release(signed, place, seconds)
            result = self._read(signed, secret, released, cohort, seconds)
            yield Round(str(chosen.release), owners, seconds.taken, manifest.figures.value_count)
            seconds = Seconds()
            with seconds.of("manifest"):
                if isinstance(result, PreStudyResult):
                    self._results.append(result)
                    chosen = chosen_round(self._base, self._results, OS_RANDOMNESS)
                elif chosen.is_followed:
                    self._lift = result
                    components = Digest.of(encode_components(manifest.study_id, result.components))
                    lift = PublishedLift(manifest.study_id, manifest.rho_share, manifest.columns, components)
                    chosen = scores_round(self._results, encoded_features(self._base), lift)
                else:
                    self._lift = result
                    return

    def captured(self) -> str:
        """The estimate of the last round."""
        assert self._lift is not None
        shown = self._lift.components
        share = shown.captured / shown.total_variance
        return ", ".join(f"{each:.4f}" for each in share)

    def _complete(self, draft: Mapping[str, Any], secret: PadsSecret) -> tuple[Manifest, bytes | None]:
        user, proxy = self._user.public, self._proxy.public

        def complete(draft: Mapping[str, Any], lists: FeatureLists) -> Manifest:
            return complete_draft(
                draft,
                Party("User", user.ed25519),
                ProxyParty("Proxy", "http://127.0.0.1:1", proxy.ed25519, proxy.sealing_key),
                self._participants,
                PadsKeyTerms(secret.public),
                closes_at=datetime(2030, 1, 1, tzinfo=UTC),
                feature_lists=lists,
            )

        manifest = with_list_if_needed(draft, complete)
        return manifest, encode_features(manifest.features) if manifest.feature_list else None

    def _contribute(
        self, signed: SignedManifest, features: bytes | None, folder: Path, owner: int
    ) -> Mapping[str, float]:
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_bytes(signed.statement.encoded)
        if features is not None:
            (folder / "features.json").write_bytes(features)
        if signed.manifest.scores is not None:
            assert self._lift is not None
            np.save(folder / "components.npy", self._lift.components.vectors)
        return run_owner(folder, self._genotypes.files[owner])

    def _release(self, signed: SignedManifest, place: Path, seconds: Seconds) -> tuple[list[bytes], Cohort]:
        """The chunks of the release, made of the owners' sealed chunks."""
        figures, suite = signed.manifest.figures, signed.suite
        files = StudyFiles(FolderStore(place / "proxy"), signed.study_id, suite, OS_RANDOMNESS.bytes(32))
        wanted: list[tuple[int, list[str]]] = [(index, []) for index in range(suite.chunk_count)]
        shares = []
        with seconds.of("sums"):
            for number, owner in enumerate(self._owners):
                folder = place / str(number)
                shares.append(CohortShare(owner, VERSION, (folder / "pad.bin").read_bytes()))
                for index, names in wanted:
                    info = chunk_info(signed.study_id, owner, VERSION, index)
                    chunk = open_sealed(
                        (folder / f"chunk-{index}.bin").read_bytes(), self._proxy.opening_key, info
                    )
                    names.append(chunk_name(signed.study_id, owner, VERSION, index, Digest.of(chunk)))
                    files.write(names[-1], chunk)
            digests = multiply_chunks(files, wanted)
            products = [product_name(signed.study_id, index, digest) for index, digest in enumerate(digests)]
        with seconds.of("noise"):
            token = draw(files, figures, None)
        with seconds.of("release"):
            folder_of, released = make_release(files, figures, None, products, token)
        chunks = [
            files.store.read(f"{signed.study_id.hex()}/release-{folder_of}/{index}")
            for index in range(len(released))
        ]
        return chunks, Cohort(tuple(shares), Digest.of(b"cohort"))

    def _read(
        self,
        signed: SignedManifest,
        secret: PadsSecret,
        chunks: Sequence[bytes],
        cohort: Cohort,
        seconds: Seconds,
    ) -> PreStudyResult | FittedLift:
        """What the data user reads in a release."""
        manifest, figures, owners = signed.manifest, signed.manifest.figures, len(cohort.shares)
        with seconds.of("opening"), WorkerThreads(core_count()) as threads:
            key = secret.to_bytes()
            released = cut_blocks(figures.blocks, signed.suite.open_sum(key, chunks, cohort.shares, threads))
            own = own_samplers(signed.suite.noise_secret(key, cohort), chunks)
            noised, _ = with_second_draw(released, figures, own)
        with seconds.of("reading"):
            if not manifest.release.has_components:
                return PreStudyResult.of(manifest, noised, owners)
            sketch = self._results[-1].sketch
            assert sketch is not None
            if manifest.scores is None:
                return fit_lift(released, manifest, figures, sketch.reading, owners, OS_RANDOMNESS)
            assert self._lift is not None
            noisy, lift = flat_scatter(released, manifest.columns), self._lift.reading
            return fit_scores(noisy, manifest, figures, sketch.reading, lift, owners, OS_RANDOMNESS)


def run_owner(folder: Path, data: Path) -> Mapping[str, float]:
    """One owner's round in a process of its own, and what it says."""
    command = [sys.executable, "-m", "dpdpca_lab.benchmarks.wide_owner", str(folder), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    facts: Mapping[str, float] = json.loads(done.stdout)
    return facts


def show_chain(genotypes: Genotypes, folder: Path, epsilon: int, rows: int | None = None) -> None:
    """Print a row for each round of a chain."""
    features, chain, peak = len(genotypes.sites), Chain(genotypes, folder, epsilon, rows), Peak()
    print(f"{chain.records:,} records, {features:,} sites, {len(genotypes.files)} owners\n\n{HEAD}")
    began = time.perf_counter()
    with peak.watching():
        for each in chain.rounds():
            print(each.line(features), flush=True)
    print(f"\nall rounds: {time.perf_counter() - began:.0f} s, at most {peak.bytes / 2**20:.0f} MiB")
    print(f"shares of the variance: {chain.captured()}\n")


def show_slope(folder: Path, sizes: Sequence[int], people: int) -> None:
    """Print an owner's cost for each number of sites, and the slope of each round in its logarithm."""
    found: dict[str, list[float]] = {}
    for size in sizes:
        place = folder / str(size)
        place.mkdir()
        genotypes = genotype_files.made_up(place, 1, people, size)
        for each in Chain(genotypes, place, STRONG_EPSILON).rounds():
            found.setdefault(each.name, []).append(each.owners[0]["cpu_seconds"])
    print(f"| sites ({people:,} records) | {' | '.join(f'{size:,}' for size in sizes)} | slope |")
    print("|" + "---|" * (len(sizes) + 2))
    found["all rounds"] = np.sum([*found.values()], axis=0).tolist()
    for name, seconds in found.items():
        slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
        print(f"| {name}: CPU seconds | {' | '.join(f'{each:.2f}' for each in seconds)} | {slope:.2f} |")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("owner", "made-up", "slope"))
    parser.add_argument("table", nargs="?", type=Path, help="of real genotypes, for `owner`")
    parser.add_argument("--folder", type=Path, help="for the files, which are deleted")
    parser.add_argument("--sites", type=int, default=SITES)
    parser.add_argument("--people", type=int, default=PEOPLE, help="of each owner")
    parser.add_argument("--epsilon", type=int, default=EPSILON, help="of a chain of three owners")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        if options.what == "slope":
            sizes, people = (QUICK_SIZES, QUICK_PEOPLE) if options.quick else (SLOPE_SITES, SLOPE_PEOPLE)
            show_slope(folder, sizes, people)
        elif options.what == "owner" and options.table is not None:
            genotypes = genotype_files.of_table(options.table, folder, REPEATS, OWNERS)
            show_chain(genotypes, folder, STRONG_EPSILON, OWNERS_ROWS)
        elif options.what == "owner":
            people = QUICK_PEOPLE if options.quick else OWNERS_PEOPLE
            genotypes = genotype_files.made_up(
                folder, 1, people, QUICK_SIZES[0] if options.quick else OWNERS_SITES
            )
            show_chain(genotypes, folder, STRONG_EPSILON, None if options.quick else OWNERS_ROWS)
        elif options.quick:
            genotypes = genotype_files.made_up(folder, OWNERS, QUICK_PEOPLE, QUICK_SIZES[0])
            show_chain(genotypes, folder, STRONG_EPSILON)
        else:
            genotypes = genotype_files.made_up(folder, OWNERS, options.people, options.sites)
            show_chain(genotypes, folder, options.epsilon)


if __name__ == "__main__":
    main()
