"""The benchmark for many features: its files have the genotypes that it means, and rounds are real."""

import json
from pathlib import Path

import numpy as np
import pytest
import wide_studies as wide
from genotype_files import SITES
from numpy.typing import NDArray
from study_parties import MakeManifest, Parties

from dpdpca_lab.benchmarks import genotype_files, wide_owner
from dpdpca_lab.benchmarks import wide as benchmark
from dpdpca_owner.records.plink import BedSource
from dpdpca_protocol.terms.signed_manifest import sign_manifest

BYTES, MEMORY = 5_000_000, 2**30


def calls_in(path: Path, people: int) -> NDArray[np.float32]:
    source = BedSource(path, (), None, flip=False)
    assert source.records == people
    return np.concatenate(list(source.stored_columns(range(len(source.names)), 3)), axis=1)


def test_an_owner_has_its_part_of_a_table(tmp_path: Path) -> None:
    calls = np.array([[0, 1, 2, 1, 0], [2, 0, 2, 1, 1], [1, 1, 2, 0, 2]], np.uint8)
    np.savez(tmp_path / "table.npz", G=calls, sites=np.array(SITES[:5], dtype="S"))
    made = genotype_files.of_table(tmp_path / "table.npz", tmp_path, repeats=4, owners=2)
    varying = [0, 1, 3, 4]
    assert made.sites == tuple(SITES[i] for i in varying)
    assert made.frequencies.tolist() == pytest.approx([0.5, 1 / 3, 1 / 3, 0.5], abs=1e-4)
    assert calls_in(made.files[0], 6).tolist() == calls[[0, 2, 1, 0, 2, 1]][:, varying].tolist()


def test_made_up_people_have_the_frequencies_of_their_sites(tmp_path: Path) -> None:
    made = genotype_files.made_up(tmp_path, 2, 1_001, 70)
    first, second = (calls_in(path, 1_001) for path in made.files)
    assert not np.array_equal(first, second)
    for calls in (first, second):
        assert set(np.unique(calls)) == {0, 1, 2}
        assert np.abs(calls.mean(axis=0) / 2 - made.frequencies).max() < 0.06


@pytest.mark.parametrize("release", wide.CHAIN)
def test_an_owners_round_ends_with_sealed_chunks(
    tmp_path: Path,
    make_manifest: MakeManifest,
    parties: Parties,
    capsys: pytest.CaptureFixture[str],
    release: str,
) -> None:
    manifest = wide.CHAIN[release](make_manifest)
    (tmp_path / "manifest.json").write_bytes(sign_manifest(manifest, parties.user).encoded)
    np.save(tmp_path / "components.npy", np.array(wide.COMPONENTS))
    records = wide.records(1, 30)
    lines = [",".join(records), *(",".join(map(str, row)) for row in zip(*records.values(), strict=True))]
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
    wide_owner.main(tmp_path, str(tmp_path / "data.csv"))
    facts = json.loads(capsys.readouterr().out)
    assert facts["records"] == 30
    assert facts["bytes"] == (tmp_path / "chunk-0.bin").stat().st_size > 8 * manifest.figures.value_count
    assert facts["peak_memory_bytes"] > 0
    assert (tmp_path / "pad.bin").stat().st_size > 0


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["owner", "made-up", "slope"])
def test_the_benchmark_runs(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main([what, "--quick", "--folder", str(tmp_path)])
    shown = capsys.readouterr().out
    assert all(f"| {release}" in shown for release in ("pre-study", "sketch", "lift", "scores"))
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_an_owners_rounds_keep_their_limits(tmp_path: Path) -> None:
    """Of bytes and memory; docs/performance.md says how long rounds take."""
    made = genotype_files.made_up(tmp_path, 1, benchmark.OWNERS_PEOPLE, benchmark.OWNERS_SITES)
    chain = benchmark.Chain(made, tmp_path, benchmark.STRONG_EPSILON, benchmark.OWNERS_ROWS)
    found = {each.name: each.owners[0] for each in chain.rounds()}
    assert found.keys() == {"pre-study", "sketch", "lift", "scores"}
    for name, facts in found.items():
        assert facts["bytes"] < BYTES, name
        assert facts["peak_memory_bytes"] < MEMORY, name
