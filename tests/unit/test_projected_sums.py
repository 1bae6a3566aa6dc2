"""Sums of sketch, lift and scores against loops over Python's integers; the bounds that the proofs need."""

import json
from hashlib import sha256
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wide_studies as wide
from numpy.typing import NDArray
from present import present
from scripted import SILENCE, STEPS
from study_parties import MakeManifest

from dpdpca_protocol.errors import CryptographicError, PolicyError, UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records import projected_sums, projection, scatter
from dpdpca_protocol.records.block_sums import new_sums
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.pairing import pairs
from dpdpca_protocol.records.projected_sums import ProjectedSums
from dpdpca_protocol.records.projection import LinearRule, Mixtures, projection_of
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import Pads
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.sketch_matrix import SketchMatrix

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "sketch_matrices.json").read_text(encoding="utf-8")
)["operations"]
EITHER = ["records", "pairs"]
COUNT = 41
LIMITS = {
    "as they are": {},
    "few rows at once": {(projected_sums, "_ROWS_AT_ONCE"): 7},
    "small chunks": {(projected_sums, "_CHUNK_VALUES"): 6 * wide.D - 1, (scatter, "_CHUNK_VALUES"): 40},
    "few features at once": {(projection, "_MIXED_AT_ONCE"): 6},
    "few exact rows": {},
}
"""Where records are added up in parts: far beyond what a test adds up, unless they are small."""


def upper(rows: list[list[int]]) -> list[int]:
    """The upper triangle of Σ y yᵀ."""
    k = len(rows[0])
    return [sum(row[i] * row[j] for row in rows) for i in range(k) for j in range(i, k)]


def expected(manifest: Manifest, z: list[list[int]]) -> list[int]:
    """A share from the specification. `z` are the encoded records, or the differences."""
    rows = [wide.plain_cut(row, manifest.figures.record_bound) for row in z]
    made = [wide.plain_projection(manifest, row) for row in rows]
    if manifest.lift is not None:
        lifted = [
            sum(row[i] * each[j] for row, each in zip(rows, made, strict=True))
            for i in range(wide.D)
            for j in range(wide.K)
        ]
        return [len(rows), *lifted, *upper(made)]
    sums = [sum(column) for column in zip(*made, strict=True)] if manifest.sum_weight else []
    return [len(rows), *sums, *upper(made)]


def dense(matrix: SketchMatrix) -> NDArray[np.int64]:
    return matrix.after(np.eye(matrix.row_count, dtype=np.int64))


