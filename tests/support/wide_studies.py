"""Small chains for many features: a sketch, a lift and scores of the same 20 features."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from reference_data import Seeded
from study_parties import MakeManifest

from dpdpca_protocol.terms.manifest import Manifest

D, M, K = 20, 16, 2
SEED = bytes(range(32)).hex()
TERMS: dict[str, Any] = {
    "features": [{"name": f"x{i}", "lower": -1, "upper": 1} for i in range(D)],
    "clip_norm": "2",
    "fraction_bits": 11,
    "max_records": 1000,
    "epsilon": "8",
}
MATRIX = [[((7 * i + 5 * j) % 13 - 6) * 2**10 for j in range(M)] for i in range(K)]
OFFSET = [3 * 2**14, -(2**15)]
COMPONENTS = [[(-1) ** (i * j) / 8 + j / 64 for j in range(D)] for i in range(K)]


def sketch(make_manifest: MakeManifest, of: str = "records", **changes: Any) -> Manifest:
    """A sketch, the first round."""
    return make_manifest(
        **TERMS
        | {"release": "sketch", "of": of, "rho_share": "0.2", "sketch": {"rows": M, "seed": SEED}}
        | changes
    )


def lift(make_manifest: MakeManifest, of: str = "records", **changes: Any) -> Manifest:
    """A lift after that sketch."""
    before = sketch(make_manifest, of)
    offset = OFFSET if of == "records" else [0] * K
    return make_manifest(
        **TERMS
        | {
            "release": "lift",
            "of": of,
            "rho_share": "0.7",
            "pre_studies": [before.study_id.hex()],
            "sketch": {"rows": M, "seed": SEED},
            "lift": {"columns": K, "matrix": MATRIX, "offset": offset},
        }
        | changes
    )


def scores(make_manifest: MakeManifest, of: str = "records", **changes: Any) -> Manifest:
    """Scores on the components of that lift."""
    before = [sketch(make_manifest, of).study_id.hex(), lift(make_manifest, of).study_id.hex()]
    return make_manifest(
        **TERMS
        | {
            "release": "scores",
            "of": of,
            "rho_share": "0.1",
            "pre_studies": before,
            "scores": {"columns": K, "study": before[1], "components": "ab" * 32, "norm": "1.5"},
        }
        | changes
    )


CHAIN = {"sketch": sketch, "lift": lift, "scores": scores}


def records(seed: int, count: int) -> dict[str, list[float]]:
    """Values that the grid represents exactly. Many records are longer than the clip norm."""
    source = Seeded(seed)
    return {f"x{i}": [source.below(257) / 128 - 1 for _ in range(count)] for i in range(D)}


def plain_sketch_entries(seed: bytes, d: int, m: int) -> list[list[tuple[int, int]]]:
    """P₀ from the specification alone: the row and the sign of the two entries of each column."""
    import hashlib

    tag = b"dpdpca/sketch/v1" + b"\x00"
    stream = hashlib.shake_256(tag + seed + d.to_bytes(4, "big") + m.to_bytes(4, "big")).digest(4 * d)
    drawn = [int.from_bytes(stream[2 * i : 2 * i + 2], "big") for i in range(2 * d)]
    return [
        [
            (h * m // 2 + (x // 2 * (m // 2)) // 2**15, 1 if x % 2 else -1)
            for h, x in enumerate(drawn[2 * i : 2 * i + 2])
        ]
        for i in range(d)
    ]


def plain_sketch_matrix(seed: bytes, d: int, m: int) -> list[list[int]]:
    """P₀ as m rows of d integers."""
    matrix = [[0] * d for _ in range(m)]
    for i, entries in enumerate(plain_sketch_entries(seed, d, m)):
        for row, sign in entries:
            matrix[row][i] += sign
    return matrix


def plain_cut(y: Sequence[int], bound: int) -> list[int]:
    """A vector of integers cut to Σ y² ≤ bound, from the specification."""
    from math import sqrt

    square = sum(each * each for each in y)
    if square <= bound:
        return list(y)
    factor = (sqrt(bound) - sqrt(len(y)) / 2) / sqrt(square)
    for to_integer in (lambda x: round(x), int):
        cut = [to_integer(factor * each) for each in y]
        if sum(each * each for each in cut) <= bound:
            return cut
    return [0] * len(y)


def plain_projection(manifest: Manifest, z: Sequence[int]) -> list[int]:
    """What the public rule of a wide study makes of one record, cut to its bound, from the specification."""
    d = len(z)
    if manifest.scores is not None:
        q = [[round(Fraction(v) * 2**14) for v in row] for row in COMPONENTS]
        y = [(sum(q[j][i] * z[i] for i in range(d)) + 2**13) // 2**14 for j in range(K)]
        return plain_cut(y, int((manifest.scores.norm * 2**manifest.fraction_bits) ** 2))
    assert manifest.sketch is not None
    p0 = plain_sketch_matrix(manifest.sketch.seed, d, manifest.sketch.rows)
    y = [sum(row[i] * z[i] for i in range(d)) for row in p0]
    if manifest.lift is None:
        return plain_cut(y, 2 * manifest.figures.record_bound)
    u = [
        sum(c * each for c, each in zip(row, y, strict=True)) + o
        for row, o in zip(manifest.lift.matrix, manifest.lift.offset, strict=True)
    ]
    return plain_cut([(each + 2**15) // 2**16 for each in u], 2**20)