def own_sums(
    manifest: Manifest, columns: dict[str, Any], exact_rows: int | None = None
) -> tuple[ProjectedSums, list[list[int]]]:
    z = RecordEncoder(manifest).encode(columns).z
    sums = new_sums(manifest.figures, projection_of(manifest, wide.COMPONENTS))
    assert isinstance(sums, ProjectedSums)
    sums._exact_rows = exact_rows or sums._exact_rows
    sums.add(z)
    if not sums.has_pairs:
        return sums, z.tolist()
    ((first, second),) = pairs([z])
    sums.add_pairs(first, second)
    return sums, (first - second).tolist()


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("of", EITHER)
@pytest.mark.parametrize("release", wide.CHAIN)
def test_a_share_is_what_the_specification_says(
    release: str, of: str, limits: str, make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for (module, name), value in LIMITS[limits].items():
        monkeypatch.setattr(module, name, value)
    manifest = wide.CHAIN[release](make_manifest, of)
    sums, rows = own_sums(manifest, wide.records(1, COUNT), 3 if limits == "few exact rows" else None)
    assert sums.values().tolist() == expected(manifest, rows) == list(sums.stream())
    assert len(sums.values()) == manifest.figures.value_count
    bounds = [block.bound for block in manifest.figures.blocks for _ in range(block.length)]
    assert all(abs(value) <= bound for value, bound in zip(sums.stream(), bounds, strict=True))


def test_a_rule_just_below_the_refusal_is_exact(make_manifest: MakeManifest) -> None:
    """The longest record along the longest row of C·P₀. Both offsets are a step away from another number."""
    room = 2**52 - 2**16
    rows = [[(3 * i + 5 * j) % 11 - 5 for j in range(wide.M)] for i in range(wide.K)]
    p0 = wide.plain_sketch_matrix(bytes.fromhex(wide.SEED), wide.D, wide.M)

    def after(rows: list[list[int]]) -> list[list[int]]:
        return [[sum(c * p0[h][i] for h, c in enumerate(row)) for i in range(wide.D)] for row in rows]

    def manifest_of(factor: int, offset: list[int]) -> Manifest:
        matrix = [[factor * c for c in row] for row in rows]
        return wide.lift(make_manifest, lift={"columns": wide.K, "matrix": matrix, "offset": offset})

    bound = wide.lift(make_manifest).figures.record_bound
    longest = max(after(rows), key=lambda row: sum(m * m for m in row))
    factor = isqrt(room**2 // (bound * sum(m * m for m in longest)))
    with pytest.raises(PolicyError, match="2⁵²"):
        manifest_of(factor + 1, [2**16 - 1] * wide.K)
    length = sum(m * m for m in longest) ** 0.5
    z = [int(m / length * bound**0.5) for m in longest]
    products = [sum(factor * m * x for m, x in zip(row, z, strict=True)) for row in after(rows)]
    assert max(map(abs, products)) > 0.999 * 2**52
    for steps in (0, -1):
        offset = [(steps - 2**15 - product) % 2**16 for product in products]
        manifest = manifest_of(factor, offset)
        rule, both = present(projection_of(manifest)), np.array([z, [-x for x in z]], dtype=np.int64)
        wanted = [
            [(sign * product + o + 2**15) >> 16 for product, o in zip(products, offset, strict=True)]
            for sign in (1, -1)
        ]
        assert rule(both).tolist() == wanted
        sums = ProjectedSums(manifest.figures, rule)
        sums.add(both)
        assert sums.values().tolist() == expected(manifest, both.tolist())


@pytest.mark.parametrize("of", EITHER)
@pytest.mark.parametrize("release", wide.CHAIN)
def test_parts_add_up_to_the_whole(release: str, of: str, make_manifest: MakeManifest) -> None:
    manifest = wide.CHAIN[release](make_manifest, of)
    whole, rows = own_sums(manifest, wide.records(2, COUNT))
    parts = [new_sums(manifest.figures, projection_of(manifest, wide.COMPONENTS)) for _ in range(2)]
    z = np.array(rows, dtype=np.int64)
    for part, some in zip(parts, (z[:7], z[7:]), strict=True):
        assert isinstance(part, ProjectedSums)
        for start in range(0, len(some), 5):
            batch = some[start : start + 5]
            if part.has_pairs:
                part.add_pairs(batch, np.zeros_like(batch))
            else:
                part.add(batch)
    parts[0].merge(parts[1])  # type: ignore[arg-type]  # both are of one kind
    assert parts[0].to_bytes() == whole.to_bytes()
    assert isinstance(parts[0], ProjectedSums)
    assert parts[0].cut == whole.cut


@pytest.mark.parametrize("of", EITHER)
@pytest.mark.parametrize("release", wide.CHAIN)
def test_the_reference_releases_the_sums_of_all_owners(
    release: str, of: str, make_manifest: MakeManifest
) -> None:
    manifest = wide.CHAIN[release](make_manifest, of)
    owners = [wide.records(seed, 2 * seed + 3) for seed in (3, 4, 5)]
    if of == "pairs":  # the order in which an owner pairs its records is random
        owners = [{name: values[:2] for name, values in owner.items()} for owner in owners]
    projection = projection_of(manifest, wide.COMPONENTS)
    plain = run_study(manifest, owners, OS_RANDOMNESS, SILENCE, Pads(OS_RANDOMNESS), projection)
    noisy = run_study(manifest, owners, OS_RANDOMNESS, STEPS, Pads(OS_RANDOMNESS), projection)
    each = [own_sums(manifest, owner)[0].values() for owner in owners]
    assert isinstance(plain, dict)
    assert isinstance(noisy, dict)
    flat = [value for block in plain.values() for value in np.atleast_1d(block).tolist()]
    wanted = np.sum(each, axis=0)
    if of == "pairs" and release == "lift":
        flat, wanted = flat[:1], wanted[:1]  # z aᵀ is the same for −z only where rounding is
    assert flat == wanted.tolist()
    drawn = manifest.figures.mechanism.draw(1, STEPS)
    assert len(drawn) == manifest.figures.value_count
    assert drawn[0] == 0
    assert noisy[BlockName.COUNT] == plain[BlockName.COUNT]
    names = [block.name for block in manifest.figures.blocks[1:]]
    assert all(list(noisy[name]) != list(plain[name]) for name in names)


@pytest.mark.parametrize(
    ("seed", "d", "m"), [(bytes(32), 1, 16), (bytes(range(32)), 17, 16), (b"\xff" * 32, 700, 128)]
)
def test_the_sketch_matrix_follows_from_its_seed(seed: bytes, d: int, m: int) -> None:
    matrix = SketchMatrix.of(seed, d, m)
    assert dense(matrix).tolist() == wide.plain_sketch_matrix(seed, d, m)
    assert matrix.features == d
    z = np.arange(3 * d, dtype=np.int64).reshape(3, d) - d
    assert (Mixtures(matrix)(z) == z @ dense(matrix).T).all()
    c = np.arange(2 * m, dtype=np.int64).reshape(2, m)
    assert (matrix.after(c) == c @ dense(matrix)).all()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_vectors_are_what_the_specification_says(vector: dict[str, Any]) -> None:
    """No code of the product is used here; tests/vectors/test_vectors.py holds it against the same file."""
    entries = wide.plain_sketch_entries(bytes.fromhex(vector["seed"]), vector["features"], vector["rows"])
    rows = b"".join(row.to_bytes(2, "big") for each in entries for row, _ in each)
    signs = bytes(sign % 256 for each in entries for _, sign in each)
    assert sha256(rows).hexdigest() == vector["rows_sha256"]
    assert sha256(signs).hexdigest() == vector["signs_sha256"]


def test_no_rule_makes_a_record_longer_than_its_bound(make_manifest: MakeManifest) -> None:
    """A hostile rule wastes the budget, and moves no bound."""
    sharp = wide.lift(
        make_manifest,
        lift={"columns": wide.K, "matrix": [[2**30] * wide.M] * wide.K, "offset": [2**40, -(2**40)]},
    )
    sums, _ = own_sums(sharp, wide.records(6, 1))
    gram = sums.values()[-3:]
    assert 2**19 < gram[0] + gram[2] <= 2**20


def test_components_that_are_no_directions_are_refused(make_manifest: MakeManifest) -> None:
    manifest = wide.scores(make_manifest)
    with pytest.raises(CryptographicError, match="far too long"):
        projection_of(manifest, [[1e30] * wide.D] * wide.K)
    with pytest.raises(UsageError, match="2 components of 20 features"):
        projection_of(manifest, wide.COMPONENTS[:1])
    with pytest.raises(UsageError, match="need its projection"):
        new_sums(manifest.figures)
    own = new_sums(manifest.figures, LinearRule.of_scores(np.array(wide.COMPONENTS), 1))
    with pytest.raises(UsageError, match="int64"):
        own.add(np.zeros((1, 3), dtype=np.int64))
